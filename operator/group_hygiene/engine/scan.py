"""The first half of a run: scans the cluster once and judges groups. Changes no group."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

import msgspec

from group_hygiene.engine import checks, unchanged
from group_hygiene.engine.context import (
    Context,
    Facts,
    Observation,
    evidence_of,
    known_offsets_or_empty,
    read_bounds,
    read_evidence,
    read_missing_topics,
    read_offsets,
    read_protections,
    read_records,
)
from group_hygiene.engine.executor import Executor, Moment
from group_hygiene.engine.plan import RunConditions, Verdicts
from group_hygiene.engine.selection import Budget, Selection, most_costly
from group_hygiene.engine.uses import NOT_FOLLOWED, find_growth, follow, new_notes
from group_hygiene.errors import HygieneError, MemoryExhausted, Unreachable
from group_hygiene.kafka import cluster as kafka_cluster
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka.bounds import NO_ROOM
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, LargestCoverage, Removal, ScanClock, Watch
from group_hygiene.model.evidence import Activity, Claims, Need, offsets_retention
from group_hygiene.model.groups import (
    ID_MAX,
    Bounds,
    Cluster,
    Coverage,
    Fault,
    Group,
    GroupState,
    GroupType,
    Listing,
    LogPlace,
    Offsets,
    Snapshot,
    fingerprint,
)
from group_hygiene.model.reasons import Refusal
from group_hygiene.process import memory as process_memory
from group_hygiene.process.clock import TURNS, elapsed
from group_hygiene.spec.policy import Policy

_WRITE_S = 2.0
# By how much slices are larger if the tables are read.
_TABLES_FACTOR = 10
# The memory of a group while it is judged; and how often its id is in memory as JSON: in a request to the tables and
# while it is sent, in a ledger's key and value and their batch.
_GROUP_BYTES, _ID_COPIES = 5_000, 4
# What stays of a group that a policy judged: its id in a list; and, if its verdict stays, that and the evidence, which
# policies share.
_NAME_BYTES, _VERDICT_BYTES, _EVIDENCE_BYTES = 8, 400, 1_500
# What stays of a group that was listed, and of one whose scans are counted.
_LISTED_BYTES, _SEEN_BYTES = 150, 240
# So many policies judge a whole slice; more have smaller ones.
_POLICIES = 10
# The CPU time of a scan for policies of other namespaces than the connection's, what each group adds, and the most of
# what is left of the scan.
_OTHERS_S, _OTHERS_GROUP_S, _OTHERS_MOST = 2.0, 100e-6, 0.25
# Of those of the connection's own namespace: the operator ends if a round takes three times as long.
_OWN_S = 300.0
# The share of a scan's time that reads for these may take, even if those for the connection's own leave less.
_OTHERS_SHARE = 1 / 4
# Namespaces that want so few groups together are read together.
_TOGETHER = 500
# A group is judged at most this long after the tables are read.
_SCAN = timedelta(minutes=10)
# Faults of a broker, as opposed to those of one group.
_LATE = frozenset({"REQUEST_TIMED_OUT"})
_LOST = _LATE | {"NETWORK_EXCEPTION", "BROKER_NOT_AVAILABLE", "NO_ANSWER"}


@dataclass
class _Scan(Facts):
    """One call of `observe`, with the evidence read so far, shared by all policies."""

    context: Context = field(kw_only=True)
    cluster: Cluster = field(kw_only=True)
    deadline: Deadline = field(kw_only=True)
    # Read commits by topic only for groups with commits before this time; None = no policy needs them.
    older: datetime | None = None
    # Of the tables; and to be stored.
    coverage: Coverage | None = None
    covered: LargestCoverage | None = None
    watches: dict[str, Watch] = field(default_factory=dict)
    # Bytes of memory.
    reserved: int = 0
    # Key of a policy that takes too much memory or time -> the refusal.
    left_out: dict[str, Refusal] = field(default_factory=dict)
    # Of this scan, if a policy counts `unchangedFor`; and the log for the clock at the end of the scan.
    clock: ScanClock | None = None
    time: unchanged.ScanTime | None = None
    log: Mapping[int, LogPlace] = field(default_factory=dict)
    # Groups of this slice whose Seen is of this scan.
    noted: set[str] = field(default_factory=set)
    # How many groups were listed; and of how many, in earlier slices, a verdict stays.
    listed: int = 0
    with_verdict: int = 0
    # Keys of policies that count, and select Empty groups whose Seen is not of this scan.
    incomplete: set[str] = field(default_factory=set)
    # Of the groups whose offsets could not be read since a broker was lost.
    lost: list[Fault] = field(default_factory=list)
    # Not in the ledger yet. First, from the offsets log since the last scan: observations that end, as there is a
    # record of the group, and programs that used groups.
    notes: list[Change] = field(default_factory=list)

    def end_slice(self) -> None:
        """Forget the evidence about single groups."""
        self.lost += (each for each in self.offsets.values() if isinstance(each, Fault) and _is_lost(each))
        for read in (self.noted, self.activity, self.offsets, self.missing_topics, self.subscribed):
            read.clear()

    def ask_retention(self, policies: Sequence[Policy], full: bool) -> None:
        """Read how long brokers retain offsets: once, and again at each full scan."""
        asks = any(policy.when.asks_evidence or policy.when.unchanged_for is not None for policy in policies)
        context, memory = self.context, self.context.memory
        if full or (asks and not memory.retention_asked):
            minutes = kafka_cluster.offsets_retention_minutes(context.client, self.cluster, context.deadline())
            memory.retention, memory.retention_asked = offsets_retention(minutes), True

    def begin_scans(self, policies: Sequence[Policy], any_selected: bool) -> None:
        """Record this scan for each policy with `unchangedFor`, and end the observations of groups used since the last.

        any_selected: whether any policy selects a group.
        """
        context, memory, uid = self.context, self.context.memory, self.context.connection.uid
        contents = context.journal.contents
        watched = [policy for policy in policies if policy.when.unchanged_for is not None]
        seen, known = contents.seen.setdefault(uid, {}), contents.clocks.get(uid)
        if watched:
            followed = NOT_FOLLOWED
            if seen or any_selected:
                # What is left of a long log is read by the next scans.
                followed = follow(context, self.cluster, Deadline(self.deadline.left / 4))
            ended = list(seen) if followed.lost or known is None else followed.used
            self.notes += [Removal(("seen", uid, name)) for name in ended]
            now, monotonic = context.clock.now(), context.clock.monotonic()
            self.clock = clock = unchanged.advance(known, uid, monotonic, memory.last_scan)
            if memory.last_scan is None:
                memory.first_seconds = clock.seconds
            memory.last_scan = monotonic
            self.log = followed.places
            self.time = time = unchanged.ScanTime(clock.seconds, now, monotonic, memory.first_seconds)
            for policy in watched:
                history = memory.scan_histories.setdefault(policy.uid, unchanged.ScanHistory())
                watch = unchanged.record_scan(contents.watches.get(policy.uid), policy, time, history)
                self.watches[policy.uid] = watch
            contents.apply([clock, *self.watches.values()])
            time.tolerated = unchanged.tolerated(contents.watches, memory.scan_histories, time)
        if memory.tail is not None:
            self.notes += new_notes(contents.used_by, memory.tail.take_programs(), context.clock.now())
        contents.apply(self.notes)

    def claims_for(self, policies: Sequence[Policy]) -> Callable[[], Claims | Refusal]:
        """What reads the groups that Kubernetes objects name. Alerts don't depend on them."""
        if not any(policy.action.changes for policy in policies):
            return Claims
        return self.context.recent_claims or self.context.claims

    def selection(self, policies: Sequence[Policy], groups: Mapping[str, Group], whole: bool) -> Selection:
        """whole: see `observe`."""
        size = self.context.memory.slice // (1 + len(policies) // _POLICIES)
        if any(policy.when.asks_evidence for policy in policies):
            # A process of its own reads the tables each time.
            size *= _TABLES_FACTOR
        others = min(_OTHERS_S + len(groups) * _OTHERS_GROUP_S, self.deadline.left * _OTHERS_MOST)
        own, others = (math.inf, math.inf) if whole else (_OWN_S, others)
        return Selection(policies, groups, max(size, 1), own, others, self.leave_out)

    def judge_all(
        self, selection: Selection, slices: Iterable[Mapping[str, list[Group]]], whole: bool
    ) -> dict[str, Verdicts]:
        """Judge the groups that the policies select, slice by slice. What was read for a slice is then forgotten.

        Without the policies in `left_out`. whole: none is left out. Raises MemoryExhausted.
        """
        context, contents = self.context, self.context.journal.contents
        seen, size = contents.seen.setdefault(context.connection.uid, {}), selection.size
        verdicts = {policy.key: Verdicts(contents.marks.get(policy.uid, {}), whole) for policy in selection.policies}
        reading = _EvidenceReader(self, selection, whole)
        # Seconds of waiting for memory, of writes, and of each slice's reads for the connection's own policies.
        began, waiting, writing, reads = elapsed(), 0.0, 0.0, list[float]()
        for selected in slices:
            for key in self.left_out.keys() & verdicts:
                del verdicts[key]
            before = elapsed()
            policies = selection.policies = self.reserve(selection.policies, selected, verdicts)
            waiting += elapsed() - before
            self.judge_slice(policies, selected, verdicts, selection.charge, reading)
            shared: dict[tuple[str, ...], tuple[str, ...]] = {}
            for policy in policies:
                verdicts[policy.key].end_slice(shared)
            judged = ((group.id, verdicts[policy.key]) for policy in policies for group in selected[policy.key])
            self.with_verdict += len({name for name, every in judged if name in every})
            selection.policies = self.left(policies)
            for policy in policies:
                if policy.uid in self.watches and any(
                    group.state is GroupState.EMPTY and group.id in seen and group.id not in self.noted
                    for group in selected[policy.key]
                ):
                    self.incomplete.add(policy.key)
            self.end_slice()
            if len(self.notes) >= size:
                before = elapsed()
                self.note()
                writing += elapsed() - before
            if not whole:
                reads.append(reading.own - sum(reads))
                judging = elapsed() - began - waiting - writing - reading.own - reading.others
                selection.fit(self.deadline.left, judging, reads, writing)
        return {policy.key: verdicts[policy.key] for policy in selection.policies}

    def reserve(
        self, policies: Sequence[Policy], selected: Mapping[str, list[Group]], verdicts: Mapping[str, Verdicts]
    ) -> Sequence[Policy]:
        """Reserve memory for a slice, all groups, and what stays of earlier slices. Returns the policies that fit.

        Policies of other namespaces are left out before the connection's own, of the namespace that takes most, and
        there the largest. Raises MemoryExhausted if none fits, or if verdicts are `whole`.
        """
        left, own = list(policies), self.context.connection.namespace
        seen = self.context.journal.contents.seen.get(self.context.connection.uid, {})
        while True:
            held = {policy.key: _held(verdicts[policy.key]) for policy in left}
            here = {group.id for policy in left for group in selected[policy.key]}
            with_verdict = min(self.with_verdict, sum(len(verdicts[policy.key]) for policy in left))
            needed = sum(held.values()) + with_verdict * _EVIDENCE_BYTES + sum(map(_group_bytes, here))
            needed += self.listed * _LISTED_BYTES + len(seen) * _SEEN_BYTES
            try:
                if needed > self.reserved:
                    more = needed - self.reserved
                    self.context.client.intake.reserve(more, f"{len(here)} groups to be judged", self.deadline.left / 2)
                    self.reserved = needed
                return left
            except process_memory.TooMuch as error:
                if len(left) < 2 or any(verdicts[policy.key].whole for policy in left):
                    raise MemoryExhausted(str(error)) from error
            largest = most_costly([policy for policy in left if policy.namespace != own] or left, held)
            left.remove(largest)
            self.leave_out(
                largest,
                "the operator has too little memory for the groups that this policy selects, beside those of other "
                f"policies: it stopped after {verdicts[largest.key].judged}. Narrow match.groups, or raise the "
                "operator's memory limit",
            )
            verdicts[largest.key].clear()

    def leave_out(self, policy: Policy, why: str) -> None:
        """Its counts go on: its groups count as not read, like those of a broker that did not answer."""
        self.left_out[policy.key] = Refusal(reasons.TOO_MANY_GROUPS, why)

    def left(self, policies: Sequence[Policy]) -> list[Policy]:
        """Those that are not left out."""
        return [policy for policy in policies if policy.key not in self.left_out]

    def judge_slice(
        self,
        policies: Sequence[Policy],
        selected: Mapping[str, list[Group]],
        verdicts: Mapping[str, Verdicts],
        charge: Callable[[Policy, float], bool],
        reading: _EvidenceReader,
    ) -> None:
        """Judge, read the evidence that verdicts need, and judge those groups again, until no verdict needs more.

        charge: called with the seconds of CPU time that a policy took; returns whether it is not left out.
        """
        context = self.context
        # Each with the number of checks that it has passed.
        open_groups = {policy.key: [(group, 0) for group in selected[policy.key]] for policy in policies}
        done = defaultdict[Need, set[str]](set)
        while True:
            # By need and key of a policy.
            wanted: dict[Need, dict[str, list[Group]]] = {}
            for policy in policies:
                judged, left = verdicts[policy.key], list[tuple[Group, int]]()
                evidence, groups = evidence_of(context, policy, self), open_groups[policy.key]
                for group, passed in TURNS.each(context.connection.namespace, groups, partial(charge, policy)):
                    verdict = checks.judge(policy, group, evidence(group), context.clock.now(), passed)
                    need = verdict.need
                    if need is None or group.id in done[need]:
                        judged.add(verdict)
                    else:
                        wanted.setdefault(need, {}).setdefault(policy.key, []).append(group)
                        left.append((group, verdict.passed))
                open_groups[policy.key] = left
            if not wanted:
                return
            # Read last, so that each end is requested once, and no offset is newer than the end it is compared with.
            if len(wanted) > 1:
                wanted.pop(Need.BOUNDS, None)
            for need, wanting in wanted.items():
                reading.read(need, policies, wanting)
            policies = self.left(policies)
            if Need.ACTIVITY in wanted:
                # It may show other policies, too, the program that used a group.
                open_groups = {key: [(group, 0) for group, _ in groups] for key, groups in open_groups.items()}
            if Need.OFFSETS in wanted:
                self.note_unchanged(policies, selected)
            for need, wanting in wanted.items():
                done[need].update(group.id for policy in policies for group in wanting.get(policy.key, ()))

    def read(self, need: Need, groups: Mapping[str, Group], deadline: Deadline) -> None:
        """Read the evidence that verdicts on these groups need."""
        client = self.context.client
        types = {name: group.type for name, group in groups.items()}
        coordinators = {name: group.coordinator for name, group in groups.items()}
        offsets = ((name, known_offsets_or_empty(self.offsets.get(name))) for name in groups)
        match need:
            case Need.ACTIVITY:
                self.read_activity(groups, deadline)
            case Need.OFFSETS:
                self.offsets.update(read_offsets(client, types, coordinators, deadline))
            case Need.MISSING_TOPICS:
                topics = {name: {place.topic for place in places} for name, places in offsets}
                self.missing_topics.update(read_missing_topics(client, topics, deadline))
            case Need.BOUNDS:
                # An offset of this slice may be newer than an end that an earlier one read.
                committed = [
                    [place for place, commit in places.items() if not _within(self.bounds.get(place), commit.offset)]
                    for _, places in offsets
                ]
                self.bounds.update(read_bounds(client, committed, deadline))
            case Need.RECORDS:
                # A log of aborted records takes long to search: the rest of the scan needs its time.
                read_records(self.context, groups, self, Deadline(deadline.left / 2))
            case Need.SUBSCRIBED:
                described = kafka_groups.describe_groups(client, types, coordinators, deadline)
                found = {name: kafka_groups.subscribed_topics(answer) for name, answer in described.items()}
                self.subscribed.update(found)

    def read_activity(self, groups: Collection[str], deadline: Deadline) -> None:
        evidence = read_evidence(self.context, self.cluster, groups, deadline, self.older)
        self.activity.update(evidence.groups)
        if self.coverage is None or self.coverage.problem is None:
            self.coverage = evidence.coverage
        if evidence.largest is not None:
            self.covered = evidence.largest
            self.context.journal.contents.apply([evidence.largest])

    def read_for_statuses(self, policies: Sequence[Policy], full: bool) -> None:
        """Read whether the tables are in order, if no verdict depended on them, and when groups of keeps were used."""
        context = self.context
        shown = full and context.tables is not None
        named = context.journal.contents.object_keeps if shown else {}
        if named or (self.coverage is None and (shown or any(policy.when.asks_evidence for policy in policies))):
            self.read_activity(named, self.deadline)
        if full:
            found = {name: self.activity.get(name) for name in named}
            context.memory.of_keeps = {name: known for name, known in found.items() if isinstance(known, Activity)}

    def note_unchanged(self, policies: Sequence[Policy], selected: Mapping[str, list[Group]]) -> None:
        """Note which groups of policies with `unchangedFor` are Empty with the same offsets as at the last scan.

        Only in memory until the slice ends.
        """
        context, uid = self.context, self.context.connection.uid
        contents, histories = context.journal.contents, context.memory.scan_histories
        counting = [policy for policy in policies if policy.uid in self.watches]
        seen, reads, time = contents.seen[uid], context.memory.reads, self.time
        # Of the policies that select a group, the one with the largest floor notes it.
        for policy in sorted(counting, key=lambda each: histories[each.uid].floor, reverse=True):
            floor = histories[policy.uid].floor
            for group in selected[policy.key]:
                offsets = self.offsets.get(group.id)
                if group.state is not GroupState.EMPTY or group.id in self.noted or time is None:
                    continue
                if offsets is None or isinstance(offsets, Fault):
                    continue
                self.noted.add(group.id)
                print_ = fingerprint(group, offsets)
                read = reads.get(group.id, floor)
                known = seen.get(group.id)
                new = unchanged.seen_again(known, uid, group, print_, time, read)
                # One object for the id in both.
                reads[group.id if known is None else known.group] = time.watched
                if new is not None:
                    self.notes.append(new)
                    contents.apply([new])

    def end_scans(self, policies: Sequence[Policy], snapshot: Snapshot, types: Collection[GroupType] | None) -> None:
        """Note the observations that end, and the scan. types: of the Empty groups that were requested, empty = all;
        None = not all Empty groups were.

        A Seen means Empty at every scan: it ends here if the group is listed in another state, or missing from a
        complete list. A group that was not read stays for as long as some policy may count on from its last read.
        """
        memory, uid, contents = self.context.memory, self.context.connection.uid, self.context.journal.contents
        if self.covered is not None:
            self.notes.append(self.covered)
        if self.clock is None or self.time is None:
            return
        seen, reads = contents.seen.get(uid, {}), memory.reads
        longest = unchanged.longest_gap(contents.watches, memory.scan_histories)

        def is_used(name: str) -> bool:
            group = snapshot.groups.get(name)
            if group is not None:
                return group.state is not GroupState.EMPTY
            return snapshot.complete and types is not None and (not types or seen[name].type in types)

        ended = unchanged.ended(seen, reads, self.time, longest, is_used)
        self.notes += (Removal(("seen", uid, name)) for name in ended)
        if len(reads) > len(seen):
            memory.reads = {name: read for name, read in reads.items() if name in seen}
        for policy in policies:
            watch = self.watches.get(policy.uid)
            if watch is not None:
                complete = snapshot.complete and policy.key not in self.incomplete
                self.notes.append(msgspec.structs.replace(watch, complete_at=watch.at) if complete else watch)
        if self.log:
            topic_id = self.cluster.topic_id or None
            self.clock = msgspec.structs.replace(self.clock, log=dict(self.log), topic_id=topic_id)

    def note(self) -> None:
        """Write the notes. A ledger whose broker hangs must not delay the scan by more than _WRITE_S."""
        # With each Seen the clock, or it would be behind after a restart.
        clock = [] if self.clock is None else [self.clock]
        self.context.journal.note([*self.notes, *clock], Deadline(max(_WRITE_S, self.deadline.left)))
        self.notes.clear()

    def refusals(self, snapshot: Snapshot, visible: Refusal | None) -> list[Refusal]:
        """Why nothing may be deleted in this run, as far as it is known. visible: see `ProofInput.topics`."""
        context, journal = self.context, self.context.journal
        changed = context.memory.other_cluster(snapshot.cluster.id)
        first = [changed] if changed is not None else []
        first += [journal.problem] if journal.problem is not None else []
        executor = Executor(context)
        return [*first, *executor.refusals(context.deadline(), Moment.SCAN, snapshot=snapshot, topics=visible)]

    def visibility(self) -> Refusal:
        """Whether the user may DESCRIBE all topics: TopicsVisible, TopicsAttested, TopicsHidden or TopicsUnknown.

        An attestation of the connection counts only where the brokers refuse to show their disks. If they show a hidden
        topic, or don't answer, nothing is deleted.
        """
        hidden = kafka_cluster.hidden_topics(self.context.client, self.cluster, self.deadline)
        if isinstance(hidden, Fault):
            if not self.context.connection.topics_attested or not kafka_cluster.is_refused(hidden):
                return kafka_cluster.visibility_refusal(hidden)
            unseen = f", and hide {kafka_cluster.OFFSETS_TOPIC}" if self.cluster.samples else ""
            message = (
                f"spec.topicVisibility says that the user may DESCRIBE all topics; brokers refuse to show it{unseen}"
            )
            return Refusal(reasons.TOPICS_ATTESTED, f"{message}: {hidden}")
        if not hidden:
            return Refusal(reasons.TOPICS_VISIBLE, "every topic on the brokers' disks is visible")
        shown = ", ".join(hidden[:3]) + (", ..." if len(hidden) > 3 else "")
        message = f"DESCRIBE is denied on {len(hidden)} topics ({shown}), so committed offsets may be hidden"
        return Refusal(reasons.TOPICS_HIDDEN, message)


