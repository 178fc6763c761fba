"""The requests of GroupKeeps, on a real broker."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest
from msgspec import structs
from msgspec.structs import replace as replace_entry

from group_hygiene.engine import context, marks
from group_hygiene.engine.context import Observation
from group_hygiene.engine.executor import Executor
from group_hygiene.engine.plan import Plan
from group_hygiene.engine.recovery import LedgerNeed
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka.client import Client, Deadline, connect
from group_hygiene.model import reasons
from group_hygiene.model.entries import REQUESTED, Mark, OutcomeType, Removal
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.group_keep import DueReason, GroupKeep, KeptGroup
from group_hygiene.model.groups import CommittedOffset, Fault, Partition
from group_hygiene.model.naming import message_shown
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.client_settings import Settings
from group_hygiene.spec.fields import Duration
from group_hygiene.spec.policy import Action, Policy, When
from testing.sandbox.kafka import KafkaCluster
from tests.kafka.books import outcome
from tests.kafka.clients import Stepped
from tests.kafka.makers import Maker, at
from tests.kafka.scene import Guard, Scene, policy

DAY = timedelta(days=1)


def kept(scene: Scene, keep: GroupKeep) -> dict[str, str]:
    """Group -> the reason of its result."""
    found = marks.keep_groups(Executor(scene.context, Guard()), keep, False)
    assert not isinstance(found, Refusal), found
    return {each.group: each.reason for each in found}


def test_a_namespace_has_so_many_requests_and_no_more(
    scene: Scene, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger's entries are in memory: no team fills it. What it has is renewed; other namespaces have their own."""
    monkeypatch.setattr(marks, "REQUESTS_MAX", 3)
    names = tuple(make.name(f"g{number}") for number in range(4))
    first = GroupKeep("team-a", "first", "uid-1", names[:2], "needed", None)
    second = GroupKeep("team-a", "second", "uid-2", names, "needed", None)
    assert set(kept(scene, first).values()) == {reasons.GROUP_UNKNOWN}
    assert list(kept(scene, second).values()) == [reasons.GROUP_UNKNOWN, *[reasons.TOO_MANY_KEEPS] * 3]
    assert set(kept(scene, first).values()) == {reasons.GROUP_UNKNOWN}
    assert set(kept(scene, replace(second, namespace="team-b", groups=names[:3])).values()) == {reasons.GROUP_UNKNOWN}
    requests = [source for by_source in scene.context.journal.contents.object_keeps.values() for source in by_source]
    assert len(requests) == 6


