"""`list`, `describe` and `offsets` on a real broker, held against what Kafka's own tool says of the same groups."""

from __future__ import annotations

import csv
import os
import re
from io import StringIO
from typing import Any

import pytest
from kafka import KafkaConsumer

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.cli.conftest import Run
from tests.kafka.makers import Maker, at, requests
from tests.kafka.members import ShareMember

TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
KINDS = ["live-classic", "live-848", "assign-only"]
ALL = sorted([*KINDS, "left-classic", "left-848", "caught-up"])
Row = dict[str, str]


def kafkas_own(kafka: KafkaCluster, *arguments: str) -> list[Row]:
    """The tables that Kafka's tool prints, as rows by column."""
    done = kafka.tool(TOOL, "--bootstrap-server", kafka.bootstrap_servers, *arguments)
    assert done.returncode == 0, done.stderr
    rows: list[Row] = []
    titles: list[str] = []
    for line in done.stdout.splitlines():
        cells = line.split()
        if cells[:1] == ["GROUP"]:
            titles = cells
        elif cells and titles and len(cells) >= len(titles):
            rows.append(dict(zip(titles, cells, strict=False)))
    return rows


@pytest.fixture(scope="module")
def described(kafka: KafkaCluster, groups: Maker) -> dict[str, list[Row]]:
    """What Kafka's tool says of all groups: members and offsets."""
    return {
        what: kafkas_own(kafka, "--describe", "--all-groups", f"--{what}", *extra)
        for what, extra in {"members": ["--verbose"], "offsets": [], "state": []}.items()
    }


def test_list_agrees_with_kafkas_own_tool(on: Run, kafka: KafkaCluster) -> None:
    """The same groups in the same state, and no other."""
    rows = kafkas_own(kafka, "--list", "--state", "Empty")
    theirs = {row["GROUP"]: row["STATE"] for row in rows}
    ours = {group["group"]: group["state"] for group in on("list", "--state", "Empty", "-o", "json").json["groups"]}
    assert {name: ours[name] for name in ALL if name in ours} == {name: theirs[name] for name in ALL if name in theirs}
    # Kafka's tool prints an id with spaces or line breaks as it is; other tests leave some.
    parts = {part for name in ours for part in name.split() if part != name}
    assert {name: state for name, state in ours.items() if name.split() == [name]} == {
        name: state for name, state in theirs.items() if name not in parts
    }


def test_list_as_a_table(on: Run) -> None:
    """Sorted by group id, in Kafka's spelling; a simple group has no protocol type."""
    answer = on("list", "--match", "live-*", "--match", "assign-*")
    assert answer.code == 0
    assert [line.split() for line in answer.out.splitlines()] == [
        ["GROUP", "STATE", "TYPE", "PROTOCOL-TYPE"],
        ["assign-only", "Empty", "Classic", "-"],
        ["live-848", "Stable", "Consumer", "consumer"],
        ["live-classic", "Stable", "Classic", "consumer"],
    ]
    assert answer.err == ""


def test_list_as_json(on: Run, kafka: KafkaCluster) -> None:
    """The shape that docs/cli-reference.md documents."""
    answer = on("list", "--match", "live-848", "-o", "json")
    coordinator = {"id": 1, "address": kafka.bootstrap_servers}
    only = {
        "group": "live-848",
        "state": "Stable",
        "type": "Consumer",
        "protocolType": "consumer",
        "coordinator": coordinator,
    }
    assert answer.json == {"clusterID": kafka.cluster_id, "groups": [only], "notes": [], "errors": []}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        pytest.param(["--state", "stable"], ["live-848", "live-classic"], id="any-case"),
        pytest.param(["--state", "Stable,EMPTY", "--type", "consumer"], ["left-848", "live-848"], id="both"),
        pytest.param(["--state", "Dead", "--state", "Stable"], ["live-848", "live-classic"], id="repeated"),
        pytest.param(["--type", "Share,Streams"], [], id="types-that-nobody-has"),
        pytest.param(["--state", "Unknown"], [], id="state-that-brokers-do-not-know"),
        pytest.param(["--state", "Unknown,Stable"], ["live-848", "live-classic"], id="unknown-or"),
        pytest.param(["--match", "*-classic"], ["left-classic", "live-classic"], id="pattern"),
        pytest.param(["--regex", "l[ei].*-8[0-9]+"], ["left-848", "live-848"], id="regex"),
        pytest.param(["--regex", "-848"], [], id="regex-of-the-whole-id"),
        pytest.param(["--regex", ".*-848", "--match", "live-*"], ["live-848"], id="regex-and-pattern"),
        pytest.param(
            ["--match", "li*", "--match", "le*", "--match", "a*-only", "--sort-by", "type"],
            ["assign-only", "left-classic", "live-classic", "left-848", "live-848"],
            id="sorted",
        ),
    ],
)
def test_list_filters(on: Run, arguments: list[str], names: list[str]) -> None:
    """States and types as comma-separated lists or repeated, patterns as in a policy."""
    answer = on("list", "-o", "name", *arguments)
    found = answer.out.split()
    assert (answer.code, answer.err) == (0, "")
    assert [name for name in found if name in ALL] == names


