"""The spec of a policy: patterns, durations, defaults, refusals, and what its digest depends on."""

import re
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from group_hygiene.errors import SpecError
from group_hygiene.model.groups import GroupState, GroupType
from group_hygiene.spec.crds import WHITE_SPACE
from group_hygiene.spec.fields import format_duration, parse_duration
from group_hygiene.spec.patterns import Patterns
from group_hygiene.spec.policy import (
    Action,
    CommittedOffsets,
    DeletedTopics,
    Limits,
    Mode,
    Policy,
    Unprotect,
    parse_policy,
)
from tests.unit.make import group, policy_object


@pytest.mark.parametrize(
    ("pattern", "group_id", "matches"),
    [
        pytest.param("orders", "orders", True, id="literal"),
        pytest.param("orders", "orders-eu", False, id="literal-is-no-prefix"),
        pytest.param("orders", "eu-orders", False, id="literal-is-no-suffix"),
        pytest.param("console-*", "console-consumer-1", True, id="star-at-the-end"),
        pytest.param("console-*", "console-", True, id="star-is-also-nothing"),
        pytest.param("console-*", "console", False, id="star-does-not-eat-the-dash"),
        pytest.param("console-*", "my-console-1", False, id="star-at-the-end-is-full-match"),
        pytest.param("*-test", "a-test", True, id="star-at-the-start"),
        pytest.param("*-test", "a-test-2", False, id="star-at-the-start-is-full-match"),
        pytest.param("a*b*c", "a--b--c", True, id="two-stars"),
        pytest.param("a*b*c", "abc", True, id="two-empty-stars"),
        pytest.param("a*b*c", "acb", False, id="two-stars-in-order"),
        pytest.param("a*bc*c", "abc", False, id="pieces-do-not-overlap"),
        pytest.param("a*bc*c", "abbcc", True, id="piece-after-a-false-start"),
        pytest.param("*ab*ab", "abab", True, id="repeated-piece"),
        pytest.param("*ab*ab", "ab", False, id="repeated-piece-only-once"),
        pytest.param("*", "", True, id="star-matches-the-empty-id"),
        pytest.param("*", "any thing", True, id="star-alone"),
        pytest.param("a**", "a-b", True, id="double-star"),
        pytest.param(r"a\*", "a*", True, id="escaped-star"),
        pytest.param(r"a\*", "ab", False, id="escaped-star-is-literal"),
        pytest.param(r"a\*b*", "a*bcd", True, id="escaped-and-plain-star"),
        pytest.param(r"a\\b", r"a\b", True, id="backslash"),
        pytest.param(r"a\\*", r"a\xyz", True, id="backslash-then-star"),
        pytest.param(r"a\\\*", r"a\*", True, id="backslash-then-escaped-star"),
        pytest.param("a*", "a\nb", True, id="newline-inside"),
        pytest.param("a*c", "a\nb\nc", True, id="newlines-between-pieces"),
        pytest.param("a*b*c", "a\nb\nc", True, id="newlines-before-pieces"),
        pytest.param("orders", "orders\n", False, id="newline-at-the-end"),
        pytest.param("*s", "orders\n", False, id="newline-at-the-end-after-star"),
        pytest.param("Orders", "orders", False, id="case"),
        pytest.param(r"o.d+r[s]\|(x)\?^$a!", "o.d+r[s]|(x)?^$a!", True, id="regex-metacharacters-literal"),
        pytest.param("a.c", "abc", False, id="dot-is-literal"),
        pytest.param("a*.x*c", "abxc", False, id="dot-between-stars-is-literal"),
        pytest.param(r"a\|b", "a", False, id="bar-is-literal"),
        pytest.param(r"\[ab]*", "a1", False, id="brackets-are-literal"),
        pytest.param("größe-*-日本", "größe-1-日本", True, id="unicode"),
        pytest.param("café", "cafe\u0301", False, id="unicode-is-not-normalized"),
    ],
)
def test_pattern(pattern: str, group_id: str, matches: bool) -> None:
    """`*` is any run of characters, a backslash escapes it, all else is itself, and the whole id must match."""
    assert Patterns([pattern]).matches(group_id) is matches


