"""The offsets log as an independent client reads it, and what Kafka's own classes and tool make of its records."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition

from group_hygiene.kafka.offsets_log import CLIENTS_MAX, TEXT_MAX, Commit, MemberClient, StateRecord
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.jars import jars
from testing.sandbox.kafka.java import JavaProgram, java_command

Pair = tuple[bytes, bytes | None]
Record = Commit | StateRecord
# Partition, offset, time.
Place = tuple[int, int, int]
TOPIC = "__consumer_offsets"
_PROGRAMS = Path(__file__).with_name("java")


class Kind(NamedTuple):
    """The type's number in a key, its name here, and which field of its value is the generation."""

    number: int
    name: str
    generation: str = ""


_KINDS = {
    "ConsumerGroupMetadataKey": Kind(3, "consumer-epoch", "epoch"),
    "ConsumerGroupPartitionMetadataKey": Kind(4, "consumer-topics"),
    "ConsumerGroupMemberMetadataKey": Kind(5, "consumer-member"),
    "ConsumerGroupTargetAssignmentMetadataKey": Kind(6, "consumer-target-epoch", "assignmentEpoch"),
    "ConsumerGroupTargetAssignmentMemberKey": Kind(7, "consumer-target-member"),
    "ConsumerGroupCurrentMemberAssignmentKey": Kind(8, "consumer-assignment", "memberEpoch"),
    "ConsumerGroupRegularExpressionKey": Kind(16, "consumer-regex"),
    "ShareGroupMetadataKey": Kind(11, "share-epoch", "epoch"),
    "ShareGroupMemberMetadataKey": Kind(10, "share-member"),
    "ShareGroupTargetAssignmentMetadataKey": Kind(12, "share-target-epoch", "assignmentEpoch"),
    "ShareGroupTargetAssignmentMemberKey": Kind(13, "share-target-member"),
    "ShareGroupCurrentMemberAssignmentKey": Kind(14, "share-assignment", "memberEpoch"),
    "ShareGroupStatePartitionMetadataKey": Kind(15, "share-state"),
    "StreamsGroupMetadataKey": Kind(17, "streams-epoch", "epoch"),
    "StreamsGroupMemberMetadataKey": Kind(19, "streams-member"),
    "StreamsGroupTargetAssignmentMetadataKey": Kind(20, "streams-target-epoch", "assignmentEpoch"),
    "StreamsGroupTargetAssignmentMemberKey": Kind(21, "streams-target-member"),
    "StreamsGroupCurrentMemberAssignmentKey": Kind(22, "streams-assignment", "memberEpoch"),
    "StreamsGroupTopologyKey": Kind(23, "streams-topology"),
}
# Those that older brokers wrote, too.
_CLASSES = {0: "LegacyOffsetCommitKey", 1: "OffsetCommitKey", 2: "GroupMetadataKey"} | {
    kind.number: name for name, kind in _KINDS.items()
}
# Its DumpLogSegments reads the segments of all versions; an older one's prints less of a record.
_DECODER = "4.3.0"
_RECORD = re.compile(
    r"[|] offset: (\d+) (?:CreateTime|LogAppendTime): (\d+) .*? headerKeys: \[\] (key|endTxnMarker): (.*)"
)


def read_log(kafka: KafkaCluster) -> list[Pair]:
    """Key and value of every record that is in the topic now."""
    return [(row.key, row.value) for row in read_rows(kafka)]


def read_rows(kafka: KafkaCluster) -> list[Any]:
    """Every record of the topic, with .partition and .offset, those of open and aborted transactions too."""
    # Without a group: what it reads is what groups leave.
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, enable_auto_commit=False, group_id=None)
    places = [TopicPartition(TOPIC, index) for index in sorted(consumer.partitions_for_topic(TOPIC))]
    ends = consumer.end_offsets(places)
    consumer.assign(places)
    consumer.seek_to_beginning()
    read: dict[TopicPartition, list[Any]] = {place: [] for place in places}
    while any(consumer.position(place) < ends[place] for place in places):
        for place, records in consumer.poll(timeout_ms=200).items():
            read[place] += records
    consumer.close()
    return [row for place in places for row in read[place]]


def types_of_records(records: Iterable[Record], group: str) -> set[tuple[str, bool]]:
    """Which kinds of records there are of a group, and of each whether it is a tombstone."""
    return {
        ("commit" if isinstance(record, Commit) else record.kind, record.gone)
        for record in records
        if record.group == group
    }


def generated(kafka: KafkaCluster, pairs: Iterable[Pair]) -> list[Record | None]:
    """What the generated classes of that Kafka make of these records; None = they refuse it."""
    answers = _run(kafka, "Generated.java", [f"decode {key.hex()} {_hex(value)}" for key, value in pairs])
    return [_generated(json.loads(answer)) for answer in answers]