def observe(context: Context, policies: Sequence[Policy], full: bool = False, whole: bool = False) -> Observation:
    """Scan the cluster once for all of `policies` and judge the groups that each selects.

    One ListGroups per broker, which filters by the states and types of the policies (all groups when `full`). Offsets,
    topics and bounds are read only for groups whose verdict depends on them, for some thousand groups at a time.
    whole: retain all verdicts. Raises ConnectError if no broker answers, and MemoryExhausted if there are more groups,
    or more brokers, than there is memory for.
    """
    client, clock, deadline = context.client, context.clock, context.deadline()
    memory, attested = context.memory, context.connection.topics_attested
    cluster = kafka_cluster.read_cluster(client, deadline, attested)
    if isinstance(cluster, Fault):
        raise _unreached(cluster)
    memory.note_cluster(cluster.id)
    # A group was due the last time: list all groups at once, as the total will be needed again.
    states, types = ((), ()) if full or memory.due_before else _filters(policies)
    # A broker that does not answer must not use up the time for the groups of the others.
    held = context.journal.contents.held_ids(context.connection.uid)
    listing = kafka_groups.list_groups(client, cluster, Deadline(deadline.left / 2), states, types, held)
    _require_room(listing.faults.values())
    scan = _Scan(context=context, cluster=cluster, deadline=deadline, listed=len(listing.groups))
    scan.ask_retention(policies, full)
    scan.older = _old_enough(policies, memory.retention, clock.now())
    selection = scan.selection(policies, listing.groups, whole)
    slices = iter(selection)
    first = next(slices, None)
    scan.begin_scans(selection.policies, first is not None)
    if first is not None:
        topics = kafka_cluster.read_topics(client, deadline)
        scan.protections = read_protections(
            context, cluster, listing.groups, topics, deadline, scan.claims_for(selection.policies)
        )
    verdicts = scan.judge_all(selection, itertools.chain(filter(None, [first]), slices), whole)
    policies = [policy for policy in policies if policy.key in verdicts]
    scan.read_for_statuses(policies, full)
    incomplete = _incomplete(cluster, listing, kafka_cluster.read_cluster(client, deadline, attested), scan.lost)
    moved = any(fault.code == "NOT_COORDINATOR" for fault in listing.not_loaded.values())
    grown = find_growth(context, cluster, deadline, records=full, coordinators=full or moved)
    if incomplete and grown is not None:
        # It is the cause: brokers disagree about the coordinators of groups.
        incomplete = (grown.message, *incomplete)
    notes = _notes(listing, memory.checkpoints.problem)
    snapshot = Snapshot(cluster, listing.groups, listing.faults, incomplete, notes, clock.now(), scan.coverage)
    scan.end_scans(policies, snapshot, types if not states or GroupState.EMPTY in states else None)
    scan.note()
    unfiltered = listing.groups if not states and not types else None
    changing = [verdicts[policy.key].values() for policy in policies if policy.action.changes]
    matching = {verdict.group.id: verdict.group for some in changing for verdict in some if verdict.matches}
    deleting = bool(matching)
    if policies:
        memory.due_before = deleting
    # An attestation is checked more often.
    visible = scan.visibility() if deleting or (full and attested) else None
    why_not = scan.refusals(snapshot, visible)
    if deleting and unfiltered is None:
        every = kafka_groups.list_groups(client, cluster, deadline, held=held)
        unfiltered = None if kafka_groups.unanswered(every) else every.groups
        # A filtered list lacks the other row of a group that two brokers list.
        other = [
            name for name, group in matching.items() if (row := every.groups.get(name)) and row.state != group.state
        ]
        if other:
            message = f"{other[0]!r} has another state in a list of all groups, as do {len(other) - 1} more"
            why_not.append(Refusal(reasons.SNAPSHOT_INCOMPLETE, message))
    total = None if unfiltered is None else len(unfiltered)
    conditions = RunConditions(context.connection.limits, total, tuple(why_not), snapshot.complete)
    return Observation(snapshot, verdicts, conditions, scan.protections, unfiltered, visible, scan.left_out)


