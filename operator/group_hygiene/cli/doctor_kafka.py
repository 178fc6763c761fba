"""What `doctor` asks of one Kafka cluster: brokers, permissions, the ledger, the pipeline's tables, clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from group_hygiene.cli.doctor_findings import Area, Finding, failed, looking, ok, warning
from group_hygiene.cli.target import Session, open_tables
from group_hygiene.errors import ApiError, Unreachable
from group_hygiene.evidence import trust
from group_hygiene.kafka import brokers, permissions
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka.mirror import checkpoint_topics
from group_hygiene.kafka.offsets import offsets_at
from group_hygiene.kafka.permissions import Allowed, Operation
from group_hygiene.ledger.journal import SKEW_MAX, Journal
from group_hygiene.ledger.ledger import LedgerSettings
from group_hygiene.ledger.topic import may_create
from group_hygiene.model import reasons
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.model.snapshot import Cluster as Seen
from group_hygiene.reconcile import Context, LedgerNeed, Memory, ledger_settings, open_journal
from group_hygiene.spec.connection import ActivitySpec, Connection, ReadSecretTexts, Settings
from group_hygiene.spec.durations import timestamp
from group_hygiene.spec.policy import Action, Policy

if TYPE_CHECKING:
    from group_hygiene.cli.doctor_kubernetes import Kubernetes

_GROUPS_ASKED = 200
_DOC = "the page on Kafka permissions"
_KAFKA, _PERMISSIONS, _CLOCK = Area.KAFKA, Area.PERMISSIONS, Area.CLOCK


@dataclass
class Cluster:
    """What is examined. activity: instead of the connection's. known: of Kubernetes; None = it was not asked.

    memory: what the ledger says, once it was read.
    """

    connection: Connection
    settings: Settings
    activity: ActivitySpec | None = None
    known: Kubernetes | None = None
    memory: Memory = field(default_factory=Memory)

    @property
    def read_texts(self) -> ReadSecretTexts | None:
        return partial(self.known.api.read_secret_texts, self.connection.namespace) if self.known else None

    @property
    def enforced(self) -> list[Policy]:
        """The policies in mode Enforce, as far as policies are known."""
        return [policy for policy in self.known.policies if policy.enforced] if self.known else []

    def enforces(self, *actions: Action) -> bool:
        """Whether some policy does one of these in mode Enforce."""
        return any(policy.action in actions for policy in self.enforced)


def examine_kafka(session: Session, cluster: Cluster) -> Iterator[Finding]:
    """In the order in which one thing hangs on another."""
    yield ok(_KAFKA, "TLS and SASL", _login(cluster.settings))
    seen = kafka_cluster.read_cluster(session.client, session.deadline())
    if isinstance(seen, Fault):
        raise Unreachable(f"no broker answers: {seen}")
    yield from looking(_KAFKA, "brokers", lambda: _brokers(session, cluster, seen))
    yield from looking(_PERMISSIONS, "permissions in Kafka", lambda: _may(session, cluster, seen))
    yield from looking(Area.LEDGER, "ledger", lambda: _ledger(session, cluster))
    yield from looking(Area.EVIDENCE, "evidence", lambda: _evidence(session, cluster, seen))
    yield from looking(_CLOCK, "clock of the brokers", lambda: _clock(session, seen))


def _login(settings: Settings) -> str:
    way = "in plain text" if settings.tls is None else "over TLS"
    if settings.tls is not None and not settings.tls.verify_hostname:
        way += " (host names are not verified)"
    if settings.sasl is not None:
        who = f" as {settings.sasl.username!r}" if settings.sasl.username else ""
        return f"{way}, logged in by {settings.sasl.mechanism}{who}"
    certified = settings.tls is not None and settings.tls.certificate is not None
    return f"{way}, " + ("with a client certificate" if certified else "without a login")


def _brokers(session: Session, cluster: Cluster, seen: Seen) -> Iterator[Finding]:
    answers = brokers.versions(session.client, seen, session.deadline())
    for broker, answer in answers.items():
        if isinstance(answer, Fault):
            found = f"{broker} ({seen.brokers[broker]}) does not answer: {answer}"
            yield failed(_KAFKA, "broker", found, "nothing is deleted until every broker answers (SnapshotIncomplete)")
    versions = Counter(answer for answer in answers.values() if isinstance(answer, str))
    told = ", ".join(f"{count} of Kafka {version}" for version, count in sorted(versions.items()))
    there = sum(versions.values())
    if there:
        yield ok(_KAFKA, "brokers", f"{there} of {len(answers)} answer ({told}); cluster id {seen.id}")
    leaderless = [problem for problem in seen.problems if problem.endswith("has no leader")]
    if leaderless:
        found = f"{len(leaderless)} partitions of {kafka_cluster.OFFSETS_TOPIC} have no leader: {leaderless[0]}"
        yield failed(_KAFKA, "offsets log", found, "start the brokers that lead them; nothing is deleted until then")
    before = ((cluster.known.obj.get("status") or {}).get("clusterID")) if cluster.known else None
    if before is not None and before != seen.id:
        found = f"bootstrapServers led to {before} and now lead to {seen.id}"
        yield failed(_KAFKA, "cluster id", found, "the runbook, ClusterChanged")


def _may(session: Session, cluster: Cluster, seen: Seen) -> Iterator[Finding]:
    """What docs/kafka-permissions.md asks for, and what can't work where it is missing."""
    client = session.client
    found = [
        *_may_on_cluster(permissions.on_cluster(client, session.deadline())),
        *_may_see_topics(session, seen),
        *_may_on_topics(session, cluster),
        *_may_on_groups(session, cluster, seen),
    ]
    yield from found
    if not found:
        yield ok(_PERMISSIONS, "permissions in Kafka", "nothing that can be asked for is missing")


