"""`python -m testing.faults`: runs all scenarios, and reports the results. Exit code 0 = all passed."""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import click

from group_hygiene.process.start import start
from testing.faults import hostile, leaders, tenants
from testing.faults.auditor import Audit
from testing.faults.errors import FaultsError
from testing.faults.guards import GUARDS, Guard
from testing.faults.scenarios import SCENARIOS, Scenario
from testing.faults.stage import DOORS, Brokers, Stage
from testing.faults.steps import loop, points
from testing.sandbox.errors import SandboxError
from testing.sandbox.kafka import KafkaCluster, Security

KILLS, FREEZES = 225, 45
_SMOKE_KILLS, _SMOKE_FREEZES = 15, 5
_MINUTES, _SMOKE_MINUTES = 5.0, 1.0
# They use all processors, which could expire the short leases of other worlds.
_HEAVY = {hostile.hostile_objects, leaders.leaders_move, tenants.random_tenants}
_PRINTING = threading.Lock()
_STARTED = time.monotonic()


@dataclass
class Result:
    """The result for one line of the report."""

    name: str
    tried: int = 0
    audit: Audit = field(default_factory=Audit)
    failures: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.failures and not self.audit.problems


def main() -> int:
    start()
    options = _options()
    everything = not options.only and not options.without
    names = _smoke() if options.smoke else _names()
    only = set(options.only or (names if everything else ()))
    without = set(options.without or ([guard.name for guard in GUARDS] if everything else ()))
    results = []
    with KafkaCluster(security=Security(doors=DOORS)) as kafka:
        for what, count in (("kill", options.kills), ("freeze", options.freezes)):
            if what in only:
                results.append(_loop(kafka, what, count, options.jobs))
        stage = partial(Stage, shared=Brokers(kafka), say=say, seed=options.seed, seconds=60 * options.minutes)
        results += _scenarios(stage, [each for each in SCENARIOS if each.name in only], options.jobs)
        guards = _guards(stage, [guard for guard in GUARDS if guard.name in without], options.jobs)
    return _report(results, guards)


def _names() -> list[str]:
    return ["kill", "freeze", *(scenario.name for scenario in SCENARIOS)]


def _smoke() -> list[str]:
    """Kills, freezes, the shortest scenario of each module, which is listed last, and a minute of random tenants.

    Without scenarios that need much memory or take minutes.
    """
    last = {scenario.run.__module__: scenario.name for scenario in SCENARIOS if scenario.run not in _HEAVY}
    return ["kill", "freeze", *last.values(), Scenario(tenants.random_tenants).name]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m testing.faults", description=__doc__)
    parser.add_argument("--kills", type=int, help=f"over all steps of a deletion ({KILLS})")
    parser.add_argument("--freezes", type=int, help=f"the same, frozen and continued ({FREEZES})")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help=f"one scenario of each family, {_SMOKE_KILLS} kills, {_SMOKE_FREEZES} freezes, and all guards",
    )
    parser.add_argument("--jobs", type=int, default=5, help=f"worlds at a time, at most {DOORS} (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=_names(), metavar="SCENARIO", help=", ".join(_names()))
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of random-tenants (by chance)")
    parser.add_argument("--minutes", type=float, help=f"of random-tenants ({_MINUTES}; with --smoke {_SMOKE_MINUTES})")
    parser.add_argument("--without", nargs="+", choices=[guard.name for guard in GUARDS], help="take out a guard")
    options = parser.parse_args()
    usual = (_SMOKE_KILLS, _SMOKE_FREEZES) if options.smoke else (KILLS, FREEZES)
    options.kills = usual[0] if options.kills is None else options.kills
    minutes = _SMOKE_MINUTES if options.smoke else _MINUTES
    options.minutes = minutes if options.minutes is None else options.minutes
    options.freezes = usual[1] if options.freezes is None else options.freezes
    return options


def say(text: str) -> None:
    with _PRINTING:
        click.echo(f"{time.monotonic() - _STARTED:6.0f} s  {text}")


def _loop(kafka: KafkaCluster, what: str, count: int, jobs: int) -> Result:
    tally = loop(kafka, jobs, list(points(what, count)), say)
    if tally.tried < count:
        tally.failed(f"only {tally.tried} of {count} were tried")
    return Result(f"{what} at each step of a deletion", tally.tried, tally.audit, tally.failures)


def _scenarios(stage: Callable[..., Stage], scenarios: Sequence[Scenario], jobs: int) -> list[Result]:
    """Run the scenarios; heavy ones come last, one at a time."""
    light = [scenario for scenario in scenarios if scenario.run not in _HEAVY]
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda scenario: _one(stage, scenario), light))
    return results + [_one(stage, scenario) for scenario in scenarios if scenario.run in _HEAVY]


def _one(make: Callable[..., Stage], scenario: Scenario, without: str = "") -> Result:
    stage = make(f"without-{without}".replace("+", "-") if without else scenario.name, without=without)
    result = Result(scenario.name)
    started = time.monotonic()
    if not without:
        say(f"{scenario.name}: {scenario.sentence}")
    try:
        scenario.run(stage)
    except (FaultsError, SandboxError) as error:
        result.failures.append(str(error))
    except Exception:
        # An error in a scenario must not end the others.
        result.failures.append(traceback.format_exc())
    result.tried, result.audit = stage.tried, stage.audit
    if not without:
        say(f"{scenario.name}: {'passed' if result.passed else 'FAILED'} after {time.monotonic() - started:.0f} s")
        for problem in _problems(result):
            say(f"  {problem}")
    return result


def _guards(stage: Callable[..., Stage], guards: Iterable[Guard], jobs: int) -> list[Result]:
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda guard: _guard(stage, guard), guards))


def _guard(stage: Callable[..., Stage], guard: Guard) -> Result:
    """Run the guard's scenario without the guard: the auditor must find errors."""
    found = _one(stage, Scenario(guard.scenario), guard.name)
    count = guard.count(found.audit)
    result = Result(f"without {guard.name}: {guard.figure} {count}", found.tried)
    if not count:
        result.failures = [f"{guard.figure}: 0, as with the guard", *_problems(found)]
    say(f"{result.name}{'' if count else ', which must not be 0'}")
    return result


def _problems(result: Result) -> Iterator[str]:
    yield from result.failures
    yield from result.audit.problems


def _report(results: list[Result], guards: list[Result]) -> int:
    every = [*results, *guards]
    click.echo(f"\n{'scenario':44} {'faults':>6} {'deleted':>8}")
    for result in every:
        deletions = result.audit.deletions or ""
        click.echo(f"{result.name:44} {result.tried:6} {deletions:>8}  {'' if result.passed else 'FAILED'}")
        for problem in _problems(result):
            click.echo(f"    {problem}")
    total = Audit()
    for result in results:
        total.add(result.audit)
    failed = sum(not result.passed for result in every)
    click.echo(
        f"\nfaults tried {sum(result.tried for result in every)}, groups wrongly deleted {len(total.wrong)}, "
        f"backups missing {len(total.no_backup)}, deletions unrecorded {len(total.unrecorded)}"
    )
    click.echo(f"{len(every) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
