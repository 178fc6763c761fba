"""Parses the owners of groups, `owners` and `keepLink` of a `KafkaConnection`. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from msgspec import Meta

from group_hygiene.errors import SpecError
from group_hygiene.spec.fields import Decisive, require
from group_hygiene.spec.patterns import TenantPatterns
from group_hygiene.spec.receivers import ReceiverName

# The name of an owner that is the namespace in the group's id.
_EACH = "{namespace}"
# As the value of a label in Kubernetes.
_Name = Annotated[str, Meta(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?|\{namespace\})\Z")]
# An http(s) URL without credentials that contains {group} once, and no other placeholder.
KeepLink = Annotated[
    str,
    Meta(
        max_length=1024,
        pattern=r"^https?://[^\s/?#@{}<>\"|`\\]+[/?#][^\s{}<>\"|`\\]*\{group\}[^\s{}<>\"|`\\]*\Z",
    ),
]


class GroupOwner(Decisive, frozen=True, kw_only=True):
    """One entry of `owners`. receiver: its name, for messages about only this owner's groups; None = no messages.

    name: `{namespace}` = each namespace that `{namespace}` in `groups` stands for is the owner of its groups.
    """

    name: _Name
    groups: TenantPatterns
    receiver: ReceiverName | None = None

    def __post_init__(self) -> None:
        require(self.groups.sources, "groups must hold at least one pattern")
        # Clients choose the ids of groups: with a receiver, each new name in one would add alerts to the ledger.
        each = self.name != _EACH or (self.receiver is None and all(_EACH in each for each in self.groups.sources))
        require(each, "must have {namespace} in each of groups, and no receiver, where name is {namespace}")


OwnerList = Annotated[tuple[GroupOwner, ...], Meta(max_length=64)]


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


def check_owners(entries: Sequence[GroupOwner], receivers: Collection[str]) -> Owners:
    """The owners of a connection. receivers: the names of its receivers.

    Raises SpecError if a name stands twice, or if an owner's receiver does not exist.
    """
    if len({owner.name for owner in entries}) < len(entries):
        raise SpecError("spec.owners must not name an owner twice")
    for number, owner in enumerate(entries):
        if owner.receiver is not None and owner.receiver not in receivers:
            raise SpecError(f"spec.owners[{number}].receiver must be the name of one of spec.receivers")
    return Owners(entries)
