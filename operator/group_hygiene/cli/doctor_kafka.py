"""The checks of `doctor` in a Kafka cluster: brokers, permissions, the ledger, the pipeline's tables, clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from group_hygiene.cli.doctor import Area, Finding, failed, ok, run_check, warning
from group_hygiene.cli.output import working
from group_hygiene.cli.target import Session, open_tables
from group_hygiene.engine.context import Context, Memory, read_evidence
from group_hygiene.engine.executor import Moment, ProofInput, may_create_ledger, refusals
from group_hygiene.engine.pattern_notes import note_lines, pattern_notes
from group_hygiene.engine.recovery import LedgerNeed, few_replicas, ledger_settings, open_journal
from group_hygiene.engine.scan import observe
from group_hygiene.engine.uses import read_ends
from group_hygiene.errors import ApiError, AuthenticationFailed, ConnectError, TLSFailed, Unreachable
from group_hygiene.kafka import brokers
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka.client import UNRESOLVED, connect
from group_hygiene.kafka.cluster import Allowed, Operation
from group_hygiene.kafka.mirror import checkpoint_topics
from group_hygiene.kafka.offsets import offsets_at
from group_hygiene.ledger import topic as ledger_topic
from group_hygiene.ledger.contents import COMMAND_WRITER, Contents, LedgerSettings
from group_hygiene.ledger.journal import SKEW_MAX, Journal
from group_hygiene.model import reasons
from group_hygiene.model.groups import Cluster as ClusterMetadata
from group_hygiene.model.groups import Fault, Partition
from group_hygiene.spec.client_settings import Settings, region_of
from group_hygiene.spec.connection import ActivitySpec, Connection
from group_hygiene.spec.fields import timestamp
from group_hygiene.spec.policy import Action, Policy

if TYPE_CHECKING:
    from group_hygiene.cli.doctor import Kubernetes

_GROUPS_ASKED = 200
_DOC = "docs/kafka-permissions.md"
_ATTEST = "if the service can't: topicVisibility: Attested (docs/kafka-permissions.md)"
_AGAIN = "run doctor again"
# Ends of the brokers' names -> the service's name in docs/kafka-permissions.md.
_SERVICES = {
    ".aivencloud.com": "Aiven",
    ".cloud.redpanda.com": "Redpanda",
    ".confluent.cloud": "Confluent Cloud",
    ".servicebus.windows.net": "Azure Event Hubs",
}
_KAFKA, _PERMISSIONS, _CLOCK = Area.KAFKA, Area.PERMISSIONS, Area.CLOCK


@dataclass
class CheckedCluster:
    """The cluster to check. activity: instead of the connection's. known: what Kubernetes has; None = it was not read.

    memory: what the ledger has, once it was read.
    """

    connection: Connection
    settings: Settings
    activity: ActivitySpec | None = None
    known: Kubernetes | None = None
    memory: Memory = field(default_factory=Memory)

    @property
    def enforced(self) -> list[Policy]:
        """The policies in mode Enforce, as far as policies are known."""
        return [policy for policy in self.known.policies if policy.enforced] if self.known else []

    def enforces(self, *actions: Action) -> bool:
        """Whether a policy in mode Enforce has one of these actions."""
        return any(policy.action in actions for policy in self.enforced)


def connect_and_examine(cluster: CheckedCluster, timeout: timedelta | None, namespace: str) -> list[Finding]:
    """All findings on a cluster. timeout: instead of the connection's. namespace: of the operator, for advice."""
    if timeout is not None:
        cluster.connection = cluster.connection.with_timeout(timeout)
        cluster.settings = replace(cluster.settings, timeout=timeout)
    return list(run_check(_KAFKA, "Kafka", lambda: _connected(cluster, namespace)))


