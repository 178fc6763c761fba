"""`plan` and `explain` on a real broker: what they say, how they exit, and that nothing is ever changed."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml

import group_hygiene.cli
from group_hygiene.cli.manifests import protection_errors
from group_hygiene.engine import checks
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.cluster import OFFSETS_TOPIC, read_cluster, topic_ids
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Protections
from group_hygiene.model.groups import Cluster
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.page import render
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.policy import Action
from testing.sandbox.kafka import KafkaCluster
from tests.cli.conftest import Run
from tests.findings import empty, suggestion
from tests.kafka.makers import Maker, at, soon
from tests.warehouse import Warehouse, idle, in_use, simple

ABANDONED = ["left-848", "left-classic"]


def policy(name: str = "unused", **spec: Any) -> str:
    """A policy that deletes what was unchanged for 72 h, but for what `spec` says otherwise, as YAML."""
    base = {
        "connectionRef": {"name": "main"},
        "match": {"groups": ["live-*", "left-*", "caught-*", "assign-*"]},
        "when": {"unchangedFor": "72h"},
        "action": "Delete",
        "delete": {"maxPercent": 100},
    }
    merged = {key: value for key, value in (base | spec).items() if value is not None}
    metadata = {"name": name, "namespace": "kafka"}
    return _yaml("GroupPolicy", metadata, merged)


def connection(kafka: KafkaCluster, **spec: Any) -> str:
    """A KafkaConnection to the broker, as YAML."""
    servers = {"bootstrapServers": [kafka.bootstrap_servers]}
    return _yaml("KafkaConnection", {"name": "main", "namespace": "kafka"}, servers | spec)


def _yaml(kind: str, metadata: dict[str, str], spec: dict[str, Any]) -> str:
    obj = {"apiVersion": "grouphygiene.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
    return "---\n" + yaml.safe_dump(obj)


@pytest.fixture
def client(kafka: KafkaCluster) -> Iterator[Client]:
    """The product's own, to ask what the command line doesn't tell."""
    made = connect(Settings(tuple(kafka.bootstrap_servers.split(","))))
    yield made
    made.close()


def test_plan_says_what_would_be_done(on: Run, tmp_path: Path) -> None:
    """Matching groups are named, all others have a reason, the assumption is shown; exit code 2."""
    file = tmp_path / "policy.yaml"
    file.write_text(policy())
    answer = on("plan", "-f", file, "--detailed-exitcode")
    heading, would, skipped, assumed, titles, *rows = answer.out.splitlines()
    assert answer.code == 2
    assert skipped.strip().startswith(
        "10 records wait for them: after the deletion, consumers with auto.offset.reset=latest"
    )
    assert heading == "GroupPolicy kafka/unused (Delete, DryRun)"
    later = "mode Enforce would mark them and delete them after 24h"
    assert would.strip() == f"2 of 4 groups match: it would report them; {later}"
    assert assumed.strip() == "assumed: every group that is Empty now was seen unchanged for 72h"
    assert titles.split() == ["GROUP", "STATE", "TYPE", "VERDICT", "REASON", "MESSAGE"]
    assert [(row.split()[0], *row.split()[3:5]) for row in rows] == [
        ("assign-only", "Skip", "SimpleGroup"),
        ("caught-up", "Skip", "CaughtUp"),
        ("left-848", "Match", "-"),
        ("left-classic", "Match", "-"),
    ]


def test_policy_that_the_operator_would_refuse_is_an_error(on: Run) -> None:
    """The API server takes a connectionRef into another namespace; the operator does not."""
    answer = on("plan", "-f", "-", stdin=policy(connectionRef={"name": "main", "namespace": "other"}))
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("Error: GroupPolicy kafka/unused: CrossNamespaceRefused: ")


def test_plan_changes_nothing(on: Run, groups: Maker) -> None:
    """Mode Enforce, too, is only planned."""
    before = groups.groups()
    assert on("plan", "-f", "-", stdin=policy(mode="Enforce")).code == 0
    assert groups.groups() == before


@pytest.mark.parametrize(
    ("spec", "code", "would"),
    [
        pytest.param({}, 2, "mode Enforce would mark them and delete them after 24h", id="dry-run"),
        pytest.param({"mode": "Enforce"}, 2, "it would mark them and delete them after 24h", id="enforce"),
        pytest.param({"mode": "Enforce", "delete": {"maxPercent": 1}}, 2, "LimitExceeded", id="over-the-limit"),
        pytest.param(
            {"mode": "Enforce", "delete": {"maxPercent": 100, "maxPerRun": 1}},
            2,
            "after 24h, 1 in the first run",
            id="paced",
        ),
        pytest.param({"action": "Alert", "delete": None}, 2, "it would report them", id="alert"),
        pytest.param({"match": {"groups": ["nobody"]}}, 0, "it would do nothing", id="no-group"),
        pytest.param({"match": {"groups": ["assign-*"]}}, 0, "it would do nothing", id="all-kept"),
    ],
)
def test_plan_exits_by_what_it_would_do(on: Run, spec: dict[str, Any], code: int, would: str) -> None:
    """0 when no group matches, 2 when one does."""
    answer = on("plan", "-f", "-", "--detailed-exitcode", stdin=policy(**spec))
    assert (answer.code, would in answer.out) == (code, True)


def test_plan_as_json(on: Run, kafka: KafkaCluster) -> None:
    """The shape that docs/cli-reference.md documents."""
    answer = on("plan", "-f", "-", "-o", "json", stdin=policy(match={"groups": ["left-classic"]}))
    (planned,) = answer.json["policies"]
    assert planned.pop("takenAt").endswith("Z")
    assert planned == {
        "namespace": "kafka",
        "name": "unused",
        "action": "Delete",
        "mode": "DryRun",
        "clusterID": kafka.cluster_id,
        "assumed": {"unchangedFor": "72h"},
        "would": "1 of 1 groups match: it would report them; mode Enforce would mark them and delete them after 24h",
        "judged": 1,
        "matched": 1,
        "patterns": [{"pattern": "left-classic", "matched": 1, "unusedDays": None}],
        "owners": [],
        "due": ["left-classic"],
        "firstRun": ["left-classic"],
        "nextExpiryTime": None,
        "refusal": None,
        "groups": [
            {
                "group": "left-classic",
                "state": "Empty",
                "type": "Classic",
                "protocolType": "consumer",
                "verdict": "Match",
                "lag": 5,
            }
        ],
    }
    assert answer.json.keys() == {"policies", "notes", "errors"}


def test_plan_tells_lag(on: Run) -> None:
    """Live and left groups by the records that wait for them, in the table and as JSON."""
    behind = policy(action="Alert", delete=None, when={"lag": {"atLeast": 2}})
    rows = on("plan", "-f", "-", stdin=behind).out.splitlines()[3:]
    assert [(row.split()[0], row.partition("  Match ")[2].strip(" -")) for row in rows if "  Match " in row] == [
        ("left-848", "5 records wait for it"),
        ("left-classic", "5 records wait for it"),
        ("live-848", "3 records wait for it"),
        ("live-classic", "2 records wait for it"),
    ]
    answer = on("plan", "-f", "-", "-o", "json", stdin=behind)
    assert answer.code == 0
    (planned,) = answer.json["policies"]
    shown = {one["group"]: (one["state"], one.get("reason"), one["lag"]) for one in planned["groups"]}
    assert shown == {
        "assign-only": ("Empty", "LagBelow", 1),
        "caught-up": ("Empty", "CaughtUp", 0),
        "left-848": ("Empty", None, 5),
        "left-classic": ("Empty", None, 5),
        "live-848": ("Stable", None, 3),
        "live-classic": ("Stable", None, 2),
    }


def test_plan_and_explain_tell_what_expires_when(on: Run, kafka: KafkaCluster, client: Client, tmp_path: Path) -> None:
    """Each match with its date, also as JSON, the first of all; and whether the policy may tell too late."""
    topic_id = topic_ids(client, [OFFSETS_TOPIC], soon())[OFFSETS_TOPIC]
    cluster = read_cluster(client, soon())
    assert isinstance(topic_id, str)
    assert isinstance(cluster, Cluster)
    tables = Warehouse(tmp_path, kafka.cluster_id, topic_id, len(cluster.leaders))
    # The broker keeps offsets for 7 days.
    clients = [{"client_id": f"b-{n}", "host": "10.1.2.3", "instance_id": None, "rack_id": None} for n in (2, 1)]
    known = {"last_clients": clients, "last_clients_at": datetime(2026, 1, 31, 12, tzinfo=UTC)}
    first, second, third = idle("left-classic", 160, **known), in_use("live-848", old=150), idle("caught-up", 100)
    tables.write([first, second | {"type": "Consumer"}, third])
    at = [f"{row[when] + timedelta(days=7):%Y-%m-%dT%H:%M:%SZ}" for row, when in (
        (first, "empty_since"), (second, "oldest_commit"), (third, "empty_since"))]  # fmt: skip
    match = {"groups": ["left-classic", "live-848", "caught-up"]}
    soon_ = policy(when={"expiresWithin": "24h"}, match=match, action="Alert", delete=None, interval="23h")
    answer = on("plan", "-f", "-", "--activity", tmp_path, stdin=soon_)
    assert answer.code == 0, (answer.out, answer.err)
    _, _, late, _, *rows = answer.out.splitlines()
    assert late.strip().startswith("expiresWithin (24h) is not longer than interval (23h) and activity.maxAge (1h)")
    expiry = "the first of its offsets expire at"
    idle_since = f"idle since {first['empty_since']:%Y-%m-%dT%H:%M:%SZ}"
    member = "its last member was client 'b-1' from 10.1.2.3 and 1 more"
    assert [(row.split()[0], row.split()[3], row.rpartition("  ")[2].strip()) for row in rows] == [
        ("caught-up", "Skip", f"{expiry} {at[2]}"),
        ("left-classic", "Match", "; ".join([idle_since, f"{expiry} {at[0]}", member])),
        ("live-848", "Match", f"{expiry} {at[1]}"),
    ]
    (planned,) = on("plan", "-f", "-", "--activity", tmp_path, "-o", "json", stdin=soon_).json["policies"]
    assert planned["nextExpiryTime"] == at[0]
    assert [group["expiresTime"] for group in planned["groups"]] == [at[2], at[0], at[1]]
    assert planned["groups"][1]["lastClient"] == {
        **{"clientID": "b-1", "host": "10.1.2.3", "others": 1, "at": "2026-01-31T12:00:00Z"}
    }
    assert "lastClient" not in planned["groups"][0]
    used = "last used 6 days ago by client 'b-1' from 10.1.2.3 and 1 more"
    wide = on("plan", "-f", "-", "--activity", tmp_path, "-o", "wide", stdin=soon_).out
    assert [used in line for line in wide.splitlines() if line.startswith("left-classic")] == [True]
    explained = on("explain", "left-classic", "-f", "-", "--activity", tmp_path, stdin=soon_)
    assert f"  {used}" in explained.out.splitlines()
    explained = on("explain", "live-848", "-f", "-", "--activity", tmp_path, stdin=soon_)
    assert f"  {expiry} {at[1]}" in explained.out.splitlines()


def test_the_command_of_a_report_plans_its_policy(
    run: Run, kafka: KafkaCluster, client: Client, tmp_path: Path, groups: Maker
) -> None:
    """As it is copied: each group is judged by the tables."""
    folder = tmp_path / "tables"
    folder.mkdir()
    topic_id = topic_ids(client, [OFFSETS_TOPIC], soon())[OFFSETS_TOPIC]
    cluster = read_cluster(client, soon())
    assert isinstance(topic_id, str)
    assert isinstance(cluster, Cluster)
    tables = Warehouse(folder, kafka.cluster_id, topic_id, len(cluster.leaders))
    tables.write([idle("left-classic", 160), idle("caught-up", 1)])
    suggested = suggestion("{left-classic,caught-up}")
    suggested = replace(suggested, policy=policy(suggested.name, match={"groups": ["left-classic", "caught-up"]},
                                                 when={"idleFor": "96h"}))  # fmt: skip
    page = render(replace(empty(), suggestions=[suggested]), "", None, str(folder), (kafka.bootstrap_servers,))
    yaml_, command = map(unescape, re.findall(r"<pre[^>]*>([^<]*)</pre>", page))
    program, *words = shlex.split(command)
    assert program == "group-hygiene"
    file = tmp_path / words[words.index("-f") + 1]
    file.write_text(yaml_, "utf-8")
    answer = run(*(str(file) if word == file.name else word for word in words), "-o", "json")
    assert answer.code == 0, (answer.out, answer.err)
    (planned,) = answer.json["policies"]
    verdicts = {each["group"]: (each["verdict"], each.get("reason")) for each in planned["groups"]}
    assert verdicts["left-classic"][0] == "Match"
    assert not [reason for _, reason in verdicts.values() if reason == "EvidenceNotConfigured"]


def test_connection_of_the_file_supplies_address_protection_and_limits(
    run: Run, kafka: KafkaCluster, groups: Maker
) -> None:
    """No option is needed; what the connection protects stays, and its limits count where they are stricter."""
    protecting = connection(kafka, protect=["left-8*"], limits={"maxPercent": 1})
    answer = run("plan", "-f", "-", "-o", "json", stdin=protecting + policy())
    (planned,) = answer.json["policies"]
    verdicts = {group["group"]: group.get("reason") for group in planned["groups"]}
    assert verdicts["left-848"] == "Protected"
    assert verdicts["left-classic"] is None
    assert planned["refusal"]["reason"] == "LimitExceeded"
    assert answer.code == 0


def test_another_cluster_than_the_connections(run: Run, kafka: KafkaCluster, groups: Maker) -> None:
    """The address leads to other brokers than spec.clusterID says: the plan is that nothing is done, as in a run."""
    for cluster, reason in ((kafka.cluster_id, None), ("former", "ClusterChanged")):
        manifests = connection(kafka, clusterID=cluster) + policy()
        answer = run("plan", "-f", "-", "-o", "json", stdin=manifests)
        (planned,) = answer.json["policies"]
        assert (planned.get("refusal") or {}).get("reason") == reason, answer.err


def test_patterns_that_select_nothing_are_named(run: Run, kafka: KafkaCluster, groups: Maker, tmp_path: Path) -> None:
    """By plan and by doctor, each by its place; also a dotted one that a star would widen. Groups in use count, too."""
    spec = {
        "protect": ["live-848", "payments", "left.*", "assign-*"],
        "owners": [{"name": "a", "groups": ["no-*"]}],
    }
    unused = policy(match={"groups": ["left-*"], "exclude": ["*-never"]})
    expected = [
        "spec.protect[1]: payments selects no group",
        r"spec.protect[2]: left.* selects no group; left* would select",
        "spec.owners[0].groups[0]: no-* selects no group",
    ]
    planned = run("plan", "-f", "-", stdin=connection(kafka, **spec) + unused)
    said = [line.removeprefix("Note: ") for line in planned.err.splitlines() if "select" in line]
    every = [*expected, "GroupPolicy kafka/unused spec.match.exclude[0]: *-never selects no group"]
    assert [(line, start) for line, start in zip(said, every, strict=True) if not line.startswith(start)] == []
    assert planned.code == 0
    file = tmp_path / "connection.yaml"
    file.write_text(connection(kafka, **spec))
    checked = run("doctor", "--connection-file", file, "-o", "json")
    found = [each for each in checked.json["checks"] if each["check"] == "patterns"]
    assert [(each["result"], each["found"][: len(start)]) for each, start in zip(found, expected, strict=True)] == [
        ("Warning", start) for start in expected
    ]
    assert checked.code == 0


def test_folders_and_several_files_are_read(on: Run, tmp_path: Path) -> None:
    """A folder stands for its YAML files; what is not ours is left out with a note; a suspended policy does nothing."""
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Namespace\nmetadata: {name: kafka}\n" + policy("one"))
    (tmp_path / "b.yml").write_text(policy("two", suspend=True))
    (tmp_path / "c.txt").write_text("{")
    answer = on("plan", "-f", tmp_path, "-o", "name")
    assert answer.out.split() == ABANDONED
    assert "Note: Namespace: ignored, not a GroupPolicy or KafkaConnection\n" in answer.err
    assert "Note: GroupPolicy kafka/two is suspended: it would do nothing\n" in answer.err


@pytest.mark.parametrize(
    ("group", "outcome", "results"),
    [
        pytest.param("left-classic", "Match", {"match": "Passed", "caught_up": "Passed"}, id="match"),
        pytest.param(
            "caught-up", "Skip: CaughtUp: ", {"unchanged": "Passed", "caught_up": "Skips"}, id="kept-by-a-late-check"
        ),
        pytest.param(
            "assign-only",
            "Skip: SimpleGroup: ",
            {"simple": "Skips", "caught_up": "NotReached"},
            id="kept-by-an-earlier",
        ),
        pytest.param(
            "live-848",
            "Skip: the policy does not select it: its state is Stable",
            {"match": "Skips", "own_group": "NotReached"},
            id="not-selected",
        ),
    ],
)
def test_explain_walks_the_chain(on: Run, group: str, outcome: str, results: dict[str, str]) -> None:
    """Every check in its order, with why it exists; the first that keeps ends it."""
    answer = on("explain", group, "-f", "-", stdin=policy())
    assert answer.code == 0
    assert answer.out.startswith(f"GroupPolicy kafka/unused (Delete, DryRun): {outcome}")
    decided = next((check for check, result in results.items() if result == "Skips"), "")
    *_, last = answer.out.splitlines()
    names = ["match", *(check.__name__ for check in checks.CHAINS[Action.DELETE])]
    assert last.startswith(f"  decided by {decided}: " if decided else f"  {len(names)} checks passed")
    walked = on("explain", group, "-f", "-", "-v", stdin=policy()).out.splitlines()
    first = next(number for number, line in enumerate(walked) if line.startswith("CHECK"))
    assert [line.split()[0] for line in walked[first + 1 :]] == names
    (explained,) = on("explain", group, "-f", "-", "-o", "json", stdin=policy()).json["policies"]
    steps = explained["checks"]
    assert [step["check"] for step in steps] == names
    assert {step["check"]: step["result"] for step in steps}.items() >= results.items()
    assert all(step["why"] for step in steps)


def test_explain_a_group_that_is_not_there(on: Run) -> None:
    """One sentence, exit code 1."""
    answer = on("explain", "absent", "-f", "-", stdin=policy())
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines()[-1] == "Error: there is no group absent: group-hygiene list shows all"


def test_pattern_characters_in_a_group_id_are_literal(on: Run, groups: Maker) -> None:
    r"""`*` and `\` in the id of the explained group match only themselves."""
    groups.abandoned("left-*\\", "orders")
    (explained,) = on("explain", "left-*\\", "-f", "-", "-o", "json", stdin=policy()).json["policies"]
    groups.delete_group("left-*\\")
    assert explained["group"]["group"] == "left-*\\"


UNREAD = Refusal(reasons.CLAIMED, "no permission to list scaledobjects.keda.sh in all namespaces")
PROTECTED = [reasons.CLAIMED, reasons.STREAMS, reasons.MIRROR_MAKER]


@pytest.mark.parametrize(
    ("protections", "kept", "needed"),
    [
        pytest.param(Protections(), PROTECTED, [], id="all-known"),
        pytest.param(
            Protections(claimed=UNREAD), PROTECTED, ["no permission to list scaledobjects.keda.sh"], id="claims"
        ),
        pytest.param(Protections(streams=None), PROTECTED, ["topics could not be listed"], id="topics"),
        pytest.param(Protections(mirrored=None), PROTECTED, ["READ on each topic *.checkpoints"], id="checkpoints"),
        pytest.param(Protections(None, None, UNREAD), [reasons.SIMPLE], [], id="nobody-was-kept-for-it"),
        pytest.param(
            Protections(None, None, UNREAD),
            PROTECTED,
            ["objects that may name groups", "Streams", "MirrorMaker"],
            id="nothing-known",
        ),
    ],
)
def test_what_keeps_groups_since_it_is_not_known_is_an_error(
    protections: Protections, kept: list[str], needed: list[str]
) -> None:
    """ "Nothing would be done" is no answer where somebody who may read more would see a match."""
    said = protection_errors(protections, kept)
    assert len(said) == len(needed)
    assert all(part in text for part, text in zip(needed, said, strict=True))


def test_plan_on_a_thousand_groups(run: Run, kafka: KafkaCluster, groups: Maker) -> None:
    """Each has a row with its verdict, and with the reason where it is kept."""
    names = [f"bulk-{number:04}" for number in range(1_000)]
    groups.simple_groups({name: at("orders", 10**6 * (1 - number % 2)) for number, name in enumerate(names)})
    lost = policy(match={"groups": ["bulk-*"]}, when={"committedOffsets": "OutOfRange"}, action="Alert", delete=None)
    answer = run("plan", "-f", "-", stdin=connection(kafka) + lost)
    for future in groups.admin.delete_consumer_groups(names).values():
        future.result()
    _, would, bulk, titles, *rows = answer.out.splitlines()
    assert bulk.strip() == "bulk-*: 500 match"
    assert would.strip() == "500 of 1000 groups match: it would report them"
    assert titles.split() == ["GROUP", "STATE", "TYPE", "VERDICT", "REASON", "MESSAGE"]
    assert [row.split()[0] for row in rows] == names
    cells = [row.split(maxsplit=5)[3:] for row in rows]
    assert [cell[:2] for cell in cells[0::2]] == [["Match", "-"]] * 500
    assert [cell[:2] for cell in cells[1::2]] == [["Skip", reasons.IN_RANGE]] * 500
    assert answer.code == 0


def test_many_matches_are_counted_by_pattern(run: Run, kafka: KafkaCluster, groups: Maker, tmp_path: Path) -> None:
    """With the days that they are unused on average, as far as known; and with the limits that a first run needs."""
    names, many = [groups.name("many") for _ in range(30)], f"{groups.tag}many-*"
    groups.simple_groups({name: at("orders", 1) for name in names})
    client = connect(Settings(tuple(kafka.bootstrap_servers.split(","))))
    cluster, topic_id = read_cluster(client, soon()), topic_ids(client, [OFFSETS_TOPIC], soon())[OFFSETS_TOPIC]
    client.close()
    assert isinstance(topic_id, str)
    assert isinstance(cluster, Cluster)
    rows = [simple(name, 24 * (10 + 20 * (number % 2))) for number, name in enumerate(names)]
    Warehouse(tmp_path, kafka.cluster_id, topic_id, len(cluster.leaders)).write(rows)
    spec = policy(when={"idleFor": "48h"}, match={"groups": [names[0], many]}, delete={"maxPercent": 1})
    where = ("--activity", tmp_path, "--bootstrap-server", kafka.bootstrap_servers)
    answer = run("plan", "-f", "-", *where, stdin=spec)
    lines = [line.strip() for line in answer.out.splitlines()]
    assert lines[2:4] == [
        f"{many}: 29 match, unused for 20 days on average",
        f"{names[0]}: 1 match, unused for 10 days on average",
    ]
    assert lines[4].startswith("if they are right, until they are deleted (1 run, 10m): delete: {maxPerRun: ")
    short = run("plan", "-f", "-", *where, "--summary", stdin=spec).out.splitlines()
    assert [line.strip() for line in short[:4]] == lines[:4]
    assert len(short) == lines.index(next(line for line in lines if line.startswith("GROUP ")))
    (planned,) = run("plan", "-f", "-", *where, "-o", "json", "--summary", stdin=spec).json["policies"]
    assert not {"groups", "due", "firstRun"} & planned.keys()
    assert planned["patterns"][1] == {"pattern": names[0], "matched": 1, "unusedDays": 10}
    limits = yaml.safe_load(lines[4].partition("10m): ")[2])["delete"]
    # Those of the policy, where they are enough.
    assert limits["maxPerRun"] == 50
    more = policy(when={"idleFor": "48h"}, match={"groups": [many]}, delete=limits)
    (planned,) = run("plan", "-f", "-", *where, "-o", "json", stdin=more).json["policies"]
    assert (planned["refusal"], len(planned["firstRun"])) == (None, 30)


def test_only_the_command_delete_can_delete() -> None:
    """Only its module imports what deletes groups, and that only by way of the checks, the ledger and the backup."""
    deleting = "delete_requested"
    for file in Path(group_hygiene.cli.__file__).parent.glob("*.py"):
        forbidden = {"apply", "delete_groups", "reconcile", *(() if file.name == "deletions.py" else (deleting,))}
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not {alias.name.rpartition(".")[2] for alias in node.names} & forbidden, file.name
            assert not (isinstance(node, ast.Attribute) and node.attr in forbidden), file.name