class _EvidenceReader:
    """Reads evidence in turns of namespaces: first the connection's own, then those that want fewer groups.

    Others than the connection's may take as long together as is left of the scan, so half of it. The connection's own
    may take more if the rest of their reads fits into what is left. If there are policies of one namespace alone, or
    `whole`, there are no limits. own, others: the seconds that reads took so far.
    """

    def __init__(self, scan: _Scan, selection: Selection, whole: bool) -> None:
        policies = selection.policies
        self._scan, self._selection, self._own = scan, selection, scan.context.connection.namespace
        self._least = scan.deadline.left * _OTHERS_SHARE
        self._unlimited = whole or len({policy.namespace for policy in policies}) < 2

        def budget(crosses: bool, limit: Callable[[], float]) -> Budget:
            members = [policy for policy in policies if policy.crosses_namespace is crosses]
            return Budget(members, limit, self._leave_out, 1 / 2)

        self._budgets = {False: budget(False, self._limit_of_own), True: budget(True, self._limit)}
        self.own = self.others = 0.0

    def read(self, need: Need, policies: Sequence[Policy], wanted: Mapping[str, Sequence[Group]]) -> None:
        """Read what verdicts need about the groups that each policy (by key) wants: each group once.

        If policies are left out, offsets that could not be read in time are read again for the others of their turn.
        """
        turns, read, offsets = self._turns(policies, wanted), set[str](), self._scan.offsets
        while turns:
            turn = self._scan.left(turns.popleft())
            new = {policy.key: [group for group in wanted[policy.key] if group.id not in read] for policy in turn}
            groups = {group.id: group for each in new.values() for group in each}
            if not groups:
                continue
            crosses = turn[0].crosses_namespace
            budget, began = self._budgets[crosses], elapsed()
            self._scan.read(need, groups, self._deadline(turn))
            took = elapsed() - began
            if crosses:
                self.others += took
            else:
                self.own += took
            seconds = took / sum(map(len, new.values()))
            for policy in turn:
                budget.charge(policy, seconds * len(new[policy.key]))
            read |= groups.keys()
            left = self._scan.left(policies)
            # What `requestsPerSecond` would delay until after the deadline is not sent, and takes no time.
            late = need is Need.OFFSETS and any(_is_lost(offsets.get(name), _LATE) for name in groups)
            late = late and not self._unlimited
            if len(budget.leave_out_costly(left, late)) < len(left):
                for name in [name for name in groups if _is_lost(offsets.get(name))]:
                    del offsets[name]
                    read.remove(name)
                turns.appendleft(turn)

    def _turns(self, policies: Sequence[Policy], wanted: Mapping[str, Sequence[Group]]) -> deque[list[Policy]]:
        sizes, members = Counter[str](), defaultdict[str, list[Policy]](list)
        for policy in policies:
            if policy.key in wanted:
                sizes[policy.namespace] += len(wanted[policy.key])
                members[policy.namespace].append(policy)
        turns, size = deque([members.pop(self._own, [])]), _TOGETHER
        for namespace in sorted(members, key=lambda name: sizes[name]):
            size += sizes[namespace]
            if size > _TOGETHER:
                turns.append([])
                size = sizes[namespace]
            turns[-1] += members[namespace]
        return turns

    def _limit(self) -> float:
        return math.inf if self._unlimited else max(self._scan.deadline.left, self._least)

    def _limit_of_own(self) -> float:
        left, done = self._scan.deadline.left, self._selection.done
        if self._unlimited or done == 1:
            return math.inf
        # If these seconds were for what is done, as many as are left are for the rest.
        return max(left, left * done / (1 - done))

    def _deadline(self, turn: Sequence[Policy]) -> Deadline:
        """A read that takes longer exceeds the limit, or leaves the others half of the time."""
        left, total = self._scan.deadline.left, self._budgets[True].total
        if self._unlimited:
            return self._scan.deadline
        if not turn[0].crosses_namespace:
            return Deadline(left / 2)
        return Deadline(min(left, max((left - total) / 2, self._least - total)))

    def _leave_out(self, policy: Policy, seconds: float) -> None:
        total = self._scan.context.connection.timeout.total_seconds()
        self._scan.leave_out(
            policy,
            f"reading its groups took {seconds:.1f} s so far, and a scan has {total:.0f} s for the policies of all "
            "namespaces. Narrow match.groups, or ask for a longer scan.timeout or more limits.requestsPerSecond of the "
            "KafkaConnection",
        )


