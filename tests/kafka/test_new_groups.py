"""Share and Streams groups with members: we say of them what Kafka's own tools say, and never that they are Dead."""

from __future__ import annotations

from group_hygiene.kafka.client import CLIENT_ID, Client
from group_hygiene.kafka.groups import describe_groups, list_groups
from group_hygiene.model.groups import Cluster, Description, Group, GroupState, GroupType, Partition
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker, soon
from tests.kafka.members import ShareMember, StreamsMember, part

SHARE_TOOL = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
STREAMS_TOOL = "org.apache.kafka.tools.streams.StreamsGroupCommand"


def listed(client: Client, cluster: Cluster, name: str) -> Group | None:
    """As it is listed, whether or not its type is asked for."""
    every = list_groups(client, cluster, soon())
    assert not every.faults
    group = every.groups.get(name)
    if group is not None:
        assert list_groups(client, cluster, soon(), types={group.type}).groups[name].type is group.type
    return group


def described(client: Client, name: str, kind: GroupType) -> Description:
    """As it is described to who knows its type and nothing else."""
    answer = describe_groups(client, {name: kind}, {name: None}, soon())[name]
    assert isinstance(answer, Description)
    return answer


def tasks(*members: StreamsMember) -> list[int]:
    """The partitions of a single subtopology that the members were given."""
    return sorted(index for member in members for index in member.tasks.get("0", ()))


def described_by_tool(kafka: KafkaCluster, tool: str, name: str, *what: str) -> dict[str, str]:
    """The one row that one of Kafka's own tools prints of a group, by its headings."""
    answer = kafka.tool(tool, "--bootstrap-server", kafka.bootstrap_servers, "--describe", "--group", name, *what)
    headings, row = [line for line in answer.stdout.splitlines() if line.startswith(("GROUP", name))]
    # The address of the coordinator and its id are two words, below two of the heading.
    *names, last = headings.split()
    return dict(zip([*names, last], row.split(maxsplit=len(names)), strict=True))


def test_a_share_group_is_what_kafka_says_it_is(
    client: Client, cluster: Cluster, kafka: KafkaCluster, make: Maker
) -> None:
    """With a member and without: state, type, epoch, and who has what."""
    topic, name = make.topic(partitions=3), make.name("share")
    with ShareMember(kafka, make, name, topic):
        wait_for(lambda: listed(client, cluster, name) is not None)
        wait_for(lambda: any(member.assignment for member in described(client, name, GroupType.SHARE).members))
        wait_for(lambda: described(client, name, GroupType.SHARE).group.state is GroupState.STABLE)
        assert listed(client, cluster, name) == Group(name, GroupType.SHARE, "share", GroupState.STABLE, 1)
        live = described(client, name, GroupType.SHARE)
        state = described_by_tool(kafka, SHARE_TOOL, name, "--state", "--verbose")
        row = described_by_tool(kafka, SHARE_TOOL, name, "--members", "--verbose")
    assert live.group == Group(name, GroupType.SHARE, "share", GroupState.STABLE, -1)
    assert (state["STATE"], state["#MEMBERS"], int(state["GROUP-EPOCH"])) == ("Stable", "1", live.epoch)
    (member,) = live.members
    assert (member.id, member.host, member.client_id) == (row["CONSUMER-ID"], row["HOST"], row["CLIENT-ID"])
    assert (member.client_id, member.host) == ("console-share-consumer", "/127.0.0.1")
    assert member.epoch == int(row["MEMBER-EPOCH"])
    assert member.topics == (topic,)
    assert member.assignment == tuple(Partition(topic, index) for index in range(3))
    assert row["ASSIGNMENT"].strip() == f"{topic}:0,1,2"

    wait_for(lambda: listed(client, cluster, name) == Group(name, GroupType.SHARE, "share", GroupState.EMPTY, 1))
    left = described(client, name, GroupType.SHARE)
    assert (left.group.state, left.members) == (GroupState.EMPTY, ())


def test_a_streams_group_is_what_kafka_says_it_is(
    client: Client, cluster: Cluster, kafka: KafkaCluster, make: Maker
) -> None:
    """With a member and without; its tasks are partitions of what each subtopology reads, and of none that isn't."""
    wide, narrow, name = make.topic(partitions=3), make.topic(partitions=2), make.name("streams")
    between = f"{name}-by-user-repartition"
    parts = [part("0", [wide, narrow], into=[between]), part("1", [], own={between: 2})]
    with StreamsMember(client, name, parts) as joined:
        assert listed(client, cluster, name) == Group(name, GroupType.STREAMS, "streams", GroupState.STABLE, 1)
        live = described(client, name, GroupType.STREAMS)
        state = described_by_tool(kafka, STREAMS_TOOL, name, "--state", "--verbose")
        row = described_by_tool(kafka, STREAMS_TOOL, name, "--members", "--verbose")
    assert live.group == Group(name, GroupType.STREAMS, "streams", GroupState.STABLE, -1)
    assert (state["STATE"], state["#MEMBERS"], int(state["GROUP-EPOCH"])) == ("Stable", "1", live.epoch)
    (member,) = live.members
    assert (member.id, member.client_id, member.epoch) == (row["MEMBER"], row["CLIENT-ID"], int(row["MEMBER-EPOCH"]))
    assert (member.id, member.client_id, member.host) == (joined.id, CLIENT_ID, "/127.0.0.1")
    assert row["ASSIGNMENTS"].startswith("ACTIVE: 0:[0,1,2]; 1:[0,1];")
    assert member.topics == tuple(sorted((wide, narrow, between)))
    widths = {wide: 3, narrow: 2, between: 2}
    assert set(member.assignment) == {Partition(topic, index) for topic in widths for index in range(widths[topic])}

    assert listed(client, cluster, name) == Group(name, GroupType.STREAMS, "streams", GroupState.EMPTY, 1)
    left = described(client, name, GroupType.STREAMS)
    assert (left.group.state, left.members) == (GroupState.EMPTY, ())


def test_each_member_of_a_streams_group_has_its_own_tasks(client: Client, make: Maker) -> None:
    """Two members share the partitions of a topic, and none is told twice."""
    topic, name = make.topic(partitions=4), make.name("streams")
    with (
        StreamsMember(client, name, [part("0", [topic])]) as one,
        StreamsMember(client, name, [part("0", [topic])]) as two,
    ):
        wait_for(lambda: one.beat() and two.beat() and tasks(one) != [] != tasks(two) and len(tasks(one, two)) == 4)
        members = {member.id: member for member in described(client, name, GroupType.STREAMS).members}
        for each in (one, two):
            assert members[each.id].assignment == tuple(Partition(topic, index) for index in tasks(each))
            assert members[each.id].topics == (topic,)
            assert len(members[each.id].assignment) == 2
    assert tasks(one, two) == [0, 1, 2, 3]


def test_a_streams_group_whose_topic_is_missing_has_members_without_tasks(client: Client, make: Maker) -> None:
    """NotReady, and who waits for which topic is told."""
    name, absent = make.name("streams"), make.name("no-topic")
    with StreamsMember(client, name, [part("0", [absent])]) as joined:
        waiting = described(client, name, GroupType.STREAMS)
    assert waiting.group.state is GroupState.NOT_READY
    (member,) = waiting.members
    assert (member.id, member.topics, member.assignment) == (joined.id, (absent,), ())