def _connected(cluster: CheckedCluster, namespace: str) -> Iterator[Finding]:
    try:
        with working(f"connecting to {', '.join(cluster.settings.bootstrap_servers)}"):
            client = connect(cluster.settings)
    except (TLSFailed, AuthenticationFailed) as error:
        advice = "see --command-config, or spec.tls and spec.sasl of the KafkaConnection"
        yield failed(_KAFKA, "TLS and SASL", f"{error.reason}: {error}", advice)
        return
    except ConnectError as error:
        advice = "check the addresses, network policies, and whether the brokers require TLS or SASL"
        if UNRESOLVED in str(error):
            pod = f"kubectl exec -n {namespace} deploy/group-hygiene -- group-hygiene doctor ..."
            advice = f"the name of a Service resolves only in its Kubernetes cluster: {pod}; else correct the name"
        yield failed(_KAFKA, "Kafka", f"{error.reason}: {error}", advice)
        return
    try:
        session = Session(client, cluster.connection, cluster.known.api if cluster.known else None)
        with working("checking Kafka"):
            yield from examine_kafka(session, cluster)
    finally:
        client.close()


def examine_kafka(session: Session, cluster: CheckedCluster) -> Iterator[Finding]:
    """Run the checks, each after those that it depends on."""
    yield ok(_KAFKA, "TLS and SASL", _login(cluster.settings))
    if service := service_of(cluster.settings.bootstrap_servers):
        yield ok(_KAFKA, "service", f"{service}, by the brokers' names: see its row in docs/kafka-permissions.md")
    attested = cluster.connection.topics_attested
    metadata = kafka_cluster.read_cluster(session.client, session.deadline(), attested)
    if isinstance(metadata, Fault):
        raise Unreachable(f"no broker answers: {metadata}")
    ends = read_ends(session.client, metadata, session.deadline())
    yield from run_check(_KAFKA, "brokers", lambda: _brokers(session, cluster, metadata))
    yield from run_check(_PERMISSIONS, "permissions in Kafka", lambda: _permissions(session, cluster, metadata))
    yield from run_check(Area.LEDGER, "ledger", lambda: _ledger(session, cluster))
    yield from run_check(_KAFKA, "scan", lambda: _scan(session, cluster))
    yield from run_check(Area.EVIDENCE, "evidence", lambda: _evidence(session, cluster, metadata))
    yield from run_check(_CLOCK, "clock of the brokers", lambda: _clock(session, cluster, metadata, ends))


def service_of(servers: Iterable[str]) -> str | None:
    """The managed service that runs these brokers (host:port), by their names; None = none that is known."""
    for server in servers:
        host = server.rpartition(":")[0].rstrip(".").lower()
        if region_of([server]):
            return "Amazon MSK Serverless" if ".kafka-serverless." in host else "Amazon MSK, provisioned"
        if found := next((name for end, name in _SERVICES.items() if host.endswith(end)), None):
            return found
    return None


def _login(settings: Settings) -> str:
    way = "in plain text" if settings.tls is None else "over TLS"
    if settings.tls is not None and not settings.tls.verify_hostname:
        way += " (host names are not verified)"
    if settings.sasl is not None:
        user = f" as {settings.sasl.username!r}" if settings.sasl.username else ""
        if settings.sasl.msk is not None:
            user = f" as {settings.sasl.msk.role_arn or 'the AWS identity of this process'}"
        return f"{way}, logged in by {settings.sasl.mechanism}{user}"
    certified = settings.tls is not None and settings.tls.certificate is not None
    return f"{way}, " + ("with a client certificate" if certified else "without a login")


def _brokers(session: Session, cluster: CheckedCluster, metadata: ClusterMetadata) -> Iterator[Finding]:
    answers = brokers.versions(session.client, metadata, session.deadline())
    for broker, answer in answers.items():
        if isinstance(answer, Fault):
            found = f"{broker} ({metadata.brokers[broker]}) does not answer: {answer}"
            yield failed(_KAFKA, "broker", found, "nothing is deleted until every broker answers (SnapshotIncomplete)")
    versions = Counter(answer for answer in answers.values() if isinstance(answer, str))
    counted = ", ".join(f"{count} of Kafka {version}" for version, count in sorted(versions.items()))
    there = sum(versions.values())
    if there:
        yield ok(_KAFKA, "brokers", f"{there} of {len(answers)} answer ({counted}); cluster id {metadata.id}")
    leaderless = [problem for problem in metadata.problems if problem.endswith("has no leader")]
    if leaderless:
        found = f"{len(leaderless)} partitions of {kafka_cluster.OFFSETS_TOPIC} have no leader: {leaderless[0]}"
        yield failed(_KAFKA, "offsets log", found, "start the brokers that lead them; nothing is deleted until then")
    if (changed := cluster.memory.other_cluster(metadata.id)) is not None:
        yield failed(_KAFKA, "cluster id", changed.message, f"docs/reasons.md, {changed.reason}")


