"""Suggested policies, from real tables: each is a file that users can apply, and hurts nobody in all of the history."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from group_hygiene.cli.manifests import read_manifests
from group_hygiene.observe.findings import Findings, Suggestion
from group_hygiene.pipeline.backtest import run as running
from group_hygiene.pipeline.backtest.run import with_suggestions
from group_hygiene.pipeline.survey import survey
from group_hygiene.pipeline.tables import COVERAGE
from group_hygiene.spec.policy import Action, Mode, Policy
from tests.spark.histories import START, Bronze, Event, classic, commit

DAY = 86_400.0
READ_AT = START + timedelta(days=1)
# Of the history that is all there; the first step of a look a day.
HELD = 30
BEGAN = READ_AT - timedelta(days=HELD)
RETENTION = timedelta(days=90)
HOUR = timedelta(hours=1)
EACH = 10
Lives = dict[str, list[Event]]


def used(*spans: tuple[float, float], protocol_type: str = "consumer") -> list[Event]:
    """In use from one day of the history to another, each time with a commit."""
    second = [((1 - HELD + begin) * DAY, (1 - HELD + end) * DAY) for begin, end in spans]
    return [
        event
        for begin, end in second
        for event in (classic(begin, 1, protocol_type), commit(begin + 60), classic(end, 0, protocol_type))
    ]


def named(before: str, after: str = "", count: int = EACH) -> list[str]:
    """Names in which only a number differs; their pattern is that with a star for it."""
    return [f"{before}{10_000 + 37 * number}{after}" for number in range(count)]


# 22 services: what differs is a word that somebody chose.
SERVICES = [
    f"svc-{word}"
    for word in (
        *("depots", "shipping", "orders", "payments", "search", "catalog", "pricing", "basket", "checkout", "returns"),
        *("invoices", "ledger", "fraud", "identity", "mailing", "reviews", "stock", "routing", "tax", "loyalty"),
        *("gifts", "reports"),
    )
]
LIVES: Lives = {
    **{name: used((5, 5.1)) for name in named("console-consumer-")},
    # Deleted on the 8th day or later, they come back on the same; who waits longer takes them for used.
    **{name: used((5, 5.1), (8.6, 8.7)) for name in named("weekend-")},
    **{name: used((1, 1.1), (15.5, 15.6)) for name in named("fortnight-")},
    # With an idleFor of up to 6 days, they come back after they were deleted; with more, nothing is deleted.
    **{name: used((1, 1.1), (9.8, 22.9)) for name in named("slow-")},
    **{name: used((5, 5.1), protocol_type="connect") for name in named("connect-sink-")},
    **{name: used((5, 5.1)) for name in [*named("ab"), *named("few-", count=EACH - 1)]},
    **{name: used((5, 5.1)) for name in named("long-" + "x" * 300)},
    **{name: used((5, 5.1)) for name in SERVICES},
    "billing": used((5, 5.1)),
}


def written(spark: SparkSession, warehouse: str, lives: Mapping[str, Sequence[Event]], held: float = HELD) -> Findings:
    """Tables of these lives, and what the survey finds in them. held: days of which all is known."""
    Bronze(spark, warehouse, READ_AT - timedelta(days=held)).write(lives)
    return survey(spark, warehouse, RETENTION)


@pytest.fixture(scope="module")
def lived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Findings]:
    """LIVES: the warehouse, and what the survey finds in it."""
    warehouse = str(tmp_path_factory.mktemp("lived"))
    return warehouse, written(spark, warehouse, LIVES)


@pytest.fixture(scope="module")
def suggested(spark: SparkSession, lived: tuple[str, Findings]) -> Findings:
    return with_suggestions(spark, *lived)


def of(findings: Findings, pattern: str) -> Suggestion:
    (found,) = (suggestion for suggestion in findings.suggestions if suggestion.pattern == pattern)
    return found


def applied(suggestion: Suggestion, folder: Path) -> Policy:
    """The policy, as a user's file has it."""
    file = folder / "policy.yaml"
    file.write_text(suggestion.policy, encoding="utf-8")
    (policy,) = read_manifests([str(file)]).policies
    return policy