# No pattern begins or ends with a space.
_NAME = st.text(min_size=1).filter(lambda text: text == text.strip(WHITE_SPACE))


@given(text=_NAME, other=st.text())
@example(text="a", other="a\n")
@example(text="*", other="x")
@example(text="\\", other="\\\\")
def test_escaped_pattern_matches_exactly_its_text(text: str, other: str) -> None:
    """A pattern made by escaping any text matches that text and no other."""
    patterns = Patterns([re.sub(r"[*\\{^$(\[.?|!]", r"\\\g<0>", text)])
    assert patterns.matches(text)
    assert patterns.matches(other) is (other == text)


def _as_regex(pattern: str) -> re.Pattern[str]:
    """The meaning of a pattern: a star is `.*`, also over line breaks, a backslash escapes, all else is itself."""
    parts = re.findall(r"\\\\|\\\*|[^\\]", pattern, re.DOTALL)
    return re.compile("".join(".*" if part == "*" else re.escape(part[-1]) for part in parts) + r"\Z", re.DOTALL)


NIGHT = {"from": "22:00", "to": "04:00"}
_PATTERN = (
    st.lists(st.sampled_from(["a", "b", "\n", "*", "*", r"\*", r"\\"]), min_size=1, max_size=9)
    .map("".join)
    .filter(lambda text: text == text.strip())
)
_TEXT = st.text(alphabet="ab\n*\\", max_size=12)


@given(patterns=st.lists(_PATTERN, max_size=4), group_id=_TEXT)
def test_stars_match_like_the_plain_regex(patterns: list[str], group_id: str) -> None:
    """A list of patterns matches exactly what the regular expression of one of them matches."""
    expected = [pattern for pattern in patterns if _as_regex(pattern).match(group_id)]
    assert Patterns(patterns).matches(group_id) is bool(expected)
    assert Patterns(patterns).matching(group_id) == (expected[0] if expected else None)


@given(patterns=st.lists(st.text(alphabet="\ue000\uf8ffé*", min_size=1), max_size=3), group_id=st.text())
def test_patterns_of_any_characters_match_like_the_plain_regex(patterns: list[str], group_id: str) -> None:
    """Whatever characters a name is made of."""
    assert Patterns(patterns).matches(group_id) is any(_as_regex(pattern).match(group_id) for pattern in patterns)


_HOSTILE = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
from group_hygiene.spec import patterns as module
from group_hygiene.spec.patterns import Patterns
module.ID_MAX = 40_000
patterns = Patterns(["*" + "a" * 240 + f"b{i}*" for i in range(64)])
assert not any(patterns.matches("a" * (32_000 + i)) for i in range(100))
patterns = Patterns(["*a" * 100 + f"*b{i}*c" for i in range(64)])
assert not any(patterns.matches("a" * (32_000 + i)) for i in range(100))
"""


def test_the_longest_patterns_and_names_cost_little() -> None:
    """64 patterns of 255 characters against 200 of the longest names take far less than 10 s of processor time.

    With regular expressions they took a minute, in calls of half a second that let no other thread run.
    """
    done = subprocess.run([sys.executable, "-c", _HOSTILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class _Asked(Patterns):
    """Patterns that note the names they meet."""

    def __init__(self, patterns: list[str]) -> None:
        super().__init__(patterns)
        self.names: list[str] = []

    def matches(self, name: str) -> bool:
        self.names.append(name)
        return super().matches(name)


def test_patterns_meet_only_names_that_are_granted() -> None:
    """A tenant's patterns cost nothing for the groups of others."""
    asked = _Asked(["*"])
    match = structs.replace(parse_policy(policy_object()).match, groups=asked, within=Patterns(["team-a-*"]))
    groups = {name: group(name) for name in ("team-a-1", "team-b-1", "x")}
    assert [name for name in groups if match.includes(name)] == ["team-a-1"]
    assert not match.selects(groups["x"])
    assert set(asked.names) == {"team-a-1"}


