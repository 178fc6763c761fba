"""The namespaces that may use a `KafkaConnection`, for which groups and actions. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from group_hygiene.errors import SpecError
from group_hygiene.spec.fields import CONNECTION, parse_known, parse_mapping
from group_hygiene.spec.patterns import Patterns

_ACCESS_MAX = 64


class Right(StrEnum):
    """A right that a namespace may be granted: policies with this action, or restores."""

    ALERT = "Alert"
    DELETE = "Delete"
    DELETE_OFFSETS = "DeleteOffsets"
    RESTORE = "Restore"


class Operator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(NamedTuple):
    """One of a label selector's matchExpressions."""

    key: str
    operator: Operator
    values: frozenset[str]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """As in Kubernetes: NotIn also matches objects without the label (labels.Requirement.Matches)."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None


@dataclass(frozen=True, slots=True)
class Access:
    """One entry of `access`: namespaces, and their rights on groups.

    names: of namespaces; selector: of their labels, None = names only. An empty selector selects all.
    """

    names: frozenset[str]
    selector: tuple[Requirement, ...] | None
    groups: Patterns
    rights: frozenset[Right]

    def selects(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        if namespace in self.names:
            return True
        return self.selector is not None and labels is not None and all(r.matches(labels) for r in self.selector)


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a namespace on a connection: the entries that select it; None = its own connection, all rights."""

    entries: tuple[Access, ...] | None

    @property
    def rights(self) -> frozenset[Right]:
        return (
            frozenset(Right) if self.entries is None else frozenset().union(*(entry.rights for entry in self.entries))
        )

    def groups(self, right: Right) -> Patterns | None:
        """The groups for which the right is granted; None = all groups."""
        if self.entries is None:
            return None
        granted = [entry.groups.sources for entry in self.entries if right in entry.rights]
        return Patterns([pattern for sources in granted for pattern in sources])


def parse_access(entries: Any) -> tuple[Access, ...]:
    """The `spec.access` of a `KafkaConnection`. Raises SpecError for values that the CRD refuses."""
    if not isinstance(entries, list | tuple) or len(entries) > _ACCESS_MAX:
        raise SpecError(f"spec.access must be a list of at most {_ACCESS_MAX} entries")
    return tuple(_parse_entry(entry, f"spec.access[{i}]") for i, entry in enumerate(entries))


def _parse_entry(entry: Any, field: str) -> Access:
    spec = parse_known(entry, field, CONNECTION)
    namespaces = parse_known(spec.get("namespaces"), f"{field}.namespaces", CONNECTION)
    names, selector = namespaces.get("names"), namespaces.get("selector")
    # With both, it would be unclear whether both must match.
    if (names is None) == (selector is None):
        raise SpecError(f"{field}.namespaces must hold either names or selector")
    if not spec.get("groups"):
        raise SpecError(f"{field}.groups must hold at least one pattern")
    actions = _texts(spec.get("actions") or [], f"{field}.actions")
    if not actions or not set(actions) <= set(Right):
        raise SpecError(f"{field}.actions must hold at least one of {', '.join(Right)}, and nothing else")
    return Access(
        names=frozenset(_texts(names or [], f"{field}.namespaces.names")),
        selector=None if selector is None else _parse_selector(selector, f"{field}.namespaces.selector"),
        groups=Patterns(spec["groups"], f"{field}.groups"),
        rights=frozenset(Right(action) for action in actions),
    )


def _parse_selector(spec: Any, field: str) -> tuple[Requirement, ...]:
    """A metav1.LabelSelector; all of its requirements must match, so an empty one selects everything."""
    selector = parse_mapping(spec, field)
    unknown = set(selector) - {"matchLabels", "matchExpressions"}
    if unknown:
        raise SpecError(f"{field} must hold only matchLabels and matchExpressions, not {', '.join(sorted(unknown))}")
    labels = parse_mapping(selector.get("matchLabels") or {}, f"{field}.matchLabels")
    requirements = [Requirement(key, Operator.IN, frozenset({value})) for key, value in labels.items()]
    for item in selector.get("matchExpressions") or []:
        expression = parse_mapping(item, f"{field}.matchExpressions[]")
        key, values = expression.get("key"), _texts(expression.get("values") or [], f"{field}.matchExpressions.values")
        try:
            operator = Operator(str(expression.get("operator")))
        except ValueError:
            raise SpecError(f"{field}.matchExpressions: operator must be one of {', '.join(Operator)}") from None
        if not isinstance(key, str) or not key:
            raise SpecError(f"{field}.matchExpressions: key must be given")
        if bool(values) != (operator in (Operator.IN, Operator.NOT_IN)):
            raise SpecError(f"{field}.matchExpressions: values must be given with In and NotIn, and only with them")
        requirements.append(Requirement(key, operator, frozenset(values)))
    return tuple(requirements)


def _texts(values: Any, field: str) -> Sequence[str]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise SpecError(f"{field} must be a list of texts")
    return values
