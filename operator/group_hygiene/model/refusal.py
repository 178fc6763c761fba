"""Why an action is not done, for statuses, Events, metrics and the command line. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from group_hygiene.errors import HygieneError


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a group is not deleted, a run or restore does not proceed, or a message is not delivered.

    reason: a constant of `reasons`, part of the interface. message: for people; says what to do, if possible.

    An error of a broker is a `groups.Fault`. Its code is Kafka's name of one of more than a hundred errors, and the
    reason for it depends on the request: GROUP_ID_NOT_FOUND is Gone right before a deletion, and Deleted after a
    DeleteGroups request without an answer. With two types, mypy finds each place where a code of Kafka would reach a
    status as if it were a documented reason.
    """

    reason: str
    message: str

    @classmethod
    def of(cls, error: HygieneError) -> Refusal:
        return cls(error.reason, str(error))
