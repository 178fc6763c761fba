"""A part of the cluster gives no answer: what the rest says is printed, and what is missing is an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from group_hygiene.cli.groups import incomplete, unknown_states
from group_hygiene.model.groups import Cluster, Fault, Group, GroupState, GroupType, Listing
from testing.sandbox.kafka import KafkaCluster
from tests.cli.conftest import Run
from tests.kafka.makers import Maker, at

pytestmark = pytest.mark.slow

LOST = 3
# One replica of each partition of __consumer_offsets, so that a broker takes its groups along.
FRAGILE = {"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "6"}
# Until the controller calls a broker dead.
SESSION = {"broker.session.timeout.ms": "30000"}
Homes = dict[str, int]


@pytest.fixture(scope="module")
def fragile() -> Iterator[KafkaCluster]:
    """Three brokers, each the only one that knows its groups."""
    with KafkaCluster(brokers=3, config=FRAGILE | SESSION) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bootstrap(fragile: KafkaCluster) -> list[str]:
    """The brokers that stay."""
    return ["--bootstrap-server", ",".join(fragile.bootstrap_servers.split(",")[: LOST - 1])]


@pytest.fixture(scope="module")
def homes(fragile: KafkaCluster) -> Iterator[Homes]:
    """Simple groups on every broker -> the broker that is their coordinator; their topic is on one that stays."""
    make = Maker(fragile.bootstrap_servers)
    make.tag = "g-"
    topic = make.topic()
    while make.admin.list_topics(topic).topics[topic].partitions[0].leader == LOST:
        topic = make.topic()
    make.produce(topic, [(None, b"x")] * 5)
    make.simple_groups({make.name("simple"): at(topic, 2) for _ in range(20)})
    described = make.admin.describe_consumer_groups(list(make.groups()))
    found = {name: future.result().coordinator.id for name, future in described.items()}
    assert set(found.values()) == {1, 2, 3}
    yield found
    make.close()


@pytest.fixture
def frozen(fragile: KafkaCluster) -> Iterator[None]:
    """One broker accepts connections and answers nothing."""
    fragile.pause_broker(LOST)
    yield
    fragile.resume_broker(LOST)
    fragile.wait_ready()


def healthy(homes: Homes) -> list[str]:
    return sorted(name for name, home in homes.items() if home != LOST)


@pytest.mark.usefixtures("frozen")
def test_a_frozen_broker_does_not_hide_the_groups_of_the_others(run: Run, bootstrap: list[str], homes: Homes) -> None:
    """It takes a part of each reading's time and no more; its groups are errors of their own."""
    # The controller takes longer to call the broker dead.
    stuck = next(name for name, home in homes.items() if home == LOST)
    others = healthy(homes)
    answer = run("describe", *others, stuck, "--offsets", "-o", "json", "--timeout", "20s", *bootstrap)
    assert answer.code == 1
    groups = {group["group"]: group["partitions"] for group in answer.json["groups"]}
    assert sorted(groups) == others
    assert {tuple(p[key] for key in ("committed", "end", "lag")) for (p,) in groups.values()} == {(2, 5, 3)}
    assert [error.partition(": ")[0] for error in answer.json["errors"]] == [f"group {stuck}"]
    assert any(note.startswith("not every group could be listed: ") for note in answer.json["notes"])


@pytest.mark.usefixtures("frozen")
def test_a_frozen_broker_named_first_does_not_keep_us_out(run: Run, fragile: KafkaCluster, homes: Homes) -> None:
    """Whichever bootstrap server answers first lets us in, whatever their order."""
    *others, frozen = fragile.bootstrap_servers.split(",")
    where = ["--bootstrap-server", ",".join([frozen, *others]), "--timeout", "20s"]
    name = healthy(homes)[0]
    answer = run("describe", name, "-o", "name", *where)
    assert (answer.code, answer.out) == (0, f"{name}\n"), answer.err


@pytest.mark.usefixtures("frozen", "homes")
def test_doctor_names_the_broker_that_does_not_answer(run: Run, bootstrap: list[str]) -> None:
    """And still tells of the others, and of all that they can be asked."""
    answer = run("doctor", *bootstrap, "--timeout", "10s")
    assert answer.code == 12, answer.out
    assert f"✗ broker: {LOST} (" in answer.out
    assert "✓ brokers: 2 of 3 answer (2 of Kafka 4.4); cluster id " in answer.out
    assert f"! groups: permissions on some were not checked: broker {LOST} did not list its groups: " in answer.out
    assert "ledger: " in answer.out