def test_a_namespace_writes_so_much_in_an_hour(scene: Scene, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an object that is edited all the time makes the ledger too long to be read, for all namespaces."""
    monkeypatch.setattr(context, "ENTRIES", 4)
    executor = Executor(scene.context, Guard())

    def edited(namespace: str, number: int) -> str:
        names = (make.name(f"{namespace}-{number}-a"), make.name(f"{namespace}-{number}-b"))
        found = marks.keep_groups(executor, GroupKeep(namespace, "k", "uid", names, "needed", None), False)
        return found.reason if isinstance(found, Refusal) else ""

    assert [edited("team-a", number) for number in range(3)] == ["", "", reasons.TOO_MANY_CHANGES]
    assert [edited("team-b", 0), *(edited("kafka", number) for number in range(4))] == [""] * 5
    scene.clock.pass_minutes(29)
    assert [edited("team-a", 3), edited("team-a", 4)] == ["", reasons.TOO_MANY_CHANGES]


def test_a_namespace_marks_so_much_in_an_hour(scene: Scene, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks of other namespaces wait; what ends is written in any case, once for each group and namespace."""
    monkeypatch.setattr(context, "ENTRIES", 4)
    topic, tag = make.topic(records=2), make.name("marks")
    for number in range(3):
        make.abandoned(f"{tag}-{number}", topic, commit=at(topic, 1))
    scene.observe(structs.replace(policy(f"{tag}-*"), namespace="team-a"))
    journal, counts, problems = scene.context.journal, list[int](), list[str]()
    for number in range(6):
        mine = structs.replace(policy(f"{tag}-*", mode="DryRun" if number % 2 else "Enforce"), namespace="team-a")
        plan = scene.planned(scene.observe(mine, after=0 if number else 60), mine)
        problem = marks.note_marks(scene.context, plan)
        problems.append(problem.reason if problem else "")
        counts.append(len(journal.contents.marks.get(mine.uid, {})))
    assert counts == [3, 0, 3, 0, 0, 0]
    assert problems == ["", "", "", "", reasons.TOO_MANY_CHANGES, ""]
    entries = journal.entries(lambda key: key[0] == "outcome", Deadline(60))
    assert not isinstance(entries, Refusal)
    assert len(entries) == 3


def test_requests_of_namespaces_that_are_not_served_stay(scene: Scene, make: Maker) -> None:
    """An operator of some namespaces does not know whether an object of another one is gone."""
    names = make.name("a"), make.name("b")
    for namespace, name in zip(("team-a", "team-b"), names, strict=True):
        kept(scene, GroupKeep(namespace, "k", f"uid-{namespace}", (name,), "needed", None))
    marks.withdraw(scene.context, {}, lambda namespace: namespace == "team-a")
    left = [name for name, requests in scene.context.journal.contents.object_keeps.items() if requests]
    assert left == [names[1]]


def test_what_was_counted_for_a_connection_that_is_gone_ends(scene: Scene, make: Maker) -> None:
    """Else each connection that is made again adds its part to the ledger and to the memory of all that read it."""
    topic, tag = make.topic(records=2), make.name("gone")
    for number in range(3):
        make.abandoned(f"{tag}-{number}", topic, commit=at(topic, 1))
    scene.observe(policy(f"{tag}-*"))
    contents = scene.context.journal.contents
    (uid,) = contents.seen
    contents.seen["another"] = dict(contents.seen[uid])
    contents.clocks["another"] = contents.clocks[uid]
    contents.seen["third"] = dict(contents.seen[uid])
    marks.forget_policies(scene.context, contents.watches, {uid, "third"})
    assert set(contents.seen) == {uid, "third"}
    assert set(contents.clocks) == {uid}


def test_a_deletion_in_doubt(scene: Scene, make: Maker) -> None:
    """Its request may still be carried out, although the group is there: until that is over nothing is promised."""
    topic, group = make.topic(records=2), make.name()
    make.abandoned(group, topic, commit=at(topic, 1))
    keep = GroupKeep("team-a", "k", "uid", (group,), "needed", None)
    doubt = replace_entry(outcome(group), what=OutcomeType.NOT_DELETED, reason=reasons.INTERRUPTED, type="Classic")
    scene.context.journal.contents.apply([doubt])
    assert kept(scene, keep) == {group: reasons.BEING_DELETED}
    scene.context.journal.contents.apply([Removal(doubt.key)])
    assert kept(scene, keep) == {group: ""}


_POLICY = structs.replace(policy("*", mode="Enforce"), uid="marking", namespace="team-b")


@pytest.mark.parametrize(
    ("uid", "marking", "reason"),
    [
        pytest.param("marking", _POLICY, DueReason.UNCHANGED, id="unchangedFor"),
        pytest.param(
            "marking", structs.replace(_POLICY, when=When(idle_for=Duration(days=1))), DueReason.IDLE, id="idleFor"
        ),
        pytest.param(
            "marking",
            structs.replace(_POLICY, when=When(idle_for=Duration(days=1), unchanged_for=Duration(days=1))),
            DueReason.IDLE,
            id="both",
        ),
        pytest.param(
            "marking", structs.replace(_POLICY, action=Action.DELETE_OFFSETS), DueReason.STALE_OFFSETS, id="offsets"
        ),
        pytest.param("marking", structs.replace(_POLICY, digest="edited"), None, id="edited-since"),
        pytest.param("another", _POLICY, None, id="policy-of-another-connection"),
        pytest.param(f"{REQUESTED}1", _POLICY, DueReason.REQUESTED, id="a-command"),
    ],
)
def test_a_mark_says_what_it_is_for(
    scene: Scene, make: Maker, uid: str, marking: Policy, reason: DueReason | None
) -> None:
    """And nothing else about policies of other namespaces."""
    topic, group = make.topic(records=2), make.name()
    make.abandoned(group, topic, commit=at(topic, 1))
    now = scene.clock.now()
    mark = Mark(policy_uid=uid, group=group, policy="team-b/p", digest=_POLICY.digest, since=now, due=now + DAY)
    scene.context.journal.contents.apply([mark])
    keep = GroupKeep("team-a", "k", "uid", (group,), "needed", None)
    executor = Executor(scene.context, Guard())
    found = marks.keep_groups(executor, keep, False, {"marking": marking})
    assert not isinstance(found, Refusal), found
    assert [(each.due, each.due_reason, each.policy) for each in found] == [(now + DAY, reason, "")]
    scene.context.journal.contents.apply([Removal(mark.key)])


@pytest.mark.parametrize(
    ("name", "restorable", "says"),
    [
        pytest.param("plain.a", True, "echo '{OBJECT}' | kubectl create -n team-a -f -", id="plain"),
        pytest.param("it's\n", True, "from then on: {OBJECT}", id="not-for-a-shell"),
        pytest.param("x" * 700, True, "To restore it, create a GroupRestore; ", id="too-long"),
        pytest.param(
            "a*b",
            False,
            "To restore it, the connection's owner must add "
            r'{namespaces: {names: ["team-a"]}, groups: ["a\\*b"], actions: [Restore]} to spec.access, or restore it',
            id="not-granted",
        ),
    ],
)
def test_a_deleted_group_says_how_it_comes_back(scene: Scene, name: str, restorable: bool, says: str) -> None:
    scene.context.journal.contents.apply([outcome(name)])
    keep = GroupKeep("team-a", "k", "uid", (name,), "needed", None, restorable=lambda _: restorable)
    found = marks.keep_groups(Executor(scene.context, Guard()), keep, False)
    assert not isinstance(found, Refusal), found
    (of_name,) = found
    assert (of_name.protected, of_name.reason) == (False, reasons.ALREADY_DELETED)
    reference = {"name": scene.context.connection.name, "namespace": scene.context.connection.namespace}
    obj = {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupRestore",
        "metadata": {"generateName": "restore-"},
        "spec": {"connectionRef": reference, "groups": [name]},
    }
    assert of_name.message.startswith("was deleted at 2026-03-01T12:00:00Z, with a backup until ")
    assert says.replace("{OBJECT}", json.dumps(obj)) in of_name.remedy
    whole = f"{of_name.message}. {of_name.remedy}"
    assert message_shown(whole) == whole


@pytest.mark.parametrize("begun", [True, False], ids=["deletion-had-begun", "deleted-before"])
@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "same-process"])
def test_a_deleted_group_that_exists_again_is_not_kept(
    scene: Scene, client: Client, make: Maker, begun: bool, restarted: bool
) -> None:
    """Also if a client created it again, its offsets are gone: until a restore, or until it is asked for again."""
    topic, group = make.topic(records=2), make.name()
    keep, now = GroupKeep("team-a", "k", "uid", (group,), "needed", None), scene.clock.now()
    deleted = replace_entry(outcome(group), at=now + timedelta(seconds=1), expires=now + DAY)
    executor = Executor(scene.context, Guard())
    if begun:
        assert kept(scene, keep) == {group: reasons.GROUP_UNKNOWN}
    assert executor.record([deleted]) is None
    assert kept(scene, keep) == {group: reasons.ALREADY_DELETED}
    make.abandoned(group, topic, commit=at(topic, 1))
    if restarted:
        scene = Scene(client, ledger=scene.ledger)
        executor = Executor(scene.context, Guard())
    assert [kept(scene, keep), kept(scene, keep)] == [{group: reasons.ALREADY_DELETED}] * 2
    assert kept(scene, replace(keep, until=now + DAY)) == {group: reasons.ALREADY_DELETED}
    assert kept(scene, replace(keep, uid="another")) == {group: ""}
    restored = replace_entry(deleted, id="id-2", what=OutcomeType.RESTORED, at=now + timedelta(seconds=2))
    assert executor.record([replace_entry(restored, reason=reasons.PARTLY_RESTORED)]) is None
    assert kept(scene, keep) == {group: reasons.ALREADY_DELETED}
    assert executor.record([replace_entry(restored, reason=reasons.RESTORED)]) is None
    assert kept(scene, keep) == {group: ""}


