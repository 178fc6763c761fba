"""Commands on a ledger that brokers compress, and on one with a batch of records that can't be read."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model import reasons
from testing.sandbox.kafka import KafkaCluster
from tests.cli.conftest import Answer, Run
from tests.kafka.books import configured
from tests.kafka.makers import Maker, at

YES = ("--yes", "--without-connection", "--force", "-o", "json")


def reason_of(answer: Answer) -> str:
    (group,) = answer.json["groups"]
    return str(group["reason"] or group["result"])


def topic_of(ledger: Ledger) -> str:
    return str(ledger._settings.topic)


def connection(folder: Path, kafka: KafkaCluster, ledger_topic: str) -> Path:
    """A file with a KafkaConnection."""
    spec = {"bootstrapServers": kafka.bootstrap_servers.split(","), "ledger": {"topic": ledger_topic}}
    document = {"kind": "KafkaConnection", "metadata": {"name": "main"}, "spec": spec}
    file = folder / "connection.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "grouphygiene.io/v1alpha1"} | document))
    return file


def live(on_ledger: Run, make: Maker, compress: str | None, topic: str) -> None:
    """Delete a group, change the codec, and do all that commands do."""
    first, second, third = (make.abandoned(make.name(), topic, commit=at(topic, 3)) for _ in range(3))
    assert reason_of(on_ledger("delete", first, *YES)) == "Deleted"
    if compress is not None:
        configured(make, compress, {"compression.type": "zstd"})
    kept = on_ledger("keep", third, "--for", "1d", "--why", "needed", "--by", "me")
    assert kept.code == 0
    assert reason_of(on_ledger("delete", second, *YES)) == "Deleted"
    assert reason_of(on_ledger("delete", third, *YES)) == reasons.KEEP_REQUESTED
    events = on_ledger("history", "-o", "json").json["events"]
    assert {each["group"] for each in events if each["what"] == "Deleted"} == {first, second}
    for group in (first, second):
        assert reason_of(on_ledger("restore", group, "-o", "json")) == reasons.RESTORED
    if compress is not None:
        configured(make, compress, {"compression.type": "producer"})
    assert on_ledger("history", "-o", "json").code == 0
    assert set(make.groups()) >= {first, second, third}


def test_a_ledger_that_brokers_compress_later(on_ledger: Run, ledger: Ledger, make: Maker) -> None:
    """`compression.type=zstd` of its topic: keep, history and restore of all deletions work, before and after."""
    live(on_ledger, make, topic_of(ledger), make.topic(records=5))


@pytest.mark.slow
def test_a_cluster_that_compresses_by_default(run: Run) -> None:
    """`compression.type=zstd` of the brokers: a ledger is created, and everything works."""
    with KafkaCluster(config={"compression.type": "zstd"}) as kafka:
        make = Maker(kafka.bootstrap_servers)

        def call(command: str, *arguments: object, stdin: str | None = None) -> Answer:
            created = ["--create-ledger"] if command == "delete" else []
            return run(command, "--bootstrap-server", kafka.bootstrap_servers, *created, *arguments, stdin=stdin)

        live(call, make, None, make.topic(records=5))
        assert run("doctor", "--bootstrap-server", kafka.bootstrap_servers).code == 0
        make.close()


def test_a_batch_that_can_not_be_read(on_ledger: Run, ledger: Ledger, make: Maker) -> None:
    """Nothing is deleted; restore, history and keep work, and each says that the batch may hold more."""
    topic = make.topic(records=5)
    first, second = (make.abandoned(make.name(), topic, commit=at(topic, 3)) for _ in range(2))
    assert reason_of(on_ledger("delete", first, *YES)) == "Deleted"
    make.produce(topic_of(ledger), [(b"large", bytes(20_000_000))], codec="zstd")
    refused = on_ledger("delete", second, *YES)
    assert (refused.code, reason_of(refused)) == (1, reasons.RECORD_UNREADABLE)
    assert on_ledger("keep", second, "--for", "1d", "--why", "needed", "--by", "me").code == 0
    shown = on_ledger("history", "-o", "json")
    assert shown.code == 1
    assert {each["what"] for each in shown.json["events"]} >= {"Deleted", "KeepRequested"}
    assert "can't be read" in shown.err
    restored = on_ledger("restore", first, "-o", "json")
    assert reason_of(restored) == reasons.RESTORED
    assert "may be a newer backup" in restored.json["groups"][0]["message"]
    assert set(make.groups()) >= {first, second}


def test_doctor_notes_another_codec(run: Run, tmp_path: Path, ledger: Ledger, kafka: KafkaCluster, make: Maker) -> None:
    """It is no failure."""
    file = connection(tmp_path, kafka, topic_of(ledger))
    assert "ledger's codec" not in run("doctor", "--connection-file", file).out
    configured(make, topic_of(ledger), {"compression.type": "zstd"})
    answer = run("doctor", "--connection-file", file)
    assert answer.code == 0
    assert f"compression.type of topic {topic_of(ledger)} is zstd" in answer.out


def test_doctor_names_a_batch_that_can_not_be_read(
    run: Run, tmp_path: Path, ledger: Ledger, kafka: KafkaCluster, make: Maker
) -> None:
    """As a failure of the ledger, with its place."""
    make.produce(topic_of(ledger), [(b"large", bytes(20_000_000))], codec="zstd")
    answer = run("doctor", "--connection-file", connection(tmp_path, kafka, topic_of(ledger)))
    assert answer.code == 14
    assert f"ledger: {reasons.RECORD_UNREADABLE}: the ledger's records in a batch at offset" in answer.out
