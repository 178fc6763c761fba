"""`keep`: protects groups for a while, by entries in the ledger, or by a GroupKeep for users without rights to it.

Changes no group.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from group_hygiene.cli.groups import exist
from group_hygiene.cli.history import Opening, open_cluster_and_ledger, open_executor
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Column, Report, Table, note, printable, working
from group_hygiene.cli.target import Session, current_namespace, open_api, other_ledgers
from group_hygiene.controller.objects import KEEPS
from group_hygiene.engine.executor import Executor, Moment
from group_hygiene.engine.recovery import LedgerNeed
from group_hygiene.errors import Forbidden, LedgerProblem, NotAllowed, NotFound, Refused, UsageError
from group_hygiene.kafka.client import Deadline
from group_hygiene.kafka.cluster import read_identity
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import SKEW_MAX, Journal
from group_hygiene.model import reasons
from group_hygiene.model.entries import Change, HistoryEntry, KeepRequest, Removal
from group_hygiene.model.evidence import Deletion
from group_hygiene.model.groups import Fault
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.crds import API_VERSION
from group_hygiene.spec.fields import format_duration, timestamp, whole_seconds
from group_hygiene.spec.patterns import is_like_a_pattern
from group_hygiene.spec.policy import GROUPS_MAX

# An intent is valid for ten seconds; after that it has an outcome, or the operator has to recover it.
_INTENT_S = 12.0
_POLL_S = 0.1
_EXISTS = {True: "yes", False: "no", None: None}
_KEEP = (
    Column("GROUP"),
    Column("PROTECTED-UNTIL", "until"),
    *map(Column, ("FOR", "BY", "WHY")),
    Column("EXISTS", cell=lambda d: _EXISTS[d["exists"]], wide=True),
)
# An operator that runs serves a GroupKeep within seconds.
_WAIT_S, _STATUS_POLL_S = 60.0, 0.5
# With these, groups may be protected although Kept is False.
_PROTECTED = frozenset({reasons.GROUP_UNKNOWN, reasons.GROUP_UNREADABLE})
# The deletions of a group in the ledger: of the whole group, of offsets by topic, and `Contents.unfinished`.
_Deletions = tuple[Deletion | None, Mapping[str, Deletion], Mapping[str, HistoryEntry]]


class KeepTerms(NamedTuple):
    """Duration, reason and author of a request. replace: also replace a request that lasts longer.

    ignore_not_found: a group that does not exist is a note, not an error.
    """

    period: timedelta
    why: str
    by: str
    replace: bool = False
    ignore_not_found: bool = False


def keep(
    target: ChosenCluster, groups: Sequence[str], terms: KeepTerms, topic: str | None, create_ledger: bool
) -> Report:
    """Write a request for each group in one transaction, which replaces earlier ones, and read them back.

    Its time is the broker's. A request that lasts longer is an error and stays: another user may rely on it.
    """
    need = LedgerNeed.CREATE if create_ledger else LedgerNeed.WRITE
    with open_cluster_and_ledger(target, Opening(need, topic)) as (session, executor):
        journal, deadline = executor.context.journal, session.deadline()
        contents = journal.contents
        with working("writing to the ledger"):
            now = executor.refusal(deadline, Moment.REQUEST) or executor.broker_time(deadline)
            if isinstance(now, Refusal):
                raise LedgerProblem(now.message, now.reason)
            notes, early = _clock_notes(session.clock.now(), now)
            until, known = now + terms.period, contents.keeps
            earlier = {name: known[name] for name in groups if name in known}
            longer = {g: known[g] for g in groups if not terms.replace and g in known and known[g].until > until}
            asked = [g for g in groups if g not in longer]
            requests = {g: KeepRequest(group=g, until=until, why=terms.why, by=terms.by, at=now) for g in asked}
            before = {name: _deletions_of(contents, name) for name in asked}
            _write(executor, list(requests.values()))
            missing = [name for name, request in requests.items() if known.get(name) != request]
            deleted = _deleted_meanwhile(journal, before)
        there = [request for name, request in requests.items() if name not in missing]

        def in_other(keeps: Mapping[str, KeepRequest]) -> list[Change]:
            # One that lasts longer may be of another user, who can't see this ledger.
            same = {name for name, request in keeps.items() if request == earlier.get(name)}
            return [r for r in there if r.group not in keeps or r.group in same or keeps[r.group].until < r.until]

        elsewhere, unlisted = _write_elsewhere(session, need, in_other)
        with working("reading groups"):
            found = exist(session, [request.group for request in there])
    later = {
        name: f"{printable(request.by)} asked to keep it until {timestamp(request.until)}, which is later; --replace "
        "shortens that"
        for name, request in longer.items()
    }
    errors = _named(dict.fromkeys(missing, "the request is not in the ledger after it was written"))
    errors += _named(later) + _named(deleted) + early + elsewhere
    notes += unlisted
    absent = [name for name, there_is in found.items() if there_is is False and name not in deleted]
    (notes if terms.ignore_not_found else errors).extend(
        _named({name: _absent(name, contents.deletions.get(name)) for name in absent})
    )
    unread = {name: fault for name, fault in found.items() if isinstance(fault, Fault)}
    notes += _named({name: f"whether it exists could not be read: {fault}" for name, fault in unread.items()})
    exists = {name: answer if isinstance(answer, bool) else None for name, answer in found.items()}
    protected = {request.group: (request.until, request.by, exists[request.group]) for request in there}
    return report(protected, terms, notes, errors)


def report(
    protected: Mapping[str, tuple[datetime, str, bool | None]],
    terms: KeepTerms,
    notes: Sequence[str],
    errors: Sequence[str],
) -> Report:
    """protected: group -> until when, by whose request, and whether it exists; None = not known."""
    length = format_duration(terms.period)
    documents = [
        {"group": name, "exists": exists, "until": timestamp(until), "for": length, "by": by, "why": terms.why}
        for name, (until, by, exists) in protected.items()
    ]
    document = {"protected": documents, "notes": notes, "errors": errors}
    return Report(document, list(protected), [Table.of(documents, _KEEP)], notes, errors)


def _named(found: Mapping[str, str]) -> list[str]:
    """A line for each group."""
    return [f"group {printable(name)}: {text}" for name, text in found.items()]


def _clock_notes(here: datetime, broker: datetime) -> tuple[list[str], list[str]]:
    """Notes and errors. A broker's clock that is behind and corrected later ends requests too early."""
    if abs(here - broker) <= SKEW_MAX:
        return [], []
    apart = format_duration(whole_seconds(abs(here - broker)))
    text = f"the clock of this computer and that of the broker are {apart} apart: requests end by the broker's"
    if broker > here:
        return [text], []
    return [], [f"{text}, which is behind; if that one is wrong, they end too early: correct it, and repeat this"]