def test_patterns_of_every_private_character_still_cover() -> None:
    """Whoever uses up the characters that stand for a star gets an answer, and no error."""
    every = "".join(map(chr, range(0xE000, 0xF900)))
    patterns = Patterns([every[start : start + 250] + "*" for start in range(0, len(every), 250)] + ["a*"])
    assert patterns.covers("a*b")
    assert not patterns.covers("b*")


@pytest.mark.parametrize(
    ("patterns", "problem"),
    [
        pytest.param("orders-*", "spec.x must be a list of texts", id="lone-text-would-match-every-group"),
        pytest.param([1], "spec.x must be a list of texts", id="number"),
    ],
)
def test_pattern_refused(patterns: Any, problem: str) -> None:
    """Python iterates a text by characters, of which a star would match every group."""
    with pytest.raises(SpecError, match=problem):
        Patterns(patterns, "spec.x")


@given(names=st.lists(st.just("") | _NAME), other=st.text())
@example(names=["", "*", "\\"], other="x")
def test_patterns_of_names(names: list[str], other: str) -> None:
    """They match these names, of any characters, also the empty one, and no other."""
    patterns = Patterns.of_names(names)
    assert all(patterns.matches(name) for name in names)
    assert patterns.matches(other) is (other in names)
    assert Patterns([source for source in patterns.sources if source]).matches(other) is (
        other in names and other != ""
    )


def test_patterns_list() -> None:
    """A list matches what any of its patterns matches, tells the first that does, and nothing when empty."""
    patterns = Patterns(["a*", "*b", r"c\|d"])
    assert [patterns.matching(name) for name in ("ab", "xb", "c|d", "c")] == ["a*", "*b", r"c\|d", None]
    assert not Patterns(["ab", "c"]).matches("abx")
    assert not Patterns([]).matches("")
    assert Patterns([]).matching("a") is None


@pytest.mark.parametrize(
    ("match", "changes", "selected"),
    [
        pytest.param({"groups": ["a*"]}, {}, True, id="pattern"),
        pytest.param({"groups": ["b*"]}, {}, False, id="other-pattern"),
        pytest.param({"groups": ["a*"], "exclude": ["*c"]}, {}, False, id="exclude-wins"),
        pytest.param({"groups": ["abc"], "exclude": ["*c"]}, {}, False, id="exclude-wins-over-the-exact-name"),
        pytest.param({"groups": ["a*"], "exclude": ["b*"]}, {}, True, id="exclude-of-others"),
        pytest.param({"groups": ["*"]}, {"state": GroupState.STABLE}, False, id="state"),
        pytest.param({"groups": ["*"]}, {"type": GroupType.SHARE}, False, id="type"),
        pytest.param({"groups": ["*"]}, {"type": GroupType.UNKNOWN}, False, id="unknown-type"),
    ],
)
def test_selects(match: dict[str, Any], changes: dict[str, Any], selected: bool) -> None:
    """A policy selects by name, state, type and protocol type at once, and exclude wins."""
    assert parse_policy(policy_object(match=match)).match.selects(group("abc", **changes)) is selected


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        pytest.param("72h", 72 * 3_600_000, id="hours"),
        pytest.param("30m", 1_800_000, id="minutes"),
        pytest.param("1h30m", 5_400_000, id="hours-and-minutes"),
        pytest.param("500ms", 500, id="milliseconds"),
        pytest.param("1m1ms", 60_001, id="minutes-and-milliseconds"),
        pytest.param("0s", 0, id="zero"),
        pytest.param("3d", 72 * 3_600_000, id="days"),
        pytest.param("1d12h30m", 36 * 3_600_000 + 1_800_000, id="days-and-more"),
        pytest.param("9999d", 9_999 * 24 * 3_600_000, id="most-days"),
        pytest.param("1d1h1m1s1ms", 25 * 3_600_000 + 61_001, id="all-units"),
        pytest.param("99999h", 99_999 * 3_600_000, id="largest"),
    ],
)
def test_duration(text: str, milliseconds: int) -> None:
    """A duration is the sum of its parts."""
    assert parse_duration(text, "x") == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("72", id="no-unit"),
        pytest.param("1h1d", id="days-last"),
        pytest.param("1d1d", id="days-twice"),
        pytest.param("10000d", id="five-digits-of-days"),
        pytest.param("1s1s", id="a-unit-twice"),
        pytest.param("30m1h", id="minutes-first"),
        pytest.param("1w", id="weeks"),
        pytest.param("1.5h", id="fraction"),
        pytest.param("-1h", id="negative"),
        pytest.param("1h 30m", id="blank"),
        pytest.param("72h\n", id="line-end"),
        pytest.param("\n72h", id="line-end-first"),
        pytest.param("100000h", id="six-digits"),
        pytest.param("1h1m1s1ms1h", id="five-parts"),
        pytest.param("٣h", id="digits-of-another-script"),
        pytest.param("72H", id="upper-case"),
        pytest.param(72, id="number"),
        pytest.param(None, id="nothing"),
    ],
)
def test_duration_refused(text: Any) -> None:
    """What is no duration is refused with the field's name and an example."""
    with pytest.raises(SpecError, match=r"spec\.interval must be a duration like 72h"):
        parse_duration(text, "spec.interval")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(timedelta(0), "0s", id="zero"),
        pytest.param(timedelta(days=3), "72h", id="days-as-hours"),
        pytest.param(timedelta(seconds=90), "1m30s", id="minutes-and-seconds"),
        pytest.param(timedelta(milliseconds=1_500), "1s500ms", id="milliseconds"),
        pytest.param(timedelta(microseconds=10), "0s", id="less-than-a-millisecond"),
    ],
)
def test_format_duration(value: timedelta, text: str) -> None:
    """A duration is written as short as can be."""
    assert format_duration(value) == text