@pytest.mark.parametrize(
    ("shown", "left", "reason"),
    [
        pytest.param("yes", None, "", id="exists"),
        pytest.param("no", None, reasons.ALREADY_DELETED, id="does-not-exist"),
        pytest.param("not-yet", {Partition("t", 0): CommittedOffset(1)}, "", id="has-offsets"),
        pytest.param("not-yet", Fault("TIMEOUT", ""), reasons.ALREADY_DELETED, id="unreadable-offsets"),
        pytest.param("unknown", None, reasons.ALREADY_DELETED, id="unreadable"),
    ],
)
def test_a_group_was_deleted_before_it_is_kept(
    scene: Scene, make: Maker, monkeypatch: pytest.MonkeyPatch, shown: str, left: Any, reason: str
) -> None:
    """Whether it exists again is known when the request is written; one answer afterwards changes nothing."""
    topic, group = make.topic(records=2), make.name()
    keep = GroupKeep("team-a", "k", "uid", (group,), "needed", None)
    assert Executor(scene.context, Guard()).record([outcome(group)]) is None
    if shown != "no":
        make.abandoned(group, topic, commit=at(topic, 1))
    with monkeypatch.context() as patch:
        # Of the brokers' answers when the request is written, not of those to the status.
        if shown in ("not-yet", "unknown"):
            answer = None if shown == "not-yet" else Fault("TIMEOUT", "")
            patch.setattr(kafka_groups, "find_groups", lambda _, names, __: dict.fromkeys(names, answer))
        if left is not None:
            patch.setattr(marks, "committed_offsets", lambda *_, **__: {group: left})
        kept(scene, keep)
    make.abandoned(group, topic, commit=at(topic, 1))
    assert kept(scene, keep) == {group: reason}
    with monkeypatch.context() as patch:
        patch.setattr(kafka_groups, "find_groups", lambda _, names, __: dict.fromkeys(names))
        assert kept(scene, keep) == {group: reason or reasons.GROUP_UNKNOWN}
    assert kept(scene, keep) == {group: reason}