@pytest.fixture(scope="module")
def crippled(fragile: KafkaCluster, homes: Homes) -> None:
    """One broker is dead, and Metadata has forgotten it: every broker that it names answers."""
    fragile.kill_broker(LOST)
    fragile.wait_forgotten(LOST)


@pytest.mark.usefixtures("crippled")
def test_list_without_the_groups_of_a_dead_broker_is_an_error(run: Run, bootstrap: list[str], homes: Homes) -> None:
    """What is there is printed; that groups are missing is no mere note."""
    answer = run("list", "-o", "name", *bootstrap)
    assert (answer.code, answer.out.split()) == (1, healthy(homes))
    assert "Error: groups may be missing: __consumer_offsets-" in answer.err
    assert " has no leader\n" in answer.err


@pytest.mark.usefixtures("crippled")
@pytest.mark.parametrize(
    "pattern", [pytest.param("nobody", id="nothing-matches"), pytest.param("g-*", id="something-matches")]
)
def test_plan_of_an_incomplete_list_is_an_error(run: Run, bootstrap: list[str], homes: Homes, pattern: str) -> None:
    """Neither "nothing would be done" nor "it would act" is known; what was found is printed."""
    answer = run("plan", "-f", "-", "-o", "name", *bootstrap, stdin=alert(pattern))
    assert (answer.code, answer.out.split()) == (1, healthy(homes) if pattern == "g-*" else [])
    assert " has no leader\n" in answer.err


@pytest.mark.usefixtures("crippled")
def test_explain_of_an_incomplete_list_is_an_error(run: Run, bootstrap: list[str], homes: Homes) -> None:
    """The group that is there is explained."""
    (name, *_) = healthy(homes)
    answer = run("explain", name, "-f", "-", *bootstrap, stdin=alert("g-*"))
    assert answer.code == 1
    assert answer.out.startswith("GroupPolicy kafka/look (Alert, DryRun): Match\n")
    assert " has no leader\n" in answer.err


def alert(pattern: str) -> str:
    spec = {"connectionRef": {"name": "main"}, "match": {"groups": [pattern]}, "action": "Alert"}
    metadata = {"name": "look", "namespace": "kafka"}
    return yaml.safe_dump(
        {"apiVersion": "grouphygiene.io/v1alpha1", "kind": "GroupPolicy", "metadata": metadata, "spec": spec}
    )


BEFORE = Cluster("c", {1: "a:1", 2: "b:1"}, {0: (1, 5), 1: (2, 5)})
DENIED = Cluster("c", BEFORE.brokers, BEFORE.leaders, ("DESCRIBE is denied",))
TIMEOUT = Fault("REQUEST_TIMED_OUT", "no answer in time", retriable=True)


@pytest.mark.parametrize(
    ("before", "faults", "after", "says"),
    [
        pytest.param(BEFORE, {}, BEFORE, [], id="nothing"),
        pytest.param(BEFORE, {}, Cluster("c", {1: "a:1"}, BEFORE.leaders), [], id="a-broker-that-led-nothing"),
        pytest.param(DENIED, {}, DENIED, ["DESCRIBE is denied"], id="denied"),
        pytest.param(
            BEFORE, {2: TIMEOUT}, BEFORE, ["broker 2 did not list its groups: REQUEST_TIMED_OUT"], id="broker"
        ),
        pytest.param(BEFORE, {}, TIMEOUT, ["the cluster could not be read again"], id="not-read-again"),
        pytest.param(
            BEFORE, {}, Cluster("c", BEFORE.brokers, {0: (2, 6), 1: (2, 5)}), ["some moved to another"], id="moved"
        ),
        pytest.param(
            BEFORE, {}, Cluster("c", BEFORE.brokers, {0: (1, 7), 1: (2, 5)}), ["some moved to another"], id="and-back"
        ),
    ],
)
def test_why_groups_may_be_missing(
    before: Cluster, faults: dict[int, Fault], after: Cluster | Fault, says: list[str]
) -> None:
    """Each of these leaves groups out without an error, and each is told."""
    problems = incomplete(before, Listing({}, faults), after)
    assert len(problems) == len(says)
    assert all(problem.startswith(start) for problem, start in zip(problems, says, strict=True))


def test_groups_whose_state_is_not_known_are_named() -> None:
    """Old brokers list no states, and one group may not be described: it must not vanish from `--state Empty`."""
    groups = {name: Group(name, GroupType.CLASSIC, "", GroupState.UNKNOWN, 1) for name in "abc"}
    listing = Listing(groups, {}, (), {"a": TIMEOUT, "c": TIMEOUT})
    said = unknown_states(listing, [groups["a"], groups["b"]])
    assert said == ["group a: its state is not known: REQUEST_TIMED_OUT: no answer in time"]
