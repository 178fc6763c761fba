"""Who was in use when, in the past that `bench.past` writes: the groups of each kind, and the times of their use.

The same for the same numbers, always. Knows nothing of tables, nor of how a policy judges: `RULE` is here since some
groups stop and come back at the very moments that it makes a difference of. All times are milliseconds since 1970.
"""

import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
START = datetime(2026, 6, 1, 12, tzinfo=UTC)
# Behind the days that are replayed: who comes back in them was deleted by mistake as well.
AFTER_DAYS = 5
# Days that a replay must have at least, for all that the kind `edge` does.
LEAST_DAYS = 30
NEVER, NO_COMMIT = 1 << 60, -1
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
_BEFORE = 5 * DAY
_EXPIRES = 7 * DAY


class Rule(NamedTuple):
    """What of a policy matters, and how far the moments are apart at which it judges."""

    idle_for: timedelta
    grace: timedelta
    backup_retention: timedelta
    step: timedelta


# Deletes 6.5 to 7.5 days after the last use: some groups before Kafka drops them, others not.
RULE = Rule(timedelta(hours=108), timedelta(hours=48), timedelta(hours=480), timedelta(hours=24))


class How(IntEnum):
    """In what way a group is used: by members, or by a commit without any, in a transaction that was aborted or not."""

    CLASSIC = 0
    CONSUMER = 1
    COMMIT = 2
    ABORTED = 3


class Uses(NamedTuple):
    """One row a use: nobody uses the group between its uses. They do not overlap.

    group: its number. begin, end: when members came, and the last one left (NEVER = they stay); both the same for a
    commit without members. how: see `How`. commit: when it committed, not after `end`; NO_COMMIT = it did not. gone:
    when Kafka dropped the group after it (NEVER = it did not).
    """

    group: Numbers
    begin: Numbers
    end: Numbers
    how: Numbers
    commit: Numbers
    gone: Numbers


class Beats(NamedTuple):
    """Further commits by members that stay, one row each."""

    group: Numbers
    time: Numbers
    partition: Numbers


class Lives(NamedTuple):
    """names: of the groups, by their number. uses: by group, and in each by time."""

    names: Sequence[str]
    uses: Uses
    beats: Beats


class Span(NamedTuple):
    """start: when the pipeline first read the log, and a replay begins; end: of the replay; read_at: the last read."""

    start: int
    end: int
    read_at: int


class _Kind(NamedTuple):
    names: list[str]
    uses: Uses
    beats: Beats | None = None


_Random = np.random.Generator


def span(days: int) -> Span:
    start = round(START.timestamp() * 1000)
    return Span(start, start + days * DAY, start + (days + AFTER_DAYS) * DAY)


def lives(groups: int, when: Span, seed: int = 11) -> Lives:
    """So many groups of all kinds; about 75% are unused. Groups that never came before `read_at` are not among them."""
    kinds: list[_Kind] = []
    for number, (make, share, least) in enumerate(_KINDS):
        count = max(least, round(groups * share))
        kinds.append(make(np.random.default_rng([seed, number]), count, when))
    unused = groups - sum(len(kind.names) for kind in kinds)
    if unused < groups // 2:
        raise ValueError(f"{groups} groups are too few for all kinds")
    kinds.append(_unused(np.random.default_rng([seed, len(_KINDS)]), unused, when))
    names: list[str] = []
    uses, beats = [], []
    for kind in kinds:
        uses.append(kind.uses._replace(group=kind.uses.group + len(names)))
        if kind.beats is not None:
            beats.append(kind.beats._replace(group=kind.beats.group + len(names)))
        names += kind.names
    joined = Uses(*(np.concatenate(columns) for columns in zip(*uses, strict=True)))
    order = np.lexsort((joined.begin, joined.group))
    return Lives(
        names,
        Uses(*(column[order] for column in joined)),
        Beats(*(np.concatenate(columns) for columns in zip(*beats, strict=True))),
    )


