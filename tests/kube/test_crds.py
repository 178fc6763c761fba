"""The CRDs on a real API server: what it accepts, refuses and fills in, and what kubectl shows of it.

One defect per bad case, and exactly one complaint about it: a user who makes one mistake must read one sentence.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException, CustomObjectsApi

from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.waiting import wait_for

Object = dict[str, Any]
Patch = dict[str, Any]

ROOT = Path(__file__).parents[2]
# A repository of its own, with kustomizations and kinds of others, is tested in test_gitops.py.
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.yaml") if not {"gitops", "admission"} & {*path.parts})
PLURALS = {
    "KafkaConnection": "kafkaconnections",
    "GroupPolicy": "grouppolicies",
    "GroupRestore": "grouprestores",
    "GroupKeep": "groupkeeps",
}

SECRET = {"name": "hygiene", "key": "password"}
OAUTH = {"tokenEndpoint": "https://sso.example.com/token", "clientID": "hygiene", "clientSecretRef": SECRET}
SCRAM = {"mechanism": "SCRAM-SHA-512", "username": "hygiene", "passwordSecretRef": SECRET}
CLIENT_CERTIFICATE = {"certificateSecretRef": SECRET, "privateKeySecretRef": SECRET}
DELETE = {"action": "Delete", "when": {"unchangedFor": "72h"}}
STALE = {"action": "DeleteOffsets", "when": {"idleFor": "96h"}}
NIGHT = {"days": ["Monday", "Friday"], "from": "22:00", "to": "04:00", "timeZone": "Europe/Berlin"}

# What the API server adds when an error of type, enum, length or presence kept it from looking at the rules in CEL.
_NOT_CHECKED = "some validation rules were not checked because the object was invalid"


def merged(base: Object, patch: Patch) -> Object:
    """RFC 7396: None takes a field away, mappings merge, all else replaces."""
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def a_policy(spec: Patch, name: str = "candidate") -> Object:
    """The smallest Alert policy, with `spec` merged into its spec."""
    base = {"connectionRef": {"name": "main"}, "match": {"groups": ["a"]}, "action": "Alert"}
    return _object("GroupPolicy", name, merged(base, spec))


def access(**fields: Any) -> Patch:
    """One entry of access, with `fields` in place of its own."""
    entry = {"namespaces": {"names": ["team-a"]}, "groups": ["a-*"], "actions": ["Delete"], **fields}
    return {"access": [{name: value for name, value in entry.items() if value is not None}]}


CHAT = {"name": "chat", "type": "Slack", "slack": {"urlSecretRef": SECRET}}
PORTAL = "https://portal.example.com/keep?group={group}"


def owners(**fields: Any) -> Patch:
    """One owner with a receiver, with `fields` in place of its own."""
    entry = {"name": "payments", "groups": ["payments-*"], "receiver": "chat", **fields}
    return {"receivers": [CHAT], "owners": [{name: value for name, value in entry.items() if value is not None}]}


def a_connection(spec: Patch, name: str = "candidate") -> Object:
    """The smallest connection, with `spec` merged into its spec."""
    return _object("KafkaConnection", name, merged({"bootstrapServers": ["a:9092"]}, spec))


def _object(kind: str, name: str, spec: Object) -> Object:
    metadata = {"name": name, "namespace": "kafka"}
    return {"apiVersion": "grouphygiene.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module", autouse=True)
def _leave_nothing(api_server: ApiServer) -> Iterator[None]:
    """Other modules share the API server, and must not meet the examples there."""
    yield
    api_server.kubectl("delete", ",".join(PLURALS.values()), "--all", "-n", "kafka")


def accepted(api: CustomObjectsApi, candidate: Object) -> Object:
    """The object as the API server would store it."""
    place = ("grouphygiene.io", "v1alpha1", "kafka", PLURALS[candidate["kind"]])
    stored: Object = api.create_namespaced_custom_object(*place, candidate, dry_run="All", field_validation="Strict")
    return stored


def complaints(api: CustomObjectsApi, candidate: Object) -> list[str]:
    """What the API server says against it, one text for each thing that it complains about; empty = accepted."""
    return _complaints(lambda: accepted(api, candidate))


def _complaints(call: Callable[[], object]) -> list[str]:
    try:
        call()
    except ApiException as refusal:
        status = json.loads(refusal.body)
        causes = (status.get("details") or {}).get("causes") or [
            {"field": status["reason"], "message": status["message"]}
        ]
        said = [f"{cause['field']}: {cause['message']}" for cause in causes]
        return [text for text in said if _NOT_CHECKED not in text]
    return []


def stored_crd(api_server: ApiServer, plural: str) -> Object:
    """The CRD as the API server has it."""
    crd: Object = json.loads(api_server.kubectl("get", "crd", f"{plural}.grouphygiene.io", "-o", "json").stdout)
    return crd


def schema_of(api_server: ApiServer, plural: str) -> Object:
    schema: Object = stored_crd(api_server, plural)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def fields(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every named field below a schema, lists and maps included, with its path."""
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from fields(child, f"{path}.{name}")
    for inside in ("items", "additionalProperties"):
        if inside in schema:
            yield from fields(schema[inside], path)


# --- what is accepted


@pytest.mark.parametrize("file", [pytest.param(path, id=str(path.relative_to(ROOT / "examples"))) for path in EXAMPLES])
def test_example_is_accepted(api_server: ApiServer, file: Path) -> None:
    """Everything under examples/ can be applied as it is, without an unknown field."""
    dry = api_server.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(file))
    done = api_server.kubectl("apply", "--validate=strict", "-f", str(file))
    assert "grouphygiene.io/" in dry.stdout
    assert "grouphygiene.io/" in done.stdout


def test_examples_fit_together(api_server: ApiServer) -> None:
    """A policy or restore of examples/ names a connection of examples/, in the same namespace."""
    api_server.kubectl("apply", *(word for file in EXAMPLES for word in ("-f", str(file))))
    found = json.loads(api_server.kubectl("get", "group-hygiene", "-n", "kafka", "-o", "json").stdout)["items"]
    connections = {item["metadata"]["name"] for item in found if item["kind"] == "KafkaConnection"}
    named = {item["spec"]["connectionRef"]["name"] for item in found if item["kind"] != "KafkaConnection"}
    assert named
    assert named <= connections


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="alert-without-when"),
        pytest.param({"when": {"committedOffsets": "Absent"}}, id="alert-committed"),
        pytest.param({"when": {"deletedTopics": "All"}}, id="alert-topics"),
        pytest.param({"when": {"unchangedFor": "1s"}}, id="alert-unchanged"),
        pytest.param({"when": {"unchangedFor": "3d"}}, id="alert-unchanged-in-days"),
        pytest.param({"when": {"idleFor": "9999d1h1m1s"}}, id="alert-idle-longest-in-days"),
        pytest.param({"interval": "1d"}, id="interval-of-a-day"),
        pytest.param({"when": {"idleFor": "1s"}}, id="alert-idle"),
        pytest.param({"when": {"expiresWithin": "48h"}}, id="alert-what-expires"),
        pytest.param({"when": {"lag": {"atLeast": 1}}}, id="alert-lag"),
        pytest.param({"when": {"lag": {"atLeast": 2**63 - 1}}}, id="alert-lag-most"),
        pytest.param({"when": {"committedOffsets": "OutOfRange"}}, id="alert-out-of-range"),
        pytest.param({"mode": "DryRun"}, id="alert-dry-run"),
        pytest.param({"match": {"types": ["Share"], "states": ["Stable"]}}, id="alert-share"),
        pytest.param({"match": {"types": [], "unprotect": []}}, id="alert-no-types"),
        pytest.param(
            {"match": {"unprotect": ["UnreadableTopics"]}, "when": {"unchangedFor": "1s"}}, id="alert-without-read"
        ),
        pytest.param({"match": {"states": ["Stable"]}, "when": {"idleFor": "1h"}}, id="alert-idle-with-members"),
        pytest.param({"match": {"states": ["Dead"]}, "when": {"committedOffsets": "Absent"}}, id="alert-dead"),
        pytest.param({"match": {"states": ["NotReady"]}, "when": {"lag": {"atLeast": 1}}}, id="alert-lag-not-ready"),
        pytest.param({"match": {"types": ["Share"], "states": ["Empty"]}, "when": {"idleFor": "1h"}}, id="share-idle"),
        pytest.param({"match": {"types": ["Streams"]}, "when": {"idleFor": "1h"}}, id="alert-idle-streams"),
        pytest.param({"match": {"types": ["Share", "Streams"]}, "when": {"expiresWithin": "1h"}}, id="expires-streams"),
        pytest.param({"match": {"types": ["Consumer"], "states": ["Assigning"]}}, id="alert-state-of-one-protocol"),
        pytest.param(
            {"match": {"types": ["Classic", "Streams"], "states": ["NotReady"]}}, id="alert-state-of-one-type"
        ),
        pytest.param({"match": {"groups": ["a*", "b"], "exclude": ["a*"]}}, id="exclude-one-of-two"),
        pytest.param({"match": {"groups": ["a*"], "exclude": ["a-*", "*a"]}}, id="exclude-some"),
        pytest.param({"match": {"groups": [r"a\*b"], "exclude": [r"a\*"]}}, id="exclude-a-literal-star"),
        pytest.param({**STALE, "deleteOffsets": {"excludeTopics": ["a*"]}}, id="stale-offsets-but-of-some-topics"),
        pytest.param(DELETE, id="delete"),
        pytest.param(
            {
                **DELETE,
                "match": {"states": ["Empty"] * 2, "types": ["Classic"] * 2, "unprotect": ["Streams"] * 2},
                "delete": {"windows": [{**NIGHT, "days": ["Friday"] * 2}]},
            },
            id="delete-the-same-twice",
        ),
        pytest.param({**DELETE, "delete": {"maxPerRun": 10000, "maxPercent": 100}}, id="delete-limits-highest"),
        pytest.param({**DELETE, "delete": {"maxPerRun": 1, "maxPercent": 1}}, id="delete-limits-lowest"),
        pytest.param({**DELETE, "delete": {"gracePeriod": "1s", "backupRetention": "1h"}}, id="delete-times-shortest"),
        pytest.param({**DELETE, "delete": {"gracePeriod": "720h", "backupRetention": "8760h"}}, id="times-longest"),
        pytest.param({**DELETE, "delete": {"windows": [NIGHT]}}, id="delete-window"),
        pytest.param(
            {**DELETE, "delete": {"windows": [{"from": "00:00", "to": "00:00"}]}}, id="delete-window-shortest"
        ),
        pytest.param({**DELETE, "delete": {"windows": [NIGHT] * 16}}, id="delete-windows-most"),
        pytest.param({**DELETE, "match": {"states": ["Empty", "Dead"]}}, id="delete-empty-and-dead"),
        pytest.param({**DELETE, "match": {"types": ["Streams"], "unprotect": ["Streams"]}}, id="delete-streams"),
        pytest.param({**DELETE, "match": {"unprotect": ["Streams", "StreamsState"]}}, id="delete-streams-and-state"),
        pytest.param({**DELETE, "match": {"types": ["Consumer", "Streams"]}}, id="delete-one-type-of-two"),
        pytest.param({**DELETE, "match": {"types": ["Share"], "unprotect": ["Share"]}}, id="delete-share"),
        # A group of any type may be named like a sink connector's, or be mirrored or have state as far as is known.
        pytest.param(
            {**DELETE, "match": {"types": ["Share"], "unprotect": ["Share", "Connect", "Streams", "MirrorMaker"]}},
            id="delete-share-of-any-name",
        ),
        pytest.param({**DELETE, "match": {"unprotect": ["UnreadableTopics"]}}, id="delete-without-read-on-topics"),
        pytest.param(
            {**DELETE, "match": {"unprotect": ["UnreadableOffsetsLog"]}}, id="delete-without-read-on-the-offsets-log"
        ),
        pytest.param(
            {
                "action": "Delete",
                "when": {
                    "committedOffsets": "OutOfRange",
                    "deletedTopics": "Some",
                    "unchangedFor": "1h30m",
                    "idleFor": "72h",
                    "expiresWithin": "24h",
                    "lag": {"atLeast": 1000},
                },
            },
            id="delete-all-conditions",
        ),
        pytest.param({"action": "Delete", "when": {"idleFor": "72h"}}, id="delete-idle"),
        pytest.param(STALE, id="stale-offsets"),
        pytest.param(
            {
                **STALE,
                "deleteOffsets": {"gracePeriod": "1h", "topics": ["a*"], "excludeTopics": ["b"]},
                "match": {"states": ["Stable"]},
            },
            id="stale-offsets-whole",
        ),
        pytest.param({"match": {"groups": ["*"]}}, id="pattern-everything"),
        pytest.param({"match": {"groups": [r"a\*b"]}}, id="pattern-literal-star"),
        pytest.param({"match": {"groups": [r"a\\", r"\\*"]}}, id="pattern-literal-backslash"),
        pytest.param({"match": {"groups": ["a.[b$\n)ü"]}}, id="pattern-anything-else-is-literal"),
        pytest.param({"interval": "5s"}, id="interval-shortest"),
        pytest.param({"interval": "24h"}, id="interval-longest"),
        pytest.param({"interval": "1h30m10s500ms"}, id="interval-all-units"),
        pytest.param({"suspend": True}, id="suspended"),
        pytest.param({"connectionRef": {"namespace": "other"}}, id="connection-elsewhere"),
    ],
)
def test_policy_is_accepted(api: CustomObjectsApi, spec: Patch) -> None:
    """No rule refuses what the descriptions allow."""
    assert complaints(api, a_policy(spec)) == []


