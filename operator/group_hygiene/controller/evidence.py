"""The pipeline's tables of one connection, opened with what its Secret says now."""

from __future__ import annotations

from functools import partial

from group_hygiene.controller.api import Api
from group_hygiene.errors import SecretProblem
from group_hygiene.evidence.reader import Tables, refused
from group_hygiene.model import reasons
from group_hygiene.model.refusal import Refusal
from group_hygiene.spec.connection import Connection
from group_hygiene.spec.storage import Allowed


class Source:
    """Opens the tables, and keeps them open while nothing about them changes."""

    def __init__(self, api: Api, allowed: Allowed) -> None:
        self._api = api
        self._allowed = allowed
        self._tables: Tables | None = None

    def tables(self, connection: Connection) -> Tables | Refusal | None:
        """The connection's tables; None = it names none, a Refusal = they can't be asked.

        A Secret that can't be read is a matter of the policies that ask for evidence, and of no others.
        """
        spec = connection.activity
        if spec is None:
            return None
        why = refused(spec, connection.namespace, self._allowed)
        if why is not None:
            return why
        try:
            store = spec.store(partial(self._api.read_secret_texts, connection.namespace))
        except SecretProblem as error:
            return Refusal(reasons.EVIDENCE_UNREADABLE, str(error))
        if self._tables is None or not self._tables.same(spec, store):
            self._tables = Tables(spec, store, self._allowed.egress, connection.namespace)
        return self._tables