def _absent(name: str, deletion: Deletion | None) -> str:
    """That the group of a request does not exist, and why."""
    holds = "the request protects it if it appears"
    if deletion is None:
        exact = ": requests have exact ids, no patterns" if is_like_a_pattern(name) else ""
        return f"there is no such group{exact}; {holds}"
    when = f"{printable(deletion.policy)} deleted it at {timestamp(deletion.at)}"
    return f"there is no such group: {when}. To restore it: group-hygiene restore; {holds}"


def _write(executor: Executor, changes: Sequence[Change]) -> None:
    """Write the changes and read them back. Raises LedgerProblem."""
    context = executor.context
    problem = executor.refusal(context.deadline(), Moment.REQUEST) or executor.record(changes, context.deadline())
    if problem is not None:
        raise LedgerProblem(problem.message, problem.reason)


def _write_elsewhere(
    session: Session, need: LedgerNeed, changes_of: Callable[[Mapping[str, KeepRequest]], Sequence[Change]]
) -> tuple[list[str], list[str]]:
    """Write requests into the ledgers of other KafkaConnections to this cluster: their policies must see them, too.

    changes_of: the changes of a ledger with these requests. Returns errors and notes.
    """
    if session.api is None:
        return [], [
            "the change is in this ledger only: policies whose connection has another one do not see it, and "
            "--connection writes into those of all connections to this cluster"
        ]
    # By the brokers: a connection's status may not show it, or no more.
    cluster = read_identity(session.client, Deadline(session.connection.timeout.total_seconds()))
    others = other_ledgers(session.api, session.obj, None if isinstance(cluster, Fault) else cluster.id)
    if isinstance(others, Refusal):
        return [], [f"other connections to this cluster may not see it, as they can't be listed: {others.message}"]
    notes = [
        f"KafkaConnection {name} to this cluster has no ledger yet, so its policies will not see this: ask again by "
        "--connection once it has one"
        for name in (others.unbound if changes_of({}) else ())
    ]
    notes += [
        f"KafkaConnection {name}: its status shows no cluster. If it is this one, its policies will not see this: ask "
        "again once its status shows it"
        for name in (others.unknown if changes_of({}) else ())
    ]
    errors: list[str] = []
    for topic in others.topics:
        try:
            executor = open_executor(session, Opening(need, topic, any_topic=True, optional=True))
            journal = executor.context.journal
            if not journal.exists:
                if changes_of({}):
                    errors.append(
                        "another KafkaConnection to this cluster has no ledger yet, so its policies will not see this: "
                        f"add --create-ledger to create the topic {topic}, too"
                    )
                continue
            contents = journal.contents
            changes = changes_of(contents.keeps)
            before = {key[1]: _deletions_of(contents, key[1]) for key in (change.key for change in changes)}
            _write(executor, changes)
            deleted = _deleted_meanwhile(journal, before)
        except LedgerProblem as error:
            errors.append(f"the ledger {topic} of another KafkaConnection to this cluster lacks the change: {error}")
        else:
            errors += _named(deleted)
    return errors, notes