def msk(**fields: Any) -> Patch:
    """A login by IAM; None = the field is left out."""
    given = {name: value for name, value in {"region": "eu-west-1", **fields}.items() if value is not None}
    return {"tls": {}, "sasl": {"mechanism": "AWS_MSK_IAM", "awsMskIam": given}}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="plaintext"),
        pytest.param({"bootstrapServers": ["10.0.0.1:65535", "a_b.c-d.:1", "[2001:db8::1]:9092"]}, id="addresses"),
        pytest.param({"tls": {}}, id="tls-with-the-systems-authorities"),
        pytest.param({"tls": {"caSecretRef": SECRET, "verifyHostname": False}}, id="tls-any-host"),
        pytest.param({"tls": CLIENT_CERTIFICATE}, id="tls-client-certificate"),
        pytest.param({"sasl": SCRAM}, id="scram-sha-512"),
        pytest.param({"sasl": {**SCRAM, "mechanism": "SCRAM-SHA-256"}}, id="scram-sha-256"),
        pytest.param({"sasl": {**SCRAM, "mechanism": "PLAIN"}}, id="plain"),
        pytest.param({"sasl": {"mechanism": "OAUTHBEARER", "oauth": OAUTH}}, id="oauth"),
        pytest.param(
            {
                "sasl": {
                    "mechanism": "OAUTHBEARER",
                    "oauth": {**OAUTH, "tokenEndpoint": "https://sso:8080", "scope": "a b", "caSecretRef": SECRET},
                }
            },
            id="oauth-all-fields",
        ),
        pytest.param(
            {"sasl": {"mechanism": "OAUTHBEARER", "oauth": {**OAUTH, "tokenEndpoint": "http://sso:8080"}}},
            id="oauth-by-http",
        ),
        pytest.param(msk(), id="msk"),
        pytest.param(msk(region="us-gov-west-1", roleARN="arn:aws-us-gov:iam::111122223333:role/a/b"), id="msk-role"),
        pytest.param({**msk(), "tls": CLIENT_CERTIFICATE}, id="msk-with-a-client-certificate"),
        pytest.param({"tls": {"caSecretRef": {"name": "a.b-c", "key": "..2024_a-b.crt"}}}, id="secret-names"),
        pytest.param({"protect": ["*"]}, id="protect-everything"),
        pytest.param({"role": "Primary"}, id="role-primary"),
        pytest.param({"role": "FailoverTarget"}, id="role-failover-target"),
        pytest.param({"topicVisibility": "Verified"}, id="topics-verified"),
        pytest.param({"topicVisibility": "Attested"}, id="topics-attested"),
        pytest.param({"limits": {"maxPerRun": 1}}, id="limits-one-only"),
        pytest.param({"limits": {"requestsPerSecond": 1}}, id="rate-lowest"),
        pytest.param({"limits": {"minGracePeriod": "1s", "minUnchangedFor": "1s"}}, id="floors-lowest"),
        pytest.param({"limits": {"minGracePeriod": "30d", "minBackupRetention": "365d"}}, id="floors-highest"),
        pytest.param({"limits": {"minIdleFor": "72h", "minBackupRetention": "1h"}}, id="floors"),
        pytest.param(access(unprotect=["Connect", "Streams", "StreamsState", "MirrorMaker", "Share"]), id="unprotect"),
        pytest.param(access(unprotect=["Share"] * 2, actions=["Delete"] * 2), id="access-the-same-twice"),
        pytest.param({"limits": {"requestsPerSecond": 10000}}, id="rate-highest"),
        pytest.param({"mirrorMaker": {"checkpointTopics": []}}, id="no-checkpoints"),
        pytest.param({"mirrorMaker": {"checkpointTopics": ["a.checkpoints.internal", "b_c-D"]}}, id="checkpoints"),
        pytest.param({"activity": {"uri": "s3://bucket/kafka-main"}}, id="activity"),
        pytest.param(
            {"activity": {"uri": "gs://b/a/b", "maxAge": "720h", "secretRef": {"name": "a.b-c"}}},
            id="activity-all-fields",
        ),
        pytest.param({"activity": {"uri": "abfss://c@acc.dfs.core.windows.net/x"}}, id="activity-azure"),
        pytest.param({"activity": {"uri": "/srv/tables", "maxAge": "1s"}}, id="activity-path"),
        pytest.param({"activity": {"uri": "file:///srv/tables"}}, id="activity-path-as-url"),
        pytest.param({"clusterID": "vPeOCWypqUOSepEvx0cbog"}, id="cluster-id"),
        pytest.param({"ledger": {}}, id="ledger-empty"),
        pytest.param({"ledger": {"topic": "a.b-C_1", "replicationFactor": 10, "id": "x"}}, id="ledger-all-fields"),
        pytest.param({"access": []}, id="access-none"),
        pytest.param(access(), id="access-by-name"),
        pytest.param(access(namespaces={"selector": {}}), id="access-everybody"),
        pytest.param(
            access(
                namespaces={
                    "selector": {
                        "matchLabels": {"a.b/c": "", "d": "e"},
                        "matchExpressions": [
                            {"key": "a", "operator": "In", "values": ["b"]},
                            {"key": "a", "operator": "DoesNotExist"},
                            {"key": "a", "operator": "Exists", "values": []},
                        ],
                    }
                }
            ),
            id="access-by-labels",
        ),
        pytest.param(
            access(groups=[r"a\*", "*"], actions=["Restore", "Delete", "DeleteOffsets", "Alert"]),
            id="access-all-actions",
        ),
        pytest.param(access(actions=["Alert"], unprotect=[]), id="access-unprotect-nothing"),
        pytest.param({"owners": []}, id="owners-none"),
        pytest.param(
            {"owners": [{"name": "a", "groups": ["a*"]}, {"name": "rest", "groups": ["*"]}]}, id="owner-of-the-rest"
        ),
        pytest.param(owners(), id="owner-with-receiver"),
        pytest.param({"owners": [{"name": "a", "groups": ["*"]}]}, id="owner-without-receiver"),
        pytest.param(owners(name="A.b_c-9" + "x" * 56, groups=[r"a\*b", "*"]), id="owner-with-a-long-name"),
        pytest.param(
            {"owners": [{"name": f"team-{number}", "groups": [f"{number}-*"]} for number in range(64)]},
            id="owners-most",
        ),
        pytest.param({"keepLink": PORTAL}, id="link"),
        pytest.param({"keepLink": "http://[::1]:8080/{group}/keep?by=a%20b#c"}, id="link-of-an-address"),
        pytest.param({"scan": {"timeout": "1s"}}, id="timeout-shortest"),
        pytest.param({"scan": {"timeout": "10m"}}, id="timeout-longest"),
    ],
)
def test_connection_is_accepted(api: CustomObjectsApi, spec: Patch) -> None:
    """No rule refuses what the descriptions allow."""
    assert complaints(api, a_connection(spec)) == []


# Four bytes a character: what costs the rules the most.
_WIDEST = ["\N{GRINNING FACE}" * 255] * 64
# Only the last one covers groups, and of these not the last.
_WIDEST_EXCLUDE = ["\N{GRINNING FACE}" * 253 + "a*"] * 63 + _WIDEST[:1]
_WIDEST_ACCESS = {
    "namespaces": {"names": ["a" * 63] * 32},
    "groups": _WIDEST[:8],
    "actions": ["Alert", "Delete", "DeleteOffsets", "Restore"],
}
_WIDEST_SELECTOR = {
    **_WIDEST_ACCESS,
    "namespaces": {
        "selector": {
            "matchLabels": {f"{number:063}": "a" * 63 for number in range(16)},
            "matchExpressions": [{"key": "a" * 317, "operator": "In", "values": ["a" * 63] * 32}] * 16,
        }
    },
}


@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param(
            a_policy({"match": {"groups": [*_WIDEST[:-1], "a" * 255], "exclude": _WIDEST_EXCLUDE}}), id="policy"
        ),
        pytest.param(
            a_connection(
                {
                    "protect": _WIDEST,
                    "bootstrapServers": ["aaaa." * 49 + "aaaa:9092"] * 32,
                    "access": [_WIDEST_ACCESS] * 56 + [_WIDEST_SELECTOR] * 8,
                    "receivers": [{**CHAT, "name": f"{number:063}"} for number in range(8)],
                    "owners": [
                        {"name": f"{number:063}", "groups": ["a" * 255] * 16, "receiver": f"{7:063}"}
                        for number in range(64)
                    ],
                    "keepLink": "https://" + "a" * 1000 + "/{group}",
                }
            ),
            id="connection",
        ),
    ],
)
def test_largest_object_fits_the_rules_budget(api: CustomObjectsApi, candidate: Object) -> None:
    """Rules that are too expensive for the longest lists pass when installed and fail when used."""
    assert complaints(api, candidate) == []


# --- what is refused


def match(**fields: Any) -> Patch:
    return {"match": fields}


def when(**fields: Any) -> Patch:
    return {"when": fields}


def delete(**limits: Any) -> Patch:
    return {**DELETE, "delete": limits}


def window(**fields: Any) -> Patch:
    entry = {**NIGHT, **fields}
    return delete(windows=[{name: value for name, value in entry.items() if value is not None}])


def servers(*addresses: str) -> Patch:
    return {"bootstrapServers": list(addresses)}


def ca(name: str, key: str) -> Patch:
    return {"tls": {"caSecretRef": {"name": name, "key": key}}}


def checkpoints(*topics: str) -> Patch:
    return {"mirrorMaker": {"checkpointTopics": list(topics)}}


def activity(**fields: Any) -> Patch:
    return {"activity": {"uri": "s3://bucket/main", **fields}}


