"""Parses the owners of groups, `owners` and `keepLink` of a `KafkaConnection`. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from group_hygiene.spec.fields import Decisive
from group_hygiene.spec.patterns import TenantPatterns

# The name of an owner that is the namespace in the group's id.
_EACH = "{namespace}"


class GroupOwner(Decisive, frozen=True, kw_only=True):
    """One entry of `owners`. receiver: its name, for messages about only this owner's groups; None = no messages.

    name: `{namespace}` = each namespace that `{namespace}` in `groups` stands for is the owner of its groups.
    """

    name: str
    groups: TenantPatterns
    receiver: str | None = None


class Owners:
    """The owners of a connection. The first entry with a pattern that matches a group is the group's owner."""

    __slots__ = ("_all", "entries")

    def __init__(self, entries: Sequence[GroupOwner] = ()) -> None:
        self.entries = tuple(entries)
        # Most groups of a large cluster may have no owner: one check of all patterns shows that.
        self._all = TenantPatterns([pattern for owner in entries for pattern in owner.groups.sources])

    def of(self, group: str) -> str:
        """The name of the group's owner; "" = it has none."""
        if not self._all.matches(group):
            return ""
        owner = next(owner for owner in self.entries if owner.groups.matches(group))
        return owner.groups.namespace_of(group) if owner.name == _EACH else owner.name

    @property
    def notified(self) -> list[GroupOwner]:
        """The owners with a receiver."""
        return [owner for owner in self.entries if owner.receiver is not None]


NO_OWNERS = Owners()