@given(st.integers(min_value=0, max_value=99_999 * 3_600_000).map(lambda ms: timedelta(milliseconds=ms)))
def test_duration_round_trip(value: timedelta) -> None:
    """What format_duration writes, parse_duration reads as the same value."""
    assert parse_duration(format_duration(value), "x") == value


def test_policy_defaults() -> None:
    """The shortest policy is a dry run every 10 minutes of Empty and Dead classic and consumer groups."""
    policy = parse_policy(
        {
            "metadata": {"name": "p", "namespace": "kafka"},
            "spec": {
                "connectionRef": {"name": "main"},
                "match": {"groups": ["a*"]},
                "when": {"unchangedFor": "72h"},
                "action": "Delete",
            },
        }
    )
    assert (policy.mode, policy.action, policy.suspend) == (Mode.DRY_RUN, Action.DELETE, False)
    assert policy.interval == timedelta(minutes=10)
    assert policy.limits == Limits(max_per_run=50, max_percent=20)
    assert (policy.grace_period, policy.backup_retention) == (timedelta(hours=24), timedelta(hours=720))
    assert policy.match.states == {GroupState.EMPTY, GroupState.DEAD}
    assert policy.match.types == {GroupType.CLASSIC, GroupType.CONSUMER}
    assert policy.match.unprotect == frozenset()
    assert policy.when.unchanged_for == timedelta(hours=72)
    assert (policy.when.committed_offsets, policy.when.deleted_topics) == (None, None)
    assert (policy.key, policy.connection_namespace, policy.crosses_namespace) == ("kafka/p", "kafka", False)