def ledger(**fields: Any) -> Patch:
    return {"ledger": fields}


def selected(**expression: Any) -> Patch:
    return access(namespaces={"selector": {"matchExpressions": [{"key": "a", **expression}]}})


def scram(**fields: Any) -> Patch:
    return {"sasl": {**SCRAM, **fields}}


def bearer(**fields: Any) -> Patch:
    return {"sasl": {"mechanism": "OAUTHBEARER", "oauth": OAUTH, **fields}}


def oauth(**fields: Any) -> Patch:
    return bearer(oauth={**OAUTH, **fields})


TOPIC = "must be the name of a topic that is not Kafka's own"
EITHER = "must hold either names or selector"
VALUES = "values must be given with In and NotIn, and only with them"
REGULAR = "must not be a regular expression"
BACKSLASH = r"must have one of .* after each backslash"
DURATION = "must be a duration like"
ADDRESS = "must be one host:port"
OWNER = "must be letters, digits, '-', '_' and '.'"
OWNERS_RECEIVER = "each receiver of owners must be the name of one of receivers"
LINK = "must be an http or https URL that contains {group} once, after the host"
URL = "must be an http or https URL"
IDLE_MISSING = "spec.when: .* must hold idleFor or unchangedFor with action Delete"
FOLDER = "must be the address of a folder"
STATES_IN_USE = "spec.match.states: .* must hold only Empty and Dead with action Delete"
STATE_ALONE = "spec.match.unprotect: .* must hold Streams where it holds StreamsState"
OF_GROUPS = "spec.match.unprotect: .* must hold only Connect, Streams and MirrorMaker with action DeleteOffsets"
NOT_OF_ALERTS = "spec.match.unprotect: .* must hold only UnreadableTopics with action Alert"
NOT_ALONE = "spec.when: .* must hold idleFor and nothing else with action DeleteOffsets"
SHARE_MISSING = "spec.match.types: .* must hold Share where unprotect holds Share"
NO_COMMITS = "spec.match.states: .* must hold another state than Dead with lag"
NEVER_EXPIRE = "spec.match.types: .* must hold another type than Share with when.expiresWithin"
STATE_OF_TYPES = "spec.match.states: .* must hold a state of groups of match.types"
NONE_LEFT = "spec.match.exclude: .* must leave some of groups"
ABSENT_AND = "spec.when.committedOffsets: .* must not be Absent with lag, deletedTopics or expiresWithin"
ALL_AND = "spec.when.deletedTopics: .* must not be All with lag or with committedOffsets OutOfRange"
FOR_OFFSETS = "spec.deleteOffsets: .* must only be given with action DeleteOffsets"
FOR_DELETE = "spec.delete: .* must only be given with action Delete"
TOGETHER = "certificateSecretRef and privateKeySecretRef must be given together"
LOGIN = "username and passwordSecretRef must be given"
NO_LOGIN = "username and passwordSecretRef must not be given with mechanism OAUTHBEARER or AWS_MSK_IAM"
ONLY_MSK = "awsMskIam must be given with mechanism AWS_MSK_IAM, and only with it"
MSK_TLS = "tls must be given with mechanism AWS_MSK_IAM, without caSecretRef, and must verify host names"
ONLY_BEARER = "oauth must be given with mechanism OAUTHBEARER, and only with it"

