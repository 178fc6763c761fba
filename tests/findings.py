"""Findings of a cluster that nobody ever tidied, made up: the same ones at each call."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from group_hygiene.model.last_use import LastClient
from group_hygiene.report.findings import Age, Count, Findings, Growth, Row, StaleTopic, Suggestion

READ_AT = datetime(2026, 11, 20, 14, 3, 27, 123000, UTC)
BEGAN = datetime(2026, 9, 1, 6, 0, tzinfo=UTC)
RETENTION = timedelta(days=7)
BY_POLICY = {
    "console-consumer-*": "console-consumer-{number}",
    "ci-checkout-*-test": "ci-checkout-{uuid}-test",
    "notebook-*": "notebook-{uuid}",
    "preview-*-payments-service-with-a-name-that-somebody-made-long-on-purpose": (
        "preview-{uuid}-payments-service-with-a-name-that-somebody-made-long-on-purpose"
    ),
    "load-test-*": "load-test-{uuid}",
    "connect-sink-*": "connect-sink-{number}",
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


def rich(rows: int = 3000, names: Sequence[str] = ()) -> Findings:
    """All sections filled: so many rows, those with the given names first. The cluster has more groups than these."""
    chance = random.Random(11)
    made = [_row(chance, name, name, 400 - 300 * n / len(names)) for n, name in enumerate(names)]
    patterns = list(BY_POLICY)
    while len(made) < rows:
        pattern = chance.choices(patterns, [40, 20, 12, 8, 6, 4])[0]
        name = BY_POLICY[pattern].format(uuid=UUID(int=chance.getrandbits(128)), number=chance.randrange(10**5))
        made.append(_row(chance, name, pattern, chance.expovariate(1 / 40)))
    made.sort(key=lambda row: (row.idle_since is None, row.idle_since or READ_AT))
    counts = Counter((row.type, row.state, row.age) for row in made)
    growth = [_growth(chance, pattern, made) for pattern in [*patterns, *names]]
    expiring = Counter(row.due for row in made if row.due)
    return Findings(
        cluster_id="lkc-7Xn0dQw2S1eV9a",
        read_at=READ_AT,
        began=BEGAN,
        retention=RETENTION,
        groups=20 * rows,
        idle=sum(found.idle for found in growth),
        counts=[Count(*key, 20 * groups) for key, groups in sorted(counts.items())],
        patterns=sorted(growth, key=lambda found: -found.there),
        others=412,
        rows=made,
        expiring={day: 3 * groups for day, groups in sorted(expiring.items())},
        stale=[_stale(chance, n) for n in range(60)],
        stale_total=74,
        suggestions=[suggestion("console-consumer-*"), suggestion("notebook-*"), _nothing("connect-sink-*")],
        notes=[
            "The brokers' offsets.retention.minutes could not be read: days of expiry are computed with 7 d.",
            "2 of 50 partitions of the log were not read to their end: groups in them may have committed since.",
        ],
    )


def empty() -> Findings:
    """A cluster without a group."""
    nothing: list[Row] = []
    return Findings("none", READ_AT, None, RETENTION, 0, 0, [], [], 0, nothing, {}, [], 0, [], [])


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
    longer = [(3 * _DAY, 9_812, 41), (7 * _DAY, 8_400, 2), (14 * _DAY, 7_020, 0)]
    return Suggestion(pattern, 41_200, policy, 4 * _DAY, 9_700, 3, longer)


def _nothing(pattern: str) -> Suggestion:
    why = "Every idleFor up to 30 d would have deleted groups that were used again: leave them, or ask their owners."
    return Suggestion(pattern, 240, "", None, 0, 0, [], why)


def _row(chance: random.Random, name: str, pattern: str, days: float) -> Row:
    last = READ_AT - timedelta(days=days, seconds=chance.randrange(3600))
    live = chance.random() < 0.12
    state = "Active" if live else chance.choices(["Empty", "Unknown"], [20, 1])[0]
    known = chance.random() > 0.03
    idle_since = None if live or not known else last
    # Those in use have such a time too. Some are overdue: by less than a day, which is due today, or by more.
    expires = last + RETENTION if known and last > READ_AT - RETENTION - 3 * _DAY else None
    waits = idle_since is not None and expires is not None and expires >= READ_AT - _DAY
    topics = chance.randint(1, 4)
    behind = chance.randrange(5_000_000) if chance.random() < 0.3 else None
    return Row(
        group=name,
        pattern=pattern,
        type=chance.choices(["Classic", "Consumer", "Share", "Streams"], [70, 20, 4, 6])[0],
        state=state,
        age=_age(READ_AT - last) if known else Age.NEVER,
        last_commit=last if known else None,
        idle_since=idle_since,
        expires=expires,
        due=max(expires, READ_AT).date() if expires and waits else None,
        topics=topics,
        partitions=topics * chance.choice([1, 3, 12]),
        behind=chance.choice([0, behind]) if behind else None,
        # Of names that already fill a page there is no room for more.
        last_client=str(LastClient(name, "10.1.2.3", None, None, topics, last)) if known and len(name) < 100 else None,
    )


def _age(time: timedelta) -> Age:
    limits = [
        (timedelta(hours=1), Age.HOUR),
        (_DAY, Age.DAY),
        (7 * _DAY, Age.WEEK),
        (30 * _DAY, Age.MONTH),
        (90 * _DAY, Age.QUARTER),
    ]
    return next((age for limit, age in limits if time < limit), Age.OLDER)


def _growth(chance: random.Random, pattern: str, rows: Sequence[Row]) -> Growth:
    mine = [row for row in rows if row.pattern == pattern]
    idle = [row for row in mine if row.idle_since and READ_AT - row.idle_since >= 7 * _DAY]
    new: dict[date, int] = {}
    for n in range((READ_AT.date() - BEGAN.date()).days + 1):
        day = BEGAN.date() + n * _DAY
        if n % 7 < 5 and mine:
            new[day] = chance.randrange(1 + len(mine) // 2)
    new[BEGAN.date()] = 20 * len(mine) + len(mine) * 3
    new = {day: groups for day, groups in new.items() if groups}
    return Growth(pattern, sum(new.values()), 20 * len(mine), 20 * len(idle), new, pattern in BY_POLICY)


def _stale(chance: random.Random, number: int) -> StaleTopic:
    last = READ_AT - timedelta(days=8 + chance.expovariate(1 / 30))
    topic = f"orders.v{number % 3 + 1}.{chance.choice(['created', 'paid', 'shipped', 'returned'])}"
    return StaleTopic(f"warehouse-{number % 9}", topic, chance.choice([3, 6, 12]), last, READ_AT - _DAY / 100)
