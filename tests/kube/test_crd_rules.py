"""Each rule of the CRDs on a real API server: an object that it accepts, one that it alone refuses, and its cost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import CustomObjectsApi

from docsite.schema import Rule, rules
from group_hygiene.spec.crds import violations
from testing.sandbox.kubernetes import ApiServer
from tests.kube.test_crds import OAUTH, SCRAM, SECRET, Object, complaints

CRDS = {
    crd["spec"]["names"]["kind"]: crd
    for crd in (
        yaml.load(path.read_text(), yaml.CSafeLoader)
        for path in sorted((Path(__file__).parents[2] / "crds").glob("*.yaml"))
    )
}
_AT: Object = {"address": "http://a:9093"}
_SECRETS: Object = {"urlSecretRef": SECRET, "tokenSecretRef": SECRET, "caSecretRef": SECRET}
_POLICY: Object = {
    "connectionRef": {"name": "main", "namespace": "kafka"},
    "match": {"groups": ["a", "z"], "exclude": ["b"]},
}
_SETTINGS: Object = {
    "gracePeriod": "1h",
    "backupRetention": "24h",
    "windows": [{"from": "22:00", "to": "04:00", "timeZone": "Europe/Berlin"}],
}
_TLS: Object = {"certificateSecretRef": SECRET, "privateKeySecretRef": SECRET}
_BEARER: Object = {"mechanism": "OAUTHBEARER", "oauth": {**OAUTH, "scope": "a", "caSecretRef": SECRET}}
_IAM: Object = {
    "mechanism": "AWS_MSK_IAM",
    "awsMskIam": {"region": "eu-west-1", "roleARN": "arn:aws:iam::111122223333:role/a"},
}
_SELECTED: Object = {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
_GRANT: Object = {"groups": ["a"], "actions": ["Alert"]}

# Specs that are accepted, in which each field with a rule is set in one of them at least.
BASES: Mapping[str, tuple[Object, ...]] = {
    "GroupPolicy": (
        {
            **_POLICY,
            "action": "Alert",
            "interval": "10m",
            "when": {"unchangedFor": "1h", "idleFor": "1h", "expiresWithin": "1h", "lag": {"atLeast": 1}},
            "notify": {"receiverNames": ["a"]},
        },
        {
            **_POLICY,
            "match": {**_POLICY["match"], "unprotect": ["Streams"], "states": ["Empty"]},
            "action": "Delete",
            "when": {"unchangedFor": "1h"},
            "delete": _SETTINGS,
        },
        {
            **_POLICY,
            "action": "DeleteOffsets",
            "when": {"idleFor": "1h"},
            "deleteOffsets": {"topics": ["a", "z"], "excludeTopics": ["b"], **_SETTINGS},
        },
    ),
    "GroupKeep": (
        {
            "connectionRef": {"name": "main", "namespace": "kafka"},
            "groups": ["a"],
            "reason": "a",
            "until": "2030-01-31T12:00:00Z",
        },
    ),
    "GroupRestore": (
        {"connectionRef": {"name": "main", "namespace": "kafka"}, "groups": ["a"]},
        {"connectionRef": {"name": "main"}, "policyRef": {"name": "p"}, "deletedAfter": "2030-01-31T12:00:00Z"},
    ),
    "KafkaConnection": (
        {
            "bootstrapServers": ["a:9092"],
            "tls": {"caSecretRef": SECRET, **_TLS},
            "sasl": SCRAM,
            "protect": ["a"],
            "limits": {
                "minGracePeriod": "1h",
                "minUnchangedFor": "1h",
                "minIdleFor": "1h",
                "minBackupRetention": "24h",
            },
            "ledger": {"topic": "a", "id": "a"},
            "mirrorMaker": {"checkpointTopics": ["a"]},
            "activity": {"uri": "s3://a/b", "maxAge": "1h", "secretRef": {"name": "a"}},
            "access": [
                {**_GRANT, "namespaces": {"names": ["a"]}},
                {**_GRANT, "namespaces": _SELECTED},
            ],
            "receivers": [
                {"name": "am", "type": "Alertmanager", "alertmanager": _SECRETS},
                {"name": "am-2", "type": "Alertmanager", "alertmanager": _AT},
                {"name": "chat", "type": "Slack", "slack": {"urlSecretRef": SECRET}},
                {"name": "bot", "type": "Webhook", "webhook": {**_SECRETS, "hmacSecretRef": SECRET}},
                {"name": "bot-2", "type": "Webhook", "webhook": _AT},
            ],
            "owners": [{"name": "a", "groups": ["a"], "receiver": "chat"}],
            "keepLink": "https://a/{group}",
            "scan": {"timeout": "30s"},
        },
        {
            "bootstrapServers": ["b-1.a.kafka.eu-west-1.amazonaws.com:9098"],
            "tls": {"verifyHostname": True},
            "sasl": _IAM,
        },
        {"bootstrapServers": ["a:9092"], "sasl": _BEARER},
    ),
}

# The start of a rule's message -> a value of its field that it accepts, and one that it alone refuses.
VALUES: Mapping[str, tuple[Any, Any]] = {
    "must be between the years 1970 and 2299": ("2299-12-31T23:59:59Z", "2300-01-01T00:00:00Z"),
    "must be the name of an object": ("a.b-c", "A"),
    "must be the name of a namespace": ("a-b", "a.b"),
    "must be the name of a Secret": ("a.b-c", "A b"),
    "must be a key of a Secret": ("..a_b-C", "a/b"),
    "must be the name of a topic that is not Kafka's own": ("a.b_c-D", "__consumer_offsets"),
    "must be the name of a topic: ": ("a.b_c-D", "a b"),
    "must be lower-case letters, digits and '-'": ("team-chat", "Team Chat"),
    "must be a duration like 72h": ("1h30m", "3w"),
    "must be a duration like 30s": ("1m30s", "30"),
    "must be at least 1s": ("1s", "0d"),
    "must be from 5s to 24h": ("1d", "1d1s"),
    "must be from 1s to 720h": ("30d", "30d1s"),
    "must be from 1h to 8760h": ("365d", "59m59s999ms"),
    "must be from 1s to 10m": ("10m", "11m"),
    "must be at least 1: every group": (1, 0),
    "must not be Absent with": (
        {"committedOffsets": "Absent"},
        {"committedOffsets": "Absent", "deletedTopics": "Some"},
    ),
    "must not be All with": ({"deletedTopics": "All"}, {"deletedTopics": "All", "lag": {"atLeast": 1}}),
    "must not be empty": ("a", ""),
    "must not begin or end with a space": ("a b", "a "),
    "must not begin with !": (r"\!a", "!a"),
    "must have one of * ": (r"a\*b\\c", r"a\b"),
    "must not be a regular expression": ("a-*", "[a-z]+b"),
    "must have no other name in braces": ("a-{uuid}", "a-{uid}"),
    "must have a separator, like -": ("{digits}-5", "{digits}5"),
    "must have at most 4 placeholders": ("{hex}-{hex}-{hex}-{hex}", "{hex}-{hex}-{hex}-{hex}-{hex}"),
    "must have {namespace} once": ("{namespace}.*", "{namespace}-*"),
    "must have {namespace} in each": (
        {"name": "{namespace}", "groups": ["{namespace}.*"]},
        {"name": "{namespace}", "groups": ["a"]},
    ),
    "must hold at least one pattern": (["a"], []),
    "must hold at least one host:port": (["a:1"], []),
    "must hold at least one namespace": (["a"], []),
    "must hold at least one of Alert": (["Restore"], []),
    "must be one host:port": ("[2001:db8::1]:65535", "a:65536"),
    "must be an http or https URL, like": ("https://a/b", "ftp://a"),
    "must be an http or https URL that": ("http://a/?g={group}", "http://a/b"),
    "must be a time of day": ("23:59", "24:00"),
    "must be a name of the IANA": ("Asia/Kathmandu", "Local"),
    "must be the name of an AWS region": ("us-gov-west-1", "Ireland"),
    "must be the ARN of a role": ("arn:aws:iam::111122223333:role/x/b", "role/b"),
    "must be letters, digits, '-', '_' and '.'": ("A.b_c-D", "-a"),
    "awsMskIam must be given with mechanism": (SCRAM, {**SCRAM, "awsMskIam": {"region": "eu-west-1"}}),
    "must be a plain http or https URL": ("https://a:1/b", "https://a/b?c"),
    "must be the address of a folder": ("gs://a/b", "http://a/b"),
    "must hold exactly one of address and urlSecretRef": (_AT, {**_AT, "urlSecretRef": SECRET}),
    "must hold the field of its type": (
        {"name": "a", "type": "Webhook", "webhook": _AT},
        {"name": "a", "type": "Webhook", "alertmanager": _AT},
    ),
    "must be left out unless actions hold Delete": (
        {**_GRANT, "namespaces": {"names": ["a"]}, "actions": ["DeleteOffsets"], "unprotect": ["Connect"]},
        {**_GRANT, "namespaces": {"names": ["a"]}, "actions": ["Alert", "Keep"], "unprotect": ["Connect"]},
    ),
    "must be left out, or tokenEndpoint": (
        {**OAUTH, "caSecretRef": SECRET},
        {**OAUTH, "tokenEndpoint": "http://a", "caSecretRef": SECRET},
    ),
    "must be left out, or address": (
        {"address": "https://a", "caSecretRef": SECRET},
        {"address": "http://a", "caSecretRef": SECRET},
    ),
    "must hold either names or selector": ({"selector": {}}, {"names": ["a"], "selector": {}}),
    "values must be given with In and NotIn": (
        {"key": "a", "operator": "In", "values": ["b"]},
        {"key": "a", "operator": "Exists", "values": ["b"]},
    ),
    "certificateSecretRef and privateKeySecretRef must be given together": (_TLS, {"certificateSecretRef": SECRET}),
    "username and passwordSecretRef must be given": (SCRAM, {"mechanism": "PLAIN", "username": "a"}),
    "username and passwordSecretRef must not be given": (_BEARER, {**_BEARER, "username": "a"}),
    "oauth must be given with mechanism OAUTHBEARER": (_BEARER, {**SCRAM, "oauth": OAUTH}),
}

_DELETE, _OFFSETS = BASES["GroupPolicy"][1], BASES["GroupPolicy"][2]
_WATCHED: Object = {**_POLICY, "action": "Alert", "when": {"idleFor": "1h"}}
# The same of rules about several fields: two specs.
SPECS: Mapping[str, tuple[Object, Object]] = {
    "must hold idleFor or unchangedFor with action Delete": (_DELETE, {**_DELETE, "when": {"lag": {"atLeast": 1}}}),
    "must hold idleFor with action DeleteOffsets": (_OFFSETS, {**_OFFSETS, "when": {"unchangedFor": "1h"}}),
    "must hold idleFor and nothing else": (
        _OFFSETS,
        {**_OFFSETS, "when": {"idleFor": "1h", "committedOffsets": "Absent"}},
    ),
    "must hold only Stable with action DeleteOffsets": (
        {**_OFFSETS, "match": {"groups": ["a"], "states": ["Stable"]}},
        {**_OFFSETS, "match": {"groups": ["a"], "states": ["Empty"]}},
    ),
    "must hold only Classic and Consumer": (
        {**_OFFSETS, "match": {"groups": ["a"], "types": ["Classic", "Consumer"]}},
        {**_OFFSETS, "match": {"groups": ["a"], "types": ["Share"]}},
    ),
    "must only be given with action DeleteOffsets": (
        _OFFSETS,
        {**_DELETE, "deleteOffsets": {}},
    ),
    "must name at least one condition": (
        {**_POLICY, "action": "Alert", "when": {"deletedTopics": "All"}},
        {**_POLICY, "action": "Alert", "when": {}},
    ),
    "must hold only Empty and Dead with action Delete": (
        {**_DELETE, "match": {"groups": ["a"], "states": ["Empty", "Dead"]}},
        {**_DELETE, "match": {"groups": ["a"], "states": ["Stable"]}},
    ),
    "must hold Empty with action Delete": (
        {**_DELETE, "match": {"groups": ["a"], "states": ["Empty", "Dead"]}},
        {**_DELETE, "match": {"groups": ["a"], "states": ["Dead"]}},
    ),
    "must hold Share where": (
        {**_DELETE, "match": {"groups": ["a"], "unprotect": ["Share"], "types": ["Share"]}},
        {**_DELETE, "match": {"groups": ["a"], "unprotect": ["Share"]}},
    ),
    "must hold Streams where": (
        {**_DELETE, "match": {"groups": ["a"], "unprotect": ["Streams", "StreamsState"]}},
        {**_DELETE, "match": {"groups": ["a"], "unprotect": ["StreamsState"]}},
    ),
    "must hold UnreadableOffsetsLog only with": (
        {**_DELETE, "match": {"groups": ["a"], "unprotect": ["UnreadableOffsetsLog"]}},
        {**_DELETE, "when": {"idleFor": "1h"}, "match": {"groups": ["a"], "unprotect": ["UnreadableOffsetsLog"]}},
    ),
    "must hold only Connect, Streams and MirrorMaker": (
        {**_OFFSETS, "match": {"groups": ["a"], "unprotect": ["Connect", "Streams", "MirrorMaker"]}},
        {**_OFFSETS, "match": {"groups": ["a"], "unprotect": ["StreamsState"]}},
    ),
    "must hold only UnreadableTopics": (
        {**_WATCHED, "match": {"groups": ["a"], "unprotect": ["UnreadableTopics"]}},
        {**_WATCHED, "match": {"groups": ["a"], "unprotect": ["Connect"]}},
    ),
    "must be DryRun, or be left out": ({**_WATCHED, "mode": "DryRun"}, {**_WATCHED, "mode": "Enforce"}),
    "must hold a type of match.types": (
        {**_DELETE, "match": {"groups": ["a"], "types": ["Streams"], "unprotect": ["Streams"]}},
        {**_DELETE, "match": {"groups": ["a"], "types": ["Streams"]}},
    ),
    "must hold Empty with when.unchangedFor": (
        {**_WATCHED, "when": {"unchangedFor": "1h"}, "match": {"groups": ["a"], "states": ["Empty", "Stable"]}},
        {**_WATCHED, "when": {"unchangedFor": "1h"}, "match": {"groups": ["a"], "states": ["Stable"]}},
    ),
    "must hold another state than Dead": (
        {**_WATCHED, "match": {"groups": ["a"], "states": ["Dead", "Stable"]}},
        {**_WATCHED, "match": {"groups": ["a"], "states": ["Dead", "Unknown"]}},
    ),
    "must hold Empty with when.idleFor or expiresWithin for Streams": (
        {**_WATCHED, "match": {"groups": ["a"], "types": ["Streams"], "states": ["Stable", "Empty"]}},
        {**_WATCHED, "match": {"groups": ["a"], "types": ["Streams"], "states": ["Stable"]}},
    ),
    "must hold only Empty with when.idleFor": (
        {**_WATCHED, "match": {"groups": ["a"], "types": ["Share"], "states": ["Empty"]}},
        {**_WATCHED, "match": {"groups": ["a"], "types": ["Share"]}},
    ),
    "must hold another type than Share": (
        {**_WATCHED, "when": {"expiresWithin": "1h"}, "match": {"groups": ["a"], "types": ["Share", "Streams"]}},
        {**_WATCHED, "when": {"expiresWithin": "1h"}, "match": {"groups": ["a"], "types": ["Share"]}},
    ),
    "must hold a state of groups of match.types": (
        {**_POLICY, "action": "Alert", "match": {"groups": ["a"], "types": ["Streams"], "states": ["NotReady"]}},
        {**_POLICY, "action": "Alert", "match": {"groups": ["a"], "types": ["Share"], "states": ["NotReady"]}},
    ),
    "must leave some of groups": (
        {**_POLICY, "action": "Alert", "match": {"groups": ["a-b*", "a"], "exclude": ["a-*"]}},
        {**_POLICY, "action": "Alert", "match": {"groups": ["a-b*", "a-"], "exclude": ["a-*"]}},
    ),
    "must leave some of topics": (
        {**_OFFSETS, "deleteOffsets": {"topics": ["a-b*", "a"], "excludeTopics": ["a-*"]}},
        {**_OFFSETS, "deleteOffsets": {"excludeTopics": ["*"]}},
    ),
    "must only be given with action Delete": (_DELETE, {**_POLICY, "action": "Alert", "delete": {}}),
    "each receiver of owners": (
        BASES["KafkaConnection"][0],
        {**BASES["KafkaConnection"][0], "owners": [{"name": "a", "groups": ["a"], "receiver": "other"}]},
    ),
    "the owner of * must be the last one": (
        {"bootstrapServers": ["a:1"], "owners": [{"name": "a", "groups": ["a"]}, {"name": "b", "groups": ["b", "*"]}]},
        {"bootstrapServers": ["a:1"], "owners": [{"name": "b", "groups": ["b", "*"]}, {"name": "a", "groups": ["a"]}]},
    ),
    "tls must be given with mechanism AWS_MSK_IAM": (
        BASES["KafkaConnection"][1],
        {**BASES["KafkaConnection"][1], "tls": {"verifyHostname": False}},
    ),
    "must have either groups or policyRef": (BASES["GroupRestore"][0], {"connectionRef": {"name": "main"}}),
    "must not be before deletedAfter": (
        {**BASES["GroupRestore"][1], "at": "2030-01-31T12:00:00Z"},
        {**BASES["GroupRestore"][1], "at": "2030-01-31T11:59:59Z"},
    ),
    "must be given with policyRef, and only with it": (
        BASES["GroupRestore"][1],
        {**BASES["GroupRestore"][0], "deletedAfter": "2030-01-31T12:00:00Z"},
    ),
}
# Rules about an update: tests/kube/test_crd_grouprestore.py::test_restore_is_immutable.
UPDATES = ("must not be changed",)


def every_rule() -> Iterator[tuple[str, Rule]]:
    """The kind and the rule, of all CRDs."""
    for kind, crd in CRDS.items():
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for rule in rules(schema["properties"]["spec"], "spec"):
            if not rule.message.startswith(UPDATES):
                yield kind, rule


RULES = [
    pytest.param(kind, rule, id=f"{kind}-{rule.path}-{' '.join(rule.message.split()[:6])}")
    for kind, rule in every_rule()
]


def cases(kind: str, rule: Rule) -> tuple[Object, Object]:
    """An object that the rule accepts, and one that it refuses. Raises LookupError where the tables have none."""
    starts = [start for start in SPECS if rule.message.startswith(start)]
    if starts:
        good, bad = SPECS[max(starts, key=len)]
        return _object(kind, good), _object(kind, bad)
    ((good_value, bad_value),) = [pair for start, pair in VALUES.items() if rule.message.startswith(start)]
    return _object(kind, _with(kind, rule.path, good_value)), _object(kind, _with(kind, rule.path, bad_value))


def _object(kind: str, spec: Object) -> Object:
    metadata = {"name": "candidate", "namespace": "kafka"}
    return {"apiVersion": "grouphygiene.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def _with(kind: str, path: str, value: Any) -> Object:
    """The first of the bases that has this field, with this value there."""
    keys = path.replace("[]", ".[]").split(".")[1:]
    for base in BASES[kind]:
        spec: Object = _apart(base)
        if _put(spec, keys, value):
            return spec
    raise LookupError(f"no spec has {path}")


def _apart(value: Object) -> Object:
    """A copy in which nothing stands in two places, as what YAML's aliases repeat does."""
    copied: Object = json.loads(json.dumps(value))
    return copied