LOGIN_WITHOUT_PASSWORD: Patch = {"sasl": {"mechanism": "PLAIN", "username": "a"}}
LOGIN_WITHOUT_USERNAME: Patch = {"sasl": {"mechanism": "PLAIN", "passwordSecretRef": SECRET}}
OAUTH_WITHOUT_SECRET: Patch = bearer(oauth={"tokenEndpoint": "https://a", "clientID": "a"})


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        pytest.param({"idleFor": "72h"}, 'unknown field "spec.idleFor"', id="unknown-field"),
        pytest.param(when(unchangedfor="72h"), 'unknown field "spec.when.unchangedfor"', id="unknown-case"),
        pytest.param({"connectionRef": None}, "spec.connectionRef: Required value", id="ref-missing"),
        pytest.param({"connectionRef": {"name": None}}, "connectionRef.name: Required value", id="ref-nameless"),
        pytest.param({"connectionRef": {"name": ""}}, "must be the name of an object", id="ref-name-empty"),
        pytest.param({"connectionRef": {"name": "kafka/main"}}, "must be the name of an object", id="ref-with-slash"),
        pytest.param({"connectionRef": {"namespace": ""}}, "must be the name of a namespace", id="ref-namespace-empty"),
        pytest.param({"action": None}, "spec.action: Required value", id="action-missing"),
        pytest.param({"action": "delete"}, 'spec.action: Unsupported value: "delete"', id="action-lower-case"),
        pytest.param({"mode": "dryRun"}, 'spec.mode: Unsupported value: "dryRun"', id="mode-lower-case"),
        pytest.param({"mode": "Off"}, '"DryRun", "Enforce"', id="mode-unknown"),
        pytest.param({"suspend": "yes"}, "spec.suspend: .* must be of type boolean", id="suspend-as-text"),
        pytest.param({"interval": "4999ms"}, "spec.interval: .* must be from 5s to 24h", id="interval-just-too-short"),
        pytest.param({"interval": "24h1s"}, "spec.interval: .* must be from 5s to 24h", id="interval-too-long"),
        pytest.param({"interval": "7d"}, "spec.interval: .* must be from 5s to 24h", id="interval-in-days"),
        pytest.param({"interval": "1h1d"}, f"spec.interval: .* {DURATION}", id="interval-days-last"),
        pytest.param({"interval": "10000d"}, f"spec.interval: .* {DURATION}", id="interval-of-too-many-days"),
        pytest.param({"interval": "10"}, f"spec.interval: .* {DURATION}", id="interval-without-unit"),
        pytest.param({"interval": 600}, "spec.interval: .* must be of type string", id="interval-as-number"),
        pytest.param({"interval": "1.5h"}, f"spec.interval: .* {DURATION}", id="interval-with-fraction"),
        pytest.param({"interval": ""}, f"spec.interval: .* {DURATION}", id="interval-empty"),
        pytest.param({"interval": "-10m"}, f"spec.interval: .* {DURATION}", id="interval-negative"),
        pytest.param({"interval": "10m\n"}, f"spec.interval: .* {DURATION}", id="interval-with-line-end"),
        pytest.param({"interval": "1h" * 5}, f"spec.interval: .* {DURATION}", id="interval-five-parts"),
        pytest.param({"interval": "30m1h"}, f"spec.interval: .* {DURATION}", id="interval-minutes-first"),
        pytest.param({"match": None}, "spec.match: Required value", id="match-missing"),
        pytest.param({"match": {"groups": None}}, "spec.match.groups: Required value", id="match-empty"),
        pytest.param(match(groups="a"), "spec.match.groups: .* must be of type array", id="groups-as-text"),
        pytest.param(match(groups=["a"] * 65), "spec.match.groups: Too many", id="groups-too-many"),
        pytest.param(match(groups=["a", r"a\d"]), rf"spec.match.groups\[1\]: .* {REGULAR}", id="pattern-regex"),
        pytest.param(match(groups=["a\\"]), BACKSLASH, id="pattern-ends-in-backslash"),
        pytest.param(match(groups=["\\\\\\"]), BACKSLASH, id="pattern-odd-backslashes"),
        pytest.param(match(groups=["a" * 256]), r"spec.match.groups\[0\]: Too long", id="pattern-too-long"),
        pytest.param(match(exclude=[r"\x"]), rf"spec.match.exclude\[0\]: .* {BACKSLASH}", id="exclude-regex"),
        pytest.param(match(exclude=["a"] * 65), "spec.match.exclude: Too many", id="exclude-too-many"),
        pytest.param(match(states=["EMPTY"]), r"spec.match.states\[0\]: Unsupported value", id="state-unknown"),
        pytest.param(match(types=["Unknown"]), r"spec.match.types\[0\]: Unsupported value", id="type-unknown"),
        pytest.param(match(unprotect=["All"]), r"match.unprotect\[0\]: Unsupported value", id="unprotect-unknown"),
        pytest.param({"when": {}}, "spec.when: .* must name at least one condition", id="when-empty"),
        pytest.param(
            when(committedOffsets="Some"), "spec.when.committedOffsets: Unsupported value", id="offsets-unknown"
        ),
        pytest.param(when(deletedTopics="None"), "when.deletedTopics: Unsupported value", id="deleted-topics-unknown"),
        pytest.param(when(unchangedFor="0h"), "spec.when.unchangedFor: .* must be at least 1s", id="unchanged-zero"),
        pytest.param(when(idleFor="0h"), "spec.when.idleFor: .* must be at least 1s", id="idle-zero"),
        pytest.param(when(expiresWithin="2w"), f"spec.when.expiresWithin: .* {DURATION}", id="expires-in-weeks"),
        pytest.param(when(expiresWithin="0s"), "spec.when.expiresWithin: .* must be at least 1s", id="expires-zero"),
        pytest.param(
            {**STALE, "when": None}, "spec.when: .* must hold idleFor with action DeleteOffsets", id="stale-bare"
        ),
        pytest.param({**STALE, **when(idleFor="1h", unchangedFor="1h")}, NOT_ALONE, id="stale-and-unchanged"),
        pytest.param({**STALE, **when(idleFor="1h", expiresWithin="1h")}, NOT_ALONE, id="stale-and-expires"),
        pytest.param({**STALE, **when(idleFor="1h", lag={"atLeast": 1})}, NOT_ALONE, id="stale-and-lag"),
        pytest.param({**STALE, **when(idleFor="1h", committedOffsets="OutOfRange")}, NOT_ALONE, id="stale-and-range"),
        pytest.param({**STALE, **when(idleFor="1h", deletedTopics="All")}, NOT_ALONE, id="stale-and-deleted-topics"),
        pytest.param(
            {**STALE, **match(states=["Stable", "Empty"])},
            "spec.match.states: .* must hold only Stable with action DeleteOffsets",
            id="stale-of-an-empty-group",
        ),
        pytest.param(
            {**STALE, **match(types=["Streams"])},
            "spec.match.types: .* must hold only Classic and Consumer with action DeleteOffsets",
            id="stale-of-a-streams-group",
        ),
        *(
            pytest.param({**STALE, **match(unprotect=["Streams", each])}, OF_GROUPS, id=f"stale-unprotect-{each}")
            for each in ("StreamsState", "Share", "UnreadableTopics", "UnreadableOffsetsLog")
        ),
        *(
            pytest.param(
                {**when(unchangedFor="1h"), **match(unprotect=["UnreadableTopics", each])},
                NOT_OF_ALERTS,
                id=f"alert-unprotect-{each}",
            )
            for each in ("Connect", "Streams", "StreamsState", "MirrorMaker", "Share", "UnreadableOffsetsLog")
        ),
        pytest.param({**DELETE, **match(unprotect=["StreamsState"])}, STATE_ALONE, id="delete-state-alone"),
        pytest.param(
            {"action": "Delete", **when(idleFor="1h"), **match(unprotect=["UnreadableOffsetsLog"])},
            "spec.match.unprotect: .* must hold UnreadableOffsetsLog only with when.unchangedFor",
            id="delete-idle-without-the-log",
        ),
        pytest.param(match(unprotect=["UnreadableTopics"]), NOT_OF_ALERTS, id="alert-without-read-of-nothing"),
        pytest.param({"mode": "Enforce"}, "spec.mode: .* must be DryRun, or be left out", id="alert-enforce"),
        pytest.param({**DELETE, **match(unprotect=["Share"])}, SHARE_MISSING, id="delete-unprotect-share"),
        pytest.param(
            {**DELETE, **match(types=["Share", "Streams"])},
            "spec.match.unprotect: .* must hold a type of match.types with action Delete",
            id="delete-protected-types",
        ),
        pytest.param(
            {**when(unchangedFor="1h"), **match(states=["Dead", "Stable"])},
            "spec.match.states: .* must hold Empty with when.unchangedFor",
            id="alert-unchanged-with-members",
        ),
        pytest.param({**when(idleFor="1h"), **match(states=["Dead"])}, NO_COMMITS, id="alert-idle-dead"),
        pytest.param({**when(expiresWithin="1h"), **match(states=["NotReady"])}, NO_COMMITS, id="expires-not-ready"),
        pytest.param({**when(idleFor="1h"), **match(states=["Unknown", "Dead"])}, NO_COMMITS, id="alert-idle-unknown"),
        pytest.param({**when(lag={"atLeast": 1}), **match(states=["Dead"])}, NO_COMMITS, id="alert-lag-dead"),
        pytest.param({**when(deletedTopics="Some"), **match(states=["Dead"])}, NO_COMMITS, id="deleted-topics-dead"),
        pytest.param({**when(committedOffsets="OutOfRange"), **match(states=["Dead"])}, NO_COMMITS, id="range-dead"),
        pytest.param(
            {**when(expiresWithin="1h"), **match(types=["Streams", "Share"], states=["Stable", "Reconciling"])},
            "spec.match.states: .* must hold Empty with when.idleFor or expiresWithin for Streams groups",
            id="alert-expires-streams-with-members",
        ),
        pytest.param(
            {**when(idleFor="1h"), **match(types=["Share"], states=["Empty", "Stable"])},
            "spec.match.states: .* must hold only Empty with when.idleFor where types hold only Share",
            id="alert-idle-share-with-members",
        ),
        pytest.param({**when(expiresWithin="1h"), **match(types=["Share"])}, NEVER_EXPIRE, id="alert-expires-share"),
        pytest.param(
            {
                "action": "Delete",
                **when(unchangedFor="1h", expiresWithin="1h"),
                **match(types=["Share"], unprotect=["Share"]),
            },
            NEVER_EXPIRE,
            id="delete-expires-share",
        ),
        pytest.param(match(types=["Classic"], states=["Assigning", "NotReady"]), STATE_OF_TYPES, id="state-classic"),
        pytest.param(match(types=["Consumer", "Share"], states=["NotReady"]), STATE_OF_TYPES, id="state-consumer"),
        pytest.param(match(types=["Share"], states=["PreparingRebalance"]), STATE_OF_TYPES, id="state-share"),
        pytest.param(match(types=["Streams"], states=["CompletingRebalance"]), STATE_OF_TYPES, id="state-streams"),
        pytest.param(match(groups=["a*", "b"], exclude=["*"]), NONE_LEFT, id="exclude-everything"),
        pytest.param(match(groups=["a-{uuid}", "b"], exclude=["b", "a-{uuid}"]), NONE_LEFT, id="exclude-the-same"),
        pytest.param(match(groups=["a-*-b", "a-b"], exclude=["a-*"]), NONE_LEFT, id="exclude-a-wider-pattern"),
        pytest.param(
            {**STALE, "deleteOffsets": {"topics": ["a", "b*"], "excludeTopics": ["b*", "a*"]}},
            "spec.deleteOffsets.excludeTopics: .* must leave some of topics",
            id="stale-of-no-topic",
        ),
        pytest.param(when(committedOffsets="Absent", lag={"atLeast": 1}), ABSENT_AND, id="absent-and-lag"),
        pytest.param(when(committedOffsets="Absent", deletedTopics="Some"), ABSENT_AND, id="absent-and-topics"),
        pytest.param(when(committedOffsets="Absent", expiresWithin="1h"), ABSENT_AND, id="absent-and-expires"),
        pytest.param(when(deletedTopics="All", lag={"atLeast": 1}), ALL_AND, id="all-deleted-and-lag"),
        pytest.param(when(deletedTopics="All", committedOffsets="OutOfRange"), ALL_AND, id="all-deleted-and-range"),
        pytest.param({"deleteOffsets": {"topics": ["a"]}}, FOR_OFFSETS, id="alert-with-topics"),
        pytest.param({**DELETE, "deleteOffsets": {}}, FOR_OFFSETS, id="delete-with-settings-of-offsets"),
        pytest.param({**STALE, "delete": {}}, FOR_DELETE, id="stale-with-settings-of-delete"),
        pytest.param(when(lag={}), "spec.when.lag.atLeast: Required value", id="lag-of-nothing"),
        pytest.param(when(lag={"atLeast": -1}), "spec.when.lag.atLeast: .* must be at least 1", id="lag-negative"),
        pytest.param(when(lag={"atLeast": "5"}), "lag.atLeast: .* must be of type integer", id="lag-text"),
        pytest.param(when(lag=5), "spec.when.lag: .* must be of type object", id="lag-number"),
        pytest.param({"delete": {}}, FOR_DELETE, id="alert-with-delete"),
        pytest.param({"action": "Delete"}, IDLE_MISSING, id="delete-without-when"),
        pytest.param({"action": "Delete", "when": {}}, IDLE_MISSING, id="delete-with-empty-when"),
        pytest.param({"action": "Delete", **when(deletedTopics="All")}, IDLE_MISSING, id="delete-deleted-topics"),
        pytest.param({"action": "Delete", **when(expiresWithin="48h")}, IDLE_MISSING, id="delete-what-expires"),
        pytest.param(
            {"action": "Delete", **when(committedOffsets="OutOfRange")}, IDLE_MISSING, id="delete-range-alone"
        ),
        pytest.param({**DELETE, **match(states=["Empty", "Stable"])}, STATES_IN_USE, id="delete-stable"),
        pytest.param(delete(maxPercent=0), "delete.maxPercent: .* greater than or equal to 1", id="percent-0"),
        pytest.param(delete(maxPercent=101), "delete.maxPercent: .* less than or equal to 100", id="percent-101"),
        pytest.param(delete(maxPercent="20%"), "delete.maxPercent: .* must be of type integer", id="percent-text"),
        pytest.param(delete(maxPerRun=True), "delete.maxPerRun: .* must be of type int32", id="per-run-boolean"),
        pytest.param(delete(maxPerRun=0), "delete.maxPerRun: .* greater than or equal to 1", id="per-run-0"),
        pytest.param(delete(maxPerRun=10001), "delete.maxPerRun: .* less than or equal to 10000", id="per-run-10001"),
        pytest.param(delete(gracePeriod="999ms"), "delete.gracePeriod: .* must be from 1s to 720h", id="grace-short"),
        pytest.param(delete(gracePeriod="720h1s"), "delete.gracePeriod: .* must be from 1s to 720h", id="grace-long"),
        pytest.param(
            delete(backupRetention="8761h"), "backupRetention: .* must be from 1h to 8760h", id="retention-long"
        ),
        pytest.param(delete(backupRetention="1y"), f"backupRetention: .* {DURATION}", id="retention-in-years"),
        pytest.param(delete(windows=[NIGHT] * 17), "delete.windows: .* must have at most 16 items", id="windows-17"),
        pytest.param(window(days=["Mon"]), r"windows\[0\].days\[0\]: Unsupported value", id="window-short-day"),
        pytest.param(window(days=[]), "days: .* should have at least 1 items", id="window-no-day"),
        pytest.param(window(**{"from": "24:00"}), "from: .* must be a time of day", id="window-hour-24"),
        pytest.param(window(to="4:00"), "to: .* must be a time of day", id="window-one-digit"),
        pytest.param(window(to=None), "to: Required value", id="window-without-end"),
        pytest.param(window(timeZone="Europe/Atlantis"), "timeZone: .* IANA", id="window-unknown-zone"),
        pytest.param(window(timeZone="../UTC"), "timeZone: .* IANA", id="window-zone-path"),
        pytest.param(window(timeZone="+02:00"), "timeZone: .* IANA", id="window-zone-offset"),
        pytest.param(window(timeZone="Local"), "timeZone: .* IANA", id="window-zone-of-the-server"),
    ],
)
def test_policy_is_refused(api: CustomObjectsApi, spec: Patch, complaint: str) -> None:
    """One mistake in a policy is refused with one sentence that says where it is and what must be."""
    _assert_one(complaints(api, a_policy(spec)), complaint)


