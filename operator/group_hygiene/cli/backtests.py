"""The command `backtest`: its options and help, and results of policies that were tried on the past.

`pipeline`, imported when it runs, uses Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from group_hygiene.cli.options import as_record, duration, file_option, option, output_option, past, shared, since
from group_hygiene.cli.output import Column, Document, Report, Table, show
from group_hygiene.cli.spark_commands import SparkOptions, needs_spark, progress_printer, spark_options
from group_hygiene.errors import UsageError
from group_hygiene.spec.fields import format_duration, whole_seconds
from group_hygiene.spec.policy import Action, Policy

if TYPE_CHECKING:
    from group_hygiene.cli.manifests import Manifests
    from group_hygiene.pipeline.backtest.run import Backtest, Terms, Tried, Variant

_TOO_MUCH_REGRET = 3
# Maximum of regrets, and of patterns, in a table; JSON has more.
_SHOWN = 20
_DELETED, _REGRET = Column("DELETED", number=True), Column("REGRET", number=True)
_DAYS = (
    Column("AT"),
    *(Column(title, number=True) for title in ("GROUPS", "MATCHED", "MARKED")),
    *(_DELETED, _REGRET),
)
_REGRETS = (
    Column("REGRETTED GROUP", "group"),
    Column("MARKED", "markedAt", wide=True),
    Column("DELETED", "deletedAt"),
    Column("CAME BACK", "cameBackAt"),
    Column("AFTER", number=True),
    Column("BY"),
    Column("PATTERN", wide=True),
)
_PATTERNS = (
    Column("PATTERN"),
    *(_DELETED, _REGRET),
    Column("LEAST PERIOD WITHOUT REGRET", cell=lambda d: d["leastWithoutRegret"] or "none of these"),
)
_ASSUMPTIONS = (
    "where the tables have no data, the assumptions lead to more deletions, not fewer: each group has unread records, "
    "no MirrorMaker writes it and no object names it, no Kafka Streams topic protects it, and no limit applies"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestOptions:
    """Options of `backtest`."""

    files: tuple[str, ...] = shared(file_option)
    start: datetime | timedelta | None = option(
        "--from",
        type=since,
        metavar="TIME",
        help="Start: a day (2026-10-01), a time, or a duration before --to (30d).  [default: all]",
    )
    end: datetime | None = option(
        "--to", type=past, metavar="TIME", help="End: a day or a time.  [default: the last read of the log]"
    )
    step: timedelta = option(
        "--step",
        type=duration,
        metavar="DURATION",
        default="1d",
        show_default=True,
        help="Time steps of the output. Checks of groups follow the interval of each policy.",
    )
    max_regret: int | None = option(
        "--max-regret",
        type=click.IntRange(min=0),
        metavar="N",
        help="Exit with code 3 if more deletions than this are regretted.",
    )
    offsets_retention: timedelta | None = option(
        "--offsets-retention",
        type=duration,
        metavar="DURATION",
        help="offsets.retention.minutes of the brokers; required for expiresWithin and for the reason ExpiresFirst.",
    )
    namespace: str = option(
        "-n", "--namespace", default="default", metavar="NAME", help="Namespace of objects in files without one."
    )
    output: str = shared(output_option)
    spark: SparkOptions = shared(spark_options)


@click.command()
@as_record("chosen", BacktestOptions)
def backtest(chosen: BacktestOptions) -> int:
    """Try GroupPolicies on the past. Shows which groups each would have deleted, and which of them were used later.

    Reads only the tables of `group-hygiene pipeline`: no Kafka, no Kubernetes. The operator's own checks judge each
    group at the policy's interval, with the data of that time. A deletion is regretted if a consumer joins the group or
    commits to it later. The command also tries other periods, and shows the shortest idleFor without regret for each
    pattern of names.

    \b
    Examples:
      group-hygiene backtest -f policies/ --warehouse /data/hygiene
      group-hygiene backtest -f policy.yaml --warehouse s3a://bucket/hygiene --from 30d --max-regret 0
      group-hygiene backtest -f policy.yaml --warehouse /data/hygiene --from 14d --step 6h -o json

    Exit codes: 0 done, 1 an error, 3 more regret than --max-regret.
    """
    with needs_spark():
        from group_hygiene.pipeline import jobs
        from group_hygiene.pipeline.backtest.run import backtest as run
    from group_hygiene.cli.manifests import read_manifests

    manifests = read_manifests(chosen.files, chosen.namespace)
    policies, errors = _triable(manifests, chosen.offsets_retention)
    if not policies:
        raise UsageError("; ".join(dict.fromkeys([*errors, *_untriable(manifests, chosen.offsets_retention).values()])))
    terms = _terms(manifests, chosen)
    warehouse = jobs.warehouse_uri(chosen.spark.warehouse)
    progress = progress_printer()
    found = jobs.once(
        chosen.spark.session(),
        lambda spark: run(spark, warehouse, policies, terms, progress),
        progress,
    )
    report = answer(found, manifests, errors, chosen)
    shown = show(report, chosen.output)
    # Too much regret decides the exit code, also if another policy could not be tried.
    return report.exit_code or shown


def answer(found: Backtest, manifests: Manifests, errors: Sequence[str], chosen: BacktestOptions) -> Report:
    """The results in every format. errors: policies that were not tried, and why."""
    regretted, max_regret = sum(tried.regret for tried in found.tried), chosen.max_regret
    errors = [*errors, *found.untried]
    notes = [
        _ASSUMPTIONS,
        f"the tables end at {_time(found.reach.read_at)}: groups that are used again later are not known",
        f"the files that were read have {_counted(found.reach.bytes, 'byte')}",
    ]
    notes += [
        f"GroupPolicy {tried.policy.key}: {text}" for tried in found.tried if (text := tried.policy.stricter_note)
    ]
    untriable = _untriable(manifests, chosen.offsets_retention)
    notes += [text for text in untriable.values() if text not in errors]
    asked = chosen.start
    asked = found.steps.end - asked if isinstance(asked, timedelta) else asked
    if asked is not None and asked < found.reach.began:
        notes.append(f"there is no history before {_time(found.reach.began)}, which is later than --from")
    if found.reach.pruned:
        pruned = "the tables no longer have earlier records"
        notes.append(f"groups without use since {_time(found.reach.began)} count as unused: {pruned}")
    if found.reach.covered.complete_since:
        late = max(found.reach.covered.complete_since.values())
        notes.append(
            f"records from before {_time(late)} were lost: no group of these partitions counts as idle since an "
            "earlier time"
        )
    document = _document(found, errors)
    policies = zip(found.tried, document["policies"], strict=True)
    tables = [table for tried, each in policies for table in _tables(tried, each, manifests)]
    exit_code = 0
    if max_regret is not None and regretted > max_regret:
        exit_code = _TOO_MUCH_REGRET
        notes.append(f"{_counted(regretted, 'deletion')} would have been regretted, and --max-regret is {max_regret}")
    notes += [
        f"GroupPolicy {tried.policy.key}: only the first {len(tried.regrets):,} regrets are listed, of {tried.regret:,}"
        for tried in found.tried
        if tried.regret > len(tried.regrets)
    ]
    names = sorted({regret.group for tried in found.tried for regret in tried.regrets})
    return Report(document, names, tables, notes, errors, exit_code)


def _triable(manifests: Manifests, retention: timedelta | None) -> tuple[list[Policy], list[str]]:
    """Policies that can be tried, as they run; and errors for those that may not run, and for each that deletes and
    can't be tried: its regret is unknown.
    """
    refused = manifests.admit()
    why = _untriable(manifests, retention)
    errors = [why[one.key] for one in manifests.policies if one.key in why and one.action is Action.DELETE]
    return [policy for policy in manifests.policies if policy.key not in why], [*refused, *errors]


def _terms(manifests: Manifests, chosen: BacktestOptions) -> Terms:
    from group_hygiene.pipeline.backtest.run import Terms

    protect = {key: connection.protect for key, connection in manifests.connections.items()}
    return Terms(chosen.start, chosen.end, chosen.step, chosen.offsets_retention, protect)


def _untriable(manifests: Manifests, retention: timedelta | None) -> dict[str, str]:
    """The policies that can't be tried, by their keys, with a sentence on why."""
    from group_hygiene.pipeline.backtest.replay import untriable

    why = {policy.key: untriable(policy, retention) for policy in manifests.policies}
    return {key: f"GroupPolicy {key}: {text}" for key, text in why.items() if text is not None}