def test_policy_all_fields() -> None:
    """Every field of the spec arrives where it belongs."""
    obj = policy_object(
        when={"unchangedFor": "1h", "deletedTopics": "Some", "committedOffsets": "OutOfRange"},
        match={"states": ["Empty"], "types": ["Classic", "Share"], "unprotect": ["Connect", "Share"]},
        connectionRef={"name": "main", "namespace": "other"},
        interval="5s",
        suspend=True,
        mode="Enforce",
        delete={"maxPerRun": 1, "maxPercent": 100, "gracePeriod": "1h30m", "backupRetention": "1h"},
    )
    window = {"days": ["Monday", "Sunday"], "from": "22:00", "to": "04:30", "timeZone": "Europe/Berlin"}
    obj["spec"]["delete"]["windows"] = [window, {"from": "00:00", "to": "00:00"}]
    policy = parse_policy(obj)
    assert list(map(str, policy.windows)) == [
        "Monday, Sunday 22:00 to 04:30 Europe/Berlin",
        "every day 00:00 to 00:00 UTC",
    ]
    assert (policy.uid, policy.generation, policy.name) == ("uid-1", 3, "unused")
    assert (policy.connection_namespace, policy.connection_name) == ("other", "main")
    assert policy.crosses_namespace
    assert (policy.interval, policy.suspend, policy.mode) == (timedelta(seconds=5), True, Mode.ENFORCE)
    assert policy.match.states == {GroupState.EMPTY}
    assert policy.match.types == {GroupType.CLASSIC, GroupType.SHARE}
    assert policy.match.unprotect == {Unprotect.CONNECT, Unprotect.SHARE}
    assert (policy.when.deleted_topics, policy.when.committed_offsets) == (
        DeletedTopics.SOME,
        CommittedOffsets.OUT_OF_RANGE,
    )
    assert policy.limits == Limits(1, 100)
    assert (policy.grace_period, policy.backup_retention) == (timedelta(minutes=90), timedelta(hours=1))


@pytest.mark.parametrize("match", [{}, {"states": [], "types": []}, {"unprotect": []}])
def test_alert_selects_all_states_and_types(match: dict[str, Any]) -> None:
    """Without states an Alert policy selects every state, also those that a newer Kafka may bring; without types it
    selects all of them.
    """
    found = parse_policy(policy_object("Alert", {}, match)).match
    assert found.states == frozenset(GroupState)
    assert found.types == frozenset(GroupType) - {GroupType.UNKNOWN}


def test_policy_without_spec_refused() -> None:
    """An object without a spec is refused, not a crash."""
    with pytest.raises(SpecError, match="spec: must be given"):
        parse_policy({"metadata": {"name": "p"}})


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        pytest.param({"unchangedFor": "1h"}, (timedelta(hours=1), None, None, False), id="unchanged"),
        pytest.param({"idleFor": "36h"}, (None, timedelta(hours=36), None, True), id="idle"),
        pytest.param(
            {"idleFor": "1s", "unchangedFor": "1m", "expiresWithin": "1h"},
            (timedelta(minutes=1), timedelta(seconds=1), timedelta(hours=1), True),
            id="all",
        ),
    ],
)
def test_either_proof_of_idleness(when: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """Delete takes idleFor or unchangedFor, or both; only what the offsets log tells asks for the tables."""
    found = parse_policy(policy_object("Delete", when)).when
    assert (found.unchanged_for, found.idle_for, found.expires_within, found.asks_evidence) == expected


@pytest.mark.parametrize(
    "when", [pytest.param({"idleFor": "1h"}, id="idle"), pytest.param({"expiresWithin": "1h"}, id="expires")]
)
def test_alert_takes_each_alone(when: dict[str, Any]) -> None:
    """An Alert policy needs nothing beside it."""
    assert parse_policy(policy_object("Alert", when)).when.asks_evidence


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        pytest.param({}, (None, False, False), id="nothing"),
        pytest.param({"lag": {"atLeast": 1}}, (1, False, True), id="least-lag"),
        pytest.param({"lag": {"atLeast": 2**63 - 1}}, (2**63 - 1, False, True), id="most-lag"),
        pytest.param({"committedOffsets": "OutOfRange"}, (None, True, True), id="range"),
        pytest.param({"lag": {"atLeast": 5}, "committedOffsets": "OutOfRange"}, (5, True, True), id="both"),
    ],
)
def test_lag_and_range(when: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """Alone in an Alert policy, beside its proof of idleness in a Delete policy; only they ask for ends."""
    for policy in (policy_object("Alert", when), policy_object("Delete", {"idleFor": "1h", **when})):
        found = parse_policy(policy).when
        assert (found.lag_at_least, found.out_of_range, found.asks_bounds) == expected


_SPEC = policy_object()["spec"]


def _policy(**changes: Any) -> Policy:
    obj = policy_object()
    obj["spec"] = {**_SPEC, **changes}
    return parse_policy(obj)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"mode": "Enforce"}, id="mode"),
        pytest.param({"delete": {"maxPerRun": 1, "maxPercent": 1}}, id="limits"),
        pytest.param({"delete": {"backupRetention": "1h"}}, id="retention"),
        pytest.param({"delete": {"windows": [NIGHT]}}, id="windows"),
        pytest.param({"delete": {"gracePeriod": "24h"}}, id="grace-as-by-default"),
        pytest.param({"delete": {"gracePeriod": "23h60m"}}, id="grace-in-other-words"),
        pytest.param({"interval": "1h"}, id="interval"),
        pytest.param({"suspend": True}, id="suspend"),
        pytest.param({"when": {"unchangedFor": "3d"}}, id="when-in-days"),
        pytest.param({"match": {"groups": ["*", "*"], "exclude": [], "states": []}}, id="match-empty-lists"),
        pytest.param({"match": {"groups": ["*"], "types": ["Consumer", "Classic"]}}, id="types-as-by-default"),
        pytest.param({"match": {"groups": ["*"], "states": ["Dead", "Empty"]}}, id="states-as-by-default"),
        pytest.param({"connectionRef": {"name": "main", "namespace": "kafka"}}, id="connection-by-its-namespace"),
    ],
)
def test_digest_stays(changes: dict[str, Any]) -> None:
    """What does not decide which groups match leaves the digest, so that nothing is observed anew."""
    assert _policy(**changes).digest == _policy().digest


