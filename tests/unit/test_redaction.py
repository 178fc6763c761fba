"""What a policy of another namespace shows of a run: nothing of other teams, whatever the run met."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from msgspec import structs

from group_hygiene.engine.checks.needed import protected
from group_hygiene.engine.restorable import GroupResult, PartitionResult, ResultKind
from group_hygiene.errors import SecretProblem
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import Outcome
from group_hygiene.model.groups import CommittedOffset, Coverage, Partition
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.conditions import OWN, connection_not_ready, redact_problem, redact_run
from group_hygiene.observe.of_objects import OWN_RESULTS, build_restore_status, build_status, redact_results
from tests.messages import insertions
from tests.unit.make import NOW, delete, match, plan, refused, snapshot

SECRETS = ("payroll-live", "orders.private", "Secret kafka/storage", "s3://bucket-of-payroll", "417 of 2089")
_FOREIGN = f"broker 1: {', '.join(SECRETS)}"
_CONNECTION = "kafka/main"
# What may stand in a message that other namespaces see: facts of the group itself, of its topics, its backup and the
# policy, and what its users wrote. No text of an error, a broker, the API server or the ledger.
SHOWN = {
    # The connection that the restore names, and the namespace of the restore.
    reasons.ACTION_NOT_GRANTED: {"_namespace(obj)", "self._key"},
    reasons.ALREADY_COMMITTED: {"present.offset"},
    reasons.BACKUP_INCOMPLETE: {"timestamp(at)"},
    reasons.BECAME_ACTIVE: {"described.group.state", "now.state"},
    # A client id, or the assignor, of the group's own members.
    reasons.CONNECT: {"seen"},
    reasons.STREAMS: {"seen"},
    # A time by the ledger, of the same object's predecessor.
    reasons.RAN_BEFORE: {"what", "timestamp(outcome.at)"},
    reasons.CAUGHT_UP: {"found.outside", "topics"},
    # `message` is one of `engine.recovery`, all literal.
    reasons.DELETED: {"message", "named(gone.topics)"},
    reasons.EXPIRES_FIRST: {
        *("field", "timestamp(due)", "timestamp(end)", "name"),
        *("format_duration(wanted + latest(policy))", "format_duration(retention)"),
    },
    reasons.EXPIRES_LATER: {"group.protocol_type", "timestamp(at)", "timestamp(earliest)"},
    reasons.GONE: {"topic"},
    reasons.GROUP_ACTIVE: {"state"},
    reasons.HAS_OFFSETS: {"len(evidence.offsets)"},
    reasons.ID_TOO_LONG: {"ID_MAX", "len(group.id)"},
    reasons.INTERRUPTED: {"_BEGUN", "intent.partitions", "left"},
    reasons.KEEP_REQUESTED: {"asker", "request.by", "request.why", "timestamp(request.until)"},
    reasons.KEEP_ENDED: {"timestamp(keep.until)"},
    reasons.LAG_BELOW: {"found.unread", "wanted"},
    reasons.NO_BACKUP: {"timestamp(at)"},
    # The partition, and that Kafka shows no start offset of it (`kafka.offsets.complete_offsets`).
    reasons.NO_START_OFFSET: {"evidence.offsets.message"},
    reasons.NOT_EMPTY: {"group.state"},
    reasons.NOT_LEADER: {"FRESH_S"},
    reasons.NOT_RESTORABLE: {"', '.join(lost[:3])", "', '.join(old)", "backup.type", "kind"},
    reasons.NOT_STABLE: {"group.state", "now.state"},
    # `failed`: codes of refusals, for partitions of the group.
    reasons.OFFSETS_DELETED: {"message", "named(done)", "truncated_list(sorted(done), _NAMES)", "failed"},
    reasons.OUT_OF_RANGE: {"end", "saved.offset", "start"},
    # The partition, and what UNSTABLE_OFFSET_COMMIT means.
    reasons.PENDING_TRANSACTION: {"fault.message"},
    reasons.POLICY_CHANGED: {"KINDS[plural]", "name", "namespace"},
    reasons.RECENTLY_ACTIVE: {
        *("describe(found)", "note", "again", "until", "timestamp(since)", "timestamp(now)"),
        # `note` and `again` are literal; `earliest` adds a date.
        *("earliest(again, _time_of(found), wait)", "earliest('it matches again', now, self._wait)"),
    },
    reasons.SUBSCRIBED: {"len(idle)", "place.topic"},
    reasons.TOO_RECENT: {
        *("_missed(policy, seen.missed)", "format_duration(seen.observed)", "format_duration(wanted)", "so_far"),
        *("format_duration(whole_seconds(max(timedelta(), so_far)))", "timestamp(activity.read_at)", "topic"),
        *("timestamp(last)", "timestamp(oldest)", "timestamp(since)"),
    },
    reasons.TOPICS_EXIST: {"len(topics - missing)", "len(topics)"},
    reasons.WOULD_RESTORE: {"end", "nearest", "saved.offset", "start"},
}
# Of partitions, or put together by `restorable.summed` from the messages of partitions.
_WITHOUT_A_MESSAGE = {reasons.ALREADY_THERE, reasons.VERIFIED, reasons.RESTORED, reasons.PARTLY_RESTORED}


@pytest.mark.parametrize("reason", sorted(OWN_RESULTS))
def test_what_stands_in_a_message_that_is_shown(reason: str) -> None:
    """By the source of all messages of the reason: a new one, or a new entry of the list, must be looked at here."""
    found = insertions()
    assert found.get(reason, set()) <= SHOWN.get(reason, set())
    assert (reason in found) is (reason not in _WITHOUT_A_MESSAGE)


def test_a_text_of_an_error_is_noticed() -> None:
    """The reasons whose messages quote one are those that would be wrong entries."""
    found = insertions()
    quoting = {
        name for name, parts in found.items() if {"error", "fault", "str(error)", "str(fault)", "answer"} & parts
    }
    assert {reasons.DENIED, reasons.DELETE_FAILED, reasons.TOPICS_UNKNOWN, reasons.CONNECTION_NOT_READY} <= quoting
    assert quoting & OWN_RESULTS == set()


@pytest.mark.parametrize("reason", sorted(reasons.all_reasons() - OWN))
def test_no_message_but_of_the_groups_own_checks(reason: str) -> None:
    """Of a group, a run, its tables and an outcome; a reason that is new is redacted until somebody lists it."""
    policy = delete(enforce=True)
    refusals = (Refusal(reason, _FOREIGN),)
    made = plan(policy, [match("a"), match("b"), refused("c", reason, _FOREIGN)], refusals=refusals)
    made = replace(made, unmarking={"d": Refusal(reason, _FOREIGN)})
    look = snapshot(incomplete=(_FOREIGN,), coverage=Coverage(Refusal(reason, _FOREIGN), 0, 50, NOW))
    outcomes = [Outcome("a", OutcomeType.FAILED, reason, _FOREIGN)]
    shown, done, seen = redact_run(made, outcomes, look, _CONNECTION)
    asks = structs.replace(policy, when=structs.replace(policy.when, idle_for=policy.when.unchanged_for))
    for of in (look, snapshot()):
        incomplete = of is look
        text = json.dumps(build_status(asks, {}, shown, done, seen if incomplete else of))
        assert [secret for secret in SECRETS if secret in text] == []
        assert reason in text
    assert _FOREIGN not in repr((shown.unmarking, shown.refusal, done, seen.incomplete, seen.coverage))


@pytest.mark.parametrize("reason", sorted(reasons.all_reasons()))
@pytest.mark.parametrize("of_partition", [False, True])
def test_no_message_of_a_restore_but_of_the_group(reason: str, of_partition: bool) -> None:
    """A result's message quotes those of its partitions, whatever its own reason is."""
    place, saved = Partition("orders", 0), CommittedOffset(1)
    parts = (PartitionResult(place, saved, reason, _FOREIGN),) if of_partition else ()
    whole = reasons.PARTLY_RESTORED if of_partition else reason
    result = GroupResult("g", ResultKind.WAITING, whole, _FOREIGN, None, parts)
    assert redact_results([result], "kafka", _CONNECTION) == [result]
    (shown,) = redact_results([result], "team", _CONNECTION)
    assert (shown.reason, shown.group, shown.partitions) == (result.reason, "g", parts)
    restore = {"metadata": {"namespace": "team", "name": "r", "generation": 1}}
    text = json.dumps(build_restore_status(restore, [shown], NOW))
    assert ([secret for secret in SECRETS if secret in text] == []) is (reason not in OWN_RESULTS)


