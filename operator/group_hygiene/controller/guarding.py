"""Whether a run may still change something, asked right before each change (see reconcile.Guard). Reads only."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from group_hygiene import reasons
from group_hygiene.controller.api import KINDS, Api, Object
from group_hygiene.errors import ApiError
from group_hygiene.model import Keep


class Leadership(Protocol):
    """For how long this process surely leads."""

    def seconds_left(self) -> float: ...


@dataclass(frozen=True)
class Guard:
    """Of one run of a policy, or one restore. stopping: the process must end.

    objects: plural and object, as they were when it began: the connection's, and whose wish it is.
    """

    api: Api
    leadership: Leadership
    stopping: threading.Event
    objects: tuple[tuple[str, Object], ...]

    def refusal(self) -> Keep | None:
        """Read the objects again: an edit, a deletion or a stop of the operator ends the run."""
        if self.stopping.is_set():
            return Keep(reasons.STOPPING, "the operator is stopping")
        for plural, before in self.objects:
            name = before["metadata"]["name"]
            try:
                obj = self.api.get(plural, before["metadata"]["namespace"], name)
            except ApiError as error:
                return Keep(reasons.POLICY_CHANGED, f"{KINDS[plural]} {name} could not be read again: {error}")
            if _version(obj) != _version(before) or obj["metadata"].get("deletionTimestamp"):
                return Keep(reasons.POLICY_CHANGED, f"{KINDS[plural]} {name} was edited or deleted during the run")
        return None

    def seconds_left(self) -> float:
        return self.leadership.seconds_left()


def _version(obj: Object) -> tuple[str, int]:
    return obj["metadata"]["uid"], int(obj["metadata"].get("generation") or 0)
