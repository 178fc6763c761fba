"""The namespaces that may use a `KafkaConnection`, for which groups and actions. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec import field

from group_hygiene.spec.fields import Decisive
from group_hygiene.spec.patterns import Patterns, TenantPatterns, of_namespace
from group_hygiene.spec.policy import Lifted, Unprotect

# Of the groups in the text of an entry, which is in messages of at most 1,000 bytes.
_LISTED_MAX = 300


class Right(StrEnum):
    """A right that a namespace may be granted: policies with this action, restores, or requests to keep groups."""

    ALERT = "Alert"
    DELETE = "Delete"
    DELETE_OFFSETS = "DeleteOffsets"
    RESTORE = "Restore"
    KEEP = "Keep"


class SelectorOperator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(Decisive, frozen=True):
    """One of a label selector's matchExpressions."""

    key: str
    operator: SelectorOperator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """As in Kubernetes: NotIn also matches objects without the label (labels.Requirement.Matches)."""
        value = labels.get(self.key)
        match self.operator:
            case SelectorOperator.IN:
                return value is not None and value in self.values
            case SelectorOperator.NOT_IN:
                return value is None or value not in self.values
            case SelectorOperator.EXISTS:
                return value is not None
            case SelectorOperator.DOES_NOT_EXIST:
                return value is None


class Selector(Decisive, frozen=True, kw_only=True):
    """A metav1.LabelSelector; all of its requirements must match, so an empty one selects everything."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        equal = all(labels.get(key) == value for key, value in self.match_labels.items())
        return equal and all(requirement.matches(labels) for requirement in self.match_expressions)


class _Namespaces(Decisive, frozen=True, kw_only=True):
    names: frozenset[str] | None = None
    selector: Selector | None = None


class Access(Decisive, frozen=True, kw_only=True):
    """One entry of `access`: namespaces, by name or by their labels, and their rights on groups.

    unprotect: the protections that their policies may lift from these groups.
    """

    namespaces: _Namespaces
    groups: TenantPatterns
    rights: frozenset[Right] = field(name="actions")
    unprotect: frozenset[Unprotect] = frozenset()

    @property
    def by_label(self) -> bool:
        return self.namespaces.selector is not None

    def selects(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """Whether it selects a namespace. labels: None = not readable."""
        names, selector = self.namespaces.names or (), self.namespaces.selector
        return namespace in names or (selector is not None and labels is not None and selector.matches(labels))


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a namespace on a connection: the entries that select it; None = its own connection, all rights."""

    entries: tuple[Access, ...] | None
    namespace: str = ""

    @property
    def rights(self) -> frozenset[Right]:
        return (
            frozenset(Right) if self.entries is None else frozenset().union(*(entry.rights for entry in self.entries))
        )

    def groups(self, right: Right) -> Patterns | None:
        """The groups for which the right is granted; None = all groups."""
        return None if self.entries is None else of_namespace(_sources(self.entries, right), self.namespace)

    def liftable(self, right: Right) -> tuple[Lifted, ...] | None:
        """The protections that policies with this action may lift, and from which groups; None = all from all."""
        if self.entries is None:
            return None
        return tuple(
            (entry.unprotect, entry.groups.of_namespace(self.namespace))
            for entry in self.entries
            if right in entry.rights
        )


def missing_entry(namespace: str, rights: Iterable[Right], groups: Sequence[str] = ()) -> str:
    """The entry of `spec.access` to ask the owner of a connection for, as YAML on one line.

    groups: patterns; none, or more than a message has room for, are shown as `...`.
    """
    listed = json.dumps([*groups])
    if not groups or len(listed) > _LISTED_MAX:
        listed = "[...]"
    actions = ", ".join(rights)
    return f"{{namespaces: {{names: {json.dumps([namespace])}}}, groups: {listed}, actions: [{actions}]}}"


def granted_to_any(entries: Iterable[Access], right: Right) -> TenantPatterns:
    """The groups for which some entry grants this right."""
    return TenantPatterns(_sources(entries, right))


def _sources(entries: Iterable[Access], right: Right) -> tuple[str, ...]:
    return tuple(pattern for entry in entries if right in entry.rights for pattern in entry.groups.sources)