@pytest.mark.parametrize(
    "number", [pytest.param(1.5, id="fraction"), pytest.param(2**63, id="beyond-int64"), pytest.param(1e30, id="huge")]
)
def test_lag_is_whole_and_of_64_bits(api: CustomObjectsApi, number: float) -> None:
    """What is no int64 is refused; of a fraction the API server complains twice, and names the field each time."""
    found = complaints(api, a_policy(when(lag={"atLeast": number})))
    assert found
    for complaint in found:
        assert re.search(r"must be of type int.* in spec\.when\.lag\.atLeast|lag\.atLeast in body must be", complaint)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        pytest.param({"url": "a:9092"}, 'unknown field "spec.url"', id="unknown-field"),
        pytest.param({"bootstrapServers": None}, "spec.bootstrapServers: Required value", id="servers-missing"),
        pytest.param({"bootstrapServers": "a:9092"}, "must be of type array", id="servers-as-text"),
        pytest.param(servers("a:1", "kafka"), rf"spec.bootstrapServers\[1\]: .* {ADDRESS}", id="server-without-port"),
        pytest.param(servers("a:9092,b:9092"), ADDRESS, id="server-two-in-one"),
        pytest.param(servers("SASL_SSL://a:9092"), ADDRESS, id="server-with-protocol"),
        pytest.param(servers("a:0"), ADDRESS, id="server-port-0"),
        pytest.param(servers("2001:db8::1:9092"), ADDRESS, id="server-ipv6-without-brackets"),
        pytest.param(servers("a:9092 "), ADDRESS, id="server-with-space"),
        pytest.param(servers(*["a:1"] * 33), "spec.bootstrapServers: Too many", id="servers-too-many"),
        pytest.param(servers("aaaa." * 60 + "a:9092"), r"spec.bootstrapServers\[0\]: Too long", id="server-too-long"),
        pytest.param(
            {"tls": {"privateKeySecretRef": SECRET}}, f"spec.tls: .* {TOGETHER}", id="tls-key-without-certificate"
        ),
        pytest.param({"tls": {"verifyHostname": "no"}}, "must be of type boolean", id="tls-verify-as-text"),
        pytest.param(
            {"tls": {"caSecretRef": {"name": "a"}}}, "spec.tls.caSecretRef.key: Required value", id="secret-without-key"
        ),
        pytest.param(
            {"tls": {"caSecretRef": {"key": "a"}}},
            "spec.tls.caSecretRef.name: Required value",
            id="secret-without-name",
        ),
        pytest.param(
            ca("A", "a"), "spec.tls.caSecretRef.name: .* must be the name of a Secret", id="secret-name-upper-case"
        ),
        pytest.param(ca("", "a"), "spec.tls.caSecretRef.name: .* must be the name of a Secret", id="secret-name-empty"),
        pytest.param(ca("other/a", "a"), "must be the name of a Secret", id="secret-of-another-namespace"),
        pytest.param(ca("a" * 254, "a"), "spec.tls.caSecretRef.name: Too long", id="secret-name-too-long"),
        pytest.param(ca("a", ""), "spec.tls.caSecretRef.key: .* must be a key of a Secret", id="secret-key-empty"),
        pytest.param({"sasl": {}}, "spec.sasl.mechanism: Required value", id="sasl-empty"),
        pytest.param(scram(mechanism="GSSAPI"), "spec.sasl.mechanism: Unsupported value", id="sasl-mechanism-unknown"),
        pytest.param(
            scram(passwordSecretRef="secret"),
            "spec.sasl.passwordSecretRef: .* must be of type object",
            id="sasl-in-clear",
        ),
        pytest.param(LOGIN_WITHOUT_USERNAME, f"spec.sasl: .* {LOGIN}", id="sasl-without-username"),
        pytest.param(scram(mechanism="PLAIN", oauth=OAUTH), f"spec.sasl: .* {ONLY_BEARER}", id="oauth-with-plain"),
        pytest.param({"sasl": {"mechanism": "OAUTHBEARER"}}, f"spec.sasl: .* {ONLY_BEARER}", id="oauth-missing"),
        pytest.param(bearer(username="a"), f"spec.sasl: .* {NO_LOGIN}", id="oauth-with-username"),
        pytest.param(bearer(passwordSecretRef=SECRET), f"spec.sasl: .* {NO_LOGIN}", id="oauth-with-password"),
        pytest.param(
            oauth(tokenEndpoint="sso/token"), f"oauth.tokenEndpoint: .* {URL}", id="endpoint-without-protocol"
        ),
        pytest.param(oauth(tokenEndpoint="file:///token"), f"oauth.tokenEndpoint: .* {URL}", id="endpoint-of-file"),
        pytest.param(oauth(tokenEndpoint="https://"), f"oauth.tokenEndpoint: .* {URL}", id="endpoint-without-host"),
        pytest.param(oauth(tokenEndpoint="https://a b"), f"oauth.tokenEndpoint: .* {URL}", id="endpoint-with-space"),
        pytest.param(
            oauth(tokenEndpoint="http://sso/token", caSecretRef=SECRET),
            "oauth.caSecretRef: .* must be left out, or tokenEndpoint begin with https",
            id="oauth-authority-of-http",
        ),
        pytest.param(
            OAUTH_WITHOUT_SECRET, "spec.sasl.oauth.clientSecretRef: Required value", id="oauth-without-secret"
        ),
        pytest.param({"role": "Standby"}, 'spec.role: Unsupported value: "Standby"', id="role-unknown"),
        pytest.param({"sasl": msk()["sasl"]}, f"spec: .* {MSK_TLS}", id="msk-without-tls"),
        pytest.param({**msk(), "tls": {"caSecretRef": SECRET}}, f"spec: .* {MSK_TLS}", id="msk-with-an-authority"),
        pytest.param({**msk(), "tls": {"verifyHostname": False}}, f"spec: .* {MSK_TLS}", id="msk-any-host"),
        pytest.param(msk(region="eu/west-1"), "awsMskIam.region: .* like eu-west-1", id="msk-region"),
        pytest.param(msk(region=None), "spec.sasl.awsMskIam.region: Required value", id="msk-without-region"),
        pytest.param(msk(roleARN="admin"), "awsMskIam.roleARN: .* the ARN of a role", id="msk-role-by-name"),
        pytest.param({"sasl": {"mechanism": "AWS_MSK_IAM"}, "tls": {}}, f"spec.sasl: .* {ONLY_MSK}", id="msk-missing"),
        pytest.param(scram(awsMskIam={"region": "eu-west-1"}), f"spec.sasl: .* {ONLY_MSK}", id="msk-with-scram"),
        pytest.param(
            {"sasl": {**msk()["sasl"], "username": "a"}, "tls": {}}, f"spec.sasl: .* {NO_LOGIN}", id="msk-with-username"
        ),
        pytest.param({"topicVisibility": "All"}, 'topicVisibility: Unsupported value: "All"', id="topics-unknown"),
        pytest.param({"protect": [r"a\d"]}, rf"spec.protect\[0\]: .* {REGULAR}", id="protect-regex"),
        pytest.param({"protect": ["a"] * 65}, "spec.protect: Too many", id="protect-too-many"),
        pytest.param({"limits": {"minGroups": 0}}, "minGroups: .* greater than or equal to 1", id="least-groups-0"),
        pytest.param({"limits": {"minGroups": 10**8}}, "minGroups: .* less than or equal to", id="least-groups-many"),
        pytest.param({"limits": {"minGracePeriod": "0s"}}, "minGracePeriod: .* from 1s to 720h", id="floor-grace-0"),
        pytest.param(
            {"limits": {"minGracePeriod": "721h"}}, "minGracePeriod: .* from 1s to 720h", id="floor-grace-721h"
        ),
        pytest.param({"limits": {"minUnchangedFor": "0s"}}, "minUnchangedFor: .* at least 1s", id="floor-unchanged-0"),
        pytest.param({"limits": {"minIdleFor": "1w"}}, "minIdleFor: .* must be a duration", id="floor-idle-unit"),
        pytest.param({"limits": {"minBackupRetention": "59m"}}, "from 1h to 8760h", id="floor-retention-59m"),
        pytest.param({"limits": {"minBackupRetention": "366d"}}, "from 1h to 8760h", id="floor-retention-366d"),
        pytest.param(access(unprotect=["UnreadableTopics"]), "Unsupported value", id="unprotect-unreadable"),
        pytest.param({"limits": {"maxPercent": 0}}, "maxPercent: .* greater than or equal to 1", id="percent-0"),
        pytest.param({"limits": {"maxPercent": 101}}, "maxPercent: .* less than or equal to 100", id="percent-101"),
        pytest.param({"limits": {"maxPerRun": 0}}, "maxPerRun: .* greater than or equal to 1", id="per-run-0"),
        pytest.param({"limits": {"maxPerRun": 10001}}, "maxPerRun: .* less than or equal to 10000", id="per-run-10001"),
        pytest.param({"limits": {"requestsPerSecond": 0}}, "greater than or equal to 1", id="rate-0"),
        pytest.param({"limits": {"requestsPerSecond": 10001}}, "less than or equal to 10000", id="rate-10001"),
        pytest.param({"clusterID": ""}, "spec.clusterID: .*at least 1", id="cluster-id-empty"),
        pytest.param({"clusterID": "a" * 256}, "spec.clusterID: Too long", id="cluster-id-too-long"),
        pytest.param(ledger(topic="a/b"), f"spec.ledger.topic: .* {TOPIC}", id="ledger-topic-with-slash"),
        pytest.param(ledger(topic=""), f"spec.ledger.topic: .* {TOPIC}", id="ledger-topic-empty"),
        pytest.param(ledger(topic=".."), f"spec.ledger.topic: .* {TOPIC}", id="ledger-topic-dots"),
        pytest.param(ledger(topic="__consumer_offsets"), f"spec.ledger.topic: .* {TOPIC}", id="ledger-topic-of-kafka"),
        pytest.param(ledger(id=7), "spec.ledger.id: .* must be of type string", id="ledger-id-as-number"),
        pytest.param(ledger(topic="a" * 250), "spec.ledger.topic: Too long", id="ledger-topic-too-long"),
        pytest.param(ledger(replicationFactor=0), "greater than or equal to 1", id="ledger-replicas-0"),
        pytest.param(ledger(replicationFactor=11), "less than or equal to 10", id="ledger-replicas-11"),
        pytest.param({"mirrorMaker": {}}, "checkpointTopics: Required value", id="mirror-maker-empty"),
        pytest.param(
            {"mirrorMaker": {"checkpointTopics": "a"}}, "Topics: .* must be of type array", id="checkpoints-as-text"
        ),
        pytest.param(checkpoints("a/b"), r"Topics\[0\]: .* must be the name of a topic", id="checkpoints-slash"),
        pytest.param(checkpoints(".."), r"Topics\[0\]: .* must be the name of a topic", id="checkpoints-dots"),
        pytest.param(checkpoints("a" * 250), r"checkpointTopics\[0\]: Too long", id="checkpoints-long"),
        pytest.param(checkpoints("a", "a"), r"checkpointTopics\[1\]: Duplicate value", id="checkpoints-twice"),
        pytest.param(checkpoints(*map(str, range(65))), "checkpointTopics: Too many", id="checkpoints-too-many"),
        pytest.param({"activity": "s3://b/x"}, "spec.activity: .* must be of type object", id="activity-as-text"),
        pytest.param({"activity": {}}, "spec.activity.uri: Required value", id="activity-nowhere"),
        pytest.param(activity(uri=""), f"spec.activity.uri: .* {FOLDER}", id="activity-empty"),
        pytest.param(activity(uri="tables"), f"spec.activity.uri: .* {FOLDER}", id="activity-relative"),
        pytest.param(activity(uri="https://b/x"), f"spec.activity.uri: .* {FOLDER}", id="activity-by-https"),
        pytest.param(activity(uri="s3://b/x?sig=1"), f"spec.activity.uri: .* {FOLDER}", id="activity-with-a-query"),
        pytest.param(activity(uri="s3://b/x y"), f"spec.activity.uri: .* {FOLDER}", id="activity-with-space"),
        pytest.param(activity(uri="file://host/x"), f"spec.activity.uri: .* {FOLDER}", id="activity-on-a-host"),
        pytest.param(activity(uri="s3://b@evil/x"), f"spec.activity.uri: .* {FOLDER}", id="activity-with-a-login"),
        pytest.param(activity(uri="s3://b/x/../y"), f"spec.activity.uri: .* {FOLDER}", id="activity-out-by-dots"),
        pytest.param(activity(uri="s3://b/%2e%2e/y"), f"spec.activity.uri: .* {FOLDER}", id="activity-escaped"),
        pytest.param(activity(uri="az://c@evil.com/y"), f"spec.activity.uri: .* {FOLDER}", id="activity-account"),
        pytest.param(activity(uri="/" * 1025), "spec.activity.uri: Too long", id="activity-too-long"),
        pytest.param(
            activity(maxAge="31d"), "spec.activity.maxAge: .* must be from 1s to 720h", id="activity-age-in-days"
        ),
        pytest.param(
            activity(maxAge="999ms"), "spec.activity.maxAge: .* must be from 1s to 720h", id="activity-age-short"
        ),
        pytest.param(
            activity(maxAge="721h"), "spec.activity.maxAge: .* must be from 1s to 720h", id="activity-age-long"
        ),
        pytest.param(activity(secretRef={}), "spec.activity.secretRef.name: Required value", id="activity-secret"),
        pytest.param(activity(secretRef={"name": "A"}), "must be the name of a Secret", id="activity-secret-name"),
        pytest.param(
            activity(secretRef={"name": "a", "key": "b"}),
            'unknown field "spec.activity.secretRef.key"',
            id="activity-secret-key",
        ),
        pytest.param(access(namespaces=None), r"access\[0\].namespaces: Required value", id="access-nobody"),
        pytest.param(access(groups=None), r"access\[0\].groups: Required value", id="access-groups-missing"),
        pytest.param(access(actions=None), r"access\[0\].actions: Required value", id="access-actions-missing"),
        pytest.param({"access": {"names": ["a"]}}, 'unknown field "spec.access.names"', id="access-as-mapping"),
        pytest.param({"access": ["a"]}, r"spec.access\[0\]: .* must be of type object", id="access-as-text"),
        pytest.param(access(groups="a*"), "groups: .* must be of type array", id="access-groups-as-text"),
        pytest.param(access(actions=[]), "actions: .* must hold at least one of Alert", id="access-no-action"),
        pytest.param(access(namespaces={"names": "a"}), "names: .* must be of type array", id="access-name-as-text"),
        pytest.param(access(namespaces={"names": ["a"], "selector": {}}), EITHER, id="access-names-and-selector"),
        pytest.param(selected(key="", operator="Exists"), "key: .* must not be empty", id="selector-without-key"),
        pytest.param(access(namespaces={}), rf"access\[0\].namespaces: .* {EITHER}", id="access-empty"),
        pytest.param(access(namespaces={"names": ["A"]}), "must be the name of a namespace", id="access-name"),
        pytest.param(access(namespaces={"names": ["a"] * 33}), "names: Too many", id="access-names-too-many"),
        pytest.param(access(groups=[r"a\d"]), rf"groups\[0\]: .* {REGULAR}", id="access-regex"),
        pytest.param(access(groups=["a"] * 9), "groups: Too many", id="access-groups-too-many"),
        pytest.param(
            access(actions=["Alert", "Restore"], unprotect=["Streams"]),
            r"access\[0\].unprotect: .* must be left out unless actions hold Delete or DeleteOffsets",
            id="access-unprotect-without-a-deletion",
        ),
        pytest.param(access(actions=["Retain"]), r"actions\[0\]: Unsupported value", id="access-action-unknown"),
        pytest.param(selected(operator="In"), VALUES, id="selector-in-without-values"),
        pytest.param(selected(operator="NotIn", values=[]), VALUES, id="selector-not-in-without-values"),
        pytest.param(selected(operator="Exists", values=["a"]), VALUES, id="selector-exists-with-values"),
        pytest.param(selected(operator="Is"), "operator: Unsupported value", id="selector-operator"),
        pytest.param({"access": access()["access"] * 65}, "spec.access: Too many", id="access-too-many"),
        pytest.param(owners(name=None), r"owners\[0\].name: Required value", id="owner-nameless"),
        pytest.param(owners(name=""), rf"owners\[0\].name: .* {OWNER}", id="owner-name-empty"),
        pytest.param(owners(name="a\n"), rf"owners\[0\].name: .* {OWNER}", id="owner-name-with-line-end"),
        pytest.param(owners(name="a/b"), rf"owners\[0\].name: .* {OWNER}", id="owner-name-with-slash"),
        pytest.param(owners(name="a" * 64), r"owners\[0\].name: Too long", id="owner-name-too-long"),
        pytest.param({"owners": owners()["owners"] * 2, "receivers": [CHAT]}, "Duplicate value", id="owner-twice"),
        pytest.param(owners(groups=None), r"owners\[0\].groups: Required value", id="owner-of-nothing"),
        pytest.param(owners(groups=[]), r"owners\[0\].groups: .* at least one pattern", id="owner-without-a-pattern"),
        pytest.param(owners(groups=[""]), r"groups\[0\]: .* must not be empty", id="owner-pattern-empty"),
        pytest.param(owners(groups=[r"a\d"]), rf"groups\[0\]: .* {REGULAR}", id="owner-regex"),
        pytest.param(owners(groups=["a"] * 17), "groups: Too many", id="owner-patterns-too-many"),
        pytest.param(
            {"owners": [{"name": "rest", "groups": ["*"]}, *owners()["owners"]], "receivers": [CHAT]},
            r"spec.owners: .* the owner of \* must be the last one",
            id="owner-of-all-first",
        ),
        pytest.param(owners(receiver="mail"), f"spec.owners: .* {OWNERS_RECEIVER}", id="owner-receiver-unknown"),
        pytest.param({**owners(), "receivers": None}, f"spec.owners: .* {OWNERS_RECEIVER}", id="owner-no-receivers"),
        pytest.param(
            {"owners": [{"name": f"{number}", "groups": ["a"]} for number in range(65)]},
            "spec.owners: Too many",
            id="owners-too-many",
        ),
        pytest.param({"keepLink": "https://portal.example.com/keep"}, f"keepLink: .* {LINK}", id="link-to-no-group"),
        pytest.param({"keepLink": "https://{group}.example.com/"}, f"keepLink: .* {LINK}", id="link-group-as-host"),
        pytest.param({"keepLink": "https://a/{group}?g={group}"}, f"keepLink: .* {LINK}", id="link-twice"),
        pytest.param({"keepLink": "https://a/{group}/{name}"}, f"keepLink: .* {LINK}", id="link-another-placeholder"),
        pytest.param({"keepLink": "javascript:keep({group})"}, f"keepLink: .* {LINK}", id="link-as-a-script"),
        pytest.param({"keepLink": "https://user:pw@a/{group}"}, f"keepLink: .* {LINK}", id="link-with-credentials"),
        pytest.param({"keepLink": "https://a/{group}\n"}, f"keepLink: .* {LINK}", id="link-with-line-end"),
        pytest.param({"keepLink": "https://a/{group} b"}, f"keepLink: .* {LINK}", id="link-with-space"),
        pytest.param({"keepLink": "https://a/<{group}>"}, f"keepLink: .* {LINK}", id="link-with-markup"),
        pytest.param({"keepLink": "https://a/{group}" + "a" * 1010}, "keepLink: Too long", id="link-too-long"),
        pytest.param({"scan": {"timeout": "999ms"}}, "scan.timeout: .* must be from 1s to 10m", id="timeout-too-short"),
        pytest.param({"scan": {"timeout": "601s"}}, "scan.timeout: .* must be from 1s to 10m", id="timeout-too-long"),
    ],
)
def test_connection_is_refused(api: CustomObjectsApi, spec: Patch, complaint: str) -> None:
    """One mistake in a connection is refused with one sentence that says where it is and what must be."""
    _assert_one(complaints(api, a_connection(spec)), complaint)