def test_unused_groups_get_a_policy(suggested: Findings, tmp_path: Path) -> None:
    """As a dry run, for that pattern alone, after a day: less is never suggested. It says what it would have done."""
    found = of(suggested, "console-consumer-{digits}")
    policy = applied(found, tmp_path)
    assert (policy.mode, policy.action, policy.when.idle_for) == (Mode.DRY_RUN, Action.DELETE, 24 * HOUR)
    assert [name for name in LIVES if policy.match.groups.matches(name)] == named("console-consumer-")
    assert (found.groups, found.idle_for, found.deleted, found.regret, found.why_not) == (EACH, 24 * HOUR, EACH, 0, "")
    summary, adapt, *_ = found.policy.splitlines()
    assert summary.startswith(f"# In the last {HELD} days: {EACH} groups deleted, none of them used again.")
    assert adapt == "# Replace namespace and connectionRef: they are placeholders."


def test_all_that_it_was_judged_by_is_written_out(suggested: Findings) -> None:
    """Nothing is left to defaults, which may be others where it is applied."""
    spec = yaml.safe_load(of(suggested, "console-consumer-{digits}").policy)["spec"]
    assert (spec["mode"], spec["interval"], spec["delete"]) == ("DryRun", "10m", {"gracePeriod": "24h"})


def test_who_comes_back_gets_the_least_that_does_not_hurt(suggested: Findings, tmp_path: Path) -> None:
    """Shorter ones are shown with whom they would have hurt."""
    found = of(suggested, "weekend-{digits}")
    hours = {period / HOUR: (deleted, regret) for period, deleted, regret in found.tried}
    assert hours == {
        # Within a day of the group's return, 48 hours and a day of grace are over.
        **dict.fromkeys((12, 24, 36, 48), (EACH, EACH)),
        **dict.fromkeys((72, 96, 144, 192), (EACH, 0)),
    }
    assert applied(found, tmp_path).when.idle_for == found.idle_for == 72 * HOUR
    assert (found.deleted, found.regret) == (EACH, 0)


def test_the_lives_of_some_that_came_back(suggested: Findings) -> None:
    """With the days of their commits, and the deletion before the next use."""
    found = of(suggested, "weekend-{digits}")
    assert len(found.lives) == 3
    for life in found.lives:
        assert life.group in LIVES
        assert life.deleted_at < life.back_at
        assert {life.back_at.date()} < {*life.used}
    assert of(suggested, "console-consumer-{digits}").lives == []