def dumped(kafka: KafkaCluster) -> dict[Place, Record | None]:
    """What Kafka's DumpLogSegments prints of the segment files of broker 1: its record, or None = it can't decode it.

    By partition, offset and record time in milliseconds. The markers of transactions are left out.
    """
    found: dict[Place, Record | None] = {}
    for folder in sorted(kafka.log(1).parent.glob(f"data/{TOPIC}-*")):
        files = ",".join(map(str, sorted(folder.glob("*.log"))))
        for offset, time_ms, what, text in _RECORD.findall(_dump(files, folder.parent.with_name("dump.args"))):
            if what == "key":
                found[int(folder.name.rpartition("-")[2]), int(offset), int(time_ms)] = _printed(text)
    return found


def _dump(files: str, arguments: Path) -> str:
    what = ("--offsets-decoder", "--print-data-log", "--files", files)
    program = JavaProgram("org.apache.kafka.tools.DumpLogSegments", jars(_DECODER), what, log_levels={"": "warn"})
    done = subprocess.run(java_command(program, arguments), capture_output=True, text=True, timeout=600, check=True)
    assert "isvalid: false" not in done.stdout
    return done.stdout


def _printed(text: str) -> Record | None:
    """From `<key> payload: <value>`, both in JSON; or an error."""
    if not text.startswith("{"):
        return None
    key, end = json.JSONDecoder().raw_decode(text)
    value = text[end:].removeprefix(" payload: ")
    data = None if value == "<DELETE>" else json.loads(value)["data"]
    return _generated({"class": _CLASSES[int(key["type"])], "key": key["data"], "value": data})


def scala(kafka: KafkaCluster, pairs: Iterable[Pair]) -> list[Record | None]:
    """What the coordinator in Scala of that Kafka makes of these records; None = it does not know the type."""
    answers = _run(kafka, "Scala.java", [f"{key.hex()} {_hex(value)}" for key, value in pairs])
    return [_scala(answer.split(" ")) for answer in answers]


def _run(kafka: KafkaCluster, program: str, lines: Sequence[str]) -> list[str]:
    done = kafka.tool(str(_PROGRAMS / program), stdin="".join(f"{line}\n" for line in lines), of_broker=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(lines), done.stderr
    return answers


def _hex(value: bytes | None) -> str:
    return "-" if value is None else value.hex()


def _generated(answer: Any) -> Record | None:
    if "refused" in answer:
        return None
    name, key, value = answer["class"], answer["key"], answer["value"]
    if name in ("OffsetCommitKey", "LegacyOffsetCommitKey"):
        place = (key["group"], key["topic"], key["partition"])
        if value is None:
            return Commit(*place, legacy=name.startswith("Legacy"))
        committed = (value["offset"], value.get("leaderEpoch", -1), value["metadata"], value["commitTimestamp"])
        expires = value.get("expireTimestamp", -1)
        return Commit(*place, *committed, None if expires == -1 else expires, name.startswith("Legacy"))
    if name == "GroupMetadataKey":
        if value is None:
            return StateRecord(key["group"], "classic", gone=True)
        since, members = value.get("currentStateTimestamp", -1), len(value["members"])
        state = (value["protocolType"], value["generation"], None, members, None if since == -1 else since)
        return StateRecord(key["group"], "classic", False, *state, _clients(value["members"]))
    kind = _KINDS[name]
    generation = value[kind.generation] if value is not None and kind.generation else None
    clients = _clients([value]) if value is not None and "clientHost" in value else ()
    fields = {"generation": generation, "member_id": key.get("memberId"), "clients": clients}
    return StateRecord(key["groupId"], kind.name, gone=value is None, **fields)


def _clients(members: Sequence[Mapping[str, Any]]) -> tuple[MemberClient, ...]:
    """The first five, as Java writes an address: `name/address`."""
    return tuple(
        MemberClient(
            member["clientId"][:TEXT_MAX],
            member["clientHost"].removeprefix("/")[:TEXT_MAX],
            *(text and text[:TEXT_MAX] for text in (member.get("groupInstanceId", member.get("instanceId")),)),
            *(text and text[:TEXT_MAX] for text in (member.get("rackId"),)),
        )
        for member in members[:CLIENTS_MAX]
    )


def _scala(words: Sequence[str]) -> Record | None:
    what, *rest = words
    if what == "unknown":
        return None
    if what == "commit":
        place = (_text(rest[0]), _text(rest[1]), int(rest[2]))
        if rest[3] == "gone":
            return Commit(*place)
        return Commit(*place, int(rest[3]), int(rest[4]), _text(rest[5]), int(rest[6]), _number(rest[7]))
    if rest[1] == "gone":
        return StateRecord(_text(rest[0]), "classic", gone=True)
    state = (_text(rest[1]), int(rest[2]), None, int(rest[3]), _number(rest[4]))
    texts = [None if word == "-" else _text(word) for word in rest[5:]]
    members = [
        {"clientId": client, "clientHost": host, "groupInstanceId": instance}
        for client, host, instance in zip(*[iter(texts)] * 3, strict=True)
    ]
    return StateRecord(_text(rest[0]), "classic", False, *state, _clients(members))


def _text(word: str) -> str:
    return bytes.fromhex(word.removeprefix("x")).decode()


def _number(word: str) -> int | None:
    return None if word == "-" else int(word)