def _permissions(session: Session, cluster: CheckedCluster, metadata: ClusterMetadata) -> Iterator[Finding]:
    """The permissions in docs/kafka-permissions.md, and the effect of each that is missing."""
    client = session.client
    found = [
        *_cluster_permissions(kafka_cluster.on_cluster(client, session.deadline())),
        *_hidden_log(metadata, cluster.connection.topics_attested),
        *_hidden_topics(session, metadata, cluster.connection.topics_attested),
        *_topic_permissions(session, cluster),
        *_group_permissions(session, cluster, metadata),
    ]
    yield from found
    if not found:
        yield ok(_PERMISSIONS, "permissions in Kafka", "no permission that brokers report is missing")


def _lacks(allowed: Allowed, operation: Operation) -> bool:
    return allowed is not None and operation not in allowed


def _cluster_permissions(allowed: Allowed | Fault) -> Iterator[Finding]:
    if isinstance(allowed, Fault):
        yield warning(
            _PERMISSIONS, "permissions in Kafka", f"permissions on the cluster could not be read: {allowed}", _DOC
        )
        return
    if allowed is None:
        found = "these brokers (below Kafka 2.3) don't report them"
        yield warning(_PERMISSIONS, "permissions in Kafka", found, f"check them with {_DOC}")
        return
    if _lacks(allowed, Operation.DESCRIBE):
        found = "DESCRIBE on the cluster is denied: lists leave groups out, and no policy deletes (SnapshotIncomplete)"
        yield failed(_PERMISSIONS, "cluster", found, f"grant it ({_DOC})")
    if _lacks(allowed, Operation.DESCRIBE_CONFIGS):
        found = "DESCRIBE_CONFIGS on the cluster is denied: no ExpiresFirst, and expiresWithin matches nothing"
        yield warning(_PERMISSIONS, "cluster", found, f"grant it if policies use expiresWithin ({_DOC})")


def _hidden_log(metadata: ClusterMetadata, attested: bool) -> Iterator[Finding]:
    """Whether brokers hide the offsets log, as some services do."""
    log = kafka_cluster.OFFSETS_TOPIC
    if metadata.samples:
        found = (
            f"brokers hide {log}: policies with idleFor or expiresWithin match no group, and those with unchangedFor "
            "delete none unless they name UnreadableOffsetsLog in match.unprotect"
        )
        yield warning(_PERMISSIONS, "offsets log", found, f"grant DESCRIBE and READ on it, if the service can ({_DOC})")
    elif not attested and any(problem.startswith(f"topic {log}:") for problem in metadata.problems):
        found = f"DESCRIBE on {log} is denied: no policy deletes (SnapshotIncomplete)"
        yield failed(_PERMISSIONS, "offsets log", found, f"grant it ({_DOC}), or {_ATTEST}")