def _tables(tried: Tried, document: Document, manifests: Manifests) -> list[Table]:
    """document: see `_policy`."""
    steps = zip(tried.days, document["steps"], strict=True)
    days = [step for day, step in steps if day.marked or day.deleted or day is tried.days[-1]]
    tables = [Table.of(days, _DAYS, _heading(tried, manifests))]
    if tried.regrets:
        more = tried.regret - _SHOWN
        note = [f"  and {more:,} more: -o json has the first {len(tried.regrets):,}"] if more > 0 else []
        rows = [
            each | {"after": format_duration(whole_seconds(regret.back_at - regret.deleted_at))}
            for regret, each in zip(tried.regrets[:_SHOWN], document["regrets"], strict=False)
        ]
        tables.append(Table.of(rows, _REGRETS, note))
    own = tried.policy.when.idle_for or tried.policy.when.unchanged_for
    field = "IDLE-FOR" if tried.policy.when.idle_for else "UNCHANGED-FOR"
    for title, variants, documents, chosen in (
        (field, tried.periods, document["periods"]["tried"], own),
        ("GRACE-PERIOD", tried.graces, document["gracePeriods"], tried.policy.grace_period),
    ):
        if variants:
            # An empty text would be shown as quotes.
            marks = ["<- as in the policy" if variant.period == chosen else " " for variant in variants]
            rows = [each | {"mark": mark} for each, mark in zip(documents, marks, strict=True)]
            tables.append(Table.of(rows, (Column(title, "period"), _DELETED, _REGRET, Column("", "mark"))))
    if tried.patterns:
        tables.append(Table.of(document["patterns"][:_SHOWN], _PATTERNS))
    return tables