def test_units_of_several_owners_share_a_policy(spark: SparkSession, lived: tuple[str, Findings]) -> None:
    """It is for the pattern, and needs as many idle groups of all owners together."""
    warehouse, findings = lived
    (unit,) = (unit for unit in findings.units if unit.pattern == "weekend-{digits}")
    halves = [replace(unit, owner=owner, groups=EACH // 2, idle=EACH // 2) for owner in ("a", "b")]
    (found,) = with_suggestions(spark, warehouse, replace(findings, units=halves)).suggestions
    assert (found.pattern, found.groups) == ("weekend-{digits}", EACH)
    assert with_suggestions(spark, warehouse, replace(findings, units=halves[:1])).suggestions == ()


def test_who_always_comes_back_gets_none(suggested: Findings) -> None:
    """And it is said why, with the numbers."""
    found = of(suggested, "fortnight-{digits}")
    assert (found.policy, found.idle_for) == ("", None)
    assert found.why_not == "groups were used again after each idleFor"
    assert all(regret for _, _, regret in found.tried)


def test_nothing_is_suggested_that_deletes_nothing(suggested: Findings) -> None:
    """What hurts nobody since it reaches nobody is no policy."""
    found = of(suggested, "slow-{digits}")
    *short, last = [(deleted > 0, regret > 0) for _, deleted, regret in found.tried]
    assert (set(short), last) == ({(True, True)}, (False, False))
    assert (found.policy, found.idle_for) == ("", None)
    assert found.why_not == "groups were used again after each idleFor up to 6 d; a longer one deletes none"


def test_whom_no_policy_deletes(suggested: Findings) -> None:
    """Groups of Kafka Connect are idle, and kept: it is said that this is why."""
    found = of(suggested, "connect-sink-{digits}")
    assert (found.policy, found.deleted) == ("", 0)
    assert "ConnectGroup" in found.why_not


def test_who_is_worth_a_policy(suggested: Findings) -> None:
    """No pattern that may be anybody's, none of few idle groups or too long for the CRD, none that people made."""
    idle = {unit.pattern: unit.idle for unit in suggested.units}
    assert idle.keys() > {"ab{digits}", "few-{digits}", ""}
    assert idle["svc-*"] == len(SERVICES)
    wanted = {
        "console-consumer-{digits}",
        "weekend-{digits}",
        "fortnight-{digits}",
        "slow-{digits}",
        "connect-sink-{digits}",
    }
    assert {suggestion.pattern for suggestion in suggested.suggestions} == wanted
    assert (suggested.began, suggested.notes) == (BEGAN, [])


def test_why_no_policy_was_tried(
    spark: SparkSession, lived: tuple[str, Findings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pattern has a policy or a reason: its form, its groups, the limit, or a history that is too short."""
    warehouse, findings = lived
    unit = replace(findings.units[0], idle=EACH, made=True)
    reasons = {
        "": "single names",
        "*-jobs": "begins with *",
        "{uuid}": "begins with {uuid}",
        "few-{digits}": "fewer than 10 idle groups",
        "svc-*": "names look chosen by people",
        "ab{digits}": "may match unrelated groups",
        "x" * 255 + "*": "longer than 255 characters",
        "weekend-{digits}": "not tried: limit of 1 patterns",
    }
    units = [
        replace(
            unit,
            pattern=pattern,
            idle={"few-{digits}": 9, "console-consumer-{digits}": 11}.get(pattern, EACH),
            made=pattern != "svc-*",
        )
        for pattern in ("console-consumer-{digits}", *reasons)
    ]
    monkeypatch.setattr(running, "_MOST", 1)
    assert with_suggestions(spark, warehouse, replace(findings, units=units)).untried == reasons
    monkeypatch.setattr(running, "_ENOUGH", timedelta(days=HELD + 1))
    short = with_suggestions(spark, warehouse, replace(findings, units=units)).untried
    assert short == reasons | dict.fromkeys(
        ("console-consumer-{digits}", "weekend-{digits}"), "not tried: the history is too short"
    )


def test_kafka_is_faster(spark: SparkSession, lived: tuple[str, Findings]) -> None:
    """Where offsets expire before an idleFor and its grace period are over, it is not suggested."""
    warehouse, findings = lived
    findings = replace(findings, units=[one for one in findings.units if one.pattern == "weekend-{digits}"])
    # 72 hours, a day of grace, and ten minutes until somebody looks.
    enough = timedelta(hours=96, minutes=10)
    (found,) = with_suggestions(spark, warehouse, replace(findings, retention=enough)).suggestions
    assert found.idle_for == 72 * HOUR
    (found,) = with_suggestions(spark, warehouse, replace(findings, retention=enough - HOUR)).suggestions
    assert (found.idle_for, found.policy) == (None, "")
    assert found.why_not == (
        "the least idleFor without regret (3 d) and its grace period exceed Kafka's retention (95.1667 h)"
    )


AWKWARD = [
    # The name of the third, with its number, is that of the first.
    *("job-3-*", "job-*", "job_*"),
    *("yaml: \\{a: \\[b]} #*", "it's \"quoted\" '*", "- dash-*", "--- *", "\\!tag &anchor *", "null~*"),
    *("größe-π-*", "日本語のグループ*", "\U0001f600\U0001f600\U0001f600-*", "-----*", "1日本*"),
    *("two\nlines-*", "tab\t*\tand\rreturn", "back\\\\slash-*", "star-\\*-*"),
    *("nul\0del\x7fescape\x1b[31m-*", "next\x85line-*", "line\u2028separator-*", "right\u202eleft-*", "\ufeffbom-*"),
    *("x" * 254 + "*", "-" * 100 + "*", "a" * 39 + "-b-*", "%s \\{\\{ jinja }} $\\{shell} <b>*"),
]


def test_any_names(spark: SparkSession, warehouse: str, tmp_path: Path) -> None:
    """Each policy has a name of its own that Kubernetes takes, and its YAML holds the very pattern."""
    literal = [
        re.sub(r"\\([{![])", r"\1", pattern.replace("\\*", "\0\0")).replace("\\\\", "\\").partition("*")
        for pattern in AWKWARD
    ]
    names = [named(before.replace("\0\0", "*"), after) for before, _, after in literal]
    lives = {name: used((5, 5.1)) for kind in names for name in kind}
    findings = written(spark, warehouse, lives)
    for first in range(0, len(AWKWARD), 10):
        patterns = AWKWARD[first : first + 10]
        units = [replace(findings.units[0], pattern=pattern, idle=EACH, made=True) for pattern in patterns]
        found = with_suggestions(spark, warehouse, replace(findings, units=units)).suggestions
        assert {suggestion.pattern for suggestion in found} == {*patterns}
        found = sorted(found, key=lambda suggestion: patterns.index(suggestion.pattern))
        policies = [applied(suggestion, tmp_path) for suggestion in found]
        assert len({policy.name for policy in policies}) == len(patterns)
        for suggestion, policy, kind in zip(found, policies, names[first:], strict=False):
            assert yaml.safe_load(suggestion.policy)["spec"]["match"]["groups"] == [suggestion.pattern]
            assert {*kind} <= {name for name in lives if policy.match.groups.matches(name)}
            assert suggestion.policy.replace("\n", "").isprintable()


def test_history_is_too_short(spark: SparkSession, warehouse: str) -> None:
    """There is no suggestion, and it is said why and what to do."""
    findings = written(spark, warehouse, {name: used((20, 20.1)) for name in named("console-consumer-")}, held=13)
    found = with_suggestions(spark, warehouse, findings)
    assert (found.suggestions, found.began) == ((), READ_AT - timedelta(days=13))
    assert found.notes == [
        "The history in the tables is 13 d long: policies are suggested here once the pipeline has run for 14 days."
    ]
    # A part of the log that was read for the first time after another was read for the last one.
    (row,) = COVERAGE.rows(warehouse)
    late = READ_AT + HOUR
    COVERAGE.overwrite(
        warehouse,
        [row, row | {"log_partition": 1, "first_read_at": late, "read_at": late}],
        COVERAGE.version(warehouse),
    )
    (note,) = with_suggestions(spark, warehouse, findings).notes
    assert note.startswith("The history in the tables is 0 min long")


def test_history_is_just_long_enough(spark: SparkSession, warehouse: str) -> None:
    """From 14 days on, there are suggestions and no note."""
    findings = written(spark, warehouse, {name: used((20, 20.1)) for name in named("console-consumer-")}, held=15)
    found = with_suggestions(spark, warehouse, findings)
    assert (of(found, "console-consumer-{digits}").deleted, found.notes) == (EACH, [])


def test_nothing_to_try_policies_on(spark: SparkSession, warehouse: str) -> None:
    """A log that was not read to its end, or no tables at all: a note says so, and what to do."""
    lives = {name: used((5, 5.1)) for name in named("console-consumer-")}
    findings = written(spark, warehouse, lives)
    (row,) = COVERAGE.rows(warehouse)
    COVERAGE.overwrite(warehouse, [row, row | {"log_partition": 1, "read_at": None}], COVERAGE.version(warehouse))
    found = with_suggestions(spark, warehouse, findings)
    assert (found.suggestions, found.began) == ((), None)
    assert found.notes == [
        "No policy could be tried on the past: the offsets log was not read to its end yet: run `group-hygiene "
        "pipeline run` until it says complete."
    ]
    (note,) = with_suggestions(spark, f"{warehouse}-that-is-not-there", findings).notes
    assert "there are no tables at" in note