def _is_lost(offsets: Offsets | Fault | None, codes: Collection[str] = _LOST) -> bool:
    return isinstance(offsets, Fault) and offsets.code in codes


def _group_bytes(name: str) -> int:
    """The memory of a group of this id once it is judged."""
    if len(name) > ID_MAX:
        return _GROUP_BYTES
    return _GROUP_BYTES + _ID_COPIES * len(msgspec.json.encode(name))


def _filters(policies: Sequence[Policy]) -> tuple[frozenset[GroupState], frozenset[GroupType]]:
    """The states and types that ListGroups must return for all policies; empty = all."""
    states = frozenset[GroupState]().union(*(policy.match.states for policy in policies))
    types = frozenset[GroupType]().union(*(policy.match.types for policy in policies))
    every_state, every_type = states >= frozenset(GroupState), types >= frozenset(GroupType) - {GroupType.UNKNOWN}
    return frozenset() if every_state else states, frozenset() if every_type else types


def _old_enough(policies: Sequence[Policy], retention: timedelta | None, now: datetime) -> datetime | None:
    """Commits before this time may matter by their topic; None = no policy needs them."""
    moments = [now + _SCAN - policy.when.idle_for for policy in policies if policy.by_topic and policy.when.idle_for]
    if retention is not None:
        within = [policy.when.expires_within for policy in policies if policy.when.expires_within is not None]
        moments += [now + each + _SCAN - retention for each in within]
    return max(moments, default=None)