def _hidden_topics(session: Session, metadata: ClusterMetadata, attested: bool) -> Iterator[Finding]:
    """As the operator checks it: whether brokers have topics on disk that metadata does not show."""
    hidden = kafka_cluster.hidden_topics(session.client, metadata, session.deadline())
    if isinstance(hidden, Fault) and attested and kafka_cluster.is_refused(hidden):
        found = (
            f"all are visible by spec.topicVisibility alone, as brokers refuse to show it (TopicsAttested): {hidden}"
        )
        yield warning(_PERMISSIONS, "topics", found, "after each change of the user's permissions, check that it holds")
    elif isinstance(hidden, Fault):
        why = kafka_cluster.visibility_refusal(hidden)
        grant = f"grant DESCRIBE on the cluster and on all topics ({_DOC}), or {_ATTEST}"
        advice = grant if kafka_cluster.is_refused(hidden) else "see whether all brokers run"
        yield failed(_PERMISSIONS, "topics", f"no policy deletes ({why.reason}): {why.message}", advice)
    elif hidden:
        found = f"DESCRIBE is denied on {_named(hidden)}: no policy deletes (TopicsHidden)"
        yield failed(_PERMISSIONS, "topics", found, f"grant it on all topics ({_DOC})")


def _topic_permissions(session: Session, cluster: CheckedCluster) -> Iterator[Finding]:
    allowed = kafka_cluster.on_topics(session.client, session.deadline())
    if isinstance(allowed, Fault):
        yield warning(_PERMISSIONS, "topics", f"permissions on topics could not be read: {allowed}", _DOC)
        return
    unread = sorted(name for name, each in allowed.items() if _lacks(each, Operation.READ))
    log, own = kafka_cluster.OFFSETS_TOPIC, cluster.connection.ledger.topic
    if log in unread:
        found = (
            f"READ on {log} is denied: policies with idleFor delete no group; those with unchangedFor delete none "
            "either (EvidenceUnreadable), unless they name UnreadableOffsetsLog in match.unprotect: then they may "
            "delete a group that consumers join between scans"
        )
        needed = any(each.action is Action.DELETE and each.when.unchanged_for is not None for each in cluster.enforced)
        finding = failed if needed else warning
        yield finding(_PERMISSIONS, "offsets log", found, f"grant it if policies use idleFor or unchangedFor ({_DOC})")
    checkpoints = checkpoint_topics(allowed, cluster.connection.checkpoint_topics)
    mirrored = [name for name in unread if name in checkpoints]
    if mirrored:
        found = f"READ is denied on {_named(mirrored)}: no group is deleted (MirrorMakerTarget)"
        yield failed(_PERMISSIONS, "MirrorMaker 2", found, f"grant it ({_DOC})")
    others = [name for name in unread if name not in (log, own, *mirrored)]
    if others:
        found = (
            f"READ is denied on {_named(others)}: no DeleteOffsets and no restore of offsets there; and groups whose "
            "lag there is needed are not deleted (LagUnknown), unless the policy names UnreadableTopics in "
            "match.unprotect: then it may delete a group in use"
        )
        unseen = any(each.action is Action.DELETE and each.when.unchanged_for is not None for each in cluster.enforced)
        finding = failed if unseen or cluster.enforces(Action.DELETE_OFFSETS) else warning
        advice = f"grant it if policies with unchangedFor delete, or if you need these ({_DOC})"
        yield finding(_PERMISSIONS, "topics", found, advice)
    yield from _ledger_permissions(session, cluster, allowed)


def _ledger_permissions(session: Session, cluster: CheckedCluster, allowed: Mapping[str, Allowed]) -> Iterator[Finding]:
    """Permissions on the ledger's topic: a failure if a policy deletes, else a warning."""
    topic = cluster.connection.ledger.topic
    needed = (Operation.READ, Operation.WRITE, Operation.DESCRIBE_CONFIGS)
    lacking = [str(operation) for operation in needed if topic in allowed and _lacks(allowed[topic], operation)]
    if topic not in allowed:
        replicas = cluster.connection.ledger.replication_factor
        fault = may_create_ledger(session.client, topic, replicas, session.deadline())
        if fault is None:
            return
        lacking = [f"CREATE or DESCRIBE ({fault})"]
    if lacking:
        deletes = cluster.enforces(Action.DELETE, Action.DELETE_OFFSETS)
        finding = failed if deletes else warning
        found = f"on the topic {topic} this is denied: {', '.join(lacking)}; no policy deletes (LedgerUnavailable)"
        yield finding(_PERMISSIONS, "ledger's topic", found, f"grant it ({_DOC})")