def test_verbose_shows_the_steps(on: Run) -> None:
    """On stderr, with their time."""
    answer = on("list", "-v", "-o", "json")
    assert "listing groups ...\nlisting groups: " in answer.err
    assert answer.json["errors"] == []


def test_lag_of_listed_groups(on: Run) -> None:
    """The highest first; the requests for it are sent only if it is asked for."""
    answer = on("list", "--match", "live-*", "--match", "assign-*", "--sort-by", "lag", "-o", "json")
    assert (answer.code, answer.err) == (0, "")
    lags = {group["group"]: group["lag"] for group in answer.json["groups"]}
    assert list(lags.items()) == [("live-848", 3), ("live-classic", 2), ("assign-only", 1)]
    table = on("list", "--match", "live-*", "--lag").out.splitlines()
    assert [line.split()[-1] for line in table] == ["LAG", "3", "2"]
    assert "lag" not in on("list", "--match", "live-*", "-o", "json").json["groups"][0]


def test_csv_has_all_columns(on: Run, kafka: KafkaCluster) -> None:
    answer = on("list", "--match", "assign-only", "-o", "csv")
    assert list(csv.DictReader(StringIO(answer.out))) == [
        {
            "GROUP": "assign-only",
            "STATE": "Empty",
            "TYPE": "Classic",
            "PROTOCOL-TYPE": "",
            "OWNER": "",
            "COORDINATOR": f"{kafka.bootstrap_servers} (1)",
        }
    ]


def test_an_unknown_format_is_an_error_before_anything_is_read(run: Run) -> None:
    answer = run("list", "--bootstrap-server", "127.0.0.1:1", "-o", "xml")
    assert (answer.code, answer.out) == (1, "")
    assert "'xml' is not one of 'table', 'wide', 'name', 'json', 'yaml', 'csv'" in answer.err


def test_a_bad_expression_is_an_error(run: Run) -> None:
    answer = run("list", "--bootstrap-server", "127.0.0.1:1", "--regex", "(")
    assert answer.code == 1
    assert "'(' is not a regular expression: missing )" in answer.err


@pytest.mark.parametrize(
    ("states", "pushed"),
    [
        pytest.param("Empty,Dead", ["Dead", "Empty"], id="known"),
        pytest.param("Empty,Unknown", [], id="unknown"),
    ],
)
def test_brokers_filter_by_the_states_that_they_know(
    on: Run, kafka: KafkaCluster, states: str, pushed: list[str]
) -> None:
    """Unknown is ours: a broker that was asked for it would leave out just the groups that it stands for."""
    mark = kafka.mark()
    assert on("list", "--state", states).code == 0
    asked = [sorted(body["statesFilter"]) for body in requests(kafka, "LIST_GROUPS", mark)]
    assert asked == [pushed]


@pytest.mark.parametrize("name", KINDS)
def test_members_agree_with_kafkas_own_tool(on: Run, described: dict[str, list[Row]], name: str) -> None:
    """Member id, host, client id, number of partitions and assignment, field by field."""
    (group,) = on("describe", name, "--members", "-o", "json").json["groups"]
    ours = [
        (
            m["id"],
            m["host"],
            m["clientID"],
            str(len(m["assignment"])),
            {(p["topic"], p["partition"]) for p in m["assignment"]},
        )
        for m in group["members"]
    ]
    theirs = [
        (row["CONSUMER-ID"], row["HOST"], row["CLIENT-ID"], row["#PARTITIONS"], assigned(row))
        for row in described["members"]
        if row["GROUP"] == name
    ]
    assert ours == theirs
    assert len(ours) == (0 if name == "assign-only" else 1)