def test_an_object_that_an_edit_ended_protects_nothing(scene: Scene, client: Client, make: Maker) -> None:
    """Its status says so at once; before, the request in the ledger lasted as long as it had been written for."""
    names, now = (make.name("a"), make.name("b")), scene.clock.now()
    keep = GroupKeep("team-a", "k", "uid", names, "needed", now + DAY)
    other = GroupKeep("team-a", "other", "uid-2", names[:1], "needed", None)
    for each in (keep, other):
        kept(scene, each)
    over = replace(keep, until=now - DAY)

    def result(refusal: Refusal | None = None, ahead: float = 0) -> str:
        scene.clock.moved = timedelta(hours=ahead)
        found = marks.keep_groups(Executor(scene.context, Guard(lambda: refusal)), over, False)
        scene.clock.moved = timedelta()
        assert isinstance(found, Refusal)
        return found.reason

    def left() -> list[str]:
        contents = Scene(client, ledger=scene.ledger, need=LedgerNeed.SHOW).context.journal.contents
        return sorted(source for by_source in contents.object_keeps.values() for source in by_source)

    both = sorted([keep.source, keep.source, other.source])
    assert (result(Refusal(reasons.POLICY_CHANGED, "edited again")), left()) == (reasons.POLICY_CHANGED, both)
    assert (result(ahead=1), left()) == (reasons.CLOCK_SKEW, both)
    assert (result(), left()) == (reasons.KEEP_ENDED, [other.source])
    assert (result(), left()) == (reasons.KEEP_ENDED, [other.source])


def test_a_group_that_is_asked_for_again(scene: Scene, make: Maker) -> None:
    """An edit left it out in between: the user has seen that it was deleted, and that it exists again."""
    topic, group = make.topic(records=2), make.name()
    keep = GroupKeep("team-a", "k", "uid", (group,), "needed", None)
    assert Executor(scene.context, Guard()).record([outcome(group)]) is None
    assert kept(scene, keep) == {group: reasons.ALREADY_DELETED}
    make.abandoned(group, topic, commit=at(topic, 1))
    marks.withdraw(scene.context, {"uid": ()}, lambda _: True)
    assert kept(scene, keep) == {group: ""}


