"""The pipeline's tables of one connection, opened with what its Secret says now."""

from __future__ import annotations

from functools import partial

from group_hygiene import reasons
from group_hygiene.activity import Tables, refused
from group_hygiene.connection import Connection
from group_hygiene.controller.api import Api
from group_hygiene.errors import SecretProblem
from group_hygiene.model import Fault
from group_hygiene.storage import Allowed


class Source:
    """Opens the tables, and keeps them open while nothing about them changes."""

    def __init__(self, api: Api, allowed: Allowed) -> None:
        self._api = api
        self._allowed = allowed
        self._tables: Tables | None = None

    def tables(self, connection: Connection) -> Tables | Fault | None:
        """The connection's tables; None = it names none, a Fault = they can't be asked.

        A Secret that can't be read is a matter of the policies that ask for evidence, and of no others.
        """
        spec = connection.activity
        if spec is None:
            return None
        fault = refused(spec, connection.namespace, self._allowed)
        if fault is not None:
            return fault
        try:
            store = spec.store(partial(self._api.read_secret_texts, connection.namespace))
        except SecretProblem as error:
            return Fault(reasons.EVIDENCE_UNREADABLE, str(error))
        if self._tables is None or not self._tables.same(spec, store):
            self._tables = Tables(spec, store, self._allowed.egress, connection.namespace)
        return self._tables