def assigned(row: Row) -> set[tuple[str, int]]:
    """`orders(0,1)` or `orders:0,1`, by the tool's version, as partitions."""
    text = row.get("CURRENT-ASSIGNMENT") or row["ASSIGNMENT"]
    topic, numbers = re.fullmatch(r"(\w+)[(:]([0-9,]+)\)?;?", text).groups()  # type: ignore[union-attr]
    return {(topic, int(number)) for number in numbers.split(",")}


@pytest.mark.parametrize("name", KINDS)
def test_offsets_agree_with_kafkas_own_tool(on: Run, described: dict[str, list[Row]], name: str) -> None:
    """Committed offset, end, lag and who has the partition, also where nothing was committed; field by field."""
    lines = on("describe", name, "--offsets", "-o", "wide").out.partition("\n\n")[2].splitlines()
    titles = lines[0].split()
    # No cell holds a blank here: NOTE is `-`.
    ours = [dict(zip(titles, line.split(), strict=True)) for line in lines[1:]]
    same = {
        "TOPIC": "TOPIC",
        "PARTITION": "PARTITION",
        "COMMITTED": "CURRENT-OFFSET",
        "END": "LOG-END-OFFSET",
        "LAG": "LAG",
        "MEMBER": "CONSUMER-ID",
        "HOST": "HOST",
        "CLIENT-ID": "CLIENT-ID",
    }
    theirs = [row for row in described["offsets"] if row["GROUP"] == name]
    assert [{key: row[key] for key in same} for row in ours] == [
        {key: row[other] for key, other in same.items()}
        for row in sorted(theirs, key=lambda row: (row["TOPIC"], int(row["PARTITION"])))
    ]
    assert len(ours) == 2


@pytest.mark.parametrize("name", KINDS)
def test_state_agrees_with_kafkas_own_tool(
    on: Run, described: dict[str, list[Row]], kafka: KafkaCluster, name: str
) -> None:
    """State, number of members, coordinator and assignor."""
    (group,) = on("describe", name, "-o", "json").json["groups"]
    (row,) = [row for row in described["state"] if row["GROUP"] == name]
    text = " ".join(row.values())
    assert group["coordinator"] == {"id": 1, "address": kafka.bootstrap_servers}
    assert kafka.bootstrap_servers in text
    assert group["state"] in text
    assert (group["assignor"] or "") in text
    assert (group["epoch"] is None) == (group["type"] == "Classic")


def test_describe_as_a_table(on: Run) -> None:
    """One row a group; members and partitions in tables of their own."""
    answer = on("describe", "live-classic", "assign-only", "--members")
    groups, members = (part.splitlines() for part in answer.out.split("\n\n"))
    assert [line.split()[0] for line in groups] == ["GROUP", "assign-only", "live-classic"]
    assert groups[2].split()[3:] == ["Stable", "Classic", "consumer", "range", "-", "1"]
    assert members[0].split() == ["GROUP", "MEMBER", "HOST", "CLIENT-ID", "INSTANCE-ID", "PARTITIONS", "ASSIGNMENT"]
    assert members[1].split()[2:] == ["/127.0.0.1", "of-live-classic", "-", "2", "orders(0,1)"]


def test_offsets_as_json(on: Run, kafka: KafkaCluster) -> None:
    """The shape that docs/cli-reference.md documents; lag is what lies between committed and end."""
    first, second = (
        {"topic": "orders", "partition": number, "committed": at_, "start": 0, "end": end, "lag": end - at_}
        | {"topicExists": True, "member": None}
        for number, at_, end in ((0, 4, 5), (1, 0, 0))
    )
    assert on("offsets", "assign-only", "-o", "json").json == {
        "clusterID": kafka.cluster_id,
        "groups": [{"group": "assign-only", "lag": 1, "partitions": [first, second]}],
        "notes": [],
        "errors": [],
    }


def test_the_lag_of_a_group(on: Run) -> None:
    """In all of its partitions; describe reads it only if it is asked for offsets."""
    titles, row = (line.split() for line in on("describe", "assign-only", "--offsets").out.splitlines()[:2])
    assert (titles[-1], row[-1]) == ("LAG", "1")
    assert "LAG" not in on("describe", "assign-only").out
    assert on("describe", "assign-only", "--offsets", "-o", "json").json["groups"][0]["lag"] == 1


