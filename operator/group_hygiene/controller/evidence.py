"""The pipeline's tables of one connection, opened with what its Secret says now."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from group_hygiene import reasons
from group_hygiene.activity import Tables, refused
from group_hygiene.connection import Connection
from group_hygiene.controller.api import Api
from group_hygiene.errors import SecretProblem
from group_hygiene.model import Fault


class Source:
    """Opens the tables, and keeps them open while nothing about them changes."""

    def __init__(self, api: Api, local: Sequence[Path]) -> None:
        """local: the folders of this machine in which tables may be."""
        self._api = api
        self._local = local
        self._tables: Tables | None = None

    def tables(self, connection: Connection) -> Tables | Fault | None:
        """The connection's tables; None = it names none, a Fault = they can't be asked.

        A Secret that can't be read is a matter of the policies that ask for evidence, and of no others.
        """
        spec = connection.activity
        if spec is None:
            return None
        fault = refused(spec, self._local)
        if fault is not None:
            return fault
        try:
            options = spec.options(partial(self._api.read_secret_texts, connection.namespace))
        except SecretProblem as error:
            return Fault(reasons.EVIDENCE_UNREADABLE, str(error))
        if self._tables is None or not self._tables.same(spec, options):
            self._tables = Tables(spec, options)
        return self._tables