def _lacks(allowed: Allowed, operation: Operation) -> bool:
    return allowed is not None and operation not in allowed


def _may_on_cluster(allowed: Allowed | Fault) -> Iterator[Finding]:
    if isinstance(allowed, Fault):
        yield warning(_PERMISSIONS, "permissions in Kafka", f"on the cluster they could not be read: {allowed}", _DOC)
        return
    if allowed is None:
        found = "these brokers (below Kafka 2.3) don't tell them"
        yield warning(_PERMISSIONS, "permissions in Kafka", found, f"go through {_DOC}")
        return
    if _lacks(allowed, Operation.DESCRIBE):
        found = "DESCRIBE on the cluster is denied: lists leave groups out, and no policy deletes (SnapshotIncomplete)"
        yield failed(_PERMISSIONS, "cluster", found, f"grant it ({_DOC})")
    if _lacks(allowed, Operation.DESCRIBE_CONFIGS):
        found = "DESCRIBE_CONFIGS on the cluster is denied: no ExpiresFirst, and expiresWithin matches nothing"
        yield warning(_PERMISSIONS, "cluster", found, f"grant it where policies ask expiresWithin ({_DOC})")


def _may_see_topics(session: Session, seen: Seen) -> Iterator[Finding]:
    """By the operator's own question: whether topics are on disks that we are not shown."""
    hidden = kafka_cluster.hidden_topics(session.client, seen, session.deadline())
    if isinstance(hidden, Fault):
        found = f"whether topics are hidden could not be read, so no policy deletes (TopicsHidden): {hidden}"
        yield failed(_PERMISSIONS, "topics", found, f"grant DESCRIBE on the cluster and on all topics ({_DOC})")
    elif hidden:
        found = f"DESCRIBE is denied on {_named(hidden)}: no policy deletes (TopicsHidden)"
        yield failed(_PERMISSIONS, "topics", found, f"grant it on all topics ({_DOC})")


def _may_on_topics(session: Session, cluster: Cluster) -> Iterator[Finding]:
    allowed = permissions.on_topics(session.client, session.deadline())
    if isinstance(allowed, Fault):
        yield warning(_PERMISSIONS, "topics", f"permissions on topics could not be read: {allowed}", _DOC)
        return
    unread = sorted(name for name, each in allowed.items() if _lacks(each, Operation.READ))
    log, own = kafka_cluster.OFFSETS_TOPIC, cluster.connection.ledger.topic
    if log in unread:
        found = (
            f"READ on {log} is denied: policies with idleFor keep every group, and those with unchangedFor too "
            "(EvidenceUnreadable), unless the policy names UnreadableOffsetsLog in match.unprotect: then a group that "
            "is joined between scans may look abandoned, and be deleted"
        )
        needed = any(each.action is Action.DELETE and each.when.unchanged_for is not None for each in cluster.enforced)
        told = failed if needed else warning
        yield told(_PERMISSIONS, "offsets log", found, f"grant it where policies ask idleFor or unchangedFor ({_DOC})")
    checkpoints = checkpoint_topics(allowed, cluster.connection.checkpoint_topics)
    mirrored = [name for name in unread if name in checkpoints]
    if mirrored:
        found = f"READ is denied on {_named(mirrored)}: every group is kept (MirrorMakerTarget)"
        yield failed(_PERMISSIONS, "MirrorMaker 2", found, f"grant it ({_DOC})")
    others = [name for name in unread if name not in (log, own, *mirrored)]
    if others:
        found = (
            f"READ is denied on {_named(others)}: no DeleteOffsets and no restore of offsets there; and groups that "
            "need records waiting there are kept (LagUnknown), unless the policy names UnreadableTopics in "
            "match.unprotect: then a group in use may look abandoned, and be deleted"
        )
        unseen = any(each.action is Action.DELETE and each.when.unchanged_for is not None for each in cluster.enforced)
        told = failed if unseen or cluster.enforces(Action.DELETE_OFFSETS) else warning
        advice = f"grant it where policies with unchangedFor delete, and where you want these ({_DOC})"
        yield told(_PERMISSIONS, "topics", found, advice)
    yield from _may_on_ledger(session, cluster, allowed)


