"""Kafka Streams on a real broker: deleted where asked for, with its state only where that is too, and brought back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from group_hygiene.engine.executor import Executor
from group_hygiene.engine.restorable import GroupResult, RestoreRequest, ResultKind
from group_hygiene.engine.restoration import restore
from group_hygiene.kafka.client import Client
from group_hygiene.kafka.groups import list_groups
from group_hygiene.ledger.contents import group_of
from group_hygiene.model import reasons
from group_hygiene.model.entries import Backup, OutcomeType
from group_hygiene.model.groups import Cluster
from group_hygiene.spec.policy import Policy
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker, soon
from tests.kafka.members import StreamsMember, part
from tests.kafka.scene import Guard, Scene, policy, verdicts

MATCH = "Match"
COMMITTED = [3, 1]
_APPLICATION = Path(__file__).with_name("java") / "Application.java"
# kafka-python's consumers leave sockets for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")


@dataclass(frozen=True)
class Application:
    """Of Kafka Streams' own protocol, which has committed COMMITTED of the two partitions of `topic`."""

    group: str
    topic: str

    @property
    def changelog(self) -> str:
        return f"{self.group}-counts-changelog"

    def member(self, client: Client) -> StreamsMember:
        return StreamsMember(client, self.group, [part("0", [self.topic])])


@pytest.fixture
def application(client: Client, make: Maker) -> Application:
    """Its members have left it. It has no internal topics."""
    made = Application(make.name("application"), make.topic(partitions=2, records=5))
    make.produce(made.topic, [(None, b"x")] * 5, partition=1)
    with made.member(client) as member:
        member.commit(made.topic, dict(enumerate(COMMITTED)))
    return made


def streams(*groups: str, unprotect: Iterable[str] = ("Streams",)) -> Policy:
    """Delete groups of any type but Share."""
    types = ["Classic", "Consumer", "Streams"]
    return policy(*groups, match={"types": types, "unprotect": list(unprotect)})


def kind(client: Client, cluster: Cluster, group: str) -> str | None:
    """Type and state of the group, as it is listed; None = there is none of that id."""
    found = list_groups(client, cluster, soon()).groups.get(group)
    return None if found is None else f"{found.type} {found.state}"


def deleted(scene: Scene, wanted: Policy) -> dict[str, tuple[OutcomeType, str]]:
    """All scans of a policy up to what it deletes."""
    observation, plan = scene.plan(wanted)
    return {outcome.group: (outcome.kind, outcome.reason) for outcome in scene.apply(plan, observation)}


def saved(scene: Scene, group: str) -> Backup:
    assert scene.memory.ledger is not None
    kept = scene.memory.ledger.entries(lambda key: group_of(key) == group, soon())
    (backup,) = [entry for entry in kept if isinstance(entry, Backup)]
    return backup


def restored(scene: Scene, group: str) -> GroupResult:
    assert scene.memory.ledger is not None
    restorer = Executor(scene.context, Guard())
    (result,) = restore(restorer, RestoreRequest(id="restore-1", groups=(group,)))
    return result


def test_an_application_goes_on_where_it_was(
    scene: Scene, client: Client, cluster: Cluster, application: Application
) -> None:
    """Deleted and brought back, as a simple group: a member that joins makes it one of Streams, with the offsets."""
    group = application.group
    assert deleted(scene, streams(group)) == {group: (OutcomeType.DELETED, reasons.DELETED)}
    assert kind(client, cluster, group) is None
    assert saved(scene, group).type == "Streams"
    result = restored(scene, group)
    assert (result.kind, result.restored) == (ResultKind.RESTORED, 2)
    assert kind(client, cluster, group) == "Classic Empty"
    with application.member(client) as member:
        assert kind(client, cluster, group) == "Streams Stable"
        assert member.committed(application.topic, 2) == COMMITTED
    assert kind(client, cluster, group) == "Streams Empty"


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(("counting", "streams", ["counts-changelog"]), id="streams"),
        pytest.param(("counting", "classic", ["counts-changelog"]), id="classic"),
        pytest.param(("rekeyed", "classic", ["again-repartition", "counts-changelog"]), id="with-a-repartition-topic"),
    ],
)
def test_a_real_application_goes_on_with_its_state(
    kafka: KafkaCluster, scene: Scene, cluster: Cluster, make: Maker, tmp_path: Path, program: Any
) -> None:
    """Kafka's own client counts on: nothing twice, as without its offsets it would, and nothing left out.

    An application reads its own repartition topics to their ends, so only its other topics need unread records.
    """
    does, protocol, topics = program
    topic, group = make.topic(), make.name("counting")

    def counted(records: int) -> list[str]:
        mine = str(tmp_path / str(records))
        done = kafka.tool(
            *(str(_APPLICATION), does, kafka.bootstrap_servers, group, protocol, mine, topic, str(records))
        )
        assert done.returncode == 0, done.stderr
        wait_for(lambda: str(kind(scene.client, cluster, group)).endswith(" Empty"))
        return done.stdout.splitlines()

    make.produce(topic, [(b"a", b"x")] * 3)
    assert counted(3) == ["a 1", "a 2", "a 3"]
    make.produce(topic, [(b"a", b"x")])
    tidy, everything = streams(group), streams(group, unprotect=("Streams", "StreamsState"))
    assert deleted(scene, tidy) == {}
    assert deleted(scene, everything) == {group: (OutcomeType.DELETED, reasons.DELETED)}
    assert saved(scene, group).internal_topics.keys() == {f"{group}-{name}" for name in topics}
    assert restored(scene, group).kind is ResultKind.RESTORED
    assert counted(1) == ["a 4"]
    assert kind(scene.client, cluster, group) == f"{protocol.capitalize()} Empty"