def _unreached(fault: Fault) -> HygieneError:
    if fault.code == NO_ROOM:
        return MemoryExhausted(fault.message)
    return Unreachable(f"no broker answers: {fault}")


def _require_room(faults: Iterable[Fault]) -> None:
    """Raises MemoryExhausted if there was no memory for the connection to a broker."""
    for fault in faults:
        if fault.code == NO_ROOM:
            raise _unreached(fault)


def _incomplete(cluster: Cluster, listing: Listing, after: Cluster | Fault, lost: Sequence[Fault]) -> tuple[str, ...]:
    """Why groups or offsets may be missing; empty = none is. lost: see `_Scan`."""
    moved = f"leaders of {kafka_cluster.OFFSETS_TOPIC} changed during the scan"
    problems = kafka_groups.list_problems(cluster, listing, after, moved)
    if listing.groups and not cluster.leaders and not cluster.samples:
        problems.append(f"there are groups, but the broker's metadata has no topic {kafka_cluster.OFFSETS_TOPIC}")
    if lost:
        problems.append(f"a broker was lost while offsets were read, of {len(lost)} groups: {lost[0]}")
    return tuple(dict.fromkeys(problems))


def _notes(listing: Listing, mirrored: Fault | None) -> tuple[str, ...]:
    """mirrored: why checkpoints could not be read to their end, so that any group may be mirrored."""
    notes = [*listing.notes]
    if listing.group_faults:
        # No policy that deletes selects them.
        name, fault = min(listing.group_faults.items())
        count = len(listing.group_faults)
        notes.append(f"the states of {count} groups are not known, so none of them is deleted: {name}: {fault}")
    if mirrored is not None:
        notes.append(f"which groups MirrorMaker 2 mirrors is not known (mirrorMaker.checkpointTopics): {mirrored}")
    return tuple(notes)


def _held(verdicts: Verdicts) -> int:
    """The bytes that stay of these verdicts until the run ends."""
    return verdicts.judged * _NAME_BYTES + len(verdicts) * _VERDICT_BYTES


def _within(known: Bounds | Fault | None, offset: int) -> bool:
    return isinstance(known, Fault) or (known is not None and offset <= known.end)