def test_topic_that_no_longer_exists_is_marked(on: Run, kafka: KafkaCluster, groups: Maker) -> None:
    """A member still has partitions of a deleted topic: they are shown, marked, and no error."""
    topic = groups.topic()
    # One that is not polled any more: it does not see that its topic is gone, and gives nothing back.
    member = KafkaConsumer(topic, group_id="of-a-deleted-topic", bootstrap_servers=kafka.bootstrap_servers)
    wait_for(lambda: member.poll(500) or member.assignment())
    groups.delete_topic(topic)
    answer = on("offsets", "of-a-deleted-topic")
    assert answer.out.splitlines()[1].split(maxsplit=7) == [
        *("of-a-deleted-topic", topic, "0", "-", "-", "-", "-"),
        "topic does not exist",
    ]
    assert (answer.code, answer.err) == (0, "")
    partition = on("offsets", "of-a-deleted-topic", "-o", "json").json["groups"][0]["partitions"][0]
    assert partition["topicExists"] is False
    member.close(autocommit=False)


def test_committed_offset_after_the_end(on: Run, groups: Maker) -> None:
    """That of a topic which was made anew, or lost records: no record has it yet."""
    groups.simple("ahead", at("orders", 9))
    row = on("offsets", "ahead").out.splitlines()[1].split(maxsplit=7)
    groups.delete_group("ahead")
    assert row == ["ahead", "orders", "0", "9", "0", "5", "0", "after the end"]


def test_share_group_shows_its_start_offsets(on: Run, kafka: KafkaCluster, groups: Maker) -> None:
    """Where it goes on, and each other partition that is its own; a note says what that does not tell."""
    topic = groups.topic(partitions=2)
    with ShareMember(kafka, groups, "shared", topic):
        wait_for(lambda: len(on("offsets", "shared", "-o", "json").out.split('"partition":')) == 3)
    wait_for(lambda: bool(_committed(on("offsets", "shared", "-o", "json").json)))
    tool, where = "org.apache.kafka.tools.consumer.group.ShareGroupCommand", kafka.bootstrap_servers
    output = kafka.tool(tool, "--bootstrap-server", where, "--describe", "--group", "shared", "--offsets").stdout
    offsets = on("offsets", "shared", "left-848", "-o", "json")
    described = on("describe", "shared", "--offsets")
    groups.delete_group("shared")
    assert [group["group"] for group in offsets.json["groups"]] == ["left-848", "shared"]
    rows = {row[2]: row[3:] for row in map(str.split, output.splitlines()) if row and row[0] == "shared"}
    assert rows["1"][0] == "-"
    assert _committed(offsets.json) == [int(rows["0"][0])]
    assert str(offsets.json["groups"][1]["partitions"][0]["lag"]) == rows["0"][1]
    assert [row["partition"] for row in offsets.json["groups"][1]["partitions"]] == [0, 1]
    (note,) = offsets.json["notes"]
    assert note.startswith("group shared: the committed offset of a share group is its start offset: ")
    assert (offsets.code, described.code) == (0, 0)
    assert f"Note: {note}\n" in described.err


def _committed(document: Any) -> list[int]:
    """The offsets of the last group in a document, of its partitions that have one."""
    partitions = document["groups"][-1]["partitions"]
    return [row["committed"] for row in partitions if row.get("committed") is not None]


def test_absent_group_does_not_hide_the_others(on: Run) -> None:
    """What is there is printed; what is not, is an error of its own, and the exit code is 1."""
    answer = on("describe", "nobody", "left-848", "-o", "name")
    assert (answer.code, answer.out) == (1, "left-848\n")
    assert answer.err == "Error: group nobody: there is no such group\n"


def test_group_id_cannot_write_to_the_terminal(on: Run, groups: Maker) -> None:
    """Kafka takes any character in a group id: control characters are escaped, and JSON has them as they are."""
    name = "evil\x1b[2J\nname"
    groups.simple(name, at("orders", 1))
    assert "evil\\x1b[2J\\nname" in on("list").out
    assert name in {group["group"] for group in on("list", "-o", "json").json["groups"]}
    groups.delete_group(name)


def test_environment_names_the_cluster(
    run: Run, kafka: KafkaCluster, groups: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GROUP_HYGIENE_BOOTSTRAP_SERVER stands for the option."""
    monkeypatch.setitem(os.environ, "GROUP_HYGIENE_BOOTSTRAP_SERVER", kafka.bootstrap_servers)
    assert run("list", "--match", "caught-up", "-o", "name").out == "caught-up\n"