def _group_permissions(session: Session, cluster: CheckedCluster, metadata: ClusterMetadata) -> Iterator[Finding]:
    """Permissions on up to 200 groups of the list; if it is empty, on a name that no group has.

    The request makes brokers create `__consumer_offsets` if it does not exist.
    """
    listing = kafka_groups.list_groups(session.client, metadata, session.deadline())
    for problem in kafka_groups.unanswered(listing):
        yield warning(_PERMISSIONS, "groups", f"permissions on some were not checked: {problem}", _AGAIN)
    if not listing.groups and not metadata.leaders:
        found = (
            f"not checked: no group and no {kafka_cluster.OFFSETS_TOPIC} is visible, and the request would create it"
        )
        yield warning(_PERMISSIONS, "groups", found, "run doctor again when there are groups")
        return
    names = sorted(listing.groups)[:_GROUPS_ASKED] or ["group-hygiene-doctor"]
    answers = kafka_cluster.on_groups(session.client, names, session.deadline())
    yield from group_findings(answers, cluster.enforces(Action.DELETE))


def group_findings(answers: Mapping[str, Allowed | Fault], deletes: bool) -> Iterator[Finding]:
    """Missing permissions, by the brokers' answers. deletes: whether a policy in mode Enforce has action Delete."""
    faults = {name: each for name, each in answers.items() if isinstance(each, Fault)}
    denied = [name for name, fault in faults.items() if "AUTHORIZATION" in fault.code]
    unread = sorted(faults.keys() - set(denied))

    def lacking(operation: Operation) -> int:
        return sum(not isinstance(each, Fault) and _lacks(each, operation) for each in answers.values())

    checked = f"of {len(answers)} groups checked"
    if unread:
        found = f"permissions on {_named(unread, 'groups')} could not be read: {faults[unread[0]]}"
        yield warning(_PERMISSIONS, "groups", found, _AGAIN)
    if denied:
        found = f"DESCRIBE is denied on {_named(denied, 'groups')}: they are not deleted (AuthorizationDenied)"
        yield failed(_PERMISSIONS, "groups", found, f"grant it on all groups ({_DOC})")
    if undeletable := lacking(Operation.DELETE):
        found = f"DELETE is denied on {undeletable} {checked}: action Delete fails there (AuthorizationDenied)"
        finding = failed if deletes else warning
        yield finding(_PERMISSIONS, "groups", found, f"grant it if you need that ({_DOC})")
    if unreadable := lacking(Operation.READ):
        found = f"READ is denied on {unreadable} {checked}: they can't be restored (AuthorizationDenied)"
        yield warning(_PERMISSIONS, "groups", found, f"grant it while you restore ({_DOC})")


def _ledger(session: Session, cluster: CheckedCluster) -> Iterator[Finding]:
    """Read the ledger to its end, as the operator does before each run; never claim or write it."""
    known, spec = cluster.known, cluster.connection.ledger
    writer = f"{COMMAND_WRITER}doctor"
    allowed = [LedgerSettings(installation=None, writer=writer, topic=spec.topic, known=spec.confirmed)]
    owners: list[str] = []
    if known is not None:
        status = known.obj.get("status") or {}
        try:
            # The id of an operator for all namespaces, and of one for this namespace only.
            owners = [known.api.installation_id(of) for of in ("", known.account.namespace)]
        except ApiError as error:
            found = f"the expected owner is not known, as namespace kube-system can't be read: {error}"
            yield warning(Area.LEDGER, "ledger's owner", found, "run doctor as a user who may read it")
        else:
            allowed = [ledger_settings(cluster.connection, status, owner) for owner in owners]
    for settings in allowed:
        journal = open_journal(cluster.memory, session.client, settings, LedgerNeed.SHOW, (), session.deadline())
        if journal.problem is None or journal.problem.reason != reasons.LEDGER_OWNED:
            break
    if journal.problem is not None:
        found = f"{journal.problem.reason}: {journal.problem.message}"
        if owners and journal.problem.reason == reasons.LEDGER_OWNED:
            # The message names only the last id.
            found += f", nor to {owners[0]}"
        yield failed(Area.LEDGER, "ledger", found, f"docs/reasons.md, {journal.problem.reason}")
        return
    few = few_replicas(cluster.memory.ledger, cluster.connection)
    if few is not None:
        yield warning(Area.LEDGER, "ledger's replicas", few.message, f"docs/reasons.md, {few.reason}")
    # Only policies in mode Enforce and receivers make the operator write the ledger.
    needed = known is None or bool(cluster.enforced or cluster.connection.receivers)
    case = ProofInput(
        client=session.client, memory=cluster.memory, deadline=session.deadline(), settings=settings, writes=True
    )
    for refusal in refusals(case, Moment.OPENING):
        found = f"{refusal.reason}: {refusal.message}; no policy can delete, and no receiver gets alerts"
        yield (failed if needed else warning)(Area.LEDGER, "transactions", found, f"docs/reasons.md, {refusal.reason}")
    if not journal.exists:
        found = f"topic {spec.topic} does not exist yet: the operator creates it once it is needed"
        yield ok(Area.LEDGER, "ledger", found)
        return
    yield from _contents(session, spec.topic, journal.contents)