def test_a_group_shows_its_client_and_since_when_it_is_unchanged(scene: Scene, make: Maker) -> None:
    """Members now, without their hosts; of an Empty group since when scans found it so."""
    topic = make.topic(records=2)
    used, empty = make.name("used"), make.name("empty")
    make.join(used, topic)
    make.abandoned(empty, topic, commit=at(topic, 1))
    before = scene.clock.now()
    scene.observe(policy("*"))
    keep = GroupKeep("team-a", "both", "uid", (used, empty), "needed", None)
    found = marks.keep_groups(Executor(scene.context, Guard()), keep, False)
    assert not isinstance(found, Refusal), found
    of_used, of_empty = found
    assert (of_used.state, of_used.unchanged_since, of_empty.client) == ("Stable", None, "")
    assert of_used.client.startswith("client '")
    assert "from" not in of_used.client
    assert of_empty.unchanged_since is not None
    assert before <= of_empty.unchanged_since <= scene.clock.now()


# The steps of the process that keeps a group: it writes the request; reads it back with what others wrote; and finds
# out about the group. The steps of the one that deletes it: it writes the intent; reads it back with what others wrote,
# and checks for requests; and sends the deletion, if it found none.
_STEPS = ("keep-write", "keep-read", "keep-look", "delete-write", "delete-read", "delete-send")
_KEEPING, _DELETING = _STEPS[:3], _STEPS[3:]
ORDERS = [
    tuple(steps.pop(0) if number in places else others.pop(0) for number in range(len(_STEPS)))
    for places in itertools.combinations(range(len(_STEPS)), len(_KEEPING))
    for steps, others in [(list(_KEEPING), list(_DELETING))]
]


class _OtherProcess(Scene):
    writer = "another-process"


@dataclass
class _Both:
    """Two processes on one ledger, and groups that one of them is about to delete."""

    make: Maker
    deleting: Scene
    keeping: Scene
    steps: Sequence[Stepped]
    observation: Observation
    plan: Plan

    def delete(self, group: str, into: list[Outcome]) -> None:
        into += self.deleting.apply(replace(self.plan, actions=(group,)), self.observation)

    def keep(self, group: str, into: list[KeptGroup]) -> None:
        wanted = GroupKeep("kafka", "k", f"uid-{group}", (group,), "needed", None)
        executor = Executor(self.keeping.context, Guard())
        found = marks.keep_groups(executor, wanted, False)
        assert not isinstance(found, Refusal), found
        into += found


@pytest.fixture(scope="module")
def both(kafka: KafkaCluster, access: Settings) -> Iterator[_Both]:
    make, clients = Maker(kafka.plaintext_bootstrap), [connect(access), connect(access)]
    topic = make.topic(records=2)
    for _ in ORDERS:
        make.abandoned(make.name("race"), topic, commit=at(topic, 1))
    steps = [Stepped(client) for client in clients]
    deleting = Scene(steps[0])  # type: ignore[arg-type]
    observation, plan = deleting.plan(policy(f"{make.tag}race*"))
    other = _OtherProcess(steps[1], ledger=deleting.ledger)  # type: ignore[arg-type]
    yield _Both(make, deleting, other, steps, observation, plan)
    for client in clients:
        client.close()
    make.close()


@pytest.mark.parametrize("number", [pytest.param(n, id="-".join(order)) for n, order in enumerate(ORDERS)])
def test_no_order_of_both_keeps_and_deletes_a_group(both: _Both, number: int) -> None:
    """Each sees what the other one had written before its own read."""
    order, group = ORDERS[number], both.plan.actions[number]
    deleter, keeper = both.steps
    outcomes, results = list[Outcome](), list[KeptGroup]()
    deleter.begin(lambda: both.delete(group, outcomes), AddPartitionsToTxnRequest, FetchRequest, DeleteGroupsRequest)
    keeper.begin(lambda: both.keep(group, results), AddPartitionsToTxnRequest, FetchRequest, DescribeGroupsRequest)
    for step in order:
        (keeper if step in _KEEPING else deleter).step()
    (of_deletion,), (of_keep,) = outcomes, results
    place = {step: number for number, step in enumerate(order)}
    is_deleted = place["delete-read"] < place["keep-write"]
    # While the deletion is not decided, the other process promises nothing.
    in_doubt = place["delete-write"] < place["keep-read"] < place["delete-read"]
    assert (of_deletion.kind is OutcomeType.DELETED) is is_deleted, of_deletion
    assert of_keep.protected is (not is_deleted and not in_doubt), of_keep
    # It asks again.
    both.keep(group, again := list[KeptGroup]())
    assert [each.protected for each in again] == [not is_deleted]
    assert (group in both.make.groups()) is not is_deleted