def _with(obj: Object, **fields: Any) -> Object:
    """With these fields in its spec, also if they are None."""
    return {**obj, "spec": {**obj["spec"], **fields}}


_ENTRY = access()["access"][0]
# Objects with a field without a value, and the field if it must be left out instead.
NULLS = [
    pytest.param(_with(a_connection({}), tls=None), "spec.tls", id="mapping"),
    pytest.param(_with(a_connection({}), protect=None), "spec.protect", id="list"),
    pytest.param(_with(a_connection({}), clusterID=None), "spec.clusterID", id="text"),
    pytest.param(_with(a_connection({}), role=None), "spec.role", id="enum"),
    pytest.param(_with(a_connection({}), tls={"caSecretRef": None}), "spec.tls.caSecretRef", id="below"),
    pytest.param(_with(a_connection({}), protect=[None]), "spec.protect[0]", id="item"),
    pytest.param(
        _with(a_connection({}), access=[{**_ENTRY, "unprotect": None}]), "spec.access[0].unprotect", id="in-an-item"
    ),
    pytest.param(_with(a_policy(DELETE), delete=None), "spec.delete", id="settings"),
    pytest.param(_with(a_policy(DELETE), when={"unchangedFor": "1h", "lag": None}), "spec.when.lag", id="condition"),
    pytest.param(_with(a_policy({}), interval=None, suspend=None), "", id="with-a-default"),
    pytest.param(_with(a_connection({}), tls={"verifyHostname": None}), "", id="with-a-default-below"),
    pytest.param({**a_policy({}), "status": None}, "", id="status"),
]


@pytest.mark.parametrize(("obj", "field"), NULLS)
def test_nulls_in_a_server_side_apply(api: CustomObjectsApi, obj: Object, field: str) -> None:
    """The API server takes only those with a default for left out."""
    name = "applied-null"
    obj = {**obj, "metadata": {**obj["metadata"], "name": name}}
    place = ("grouphygiene.io", "v1alpha1", "kafka", PLURALS[obj["kind"]], name)
    form: Object = {"field_manager": "git", "dry_run": "All", "_content_type": "application/apply-patch+yaml"}
    said = _complaints(lambda: api.patch_namespaced_custom_object(*place, obj, **form))
    # Of an enum it says two things.
    assert {text.partition(": ")[0] for text in said} == ({field} if field else set()), said


@pytest.mark.parametrize("kind", PLURALS)
def test_object_without_spec_is_refused(api: CustomObjectsApi, kind: str) -> None:
    """An object that says nothing is a mistake."""
    candidate = _object(kind, "candidate", {})
    del candidate["spec"]
    _assert_one(complaints(api, candidate), "spec: Required value")


def _assert_one(said: list[str], complaint: str) -> None:
    assert len(said) == 1, said
    assert re.search(complaint, said[0]), said[0]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param(
            {"interval": "4s"}, 'is invalid: spec.interval: Invalid value: "4s": must be from 5s to 24h', id="rule"
        ),
        pytest.param({"idleFor": "72h"}, 'strict decoding error: unknown field "spec.idleFor"', id="unknown-field"),
    ],
)
def test_kubectl_shows_the_complaint(api_server: ApiServer, spec: Patch, said: str) -> None:
    """kubectl, which asks for strict validation by itself, prints that sentence and nothing else."""
    done = api_server.kubectl("apply", "-f", "-", input=json.dumps(a_policy(spec)), check=False)
    assert done.returncode != 0
    assert done.stderr.strip().endswith(said)
    assert len(done.stderr.strip().splitlines()) == 1


# --- what is filled in


@pytest.mark.parametrize(
    ("candidate", "spec"),
    [
        pytest.param(
            a_policy({}),
            {
                "connectionRef": {"name": "main"},
                "interval": "10m",
                "suspend": False,
                "mode": "DryRun",
                "match": {"groups": ["a"]},
                "action": "Alert",
            },
            id="alert",
        ),
        pytest.param(
            a_policy(DELETE),
            {
                "connectionRef": {"name": "main"},
                "interval": "10m",
                "suspend": False,
                "mode": "DryRun",
                "match": {"groups": ["a"]},
                "when": {"unchangedFor": "72h"},
                "action": "Delete",
            },
            id="delete",
        ),
        pytest.param(a_connection({}), {"bootstrapServers": ["a:9092"]}, id="connection"),
        pytest.param(
            a_connection({"tls": {}, "scan": {}, "limits": {}, "ledger": {}, "activity": {"uri": "/x"}}),
            {
                "bootstrapServers": ["a:9092"],
                "tls": {"verifyHostname": True},
                "scan": {"timeout": "30s"},
                "limits": {},
                "ledger": {"topic": "__group_hygiene", "replicationFactor": 3},
                "activity": {"uri": "/x", "maxAge": "1h"},
            },
            id="connection-with-empty-blocks",
        ),
    ],
)
def test_defaults(api: CustomObjectsApi, candidate: Object, spec: Object) -> None:
    """What is left out is filled in as documented, and a block that is left out stays out."""
    assert accepted(api, candidate)["spec"] == spec


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        pytest.param({}, {}, id="empty"),
        pytest.param({"maxPerRun": 5}, {"maxPerRun": 5}, id="only-per-run"),
        pytest.param({"gracePeriod": "1h"}, {"gracePeriod": "1h"}, id="only-grace"),
    ],
)
def test_defaults_of_delete(api: CustomObjectsApi, given: Patch, stored: Object) -> None:
    """One field of a delete block leaves the others at their defaults."""
    defaults = {"gracePeriod": "24h", "maxPerRun": 50, "maxPercent": 20, "backupRetention": "720h"}
    assert accepted(api, a_policy({**DELETE, "delete": given}))["spec"]["delete"] == {**defaults, **stored}


@pytest.mark.parametrize(
    "candidate", [pytest.param(a_policy({}), id="policy"), pytest.param(a_connection({}), id="connection")]
)
def test_new_object_does_not_look_healthy(api: CustomObjectsApi, candidate: Object) -> None:
    """Nobody has seen a new object, whatever status its author wrote into it."""
    boast = {"observedGeneration": 1, "conditions": []}
    assert accepted(api, {**candidate, "status": boast})["status"] == {"observedGeneration": -1}


# --- what kubectl shows