def _contents(session: Session, topic: str, contents: Contents) -> Iterator[Finding]:
    """The entries of a ledger that was read, and its codec."""
    codec = ledger_topic.codec(session.client, topic, session.deadline())
    if isinstance(codec, str) and codec:
        found = f"compression.type of topic {topic} is {codec}: brokers compress each batch again"
        yield ok(Area.LEDGER, "ledger's codec", f"{found}. Any codec can be read; `producer` costs them less")
    if contents.hidden:
        found = f"{reasons.RECORD_UNREADABLE}: {contents.hidden_summary}: no group is deleted"
        yield failed(Area.LEDGER, "ledger", found, "docs/runbook.md, GroupHygieneLedgerUnreadable")
    elif contents.unreadable:
        found = f"{contents.unreadable} records can't be read: they are of a newer version, or of another program"
        yield warning(Area.LEDGER, "ledger", found, "docs/runbook.md, GroupHygieneLedgerUnreadable")
    marks = sum(len(of_policy) for of_policy in contents.marks.values())
    keeps = len(contents.keeps) + sum(map(len, contents.object_keeps.values()))
    counted = f"{marks} marks, {keeps} keep requests, {len(contents.intents)} deletions in progress"
    owner = contents.owner
    owned = "no owner yet" if owner is None else f"owner {owner.installation} since {timestamp(owner.since)}"
    yield ok(Area.LEDGER, "ledger", f"topic {topic}, {owned}: {counted}")


def _scan(session: Session, cluster: CheckedCluster) -> Iterator[Finding]:
    """A scan without policies, as the operator's: what forbids deletions in it."""
    memory = cluster.memory
    journal = Journal(memory.ledger, memory.contents, {})
    context = Context(session.client, cluster.connection, memory, session.clock, journal)
    observation = observe(context, (), full=True)
    forbidden = observation.conditions.refusals
    for refusal in forbidden:
        yield failed(_KAFKA, "scan", f"{refusal.reason}: {refusal.message}", f"docs/reasons.md, {refusal.reason}")
    if not forbidden:
        yield ok(_KAFKA, "scan", "every broker listed its groups: nothing forbids deletions")
    topics = kafka_cluster.read_topics(session.client, session.deadline())
    if not isinstance(topics, Fault):
        checkpoints = checkpoint_topics(topics, cluster.connection.checkpoint_topics)
        mirrored = memory.checkpoints.read(session.client, checkpoints, session.deadline())
        if isinstance(mirrored, Fault):
            found = f"{reasons.MIRROR_MAKER}: which groups MirrorMaker 2 mirrors is not known: {mirrored}"
            yield failed(_KAFKA, "MirrorMaker 2", found, f"docs/reasons.md, {reasons.MIRROR_MAKER}")
    if observation.all_groups is not None and observation.snapshot.complete:
        policies = cluster.known.policies if cluster.known else ()
        for line in note_lines(pattern_notes(cluster.connection, policies, observation.all_groups)):
            yield warning(Area.CONNECTION, "patterns", line, "docs/patterns.md")