def _put(inside: Any, keys: list[str], value: Any) -> bool:
    key, rest = keys[0], keys[1:]
    places = range(len(inside)) if key == "[]" else [key] if key in inside else []
    for place in places:
        if not rest:
            inside[place] = value
            return True
        if _put(inside[place], rest, value):
            return True
    return False


@pytest.mark.parametrize("kind", BASES)
def test_the_base_of_all_cases_is_accepted(api: CustomObjectsApi, kind: str) -> None:
    """Else it would not be the one value that is refused."""
    assert [complaints(api, _object(kind, spec)) for spec in BASES[kind]] == [[]] * len(BASES[kind])


@pytest.mark.parametrize(("kind", "rule"), RULES)
def test_each_rule_accepts_and_refuses(api: CustomObjectsApi, kind: str, rule: Rule) -> None:
    """A new rule without a case fails here; of the bad object exactly this rule complains, and names the field.

    The commands say the same without an API server.
    """
    good, bad = cases(kind, rule)
    assert complaints(api, good) == []
    said = complaints(api, bad)
    assert len(said) == 1, said
    assert re.sub(r"\[\d+\]", "[]", said[0]).startswith(rule.path), said
    assert rule.message in " ".join(said[0].split())
    assert violations(good) == []
    (offline,) = violations(bad)
    assert re.sub(r"\[\d+\]", "[]", offline.field).startswith(rule.path)
    assert rule.message in " ".join(offline.message.split())


