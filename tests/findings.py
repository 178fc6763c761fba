"""Findings of a cluster that nobody ever tidied, made up: the same ones at each call."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from group_hygiene.model.evidence import LastClient
from group_hygiene.observe.findings import (
    DayCounts,
    Findings,
    GroupRow,
    RegrettedGroup,
    Share,
    StaleTopic,
    Suggestion,
    Unit,
)
from group_hygiene.spec.patterns import likely_program

READ_AT = datetime(2026, 11, 20, 14, 3, 27, 123000, UTC)
BEGAN = datetime(2026, 9, 1, 6, 0, tzinfo=UTC)
RETENTION = timedelta(days=7)
BY_POLICY = {
    "console-consumer-{digits}": "console-consumer-{number}",
    "ci-checkout-{uuid}-test": "ci-checkout-{uuid}-test",
    "notebook-{uuid}": "notebook-{uuid}",
    "preview-{uuid}-payments-service-with-a-name-that-is-long-to-try-narrow-columns": (
        "preview-{uuid}-payments-service-with-a-name-that-is-long-to-try-narrow-columns"
    ),
    "load-test-{uuid}": "load-test-{uuid}",
    "connect-sink-{digits}": "connect-sink-{number}",
}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "two\nlines",
    "from-the-\u202eright-to-left",
    "party-\U0001f389",
    "{{ 7 * 7 }}</script>",
    "",
)
_DAY = timedelta(days=1)


def rich(rows: int = 3000, names: Sequence[str] = (), owners: bool = False) -> Findings:
    """All sections filled: so many rows, those with the given names first. The cluster has more groups than these.

    Each of the names is a pattern, too. owners: whether groups have some.
    """
    chance = random.Random(11)
    made = [_row(chance, name, name, 400 - 300 * n / len(names)) for n, name in enumerate(names)]
    patterns = list(BY_POLICY)
    while len(made) < rows:
        pattern = chance.choices(patterns, [40, 20, 12, 8, 6, 4])[0]
        name = BY_POLICY[pattern].format(uuid=UUID(int=chance.getrandbits(128)), number=chance.randrange(10**5))
        made.append(_row(chance, name, pattern, chance.expovariate(1 / 40)))
    if owners:
        made = [replace(row, owner="a-team-with-a-long-name" if n % 3 else "") for n, row in enumerate(made)]
    made.sort(key=lambda row: (row.idle_since is None, row.idle_since or READ_AT))
    units = [_unit(chance, key, [row for row in made if row.unit == key]) for key in sorted({row.unit for row in made})]
    units.sort(key=lambda unit: -unit.idle_offsets)
    idle, offsets = sum(unit.idle for unit in units), sum(unit.offsets for unit in units)
    by_owner = [
        (name, [unit for unit in units if unit.owner == name]) for name in sorted({unit.owner for unit in units})
    ]
    topics = [Share(f"orders.v{n}", (9 - n) * rows, 10 * rows) for n in range(8)]
    return Findings(
        cluster_id="lkc-7Xn0dQw2S1eV9a",
        read_at=READ_AT,
        since=READ_AT - 7 * _DAY,
        began=BEGAN,
        retention=RETENTION,
        groups=20 * rows,
        idle=idle,
        offsets=offsets,
        idle_offsets=sum(unit.idle_offsets for unit in units),
        left=3 * rows,
        came=sum(unit.came for unit in units),
        went=sum(unit.went for unit in units),
        cleaned=sum(unit.cleaned for unit in units),
        units=units,
        others=412,
        owners=[Share(name, sum(u.idle for u in its), sum(u.groups for u in its)) for name, its in by_owner if owners],
        topics=topics,
        committers=[(f"payments-{n}", 900_000 // (n + 1)) for n in range(6)],
        days=[DayCounts(BEGAN.date() + n * _DAY, rows + 200 * n, rows // 2 + 100 * n) for n in range(81)],
        rows=made,
        listing=b"",
        listed=20 * rows,
        expiring={READ_AT.date() + n * _DAY: 40 * n for n in (0, 1, 2, 4, 5, 6)},
        stale=[_stale(chance, n) for n in range(60)],
        stale_total=74,
        stale_topics=12,
        suggestions=[
            suggestion("console-consumer-{digits}"),
            suggestion("notebook-{uuid}"),
            _nothing("connect-sink-{digits}"),
        ],
        notes=[
            "The brokers' offsets.retention.minutes could not be read: days of expiry are computed with 7 d.",
            "2 of 50 partitions of the log were not read to their end: groups in them may have committed since.",
        ],
        untried={"ci-checkout-{uuid}-test": "fewer than 10 idle groups", "": "single names"},
    )


def empty() -> Findings:
    """A cluster without a group."""
    nothing: list[GroupRow] = []
    return Findings(
        "none",
        READ_AT,
        READ_AT - 7 * _DAY,
        None,
        RETENTION,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        [],
        0,
        [],
        [],
        [],
        [],
        nothing,
        b"",
        0,
        {},
        [],
        0,
        0,
        [],
        [],
    )


def suggestion(pattern: str) -> Suggestion:
    """A policy that fits a pattern well: a longer wait would have regretted less."""
    policy = f"""\
