"""Records of GroupKeep objects and of their groups, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class DueReason(StrEnum):
    """What a group was marked for: the condition of the policy, or the request of a user."""

    UNCHANGED = "Unchanged"
    IDLE = "Idle"
    STALE_OFFSETS = "StaleOffsets"
    REQUESTED = "Requested"


@dataclass(frozen=True, slots=True)
class GroupKeep:
    """A GroupKeep object. until: when it ends; None = when it is deleted. granted: whether it may keep a group.

    restorable: whether its namespace may restore a group.
    """

    namespace: str
    name: str
    uid: str
    groups: tuple[str, ...]
    reason: str
    until: datetime | None
    granted: Callable[[str], bool] = lambda _: True
    restorable: Callable[[str], bool] = lambda _: True

    @property
    def source(self) -> str:
        """Of its requests in the ledger, see `KeepRequest.source`."""
        return f"{self.namespace}/{self.name}/{self.uid}"


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """A group of a GroupKeep. reason, message: why it is not protected, or a note; "" = there is none.

    state: in Kafka; "" = there is no such group, None = not read. until: of its request; None = it has none. due: of
    the first mark of any policy. due_reason: what that marks the group for. policy: its name, if it is of the object's
    namespace. unchanged_since: see `Seen.since`; None = not known. idle_since: see `Activity.idle_since`; None = not
    known. client: one of its members now, else the last that a scan or the tables noted, in words; "" = not known.
    remedy: what helps, a sentence; "" = nothing more than `message` says.
    """

    group: str
    protected: bool
    reason: str = ""
    message: str = ""
    state: str | None = None
    until: datetime | None = None
    due: datetime | None = None
    due_reason: DueReason | None = None
    policy: str = ""
    unchanged_since: datetime | None = None
    idle_since: datetime | None = None
    client: str = ""
    remedy: str = ""