@pytest.mark.parametrize("start", [*SPECS, *VALUES])
def test_each_case_has_its_rule(start: str) -> None:
    """A rule that goes from a CRD fails here."""
    assert [rule.path for _, rule in every_rule() if rule.message.startswith(start)]


def test_each_text_with_a_pattern_has_a_rule() -> None:
    """Patterns of OpenAPI show a regular expression to users: the CRDs have rules with sentences instead."""
    assert [kind for kind, crd in CRDS.items() if '"pattern":' in json.dumps(crd)] == []


@pytest.mark.parametrize("kind", CRDS)
def test_the_rules_cost_half_of_the_budget_at_most(api_server: ApiServer, kind: str) -> None:
    """The API server takes the CRD with each rule evaluated twice: both its limit of a rule and that of a CRD."""
    crd = _apart(CRDS[kind])
    group = "cost.example.com"
    crd["metadata"]["name"] = f"{crd['spec']['names']['plural']}.{group}"
    crd["spec"]["group"] = group
    _double(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    done = api_server.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(crd))
    assert "created" in done.stdout


def _double(schema: Any) -> None:
    if isinstance(schema, list):
        for each in schema:
            _double(each)
    elif isinstance(schema, dict):
        for rule in schema.get("x-kubernetes-validations", ()):
            rule["rule"] = f"({rule['rule']}) && ({rule['rule']})"
        for each in schema.values():
            _double(each)
