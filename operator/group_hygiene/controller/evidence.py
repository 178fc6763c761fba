"""Opens the pipeline's tables of one connection with the current content of its Secret."""

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
    """Opens the tables, and opens them again only after a change of the spec or the Secret."""

    def __init__(self, api: Api, allowed: Allowed) -> None:
        self._api = api
        self._allowed = allowed
        self._tables: Tables | None = None

    def tables(self, connection: Connection) -> Tables | Refusal | None:
        """The connection's tables; None = it names none, a Refusal = they can't be read.

        A Secret that can't be read concerns only the policies that need evidence from the tables.
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