def _may_on_ledger(session: Session, cluster: Cluster, allowed: Mapping[str, Allowed]) -> Iterator[Finding]:
    """Where a policy deletes it is needed, and else not."""
    topic = cluster.connection.ledger.topic
    needed = (Operation.READ, Operation.WRITE, Operation.DESCRIBE_CONFIGS)
    lacking = [str(operation) for operation in needed if topic in allowed and _lacks(allowed[topic], operation)]
    if topic not in allowed:
        fault = may_create(session.client, topic, session.deadline())
        if fault is None:
            return
        lacking = [f"CREATE or DESCRIBE ({fault})"]
    if lacking:
        deletes = cluster.enforces(Action.DELETE, Action.DELETE_OFFSETS)
        told = failed if deletes else warning
        found = f"on the topic {topic} this is denied: {', '.join(lacking)}; no policy deletes (LedgerUnavailable)"
        yield told(_PERMISSIONS, "ledger's topic", found, f"grant it ({_DOC})")


def _may_on_groups(session: Session, cluster: Cluster, seen: Seen) -> Iterator[Finding]:
    """Of up to 200 groups that are listed; where there are none, of a name that nobody has.

    Asking makes a broker that has no `__consumer_offsets` create it.
    """
    listing = kafka_groups.list_groups(session.client, seen, session.deadline())
    for problem in kafka_groups.unanswered(listing):
        yield warning(_PERMISSIONS, "groups", f"permissions on some were not asked for: {problem}", "look again")
    if not listing.groups and not seen.leaders:
        found = (
            f"not asked: no group and no {kafka_cluster.OFFSETS_TOPIC} is to be seen, and the question would make it"
        )
        yield warning(_PERMISSIONS, "groups", found, "look again once there are groups")
        return
    names = sorted(listing.groups)[:_GROUPS_ASKED] or ["group-hygiene-doctor"]
    answers = permissions.on_groups(session.client, names, session.deadline())
    yield from of_groups(answers, cluster.enforces(Action.DELETE))


def of_groups(answers: Mapping[str, Allowed | Fault], deletes: bool) -> Iterator[Finding]:
    """What is missing, by the brokers' answer for each group. deletes: whether some policy does so in mode Enforce."""
    faults = {name: each for name, each in answers.items() if isinstance(each, Fault)}
    denied = [name for name, fault in faults.items() if "AUTHORIZATION" in fault.code]
    unread = sorted(faults.keys() - set(denied))

    def lacking(operation: Operation) -> int:
        return sum(not isinstance(each, Fault) and _lacks(each, operation) for each in answers.values())

    looked_at = f"of {len(answers)} groups looked at"
    if unread:
        found = f"permissions on {_named(unread, 'groups')} could not be read: {faults[unread[0]]}"
        yield warning(_PERMISSIONS, "groups", found, "look again")
    if denied:
        found = f"DESCRIBE is denied on {_named(denied, 'groups')}: they are kept (AuthorizationDenied)"
        yield failed(_PERMISSIONS, "groups", found, f"grant it on all groups ({_DOC})")
    if kept := lacking(Operation.DELETE):
        found = f"DELETE is denied on {kept} {looked_at}: action Delete fails there (AuthorizationDenied)"
        told = failed if deletes else warning
        yield told(_PERMISSIONS, "groups", found, f"grant it where you want that ({_DOC})")
    if lost := lacking(Operation.READ):
        found = f"READ is denied on {lost} {looked_at}: they can't be restored (AuthorizationDenied)"
        yield warning(_PERMISSIONS, "groups", found, f"grant it while you restore ({_DOC})")


