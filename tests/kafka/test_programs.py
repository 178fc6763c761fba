"""Groups of Kafka Connect and Kafka Streams that only their members show, as these programs really leave them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from group_hygiene.engine import uses
from group_hygiene.engine.context import Memory
from group_hygiene.model import reasons
from group_hygiene.model.entries import UsedBy
from group_hygiene.model.groups import Program
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.programs import Programs, connect
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker, requests
from tests.kafka.scene import Scene, policy, verdicts

MATCH = "Match"
_APPLICATION = Path(__file__).with_name("java") / "Application.java"
# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")


def look(scene: Scene) -> None:
    """What a connection does every ten minutes."""
    uses.note_programs(scene.context, scene.observe(full=True))


def noted(scene: Scene, group: str) -> Program | None:
    found = scene.context.journal.contents.used_by.get(group)
    return None if found is None else found.program


def judged(scene: Scene, group: str, *unprotect: str) -> str:
    """What an hour of scans finds."""
    wanted = policy(group, match={"unprotect": list(unprotect)})
    scene.observe(wanted)
    return verdicts(scene.observe(wanted, after=60), wanted)[group]


def test_a_sink_connector_with_a_group_id_of_its_own(
    kafka: KafkaCluster, make: Maker, scene: Scene, tmp_path: Path
) -> None:
    """Connect is stopped. A process that never saw its task knows it from the ledger; without that it would match."""
    topic, group, records = make.topic(records=5), make.name("orders-sink"), tmp_path / "records"
    connector = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "file": str(records),
        "topics": topic,
        "consumer.override.group.id": group,
        "consumer.override.auto.offset.reset": "earliest",
    }
    with Programs(kafka.plaintext_bootstrap, [connect({"sink": connector})]) as worker:

        def works() -> bool:
            worker.check()
            return make.groups().get(group) == "STABLE" and records.exists() and records.stat().st_size > 0

        wait_for(works)
        look(scene)
        # Commits the offsets of what it wrote when it ends.
        worker.end()
    make.wait_state(group, "EMPTY")
    make.produce(topic, [(None, b"later")])
    scene.memory = Memory()
    scene.context = scene.open()
    assert judged(scene, group) == reasons.CONNECT
    assert judged(scene, group, "Connect") == MATCH
    assert judged(Scene(scene.client), group) == MATCH


def test_an_application_without_state(kafka: KafkaCluster, make: Maker, scene: Scene, tmp_path: Path) -> None:
    """Of the classic protocol: it has no topics of its own, and ended after a scan had seen it."""
    topic, group = make.topic(records=1), make.name("application")
    arguments = ("stateless", kafka.bootstrap_servers, group, "classic", str(tmp_path), topic, "2")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(kafka.tool, str(_APPLICATION), *arguments)
        wait_for(lambda: make.groups().get(group) == "STABLE")
        look(scene)
        make.produce(topic, [(b"a", b"x")])
        assert running.result().returncode == 0
    make.wait_state(group, "EMPTY")
    make.produce(topic, [(b"a", b"later")])
    assert judged(scene, group) == reasons.STREAMS
    assert judged(scene, group, "Streams") == MATCH
    assert judged(Scene(scene.client), group) == MATCH


def test_an_application_that_came_between_two_scans(
    kafka: KafkaCluster, make: Maker, scene: Scene, tmp_path: Path
) -> None:
    """No scan saw a member. The offsets log, which the scans of a policy read on, names it."""
    topic, group = make.topic(records=2), make.name("application")
    other = make.abandoned(make.name("counted"), topic)
    wanted = policy(group, other)
    scene.observe(wanted)
    scene.observe(wanted, after=30)
    arguments = ("stateless", kafka.bootstrap_servers, group, "classic", str(tmp_path), topic, "2")
    assert kafka.tool(str(_APPLICATION), *arguments).returncode == 0
    make.wait_state(group, "EMPTY")
    make.produce(topic, [(b"a", b"later")])
    scene.observe(wanted, after=30)
    observation = scene.observe(wanted, after=60)
    assert verdicts(observation, wanted) == {group: reasons.STREAMS, other: MATCH}


def test_a_group_is_described_once_while_it_has_members(
    kafka: KafkaCluster, make: Maker, scene: Scene, two_groups: tuple[str, str]
) -> None:
    """Again when it had none in between, and what is noted of it ends when others use it, or it is gone."""
    group, other = two_groups

    def described() -> list[str]:
        since = kafka.mark()
        look(scene)
        asked = [name for request in requests(kafka, "DESCRIBE_GROUPS", since) for name in request["groups"]]
        return sorted(name for name in asked if make.tag in name)

    scene.context.journal.note([used_by(group), used_by(other)])
    assert described() == sorted(two_groups)
    assert (noted(scene, group), noted(scene, other)) == (None, None)
    assert described() == []
    make.leave(group)
    scene.context.journal.note([used_by(group)])
    assert described() == []
    assert noted(scene, group) is Program.CONNECT
    make.delete_group(group)
    look(scene)
    assert noted(scene, group) is None


@pytest.fixture
def two_groups(make: Maker) -> tuple[str, str]:
    """Two groups with members that are of neither program."""
    topic, names = make.topic(), (make.name("one"), make.name("two"))
    for name in names:
        make.join(name, topic)
    return names


def used_by(group: str) -> UsedBy:
    return UsedBy(group=group, program=Program.CONNECT, client_id="connector-consumer-a-0", at=datetime.now(UTC))