def test_another_namespace_does_not_see_what_is_protected() -> None:
    """A pattern of `protect` may name what is another team's."""
    found = match("payroll-live-1")
    why = protected(delete(), found.group, structs.replace(found.evidence, protected_by="payroll-live-*"), NOW)
    assert why is not None
    made = plan(delete(), [structs.replace(found, refusal=why)])
    shown, _, _ = redact_run(made, [], snapshot(), _CONNECTION)
    assert shown.verdicts["payroll-live-1"].refusal == Refusal(reasons.PROTECTED, "the connection protects it")


def test_another_namespace_does_not_see_owners() -> None:
    """They are the connection's. In its own namespace, the sample shows them."""
    made = plan(delete(), [match("a", owner="payroll"), match("b")])
    shown, outcomes, seen = redact_run(made, [], snapshot(), _CONNECTION)
    for run, owner in ((made, "payroll"), (shown, None)):
        sample = build_status(run.policy, {}, run, outcomes, seen)["sample"]
        assert [entry.get("owner") for entry in sample] == [owner, None]


def test_the_connections_own_namespace_sees_all() -> None:
    """It is told what is wrong; of others the reason alone, that somebody can be asked for."""
    error = SecretProblem("Secret kafka/storage does not exist")
    assert "Secret kafka/storage" in connection_not_ready(error, "kafka", _CONNECTION).message
    assert connection_not_ready(error, "team", _CONNECTION).message == (
        "KafkaConnection kafka/main is not ready: SecretNotFound"
    )
    problem = Refusal(reasons.LEDGER_OWNED, _FOREIGN)
    assert redact_problem(problem, "kafka", _CONNECTION) == problem
    assert redact_problem(problem, "team", _CONNECTION).message == "the owner of KafkaConnection kafka/main can see why"