def _ledger(session: Session, cluster: Cluster) -> Iterator[Finding]:
    """Read to its end, as the operator does before each run; never claimed and never written."""
    known, spec = cluster.known, cluster.connection.ledger
    allowed = [LedgerSettings(installation=None, writer="", topic=spec.topic, known=spec.confirmed)]
    owners: list[str] = []
    if known is not None:
        status = known.obj.get("status") or {}
        try:
            # An operator of all namespaces, or one of some.
            owners = [known.api.installation_id(of) for of in ("", known.account.namespace)]
        except ApiError as error:
            found = f"whose it must be is not known, as namespace kube-system can't be read: {error}"
            yield warning(Area.LEDGER, "ledger's owner", found, "ask as somebody who may")
        else:
            allowed = [ledger_settings(cluster.connection, status, owner) for owner in owners]
    for settings in allowed:
        journal = open_journal(cluster.memory, session.client, settings, LedgerNeed.READ, (), session.deadline())
        if journal.problem is None or journal.problem.reason != reasons.LEDGER_OWNED:
            break
    if journal.problem is not None:
        found = f"{journal.problem.reason}: {journal.problem.message}"
        if owners and journal.problem.reason == reasons.LEDGER_OWNED:
            # The message names the one that was tried last.
            found += f", nor to {owners[0]}"
        yield failed(Area.LEDGER, "ledger", found, f"the runbook, {journal.problem.reason}")
        return
    if not journal.exists:
        found = f"there is no topic {spec.topic} (yet): it is made once a policy enforces or has receivers"
        yield ok(Area.LEDGER, "ledger", found)
        return
    contents = journal.contents
    if contents.unreadable:
        found = f"{contents.unreadable} records can't be read: of a newer version, or somebody else's"
        yield warning(Area.LEDGER, "ledger", found, "the runbook, GroupHygieneLedgerUnreadable")
    marks = sum(len(of_policy) for of_policy in contents.marks.values())
    told = f"{marks} marks, {len(contents.keeps)} requests to keep, {len(contents.intents)} deletions under way"
    owner = contents.owner
    whose = (
        "nobody's yet" if owner is None else f"of the installation {owner.installation} since {timestamp(owner.since)}"
    )
    yield ok(Area.LEDGER, "ledger", f"topic {spec.topic}, {whose}: {told}")


def _evidence(session: Session, cluster: Cluster, seen: Seen) -> Iterator[Finding]:
    """As a run of a policy with idleFor would look at the tables."""
    tables = open_tables(session, cluster.activity)
    if tables is None:
        found = "the connection has no activity: idleFor and expiresWithin match nothing, unchangedFor works"
        yield ok(Area.EVIDENCE, "evidence", found)
        return
    memory = cluster.memory
    journal = Journal(memory.ledger, memory.contents, {})
    context = Context(
        session.client, cluster.connection, memory, session.clock, journal, claims=session.claims, tables=tables
    )
    coverage = trust.read_evidence(context, seen, (), session.deadline()).coverage
    as_of = "" if coverage.as_of is None else f", read at {timestamp(coverage.as_of)} or later"
    if coverage.problem is None:
        found = f"the tables cover all {coverage.partitions} partitions of the offsets log{as_of}"
        yield ok(Area.EVIDENCE, "evidence", found)
    else:
        some = f" ({coverage.covered} of {coverage.partitions} partitions are fine{as_of})" if coverage.covered else ""
        found = f"{coverage.problem.reason}: {coverage.problem.message}{some}"
        yield failed(Area.EVIDENCE, "evidence", found, f"the runbook, {coverage.problem.reason}")


def _clock(session: Session, seen: Seen) -> Iterator[Finding]:
    """Whether a broker stamped records with times to come. That one is behind shows only when somebody writes."""
    limit = session.clock.now() + SKEW_MAX
    places = [
        Partition(kafka_cluster.OFFSETS_TOPIC, number) for number, (leader, _) in seen.leaders.items() if leader >= 0
    ]
    asked = dict.fromkeys(places, round(limit.timestamp() * 1000))
    answers = offsets_at(session.client, asked, session.deadline())
    ahead = [place for place, answer in answers.items() if isinstance(answer, int)]
    faults = [answer for answer in answers.values() if isinstance(answer, Fault)]
    check = "clock of the brokers"
    if ahead:
        found = (
            f"records of {_named([str(place) for place in ahead], 'partitions')} are stamped after {timestamp(limit)}"
        )
        yield failed(
            _CLOCK, check, f"{found}: a broker's clock is ahead, or ours behind", "set the clock that is wrong"
        )
    elif faults or not places:
        why = str(faults[0]) if faults else f"there is no {kafka_cluster.OFFSETS_TOPIC} yet"
        yield warning(_CLOCK, check, f"can't be told: {why}", "look again")
    else:
        found = "no record is stamped with a time to come; one that is behind shows only at a write (ClockSkew)"
        yield ok(_CLOCK, check, found)


def _named(names: Collection[str], what: str = "topics") -> str:
    shown = ", ".join(sorted(names)[:3])
    return f"{len(names)} {what} ({shown}{', ...' if len(names) > 3 else ''})"
