"""`keep`: ask the operator to leave groups alone for a while, by an entry in its ledger. Changes no group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from group_hygiene.cli.history import open_books
from group_hygiene.cli.options import Target
from group_hygiene.cli.output import Column, Report, Table, printable, working
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.ledger import Ledger
from group_hygiene.model.entries import Change, KeepRequest, Outcome, Removal
from group_hygiene.model.evidence import Deletion
from group_hygiene.spec.durations import format_duration, timestamp

# An intent is good for ten seconds; after that it has come to its end, or waits to be settled.
_INTENT_S = 12.0
_LOOK_S = 0.1

_KEEP = (Column("GROUP"), Column("KEPT-UNTIL"), Column("FOR"), Column("BY"), Column("WHY"))


class Wish(NamedTuple):
    """For how long, why, and who asks. replace: also in place of a request that lasts longer."""

    period: timedelta
    why: str
    by: str
    replace: bool = False


class _Deletions(NamedTuple):
    """What the ledger has of the deletions of a group. topics: of offsets of topics. unfinished: see Contents."""

    whole: Deletion | None
    topics: Mapping[str, Deletion]
    unfinished: Mapping[str, Outcome]


def keep(target: Target, groups: Sequence[str], wish: Wish, topic: str | None) -> Report:
    """Write a request for each group in one transaction, in place of an earlier one, and read it again.

    A group that has one which lasts longer is an error, and keeps that: somebody else may count on it.
    """
    with open_books(target, topic, writes=True) as (session, ledger):
        now = session.clock.now()
        until, known = now + wish.period, ledger.contents.keeps
        longer = {g: known[g] for g in groups if not wish.replace and g in known and known[g].until > until}
        asked = [g for g in groups if g not in longer]
        requests = {g: KeepRequest(group=g, until=until, why=wish.why, by=wish.by, at=now) for g in asked}
        with working("writing to the ledger"):
            ledger.write(list(requests.values()), session.deadline())
            keys = {request.key for request in requests.values()}
            found = set(ledger.entries(keys.__contains__, session.deadline()))
            taken = _taken_meanwhile(ledger, asked)
    missing = [name for name, request in requests.items() if request not in found]
    there = [request for name, request in requests.items() if name not in missing]
    errors = [f"group {printable(name)}: the ledger does not hold the request after it was written" for name in missing]
    errors += [
        f"group {printable(name)}: {printable(request.by)} asked to keep it until {timestamp(request.until)}, which is "
        "longer; --replace shortens that"
        for name, request in longer.items()
    ]
    errors += [f"group {printable(name)}: {why}" for name, why in taken.items()]
    length = format_duration(wish.period)
    document = {
        "kept": [
            {"group": r.group, "until": timestamp(r.until), "for": length, "by": r.by, "why": r.why} for r in there
        ],
        "errors": errors,
    }
    rows = [(r.group, timestamp(r.until), length, r.by, r.why) for r in there]
    return Report(document, [r.group for r in there], [Table(_KEEP, rows)], (), errors)


def _taken_meanwhile(ledger: Ledger, groups: Sequence[str]) -> dict[str, str]:
    """Group -> what a deletion took of it, or may have taken, that had begun before the request was written.

    Waits for its end. The operator writes an intent and then looks for requests; we wrote the request, and now look for
    intents.
    """
    before = {name: _deletions(ledger.contents, name) for name in groups}
    waiting = Deadline(_INTENT_S)
    ledger.read_on(Deadline(_INTENT_S))
    while any(name in ledger.contents.intents for name in groups) and waiting.left > 0:
        time.sleep(_LOOK_S)
        ledger.read_on(Deadline(_INTENT_S))
    contents, taken = ledger.contents, {}
    for name in groups:
        now = _deletions(contents, name)
        if name in contents.intents:
            taken[name] = (
                "its deletion had begun and is not settled: it or a part of its offsets may be gone; see group-hygiene "
                "history. What is missing comes back by: group-hygiene restore"
            )
        elif now.whole != before[name].whole:
            taken[name] = "was deleted just now; what it had comes back by: group-hygiene restore"
        elif now != before[name]:
            taken[name] = "some of its offsets were deleted just now; they come back by: group-hygiene restore"
    return taken


def _deletions(contents: Contents, name: str) -> _Deletions:
    """As they are now: `contents` goes on."""
    topics, unfinished = contents.offset_deletions.get(name, {}), contents.unfinished.get(name, {})
    return _Deletions(contents.deletions.get(name), dict(topics), dict(unfinished))


def unkeep(target: Target, groups: Sequence[str], topic: str | None) -> Report:
    """Take the requests of these groups back; a group without one is told, and is no error."""
    with open_books(target, topic, writes=True) as (session, ledger):
        known = [name for name in dict.fromkeys(groups) if name in ledger.contents.keeps]
        changes: list[Change] = [Removal(ledger.contents.keeps[name].key) for name in known]
        with working("writing to the ledger"):
            ledger.write(changes, session.deadline())
            ended = {change.key for change in changes if isinstance(change, Removal)}
            left = [
                e.group for e in ledger.entries(ended.__contains__, session.deadline()) if isinstance(e, KeepRequest)
            ]
    notes = [f"group {printable(name)}: nobody asked to keep it" for name in dict.fromkeys(groups) if name not in known]
    errors = [f"group {printable(name)}: the request is still in the ledger" for name in left]
    removed = [name for name in known if name not in left]
    document = {"removed": removed, "notes": notes, "errors": errors}
    table = Table((Column("GROUP"), Column("REQUEST")), [(name, "removed") for name in removed])
    return Report(document, removed, [table], notes, errors)