def _heading(tried: Tried, manifests: Manifests) -> list[str]:
    policy, days = tried.policy, tried.days
    lines = [
        f"GroupPolicy {policy.key} ({policy.action}): {_counted(len(days), 'step')}, from {_time(days[0].at)} to "
        f"{_time(days[-1].at)}"
    ]
    if policy.action is not Action.DELETE:
        return [*lines, f"  it would have reported up to {max(day.matched for day in days):,} groups at a time"]
    later = "none of them was used again"
    if tried.regret:
        later = f"{tried.regret:,} of them {'was' if tried.regret == 1 else 'were'} used again later"
    groups = _counted(tried.deleted, "group")
    lines.append(f"  it would have deleted {groups}; {later if tried.deleted else 'so there is no regret'}")
    if tried.unwatched:
        lines.append(
            f"  {_counted(tried.unwatched, 'deletion')} came too late to know whether the groups are used again"
        )
    return lines + _limits(tried, manifests)


def _limits(tried: Tried, manifests: Manifests) -> list[str]:
    """Lines on limits that would have reduced deletions: the backtest does not apply them."""
    policy = tried.policy
    connection = manifests.connections.get((policy.connection_namespace, policy.connection_name))
    limits = policy.limits.stricter(None if connection is None else connection.limits)
    lines, over, gone = [], [], 0
    for day in tried.days:
        # The history still has the groups that would have been deleted in earlier steps.
        left = max(day.deleted, day.groups - gone)
        if day.deleted * 100 > limits.max_percent * left:
            over.append((day.deleted, left, day.at))
        gone += day.deleted - day.regret
    if over:
        deleted, left, at = max(over)
        share = f"{deleted:,} of {left:,} groups at {_time(at)}"
        lines.append(
            f"  LimitExceeded at {_counted(len(over), 'step')}: {share}, more than maxPercent {limits.max_percent}: "
            "no group is deleted until that is raised"
        )
    most_at_once = max(day.deleted for day in tried.days)
    if most_at_once > limits.max_per_run:
        runs = -(-most_at_once // limits.max_per_run)
        lines.append(f"  maxPerRun {limits.max_per_run} spreads {most_at_once:,} deletions over {runs:,} runs")
    return lines


def _document(found: Backtest, errors: Sequence[str]) -> dict[str, Any]:
    return {
        "clusterID": found.reach.covered.cluster_id,
        "historyBegan": _time(found.reach.began),
        "readAt": _time(found.reach.read_at),
        "from": _time(found.steps.start),
        "to": _time(found.steps.end),
        "step": format_duration(found.steps.every),
        "bytesScanned": found.reach.bytes,
        "policies": [_policy(tried) for tried in found.tried],
        "errors": list(errors),
    }


def _policy(tried: Tried) -> dict[str, Any]:
    policy = tried.policy
    return {
        "namespace": policy.namespace,
        "name": policy.name,
        "action": str(policy.action),
        "deleted": tried.deleted,
        "regret": tried.regret,
        "unwatched": tried.unwatched,
        "steps": [
            {
                "at": _time(day.at),
                **{name: getattr(day, name) for name in ("groups", "matched", "marked", "deleted", "regret")},
            }
            for day in tried.days
        ],
        "regrets": [
            {
                "group": regret.group,
                "pattern": regret.pattern,
                "markedAt": _time(regret.marked_at),
                "deletedAt": _time(regret.deleted_at),
                "cameBackAt": _time(regret.back_at),
                "by": regret.by,
            }
            for regret in tried.regrets
        ],
        "periods": {
            "field": "idleFor" if policy.when.idle_for else "unchangedFor" if policy.when.unchanged_for else None,
            "tried": _variants(tried.periods),
        },
        "gracePeriods": _variants(tried.graces),
        "patterns": [
            {
                "pattern": pattern.pattern,
                "deleted": pattern.own.deleted,
                "regret": pattern.own.regret,
                "leastWithoutRegret": None if pattern.safe is None else format_duration(pattern.safe),
                "tried": _variants(pattern.variants),
            }
            for pattern in tried.patterns
        ],
        "lastStep": dict(tried.reasons),
    }


def _variants(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    return [{"period": format_duration(one.period), "deleted": one.deleted, "regret": one.regret} for one in variants]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _time(moment: datetime) -> str:
    """RFC 3339 in UTC; milliseconds where there are any."""
    milliseconds = moment.microsecond // 1000
    return f"{moment:%Y-%m-%dT%H:%M:%S}{f'.{milliseconds:03}' if milliseconds else ''}Z"