apiVersion: grouphygiene.io/v1alpha1
kind: GroupPolicy
metadata:
  name: idle-groups
  namespace: kafka
spec:
  connectionRef: {{name: main}}
  mode: DryRun
  match:
    groups: ["{pattern}"]
  when:
    idleFor: 96h
  action: Delete
"""
    tried = [
        (_DAY, 9_930, 310),
        (3 * _DAY, 9_812, 41),
        (4 * _DAY, 9_700, 3),
        (7 * _DAY, 8_400, 2),
        (14 * _DAY, 7_020, 0),
    ]
    return Suggestion(pattern, 41_200, "idle-groups", policy, 4 * _DAY, 9_700, 3, tried, lives=[_life(pattern)])


def _nothing(pattern: str) -> Suggestion:
    why = "groups were used again after each idleFor"
    return Suggestion(pattern, 240, "idle-connect-sink", "", None, 0, 0, [], why)


def _life(pattern: str) -> RegrettedGroup:
    used = [READ_AT.date() - n * _DAY for n in (30, 29, 28, 27, 9, 8)]
    return RegrettedGroup(f"{pattern}-1", used, READ_AT - 20 * _DAY, READ_AT - 9 * _DAY)


def _row(chance: random.Random, name: str, pattern: str, days: float) -> GroupRow:
    last = READ_AT - timedelta(days=days, seconds=chance.randrange(3600))
    live = chance.random() < 0.12
    state = "Active" if live else chance.choices(["Empty", "Unknown"], [20, 1])[0]
    known = chance.random() > 0.03
    idle_since = None if live or not known else last
    # Those in use have such a time too. Some are overdue.
    expires = last + RETENTION if known and last > READ_AT - RETENTION - 3 * _DAY else None
    topics = chance.randint(1, 4)
    behind = chance.randrange(5_000_000) if chance.random() < 0.3 else None
    entry = likely_program(name)
    return GroupRow(
        group=name,
        pattern=pattern,
        owner="",
        program=entry.program if entry else "",
        type=chance.choices(["Classic", "Consumer", "Share", "Streams"], [70, 20, 4, 6])[0],
        state=state,
        last_commit=last if known else None,
        idle_since=idle_since,
        expires=expires,
        topics=topics,
        partitions=topics * chance.choice([1, 3, 12]),
        behind=chance.choice([0, behind]) if behind else None,
        # Of names that already fill a page there is no room for more.
        last_client=str(LastClient(name, "10.1.2.3", None, None, topics, last)) if known and len(name) < 100 else None,
    )


def _unit(chance: random.Random, key: tuple[str, str, str], rows: Sequence[GroupRow]) -> Unit:
    idle = [row for row in rows if row.idle_since and READ_AT - row.idle_since >= 7 * _DAY]
    new: dict[date, int] = {}
    for n in range((READ_AT.date() - BEGAN.date()).days + 1):
        if n % 7 < 5:
            new[BEGAN.date() + n * _DAY] = chance.randrange(1 + len(rows) // 2)
    new[BEGAN.date()] = 23 * len(rows)
    new = {day: groups for day, groups in new.items() if groups}
    came = sum(groups for day, groups in new.items() if day > READ_AT.date() - 7 * _DAY)
    return Unit(
        pattern=key[0],
        owner=key[1],
        program=key[2],
        seen=sum(new.values()),
        groups=20 * len(rows),
        idle=20 * len(idle),
        offsets=20 * sum(row.partitions for row in rows),
        idle_offsets=20 * sum(row.partitions for row in idle),
        idle_since=min((row.idle_since for row in idle if row.idle_since), default=None),
        came=came,
        went=came // 2,
        cleaned=came // 4,
        new=new,
        made=key[0] in BY_POLICY,
        last_client=next((row.last_client for row in rows), None),
    )


def _stale(chance: random.Random, number: int) -> StaleTopic:
    last = READ_AT - timedelta(days=8 + chance.expovariate(1 / 30))
    topic = f"orders.v{number % 3 + 1}.{chance.choice(['created', 'paid', 'shipped', 'returned'])}"
    return StaleTopic(f"warehouse-{number % 9}", topic, chance.choice([3, 6, 12]), last, READ_AT - _DAY / 100)