def _evidence(session: Session, cluster: CheckedCluster, metadata: ClusterMetadata) -> Iterator[Finding]:
    """Check the tables as a run of a policy with idleFor does."""
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
    coverage = read_evidence(context, metadata, (), session.deadline()).coverage
    as_of = "" if coverage.as_of is None else f", read at {timestamp(coverage.as_of)} or later"
    if coverage.problem is None:
        found = f"the tables cover all {coverage.partitions} partitions of the offsets log{as_of}"
        yield ok(Area.EVIDENCE, "evidence", found)
    else:
        some = f" ({coverage.covered} of {coverage.partitions} partitions are fine{as_of})" if coverage.covered else ""
        found = f"{coverage.problem.reason}: {coverage.problem.message}{some}"
        yield failed(Area.EVIDENCE, "evidence", found, f"docs/reasons.md, {coverage.problem.reason}")


def _clock(
    session: Session, cluster: CheckedCluster, metadata: ClusterMetadata, ends: Mapping[int, int] | Fault
) -> Iterator[Finding]:
    """Whether records of the offsets log or the ledger have timestamps in the future, or those that were written to the
    log since `ends` have old ones.

    Without a write, a clock that is behind does not show.
    """
    limit = session.clock.now() + SKEW_MAX
    after, ledger = round(limit.timestamp() * 1000), cluster.memory.ledger
    places = [
        Partition(kafka_cluster.OFFSETS_TOPIC, number)
        for number, (leader, _) in metadata.leaders.items()
        if leader >= 0
    ]
    with_ledger = places if ledger is None else [*places, Partition(ledger.topic, 0)]
    answers = offsets_at(session.client, dict.fromkeys(with_ledger, after), session.deadline())
    ahead = [place for place, answer in answers.items() if isinstance(answer, int)]
    faults = [answer for answer in answers.values() if isinstance(answer, Fault)]
    check = "clock of the brokers"
    if ahead:
        found = (
            f"records of {_named([str(place) for place in ahead], 'partitions')} have times after {timestamp(limit)}"
        )
        yield failed(
            _CLOCK,
            check,
            f"{found}: a broker's clock is ahead, or this machine's is behind",
            "set the clock that is wrong",
        )
    elif behind := _behind(session, metadata, ends):
        found = f"broker {behind[0]} has just written records with times before {timestamp(limit - 2 * SKEW_MAX)}"
        yield failed(
            _CLOCK, check, f"{found}: its clock is behind, or this machine's is ahead", "set the clock that is wrong"
        )
    elif faults or not places:
        why = str(faults[0]) if faults else f"there is no {kafka_cluster.OFFSETS_TOPIC} yet"
        yield warning(_CLOCK, check, f"can't be checked: {why}", _AGAIN)
    else:
        found = "no record has a timestamp in the future; a clock that is behind shows only at a write (ClockSkew)"
        yield ok(_CLOCK, check, found)


def _behind(session: Session, metadata: ClusterMetadata, before: Mapping[int, int] | Fault) -> list[int]:
    """The brokers that have written records since `before`, by times that are long past."""
    now = read_ends(session.client, metadata, session.deadline())
    if isinstance(now, Fault) or isinstance(before, Fault):
        return []
    since = round((session.clock.now() - SKEW_MAX).timestamp() * 1000)
    grown = [index for index, end in now.items() if end > before.get(index, end)]
    asked = {Partition(kafka_cluster.OFFSETS_TOPIC, index): since for index in grown}
    answers = offsets_at(session.client, asked, session.deadline())
    return sorted(metadata.leaders[place.partition][0] for place, answer in answers.items() if answer is None)


def _named(names: Collection[str], what: str = "topics") -> str:
    shown = ", ".join(sorted(names)[:3])
    return f"{len(names)} {what} ({shown}{', ...' if len(names) > 3 else ''})"
