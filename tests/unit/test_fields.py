"""What this version knows of specs, against the CRDs, and what becomes of a spec that says more."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import inspect

from group_hygiene.errors import SpecError
from group_hygiene.spec import connection, policy
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.crds import fields_of_schema, load_crd
from group_hygiene.spec.policy import parse_policy
from tests.unit.make import policy_object

ACCESS = {"namespaces": {"names": ["team-a"]}, "groups": ["team-a-*"], "actions": ["Alert"]}
# Each with the parts whose unknown fields are refused.
SPECS: dict[str, tuple[tuple[str, ...], Callable[[Any], object], dict[str, Any]]] = {
    "GroupPolicy": (
        ("spec", "spec.match", "spec.when", "spec.when.lag", "spec.delete"),
        parse_policy,
        policy_object(when={"unchangedFor": "72h", "lag": {"atLeast": 1}}, delete={"gracePeriod": "1h"}),
    ),
    "KafkaConnection": (
        ("spec", "spec.mirrorMaker", "spec.limits", "spec.access[]", "spec.access[].namespaces", "spec.owners[]"),
        parse_connection,
        {
            "spec": {
                "bootstrapServers": ["a:9092"],
                "limits": {"maxPerRun": 1},
                "mirrorMaker": {"checkpointTopics": ["a"]},
                "access": [ACCESS],
                "owners": [{"name": "payments", "groups": ["payments-*"]}],
            }
        },
    ),
}


@pytest.mark.parametrize(
    ("kind", "field"),
    [pytest.param(kind, field, id=f"{kind}-{field}") for kind, (parts, *_) in SPECS.items() for field in parts],
)
def test_an_unknown_field_of_a_part_that_decides_is_refused(kind: str, field: str) -> None:
    """The CRD may be of a later version, whose field restricts matches or deletions."""
    _, parse, whole = SPECS[kind]
    obj = copy.deepcopy(whole)
    parse(obj)
    place: Any = obj
    for step in field.split("."):
        name = step.removesuffix("[]")
        place = place[name]
        if name != step:
            (place,) = place
    place["onlyOnSundays"] = True
    path = re.escape(field.replace("[]", "[0]"))
    with pytest.raises(SpecError, match=f"{path}: this version of the program does not know field `onlyOnSundays`"):
        parse(obj)


@pytest.mark.parametrize(
    ("kind", "spec"), [("GroupPolicy", policy.PolicySpec), ("KafkaConnection", connection.ConnectionSpec)]
)
def test_each_field_of_the_crd_is_known(kind: str, spec: type) -> None:
    """And no other: both have the same fields in each part that the program converts."""
    schema = load_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert _fields_of(inspect.type_info(spec)) == fields_of_schema(schema)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"role": "hunter2"}, "spec.role: must be one of Primary, FailoverTarget", id="enum"),
        pytest.param({"clusterID": "\ud800"}, "spec.clusterID: must be valid Unicode", id="half-a-character"),
        pytest.param({"scan": {True: 1}}, "spec.scan: Expected `str`", id="key"),
        pytest.param({"ledger": {"id": ""}}, "spec.ledger.id: must not be empty", id="empty"),
    ],
)
def test_errors_name_the_field_and_no_value_of_an_enum(spec: dict[str, Any], message: str) -> None:
    """A user may have written a password where one of a few words is expected."""
    with pytest.raises(SpecError) as caught:
        parse_connection({"spec": {"bootstrapServers": ["a:9092"], **spec}})
    assert str(caught.value) == message


def _fields_of(info: Any, path: str = "") -> set[str]:
    """The paths of all fields of a record, in the format of `fields_of_schema`."""
    if isinstance(info, inspect.UnionType):
        return set().union(*(_fields_of(each, path) for each in info.types))
    if isinstance(info, inspect.VarTupleType):
        return _fields_of(info.item_type, f"{path.removesuffix('.')}[].")
    if isinstance(info, inspect.StructType):
        found = {f"{path}{each.encode_name}" for each in info.fields}
        return found.union(*(_fields_of(each.type, f"{path}{each.encode_name}.") for each in info.fields))
    # Lists of texts have no fields.
    return set()