def test_applications_are_not_deleted_by_default(
    scene: Scene, client: Client, cluster: Cluster, application: Application
) -> None:
    """The type says which groups are looked at, and `unprotect` that they are meant."""
    tidy, plain = streams(application.group, unprotect=()), policy(application.group)
    observation, plan = scene.plan(tidy)
    assert verdicts(observation, tidy) == {application.group: reasons.STREAMS}
    assert plan.actions == ()
    assert verdicts(scene.plan(plain)[0], plain) == {}
    assert kind(client, cluster, application.group) == "Streams Empty"


def test_an_application_whose_state_exists_is_kept(
    scene: Scene, client: Client, make: Maker, application: Application
) -> None:
    """Of either protocol, until its internal topics are gone; what is asked for explicitly goes at once."""
    classic, without = (make.abandoned(make.name("classic"), application.topic) for _ in range(2))
    make.topic(application.changelog)
    make.topic(f"{classic}-by-user-repartition")
    tidy = streams(application.group, classic, without)
    expected = {application.group: reasons.STREAMS_STATE, classic: reasons.STREAMS_STATE}
    observation, plan = scene.plan(tidy)
    assert verdicts(observation, tidy) == expected | {without: MATCH}
    assert [outcome.group for outcome in scene.apply(plan, observation)] == [without]
    make.delete_topic(application.changelog)
    assert deleted(scene, tidy) == {application.group: (OutcomeType.DELETED, reasons.DELETED)}
    everything = streams(classic, unprotect=("Streams", "StreamsState"))
    assert deleted(scene, everything) == {classic: (OutcomeType.DELETED, reasons.DELETED)}


def test_an_application_without_its_state_is_not_brought_back(
    scene: Scene, client: Client, cluster: Cluster, make: Maker, application: Application
) -> None:
    """Its offsets would skip what its new state needs. A topic that was made anew is another one."""
    group = application.group
    make.topic(application.changelog)
    everything = streams(group, unprotect=("Streams", "StreamsState"))
    assert deleted(scene, everything) == {group: (OutcomeType.DELETED, reasons.DELETED)}
    assert saved(scene, group).internal_topics.keys() == {application.changelog}
    make.delete_topic(application.changelog)
    make.topic(application.changelog)
    result = restored(scene, group)
    assert (result.kind, result.reason) == (ResultKind.REFUSED, reasons.NOT_RESTORABLE)
    assert application.changelog in result.message
    assert kind(client, cluster, group) is None


def test_a_group_that_only_likely_program_an_application_is_brought_back(
    scene: Scene, client: Client, cluster: Cluster, make: Maker
) -> None:
    """Names are all that tells of a Classic application, and another one's topic may begin alike: a warning."""
    topic = make.topic(records=5)
    group = make.abandoned(make.name("orders"), topic)
    other = make.topic(f"{group}-database-changelog")
    everything = streams(group, unprotect=("Streams", "StreamsState"))
    assert deleted(scene, everything) == {group: (OutcomeType.DELETED, reasons.DELETED)}
    make.delete_topic(other)
    result = restored(scene, group)
    assert (result.kind, result.restored) == (ResultKind.RESTORED, 1)
    assert f"its state is gone: {other}" in result.message
    assert kind(client, cluster, group) == "Classic Empty"


def test_who_joins_in_between_keeps_its_application(
    scene: Scene, client: Client, cluster: Cluster, application: Application
) -> None:
    """After the scan, and with what it had."""
    observation, plan = scene.plan(streams(application.group))
    with application.member(client) as member:
        (outcome,) = scene.apply(plan, observation)
        assert (outcome.kind, outcome.reason) == (OutcomeType.NOT_DELETED, reasons.BECAME_ACTIVE)
        assert outcome.message.startswith("its state is ")
        assert member.committed(application.topic, 2) == COMMITTED
    wait_for(lambda: kind(client, cluster, application.group) == "Streams Empty")