@pytest.mark.parametrize("plural", PLURALS.values())
def test_every_field_is_described(api_server: ApiServer, plural: str) -> None:
    """`kubectl explain` is documentation: no field without a sentence."""
    schema = schema_of(api_server, plural)
    named = dict(fields(schema))
    assert len(named) > 20
    assert [
        path for path, field in named.items() if not re.search(r"\w.*[.]$", field.get("description", ""), re.DOTALL)
    ] == []


@pytest.mark.parametrize("plural", PLURALS.values())
def test_no_entry_of_a_list_has_a_default(api_server: ApiServer, plural: str) -> None:
    """Argo CD would show the object OutOfSync for ever, and a second field manager would get a conflict."""

    def defaults(schema: Object, inside: bool = False) -> Iterator[Object]:
        if inside and "default" in schema:
            yield schema
        for child in schema.get("properties", {}).values():
            yield from defaults(child, inside)
        if "items" in schema:
            yield from defaults(schema["items"], inside=True)

    assert list(defaults(schema_of(api_server, plural)["properties"]["spec"])) == []


def test_a_second_field_manager_gets_no_conflict(api_server: ApiServer) -> None:
    """What one program applied, another one may apply, too: the API server adds nothing to lists, which are atomic."""
    policy = a_policy({**DELETE, "delete": {"windows": [{"from": "22:00", "to": "04:00"}]}}, "two-managers")
    for manager in ("argocd", "kubectl-of-a-user"):
        applied = ("apply", "--server-side", "--field-manager", manager, "-f", "-")
        api_server.kubectl(*applied, input=json.dumps(policy))
    stored = json.loads(api_server.kubectl("get", "kgp", "two-managers", "-n", "kafka", "-o", "json").stdout)
    assert stored["spec"]["delete"]["windows"] == [{"from": "22:00", "to": "04:00"}]


def _keep(groups: list[str] | None, name: str) -> Object:
    return _object("GroupKeep", name, {"connectionRef": {"name": "main"}, "reason": "a", "groups": groups})


def _windows(windows: object, name: str) -> Object:
    return a_policy({**DELETE, "delete": {"windows": windows}}, name)


# Each list of a spec: the object with this list (None = without it), a list, and a narrower one.
Lists = dict[str, tuple[Callable[[Any, str], Object], list[Any], list[Any]]]
_IN_MATCH: dict[str, tuple[Patch, list[Any], list[Any]]] = {
    "groups": (DELETE, ["a", "b-*"], ["a"]),
    "exclude": (DELETE, ["c", "b-*"], ["b-*"]),
    "states": (DELETE, ["Empty", "Dead"], ["Empty"]),
    "types": (DELETE, ["Classic", "Consumer"], ["Consumer"]),
    "unprotect": (DELETE, ["Connect", "MirrorMaker"], ["Connect"]),
}
LISTS: Lists = {
    **{
        f"GroupPolicy.match.{field}": (
            lambda value, name, field=field, base=base: a_policy({**base, "match": {field: value}}, name),  # type: ignore[misc]
            more,
            fewer,
        )
        for field, (base, more, fewer) in _IN_MATCH.items()
    },
    **{
        f"GroupPolicy.deleteOffsets.{field}": (
            lambda value, name, field=field: a_policy({**STALE, "deleteOffsets": {field: value}}, name),  # type: ignore[misc]
            ["a", "b-*"],
            ["a"],
        )
        for field in ("topics", "excludeTopics")
    },
    "GroupPolicy.delete.windows": (_windows, [NIGHT, {**NIGHT, "days": ["Sunday"]}], [NIGHT]),
    "GroupPolicy.delete.windows[].days": (
        lambda days, name: _windows([{**NIGHT, "days": days}], name),
        ["Monday", "Friday"],
        ["Friday"],
    ),
    "GroupPolicy.deleteOffsets.windows": (
        lambda windows, name: a_policy({**STALE, "deleteOffsets": {"windows": windows}}, name),
        [NIGHT, {**NIGHT, "days": ["Sunday"]}],
        [NIGHT],
    ),
    "GroupPolicy.notify.receiverNames": (
        lambda names, name: a_policy({"notify": {"receiverNames": names}}, name),
        ["a", "b"],
        ["b"],
    ),
    "KafkaConnection.protect": (lambda names, name: a_connection({"protect": names}, name), ["a", "b-*"], ["a"]),
    "KafkaConnection.mirrorMaker.checkpointTopics": (
        lambda names, name: a_connection({"mirrorMaker": {"checkpointTopics": names}} if names else {}, name),
        ["a", "b"],
        ["a"],
    ),
    "KafkaConnection.access": (
        lambda entries, name: a_connection({"access": entries}, name),
        access()["access"] * 2,
        access()["access"],
    ),
    **{
        f"KafkaConnection.access[].{field}": (
            lambda value, name, field=field: a_connection(access(**{field: value}), name),  # type: ignore[misc]
            more,
            fewer,
        )
        for field, more, fewer in (
            ("groups", ["a", "b-*"], ["a"]),
            ("actions", ["Alert", "Delete"], ["Alert"]),
            ("unprotect", ["Connect", "MirrorMaker"], ["Connect"]),
        )
    },
    "KafkaConnection.access[].namespaces.names": (
        lambda names, name: a_connection(access(namespaces={"names": names}), name),
        ["a", "b"],
        ["b"],
    ),
    "GroupKeep.groups": (_keep, ["a", "b"], ["b"]),
}
# Those whose items say where, and not what: and those of a GroupRestore, whose spec never changes.
_OTHER_LISTS = {
    "GroupPolicy.deleteOffsets.windows[].days",
    "KafkaConnection.bootstrapServers",
    "KafkaConnection.receivers",
    "KafkaConnection.owners",
    "KafkaConnection.owners[].groups",
    "KafkaConnection.access[].namespaces.selector.matchExpressions",
    "KafkaConnection.access[].namespaces.selector.matchExpressions[].values",
    "GroupRestore.groups",
}


def lists_of(schema: Object, path: str) -> Iterator[tuple[str, Object]]:
    """Every list below a schema, with its path."""
    for name, child in schema.get("properties", {}).items():
        yield from lists_of(child, f"{path}.{name}")
    if schema.get("type") == "array":
        yield path, schema
        yield from lists_of(schema["items"], f"{path}[]")


def value_at(obj: Object, path: str) -> Any:
    """The value of a field, of the first entries of lists."""
    value: Any = obj["spec"]
    for key in path.replace("[]", ".0").split(".")[1:]:
        value = value[int(key) if key == "0" else key]
    return value


@pytest.mark.parametrize("path", LISTS)
def test_a_narrower_list_that_is_applied_is_the_list(api_server: ApiServer, path: str) -> None:
    """What Git says is what is deleted: no item stays of an earlier list, nor of a default, whatever came first."""
    make, more, fewer = LISTS[path]

    def apply(value: list[Any] | None, name: str) -> Object | None:
        text = json.dumps(_without_nulls(make(value, name)))
        applied = ("apply", "--server-side", "--field-manager", "git", "-o", "json", "-f", "-")
        done = api_server.kubectl(*applied, input=text, check=value is not None)
        return json.loads(done.stdout) if done.returncode == 0 else None

    name = path.lower().replace("[]", "").replace(".", "-")
    assert apply(more, f"{name}-narrowed") is not None
    # Some lists are required.
    apply(None, f"{name}-left-out")
    for last in ("narrowed", "left-out"):
        stored = apply(fewer, f"{name}-{last}")
        assert stored is not None
        assert value_at(stored, path) == fewer


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    return [_without_nulls(child) for child in value] if isinstance(value, list) else value


def test_every_list_of_a_spec_is_in_the_table_above(api_server: ApiServer) -> None:
    """And none has a default that the API server merges with what a user applies."""
    found = {
        path: schema
        for kind, plural in PLURALS.items()
        for path, schema in lists_of(schema_of(api_server, plural)["properties"]["spec"], kind)
    }
    assert found.keys() - _OTHER_LISTS == LISTS.keys()
    assert [path for path, schema in found.items() if "default" in schema] == []


@pytest.mark.parametrize("plural", PLURALS.values())
def test_every_default_is_described(api_server: ApiServer, plural: str) -> None:
    """The default that a description tells is the one that is filled in."""
    schema = schema_of(api_server, plural)["properties"]["spec"]
    undescribed = []
    for path, field in fields(schema):
        if "default" in field:
            default = field["default"]
            text = f"[{', '.join(default)}]" if isinstance(default, list) else str(default).removesuffix(".")
            if f"default: {text.lower()}." not in field["description"].lower():
                undescribed.append(path)
    assert undescribed == []


@pytest.mark.parametrize("plural", PLURALS.values())
def test_every_text_and_list_of_a_spec_is_bounded(api_server: ApiServer, plural: str) -> None:
    """The cost of rules counts with the longest value: without a bound that is megabytes."""
    unbounded = []
    for path, field in fields(schema_of(api_server, plural)["properties"]["spec"]):
        for schema in (field, field.get("items", {})):
            # A time has a longest form, which the API server knows.
            bounded = {"maxLength", "enum"} & schema.keys() or schema.get("format") == "date-time"
            if schema.get("type") == "string" and not bounded:
                unbounded.append(path)
            if schema.get("type") == "array" and "maxItems" not in schema:
                unbounded.append(path)
    assert unbounded == []


def test_every_secret_reference_is_whole(api_server: ApiServer) -> None:
    """All references to a Secret have the same form: a name and a key, none of them optional."""
    named = fields(schema_of(api_server, "kafkaconnections"))
    references = {path: field for path, field in named if set(field.get("properties", {})) == {"name", "key"}}
    assert len(references) == 14
    assert [path for path, field in references.items() if field.get("required") != ["name", "key"]] == []
    assert len({json.dumps(field["properties"]) for field in references.values()}) == 1


def _explains(server: ApiServer, short: str) -> bool:
    return server.kubectl("explain", f"{short}.spec", check=False).returncode == 0


@pytest.fixture(scope="module")
def published(api_server: ApiServer) -> ApiServer:
    """The API server once it publishes our schemas, which it does a moment after it serves the kinds."""
    for short in ("kconn", "kgp", "kgr"):
        wait_for(partial(_explains, api_server, short), f"the schema of {short}")
    return api_server


