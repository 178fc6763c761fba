"""What this version knows of specs, against the CRDs, and what becomes of a spec that says more."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest

from group_hygiene.cli.validation import load_crd
from group_hygiene.errors import SpecError
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.fields import CONNECTION, POLICY, Fields
from group_hygiene.spec.policy import parse_policy
from tests.unit.make import policy_object

ACCESS = {"namespaces": {"names": ["team-a"]}, "groups": ["team-a-*"], "actions": ["Alert"]}
SPECS: dict[str, tuple[Fields, Callable[[Any], object], dict[str, Any]]] = {
    "GroupPolicy": (
        POLICY,
        parse_policy,
        policy_object(when={"unchangedFor": "72h", "lag": {"atLeast": 1}}, delete={"gracePeriod": "1h"}),
    ),
    "KafkaConnection": (
        CONNECTION,
        parse_connection,
        {
            "spec": {
                "bootstrapServers": ["a:9092"],
                "limits": {"maxPerRun": 1},
                "mirrorMaker": {"checkpointTopics": ["a"]},
                "access": [ACCESS],
            }
        },
    ),
}


@pytest.mark.parametrize(
    ("kind", "field"),
    [pytest.param(kind, field, id=f"{kind}-{field}") for kind, (known, *_) in SPECS.items() for field in known],
)
def test_what_a_later_version_may_decide_by_is_refused(kind: str, field: str) -> None:
    """A field that the CRD has by then and this program doesn't know; it knows all that today's CRD has there."""
    known, parse, whole = SPECS[kind]
    obj, schema = copy.deepcopy(whole), load_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    parse(obj)
    place: Any = obj
    for step in field.split("."):
        name = step.removesuffix("[]")
        place, schema = place[name], schema["properties"][name]
        if name != step:
            (place,), schema = place, schema["items"]
    assert set(schema["properties"]) == known[field]
    place["onlyOnSundays"] = True
    shown = re.escape(
        f"{field.replace('[]', '[0]')}.onlyOnSundays must not be given: this version of the program does not"
    )
    with pytest.raises(SpecError, match=shown):
        parse(obj)