def _deleted_meanwhile(journal: Journal, before: Mapping[str, _Deletions]) -> dict[str, str]:
    """Group -> the effect of a deletion that began before the request was written.

    Waits until such deletions end. The operator writes an intent and reads it back with all requests; `keep` has
    written the request and has read it back with all intents.
    """
    waiting = Deadline(_INTENT_S)
    problem: Refusal | None = None
    while problem is None and any(name in journal.contents.intents for name in before) and waiting.left > 0:
        time.sleep(_POLL_S)
        problem = journal.read_on(Deadline(_INTENT_S))
    if problem is not None:
        raise LedgerProblem(problem.message, problem.reason)
    effects = {name: _effect_of_deletion(journal.contents, name, earlier) for name, earlier in before.items()}
    return {name: effect for name, effect in effects.items() if effect}


def _deletions_of(contents: Contents, name: str) -> _Deletions:
    """A copy: `contents` changes with each read."""
    topics, unfinished = contents.offset_deletions.get(name, {}), contents.unfinished.get(name, {})
    return contents.deletions.get(name), dict(topics), dict(unfinished)


def _effect_of_deletion(contents: Contents, name: str, before: _Deletions) -> str:
    """The effect of a deletion that had begun when the request was written; "" = there was none."""
    now = _deletions_of(contents, name)
    if name in contents.intents or name in contents.unresolved:
        return (
            "its deletion had begun and has no outcome yet: it or some of its offsets may have been deleted; "
            "see group-hygiene history. To restore them: group-hygiene restore"
        )
    if now[0] != before[0]:
        return "was deleted just now; to restore it: group-hygiene restore"
    return "some of its offsets were deleted just now; to restore them: group-hygiene restore" if now != before else ""


def remove(target: ChosenCluster, groups: Sequence[str], topic: str | None) -> Report:
    """Withdraw the requests for these groups; a group without one is a note, not an error."""
    with open_cluster_and_ledger(target, Opening(LedgerNeed.WRITE, topic)) as (session, executor):
        keeps = executor.context.journal.contents.keeps
        known = {name: keeps[name] for name in groups if name in keeps}
        with working("writing to the ledger"):
            _write(executor, [Removal(each.key) for each in known.values()])
            left = [name for name in known if name in keeps]
        elsewhere, notes = _write_elsewhere(
            session,
            LedgerNeed.WRITE,
            # Not one that another user asked for.
            lambda others: [Removal(each.key) for name, each in known.items() if each == others.get(name)],
        )
    others = [name for name in groups if name not in known]
    of_objects = executor.context.journal.contents.object_keeps
    askers = {name: " and ".join(sorted({each.by for each in of_objects.get(name, {}).values()})) for name in others}
    notes += _named(
        {
            name: f"{printable(by)} keeps it: delete that object" if by else "there is no request to keep it"
            for name, by in askers.items()
        }
    )
    errors = _named(dict.fromkeys(left, "the request is still in the ledger")) + elsewhere
    removed = [name for name in known if name not in left]
    document = {"removed": removed, "notes": notes, "errors": errors}
    table = Table((Column("GROUP"), Column("REQUEST")), [(name, "removed") for name in removed])
    return Report(document, removed, [table], notes, errors)