@pytest.mark.parametrize(
    ("field", "names"),
    [
        pytest.param(
            "kconn.spec",
            "bootstrapServers clusterID tls sasl role topicVisibility protect limits ledger mirrorMaker activity "
            "access receivers owners keepLink scan",
            id="connection",
        ),
        pytest.param(
            "kconn.spec.limits",
            "maxPerRun maxPercent minGroups requestsPerSecond minGracePeriod minUnchangedFor minIdleFor "
            "minBackupRetention",
            id="connection-limits",
        ),
        pytest.param("kconn.spec.ledger", "topic replicationFactor id", id="connection-ledger"),
        pytest.param("kconn.spec.activity", "uri maxAge secretRef", id="connection-activity"),
        pytest.param("kconn.status.evidence", "coveredPartitions partitions asOf", id="connection-evidence"),
        pytest.param("kconn.spec.access", "namespaces groups actions unprotect", id="connection-access"),
        pytest.param("kconn.spec.access.namespaces", "names selector", id="connection-namespaces"),
        pytest.param(
            "kconn.spec.tls", "caSecretRef certificateSecretRef privateKeySecretRef verifyHostname", id="connection-tls"
        ),
        pytest.param("kconn.spec.tls.caSecretRef", "name key", id="connection-secret"),
        pytest.param("kconn.spec.sasl", "mechanism username passwordSecretRef oauth awsMskIam", id="connection-sasl"),
        pytest.param("kconn.spec.sasl.awsMskIam", "region roleARN", id="connection-msk"),
        pytest.param(
            "kconn.spec.sasl.oauth", "tokenEndpoint clientID clientSecretRef scope caSecretRef", id="connection-oauth"
        ),
        pytest.param(
            "kconn.status",
            "observedGeneration conditions clusterID servedBy brokers ledger evidence features groups "
            "offsetsRetentionMinutes lastScanTime lastRunID",
            id="connection-status",
        ),
        pytest.param("kconn.spec.receivers", "name type alertmanager slack webhook", id="connection-receivers"),
        pytest.param(
            "kconn.spec.receivers.webhook",
            "address urlSecretRef tokenSecretRef hmacSecretRef caSecretRef",
            id="connection-webhook",
        ),
        pytest.param(
            "kgp.spec", "connectionRef interval suspend mode match when action notify delete deleteOffsets", id="policy"
        ),
        pytest.param("kgp.spec.notify", "groupsAtLeast receiverNames", id="policy-notify"),
        pytest.param(
            "kgp.spec.match",
            "groups exclude states types unprotect",
            id="policy-match",
        ),
        pytest.param(
            "kgp.spec.when", "committedOffsets deletedTopics unchangedFor idleFor expiresWithin lag", id="policy-when"
        ),
        pytest.param(
            "kgp.spec.delete",
            "gracePeriod maxPerRun maxPercent backupRetention windows",
            id="policy-delete",
        ),
        pytest.param(
            "kgp.spec.deleteOffsets",
            "topics excludeTopics gracePeriod maxPerRun maxPercent backupRetention windows",
            id="policy-delete-offsets",
        ),
        pytest.param("kgp.spec.delete.windows", "days from to timeZone", id="policy-delete-windows"),
        pytest.param(
            "kgp.status",
            "observedGeneration lastRunTime lastRunID conditions groups totals lastMarkedTime "
            "lastMarkedConnection nextDueTime nextExpiryTime groupsByReason sample truncated",
            id="policy-status",
        ),
        pytest.param(
            "kgp.status.sample",
            "group state type verdict reason message topics unchangedSince idleSince lastClient owner lag "
            "outOfRangePartitions partitions offsets expiresTime markedSince dueTime",
            id="policy-status-sample",
        ),
        pytest.param(
            "kgr.spec",
            "connectionRef groups policyRef deletedAfter at outOfRangeOffsets allowUnknownTopicIdentity overwriteLater "
            "ttlSecondsAfterFinished",
            id="restore",
        ),
        pytest.param(
            "kgr.status",
            "observedGeneration startTime lastRunID completionTime conditions counts results truncated",
            id="restore-status",
        ),
        pytest.param("kgk.spec", "connectionRef groups reason until ignoreNotFound", id="keep"),
        pytest.param("kgk.status", "observedGeneration lastRunID conditions counts results", id="keep-status"),
        pytest.param(
            "kgk.status.results",
            "group protected reason message exists state unchangedSince idleSince lastClient until dueTime policy "
            "dueReason",
            id="keep-results",
        ),
        pytest.param("kgr.status.counts", "groups restored partly refused waiting", id="restore-counts"),
        pytest.param(
            "kgr.status.results",
            "group result reason message partitions restoredPartitions backupTime",
            id="restore-results",
        ),
    ],
)
def test_kubectl_explains(published: ApiServer, field: str, names: str) -> None:
    """`kubectl explain` shows exactly these fields, each with its description."""
    shown = published.kubectl("explain", field, "--recursive=false").stdout
    listed = shown.partition("FIELDS:\n")[2]
    assert set(re.findall(r"^  (\w+)\t<", listed, re.MULTILINE)) == set(names.split())
    assert "<no description>" not in shown


CONDITION = {
    "type": "Ready",
    "status": "True",
    "observedGeneration": 1,
    "lastTransitionTime": "2030-01-31T12:00:00Z",
    "reason": "Succeeded",
    "message": "3 of 120 groups match",
}
POLICY_STATUS = {
    "observedGeneration": 1,
    "lastRunTime": "2030-01-31T12:00:00Z",
    "lastRunID": "1f0a9c3e",
    "conditions": [CONDITION],
    "groups": {
        "scanned": 120,
        "matched": 3,
        "marked": 4,
        "due": 2,
        "wouldDelete": 3,
        "deleted": 1,
        "skipped": 117,
        "failed": 0,
    },
    "totals": {"deleted": 2**40},
    "lastMarkedTime": "2030-01-30T12:00:00Z",
    "lastMarkedConnection": "kafka/main",
    "nextDueTime": "2030-02-01T12:00:00Z",
    "nextExpiryTime": "2030-02-05T16:00:00Z",
    "groupsByReason": [{"reason": "CaughtUp", "count": 17}, {"reason": "TooRecent", "count": 100}],
    "sample": [
        {
            "group": "console-consumer-1",
            "state": "Empty",
            "type": "Classic",
            "verdict": "Skip",
            "reason": "TooRecent",
            "message": "seen unchanged for 20h of 72h",
            "unchangedSince": "2030-01-30T16:00:00Z",
            "idleSince": "2030-01-29T16:00:00Z",
            "lastClient": "client 'billing-7' from 10.1.2.3 and 2 more",
            "lag": 2**40,
            "outOfRangePartitions": 2,
            "partitions": 12,
            "offsets": [
                {"topic": "orders", "partition": 0, "committedOffset": 2**40, "endOffset": 2**41},
                {"topic": "orders", "partition": 1, "committedOffset": 0},
            ],
            "expiresTime": "2030-02-05T16:00:00Z",
            "markedSince": "2030-01-31T12:00:00Z",
            "dueTime": "2030-02-01T12:00:00Z",
        }
    ],
    "truncated": True,
}
CONNECTION_STATUS = {
    "observedGeneration": 1,
    "conditions": [CONDITION],
    "clusterID": "vPeOCWypqUOSepEvx0cbog",
    "servedBy": "group-hygiene",
    "brokers": {"answered": 3, "expected": 3},
    "ledger": {"topic": "__group_hygiene", "id": "id-1", "unreadableRecords": 1},
    "evidence": {"coveredPartitions": 49, "partitions": 50, "asOf": "2030-01-31T11:50:00Z"},
    "features": ["ListGroupsStateFilter"],
    "groups": {
        "total": 120,
        "states": [{"state": "Empty", "count": 120}],
        "types": [{"type": "Classic", "count": 120}],
        "asOf": "2030-01-31T12:00:00Z",
    },
    "offsetsRetentionMinutes": 10080,
    "lastScanTime": "2030-01-31T12:00:00Z",
    "lastRunID": "1f0a9c3e",
}


@pytest.mark.parametrize(
    ("candidate", "status", "columns", "row"),
    [
        pytest.param(
            a_policy(DELETE, "columns"),
            POLICY_STATUS,
            "NAME|CONNECTION|MODE|ACTION|SUSPEND|MATCHED|WOULD DELETE|MARKED|DUE|DELETED|READY|REASON|LAST RUN|AGE|"
            "MESSAGE",
            ["columns", "main", "DryRun", "Delete", "false", "3", "3", "4", "2", str(2**40), "True"],
            id="policy",
        ),
        pytest.param(
            a_connection({}, "columns"),
            CONNECTION_STATUS,
            "NAME|CLUSTER|BROKERS|GROUPS|READY|REASON|AGE|MESSAGE",
            ["columns", "vPeOCWypqUOSepEvx0cbog", "3", "120", "True"],
            id="connection",
        ),
    ],
)
def test_status_and_columns(
    api_server: ApiServer, candidate: Object, status: Object, columns: str, row: list[str]
) -> None:
    """Every field of a full status is stored as it is, and kubectl's table shows the main ones in this order."""
    api_server.kubectl("apply", "-f", "-", input=json.dumps(candidate))
    resource, place = candidate["kind"], ("-n", "kafka")
    patch = json.dumps({"status": status})
    api_server.kubectl("patch", resource, "columns", *place, "--subresource=status", "--type=merge", "-p", patch)
    after = json.loads(api_server.kubectl("get", resource, "columns", *place, "-o", "json").stdout)
    assert after["status"] == status
    assert after["metadata"]["generation"] == 1
    header, line = api_server.kubectl("get", resource, "columns", *place, "-o", "wide").stdout.splitlines()
    assert re.split(r"\s{2,}", header.strip()) == columns.split("|")
    assert line.split()[: len(row)] == row
    assert line.rstrip().endswith("3 of 120 groups match")
    narrow = api_server.kubectl("get", resource, "columns", *place).stdout
    assert [title for title in ("MARKED", "DUE", "DELETED", "MESSAGE") if title in narrow] == []
    api_server.kubectl("delete", resource, "columns", *place)


def test_category_names_all_kinds(api_server: ApiServer) -> None:
    """`kubectl get group-hygiene` shows everything of ours."""
    api_server.kubectl("apply", "-f", str(ROOT / "examples"))
    shown = api_server.kubectl("get", "group-hygiene", "-n", "kafka", "-o", "name").stdout
    assert {name.split(".")[0] for name in shown.split()} == {
        "kafkaconnection",
        "grouppolicy",
        "grouprestore",
        "groupkeep",
    }


def test_kubectl_get_kafka_still_means_strimzis(api_server: ApiServer, tmp_path: Path) -> None:
    """kubectl reads a category before a kind's name, so a category `kafka` of ours would hide Strimzi's Kafka."""
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "kafkas.kafka.strimzi.io"},
        "spec": {
            "group": "kafka.strimzi.io",
            "scope": "Namespaced",
            "names": {"kind": "Kafka", "plural": "kafkas", "singular": "kafka"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }
    kafka = {"apiVersion": "kafka.strimzi.io/v1", "kind": "Kafka", "metadata": {"name": "main", "namespace": "kafka"}}
    api_server.kubectl("apply", "-f", "-", input=json.dumps(crd))
    try:
        api_server.wait_established("crd/kafkas.kafka.strimzi.io")
        api_server.kubectl("apply", "-f", "-", input=json.dumps(kafka))
        shown = api_server.kubectl("get", "kafka", "-n", "kafka", "-o", "name", f"--cache-dir={tmp_path}")
        assert shown.stdout.split() == ["kafka.kafka.strimzi.io/main"]
    finally:
        api_server.kubectl("delete", "crd", "kafkas.kafka.strimzi.io")


@pytest.mark.parametrize(
    ("before", "after", "is_refused"),
    [
        pytest.param({"topic": "a"}, {"topic": "b"}, True, id="another"),
        pytest.param(None, {"topic": "b"}, True, id="given-later"),
        pytest.param({"topic": "a"}, None, True, id="removed"),
        pytest.param(None, {"topic": "__group_hygiene"}, False, id="default-spelled-out"),
        pytest.param({"topic": "a", "replicationFactor": 3}, {"replicationFactor": 1}, False, id="other-fields"),
    ],
)
def test_the_ledgers_topic_is_immutable(
    api: CustomObjectsApi, before: Any, after: Any, is_refused: bool, request: pytest.FixtureRequest
) -> None:
    """A ledger does not move: marks, backups and requests to keep a group are in the topic that was used before."""
    name = f"moving-{request.node.callspec.id}"
    place = ("grouphygiene.io", "v1alpha1", "kafka", PLURALS["KafkaConnection"])
    api.create_namespaced_custom_object(*place, a_connection({"ledger": before} if before else {}, name))
    said = _complaints(lambda: api.patch_namespaced_custom_object(*place, name, {"spec": {"ledger": after}}))
    if is_refused:
        _assert_one(said, "spec.ledger.topic: .* must not be changed")
    else:
        assert said == []