def _steady(random: _Random, count: int, when: Span) -> _Kind:
    """Members all the time; a commit every twelve hours, in one partition and the other."""
    begin = _since(random, count, when, before=_BEFORE)
    how = np.arange(count) % 2
    uses = _uses(np.arange(count), begin, np.full(count, NEVER), how, NO_COMMIT)
    turns = np.arange(2 * ((when.read_at - when.start + _BEFORE) // DAY) + 1)
    times = begin[:, None] + MINUTE + turns * (DAY // 2) + random.integers(0, HOUR, (count, len(turns)))
    group, turn = np.nonzero(times < when.read_at)
    beats = Beats(group, times[group, turn], turn % 2)
    return _Kind([f"steady-{_family(how[i])}-{i:06d}" for i in range(count)], uses, beats)


def _assigned(random: _Random, count: int, when: Span) -> _Kind:
    """Simple groups: their clients assign partitions, and commit each day."""
    times = _daily(random, count, when)
    group, day = np.nonzero(times < when.read_at)
    at = times[group, day]
    return _Kind([f"assigned-{i:06d}" for i in range(count)], _uses(group, at, at, int(How.COMMIT), at))


def _nightly(random: _Random, count: int, when: Span) -> _Kind:
    """Jobs that join, commit and leave each day."""
    times = _daily(random, count, when)
    group, day = np.nonzero(times < when.read_at)
    begin = times[group, day]
    end = begin + random.integers(10 * MINUTE, 90 * MINUTE, len(begin))
    commit = end - random.integers(0, 5 * MINUTE, len(begin))
    return _Kind(
        [f"nightly-{_family(i % 2)}-{i:06d}" for i in range(count)], _uses(group, begin, end, group % 2, commit)
    )


# How they are used first, how later, and whether they commit then.
_SEASONS = {
    "classic": (How.CLASSIC, How.CLASSIC, True),
    "consumer": (How.CONSUMER, How.CONSUMER, True),
    "simple": (How.COMMIT, How.COMMIT, True),
    "aborted": (How.CLASSIC, How.ABORTED, True),
    "simple-aborted": (How.COMMIT, How.ABORTED, True),
    "reset": (How.CONSUMER, How.COMMIT, True),
    "quiet": (How.CLASSIC, How.CLASSIC, False),
    "quiet-consumer": (How.CONSUMER, How.CONSUMER, False),
}


def _seasonal(random: _Random, count: int, when: Span) -> _Kind:
    """They come back after 2 to 60 days, again and again; who joins stays for minutes, or for up to 12 days."""
    seasons = list(_SEASONS.items())
    which = np.arange(count) % len(seasons)
    turns = (when.read_at - when.start + _BEFORE) // (2 * DAY) + 1
    shape = (count, turns)
    how = np.where(
        np.arange(turns) == 0,
        np.array([first for _, (first, _, _) in seasons])[which][:, None],
        np.array([later for _, (_, later, _) in seasons])[which][:, None],
    ).astype(np.int64)
    joined = (how == How.CLASSIC) | (how == How.CONSUMER)
    long = random.random(shape) < 0.2
    stay = np.where(long, random.integers(DAY, 12 * DAY, shape), random.integers(5 * MINUTE, 3 * HOUR, shape)) * joined
    gap = np.exp(random.uniform(np.log(2 * DAY), np.log(60 * DAY), shape)).astype(np.int64)
    first = random.integers(when.start - _BEFORE, when.start + 20 * DAY, count)
    # One of each came back before the pipeline first read: compaction has left what it left.
    first[: len(seasons)], gap[: len(seasons), 0] = when.start - _BEFORE, 2 * DAY
    begin = first[:, None] + np.cumsum(stay + gap, axis=1) - stay - gap
    commits = (np.arange(turns) == 0) | np.array([commits for _, (_, _, commits) in seasons])[which][:, None]
    commit = np.where(commits, begin + stay // 4, NO_COMMIT)
    group, turn = np.nonzero(begin < when.read_at)
    of_uses = (column[group, turn] for column in (begin, begin + stay, how, commit))
    return _Kind([f"seasonal-{seasons[i % len(seasons)][0]}-{i:06d}" for i in range(count)], _uses(group, *of_uses))


# How they were used before Kafka dropped them, and how later; None = never again.
_EXPIRED: dict[str, tuple[How, How | None]] = {
    "classic": (How.CLASSIC, None),
    "simple": (How.COMMIT, None),
    "consumer": (How.CONSUMER, None),
    "classic-then-simple": (How.CLASSIC, How.COMMIT),
    "classic-then-joined": (How.CLASSIC, How.CLASSIC),
    "simple-then-simple": (How.COMMIT, How.COMMIT),
    "simple-then-joined": (How.COMMIT, How.CLASSIC),
    "consumer-then-joined": (How.CONSUMER, How.CONSUMER),
    "classic-then-aborted": (How.CLASSIC, How.ABORTED),
}


def _expired(random: _Random, count: int, when: Span) -> _Kind:
    """Kafka drops them 7 days after their last use; some come back, from an hour to 30 days later.

    By a commit that was aborted, none is there again.
    """
    rows: list[tuple[int, int, int, int, int, int]] = []
    names = []
    for number in range(count):
        name, (first, later) = list(_EXPIRED.items())[number % len(_EXPIRED)]
        names.append(f"expired-{name}-{number:06d}")
        begin = int(random.integers(when.start - _BEFORE, when.end - 10 * DAY))
        for how in (first, later):
            if how is None or begin >= when.read_at:
                break
            end, commit = _session(begin, how)
            rows.append((number, begin, end, how, commit, NEVER if how == How.ABORTED else end + _EXPIRES))
            begin = end + _EXPIRES + int(random.integers(HOUR, 30 * DAY))
    return _Kind(names, Uses(*np.array(rows, np.int64).T))


# How they are used first and later, and whether they commit then.
_EDGES = {
    "classic": (How.CLASSIC, How.CLASSIC, True),
    "consumer": (How.CONSUMER, How.CONSUMER, True),
    "simple": (How.COMMIT, How.COMMIT, True),
    "reset": (How.CLASSIC, How.COMMIT, True),
    "aborted": (How.CLASSIC, How.ABORTED, True),
    "quiet": (How.CLASSIC, How.CLASSIC, False),
}


def _moments(marked: int) -> dict[str, list[tuple[str, int]]]:
    """Of groups that `RULE` marks first at this step: when they became idle, and when they came back.

    `gone`: they became idle then, and Kafka drops them, just before `RULE` would delete them, or just after.
    """
    idle_for, grace, retention, step = (round(each / timedelta(milliseconds=1)) for each in RULE)
    deleted = marked + grace
    again = deleted + retention + grace
    used = [("idle", marked - idle_for - step // 3)]
    back = [*used, ("back", deleted + HOUR)]
    return {
        "back-at": [*used, ("back", deleted)],
        "back-before": [*used, ("back", deleted - 1)],
        "back-after": [*used, ("back", deleted + 1)],
        "idle-at": [("idle", marked - idle_for), ("back", deleted + 1)],
        "idle-less": [("idle", marked - idle_for + 1), ("back", deleted + 1)],
        "again-at": [*back, ("back", again)],
        "again-after": [*back, ("back", again + 1)],
        "again-idle-at": [*back, ("idle", deleted + retention - idle_for), ("back", again + 1)],
        "again-idle-less": [*back, ("idle", deleted + retention - idle_for + 1), ("back", again + 1)],
        "gone-at": [("gone", deleted - _EXPIRES), ("back", deleted + HOUR)],
        "gone-after": [("gone", deleted + 1 - _EXPIRES), ("back", deleted + HOUR)],
    }


# What becomes idle by a commit is not among those that Kafka drops.
_EDGE_CASES = [
    (family, kind)
    for kind in _moments(0)
    for family in _EDGES
    if kind[:4] != "gone" or family not in ("reset", "aborted")
]


def _edge(random: _Random, count: int, when: Span) -> _Kind:
    """Groups of which a millisecond decides whether `RULE` deletes them, and whether that was right."""
    step, days = round(RULE.step / timedelta(milliseconds=1)), (when.end - when.start) // DAY
    rows: list[tuple[int, int, int, int, int, int]] = []
    names = []
    for number in range(count):
        family, kind = _EDGE_CASES[number % len(_EDGE_CASES)]
        first, later, commits = _EDGES[family]
        last = days - 24 if kind.startswith("again") else days - 2
        marked = when.start + int(random.integers(5, last + 1)) * step
        names.append(f"edge-{family}-{kind}-{number:06d}")
        turns = _moments(marked)[kind]
        if later != first:
            # The group is there and Empty; what makes it idle later is a commit.
            turns = [("join", turns[0][1] - 2 * DAY), *turns]
        for what, at in turns:
            how = first if what == "join" or later == first else later
            ends = what in ("idle", "gone") and how in (How.CLASSIC, How.CONSUMER)
            begin = at - 30 * MINUTE if ends else at
            end, commit = _session(begin, how)
            gone = end + _EXPIRES if what == "gone" else NEVER
            rows.append((number, begin, end, how, commit if commits else NO_COMMIT, gone))
    return _Kind(names, Uses(*np.array(rows, np.int64).T))


def _unused(random: _Random, count: int, when: Span) -> _Kind:
    """Each lives some minutes, once, at any time."""
    number = np.arange(count)
    numbers = random.permutation(max(100_000, count))
    begin = random.integers(when.start - _BEFORE, when.read_at - HOUR, count)
    end = begin + random.integers(MINUTE, 30 * MINUTE, count)
    how = np.where(number % 4 == 1, How.CONSUMER, How.CLASSIC).astype(np.int64)
    unique = [str(uuid.UUID(bytes=random.bytes(16), version=4)) for _ in range(count)]
    names = [
        (
            f"perf-consumer-{numbers[i]}",
            unique[i],
            # Odd, so that no two are the same.
            f"preview-{i * 2_654_435_761 % 2**32:08x}-checkout",
            f"anonymous.{unique[i]}",
        )[i % 4]
        for i in range(count)
    ]
    return _Kind(names, _uses(number, begin, end, how, (begin + end) // 2))


# Who makes them, of all groups so many, and not fewer than that.
_KINDS: Sequence[tuple[Callable[[_Random, int, Span], _Kind], float, int]] = (
    (_steady, 0.05, 2),
    (_assigned, 0.03, 2),
    (_nightly, 0.05, 2),
    (_seasonal, 0.08, len(_SEASONS)),
    (_expired, 0.03, len(_EXPIRED)),
    (_edge, 0.01, len(_EDGE_CASES)),
)


def _daily(random: _Random, count: int, when: Span) -> Numbers:
    """For each group the times of its days, an hour more or less; of some they are beyond `read_at`."""
    begin = _since(random, count, when, before=DAY)
    turns = np.arange((when.read_at - when.start) // DAY + 2)
    return np.asarray(begin[:, None] + turns * DAY + random.integers(0, HOUR, (count, len(turns))))


def _since(random: _Random, count: int, when: Span, before: int) -> Numbers:
    """Half of them are there when the pipeline first reads."""
    old = random.integers(when.start - before, when.start - 2 * HOUR, count)
    return np.where(np.arange(count) % 4 < 2, old, random.integers(when.start, when.read_at - 2 * DAY, count))


def _session(begin: int, how: How) -> tuple[int, int]:
    """When a use that began then ends, and when it commits."""
    if how in (How.COMMIT, How.ABORTED):
        return begin, begin
    return begin + 30 * MINUTE, begin + 20 * MINUTE


def _family(how: int) -> str:
    return How(how).name.lower()


def _uses(group: Numbers, begin: Numbers, end: Numbers, how: Numbers | int, commit: Numbers | int) -> Uses:
    size = len(group)
    how, commit = np.broadcast_to(np.asarray(how), size), np.broadcast_to(np.asarray(commit), size)
    return Uses(group, begin, end, how, commit, np.full(size, NEVER))