def keep_by_object(target: ChosenCluster, groups: Sequence[str], terms: KeepTerms, denied: NotAllowed) -> Report:
    """Apply a GroupKeep, and wait until the operator has served it. The same groups are the same object.

    denied: why the ledger can't be used. Raises UsageError if no GroupKeep can be applied either.
    """
    namespace, api = current_namespace(target.context, target.kubeconfig), open_api(target.context, target.kubeconfig)
    reference = {"name": target.connection, "namespace": target.namespace}
    name = f"keep-{hashlib.sha256(json.dumps([reference, *sorted(groups)]).encode()).hexdigest()[:12]}"
    shown, it = f"GroupKeep {namespace}/{name}", f"kgk {name} -n {namespace}"
    if len(groups) > GROUPS_MAX:
        raise UsageError(f"{denied}. A GroupKeep may name {GROUPS_MAX} groups: name fewer")
    now = datetime.now(UTC).replace(microsecond=0)
    end = now + terms.period
    spec = {
        "connectionRef": reference,
        "groups": list(groups),
        "reason": terms.why,
        "until": timestamp(end),
        "ignoreNotFound": terms.ignore_not_found,
    }
    metadata = {"name": name, "namespace": namespace}
    with working("applying a GroupKeep"):
        before = None
        try:
            # One that can't be read may last longer.
            with suppress(NotFound):
                before = api.get(KEEPS, namespace, name)
            if before is not None and not terms.replace:
                _refuse_to_shorten(shown, (before.get("spec") or {}).get("until"), end)
            api.apply_object(
                KEEPS, {"apiVersion": API_VERSION, "kind": "GroupKeep", "metadata": metadata, "spec": spec}
            )
        except (NotFound, Refused) as error:
            advice = f". Ask for get, create and patch on {KEEPS} there" if isinstance(error, Forbidden) else ""
            raise UsageError(
                f"{denied}. No GroupKeep could be applied in namespace {namespace} either, which the context of the "
                f"kubeconfig names: {error}{advice}"
            ) from None
        found = api.get(KEEPS, namespace, name)
    note(f"you have no right to the KafkaConnection: {shown} was applied instead")
    left = Deadline(_WAIT_S)
    with working("waiting for the operator"):
        while (served := _served(found)) is None and left.left > 0:
            time.sleep(_STATUS_POLL_S)
            found = api.get(KEEPS, namespace, name)
    counts = (found.get("status") or {}).get("counts") or {}
    # Requests also protect groups that do not exist yet, and those for which that could not be read.
    whole = served is not None and (
        served["status"] == "True" or (served["reason"] in _PROTECTED and counts.get("protected") == len(groups))
    )
    protected = groups if whole else ()
    notes, errors = list[str](), list[str]()
    if protected:
        notes.append(
            f"it holds for KafkaConnection {target.namespace}/{target.connection}, and no other to that cluster"
        )
    if served is None:
        errors.append(f"no operator has served {shown} yet: kubectl describe {it}")
    else:
        text = f"{shown}: {served['reason']}: {served['message']}"
        if served["status"] != "True" and not (whole and served["reason"] == reasons.GROUP_UNREADABLE):
            errors.append(f"{text}. What helps: kubectl describe {it}. It stays: kubectl delete {it}")
        elif served["reason"] in _PROTECTED:
            notes.append(text)
    if before is None and served is not None:
        # By the clock of the operator, which agrees with the broker's.
        behind = datetime.fromisoformat(served["lastTransitionTime"]) - now - timedelta(seconds=_WAIT_S)
        if behind > SKEW_MAX:
            text = f"the clock of this computer is {format_duration(whole_seconds(behind))} behind the operator's: "
            errors.append(f"{text}the request ends too early. Correct it, and repeat this")
    return report(dict.fromkeys(protected, (end, shown, None)), terms, notes, errors)


def _refuse_to_shorten(shown: str, until: str | None, end: datetime) -> None:
    """until: of the object that there is; None = it has no end."""
    if until is None:
        raise UsageError(f"{shown} keeps them without an end; --replace gives it one")
    if (later := datetime.fromisoformat(until)) > end:
        raise UsageError(f"{shown} keeps them until {timestamp(later)}, which is later; --replace shortens that")


def refuse_removal(target: ChosenCluster, groups: Sequence[str], denied: NotAllowed) -> UsageError:
    """What a user without rights to the KafkaConnection can delete instead: the GroupKeeps that name these groups."""
    namespace = current_namespace(target.context, target.kubeconfig)
    api, wanted = open_api(target.context, target.kubeconfig, [namespace]), set(groups)
    try:
        found = [each for each in api.list_all(KEEPS) if wanted & set((each.get("spec") or {}).get("groups") or ())]
    except Refused:
        return denied
    names = " ".join(printable(each["metadata"]["name"]) for each in found)
    what = f"delete the GroupKeeps that name them: kubectl delete kgk {names}" if found else "no GroupKeep names them"
    return UsageError(f"you have no right to the KafkaConnection. In namespace {namespace}, {what}")


def _served(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The condition Kept of this generation; None = the operator has not decided yet."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    found = next((each for each in conditions if each["type"] == "Kept"), None)
    current = found is not None and found.get("observedGeneration") == obj["metadata"]["generation"]
    return found if found is not None and current and found["reason"] != reasons.BEING_DELETED else None