def test_digest_does_not_depend_on_the_order_of_lists() -> None:
    """A tool that formats or sorts YAML restarts nothing."""
    lists = {
        "groups": ["a-*", "b-*"],
        "exclude": ["c", "d"],
        "states": ["Empty", "Dead"],
        "types": ["Classic", "Share"],
        "unprotect": ["Connect", "Share"],
    }
    turned = {name: items[::-1] for name, items in lists.items()}
    assert _policy(match=lists).digest == _policy(match=turned).digest
    for name, items in lists.items():
        fewer = {**lists, name: items[:1] if name != "types" else ["Share"]}
        assert _policy(match=fewer).digest != _policy(match=lists).digest


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"match": {"groups": ["a*"]}}, id="groups"),
        pytest.param({"match": {"groups": ["*"], "exclude": ["a*"]}}, id="exclude"),
        pytest.param({"when": {"unchangedFor": "71h"}}, id="when"),
        pytest.param({"when": {"idleFor": "72h"}}, id="idle-instead"),
        pytest.param({"when": {"unchangedFor": "72h", "idleFor": "72h"}}, id="idle-too"),
        pytest.param({"when": {"unchangedFor": "72h", "expiresWithin": "1h"}}, id="expires-too"),
        pytest.param({"when": {"unchangedFor": "72h", "lag": {"atLeast": 1}}}, id="lag-too"),
        pytest.param({"when": {"unchangedFor": "72h", "committedOffsets": "OutOfRange"}}, id="range-too"),
        pytest.param({"action": "Alert"}, id="action"),
        pytest.param({"connectionRef": {"name": "other"}}, id="connection"),
        pytest.param({"delete": {"gracePeriod": "23h"}}, id="grace"),
    ],
)
def test_digest_changes(changes: dict[str, Any]) -> None:
    """What decides which groups match changes the digest: what was observed for another question does not count."""
    assert _policy(**changes).digest != _policy().digest


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        pytest.param(None, Limits(50, 20), id="none"),
        pytest.param(Limits(10, 100), Limits(10, 20), id="stricter-per-run"),
        pytest.param(Limits(10_000, 5), Limits(50, 5), id="stricter-percent"),
        pytest.param(Limits(10_000, 100), Limits(50, 20), id="looser"),
    ],
)
def test_stricter_limits(connection: Limits | None, expected: Limits) -> None:
    """Of two limits the stricter counts, each by itself."""
    assert Limits().stricter(connection) == expected
