"""`group-hygiene backtest` and `report` as users run them: what they answer, where, and what they say is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

from group_hygiene.cli import backtests, main
from group_hygiene.cli.manifests import read_manifests
from group_hygiene.cli.output import show
from group_hygiene.errors import HygieneError
from group_hygiene.observe.findings import printable
from group_hygiene.pipeline.backtest.run import backtest as run
from group_hygiene.pipeline.tables import ACTIVITY, COMMITS, GROUP_STATES
from testing.sandbox.spark.jars import jars
from tests.findings import HOSTILE
from tests.spark.histories import Bronze, classic, commit, moment

SECONDS = 300
DOCS = Path(__file__).parents[2] / "docs" / "cli-reference.md"
API_VERSION = "grouphygiene.io/v1alpha1"


class Answer(NamedTuple):
    """What one call of the program left behind."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """What it says is wrong, without the progress."""
        return [line for line in self.err.splitlines() if line.startswith("Error: ")]


def program(*arguments: object) -> Answer:
    """In a process of its own, with a Spark of its own."""
    command = [sys.executable, "-m", "group_hygiene.cli", *(str(argument) for argument in arguments)]
    command += ["--jars", str(jars()), "--memory", "1g", "--master", "local[2]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert "Traceback" not in done.stderr
    return Answer(done.returncode, done.stdout, done.stderr)


def called(*arguments: object) -> Answer:
    """In this process, where it must end before Spark starts."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


class Asked:
    """`backtest` with these arguments, in the session that all tests share; from there on as the program does it."""

    def __init__(self, spark: SparkSession, warehouse: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._spark, self._warehouse, self._capsys = spark, warehouse, capsys

    def __call__(self, *arguments: object) -> Answer:
        words = [*(str(argument) for argument in arguments), "--warehouse", self._warehouse]
        params = backtests.backtest.make_context("backtest", words).params
        names = [each.name for each in fields(backtests.BacktestOptions) if each.name in params]
        chosen = backtests.BacktestOptions(**{name: params[name] for name in names})
        manifests = read_manifests(chosen.files, chosen.namespace)
        policies, errors = backtests._triable(manifests, chosen.offsets_retention)
        found = run(self._spark, self._warehouse, policies, backtests._terms(manifests, chosen))
        code = show(backtests.answer(found, manifests, errors, chosen), chosen.output)
        return Answer(code, *self._capsys.readouterr())


def policy(name: str = "idle", **spec: Any) -> dict[str, Any]:
    """Delete after two hours without use and one of grace."""
    whole: dict[str, Any] = {
        "connectionRef": {"name": "main"},
        "match": {"groups": ["*"]},
        "when": {"idleFor": "2h"},
        "action": "Delete",
    } | spec
    if whole["action"] == "Delete":
        whole["delete"] = {"gracePeriod": "1h"} | whole.get("delete", {})
    return {
        "apiVersion": API_VERSION,
        "kind": "GroupPolicy",
        "metadata": {"name": name, "namespace": "kafka"},
        "spec": whole,
    }


def connection(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "KafkaConnection",
        "metadata": {"name": "main", "namespace": "kafka"},
        "spec": {"bootstrapServers": ["kafka:9092"]} | spec,
    }


def file_of(folder: Path, *objects: Mapping[str, Any]) -> Path:
    file = folder / "policies.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    return file


@pytest.fixture
def ask(spark: SparkSession, lived: str, capsys: pytest.CaptureFixture[str]) -> Asked:
    return Asked(spark, lived, capsys)


@pytest.fixture
def without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that Spark does not start: that there is no Java would be said first."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))


def tables(out: str) -> list[list[str]]:
    """The tables of an answer, each as its lines."""
    return [table.splitlines() for table in out.split("\n\n")]


def test_the_answer(lived: str, tmp_path: Path) -> None:
    """What can be tried is told on stdout, the rest on stderr; what can't be tried is named, as an error.

    More regret than --max-regret is told by the exit code all the same.
    """
    alert = policy("alert", action="Alert", match={"groups": ["*"], "states": ["Empty"]})
    topics = policy("topics", when={"idleFor": "2h", "deletedTopics": "All"})
    expires = policy("expires", when={"idleFor": "2h", "expiresWithin": "24h"})
    file = file_of(tmp_path, policy(), topics, alert, expires)
    log = tmp_path / "spark.log"
    arguments = ("-f", file, "--warehouse", lived, "--step", "1h", "--max-regret", 0, "--log-file", log)
    said = program("backtest", *arguments)
    assert said.code == 3
    assert said.errors == [
        "Error: GroupPolicy kafka/topics: when.deletedTopics can't be tried on the past: the tables don't record which "
        "topics existed",
        "Error: GroupPolicy kafka/expires: when.expiresWithin needs the brokers' offsets.retention.minutes: give "
        "--offsets-retention",
    ]
    assert said.err.count("Note: ") == 4
    assert re.search(r"Note: the files that were read have [0-9,]+ bytes\n", said.err)
    assert "Note: 1 deletion would have been regretted, and --max-regret is 0" in said.err
    days, regrets, periods, graces, patterns, alerts = tables(said.out)
    assert [line.rstrip() for line in days] == [
        "GroupPolicy kafka/idle (Delete): 25 steps, from 2026-11-20T12:00:00Z to 2026-11-21T12:00:00Z",
        "  it would have deleted 4 groups; 1 of them was used again later",
        "  LimitExceeded at 3 steps: 2 of 5 groups at 2026-11-20T16:00:00Z, more than maxPercent 20: no group is "
        "deleted until that is raised",
        "AT                    GROUPS  MATCHED  MARKED  DELETED  REGRET",
        "2026-11-20T15:00:00Z       5        2       3        0       0",
        "2026-11-20T16:00:00Z       5        1       1        2       1",
        "2026-11-20T17:00:00Z       5        1       1        1       0",
        "2026-11-20T18:00:00Z       5        0       0        1       0",
        "2026-11-21T12:00:00Z       6        0       0        0       0",
    ]
    assert [re.split("  +", line) for line in regrets] == [
        ["REGRETTED GROUP", "DELETED", "CAME BACK", "AFTER", "BY"],
        ["weekly", "2026-11-20T15:20:00Z", "2026-11-20T18:30:01Z", "3h10m1s", "Join"],
    ]
    assert [line.split() for line in periods[:3]] == [
        ["IDLE-FOR", "DELETED", "REGRET"],
        ["1h", "5", "1"],
        ["2h", "4", "1", "<-", "as", "in", "the", "policy"],
    ]
    assert [line.split()[:3] for line in graces if "<- as in the policy" in line] == [["1h", "4", "1"]]
    assert graces[0].split() == ["GRACE-PERIOD", "DELETED", "REGRET"]
    assert [re.split("  +", line) for line in patterns] == [
        ["PATTERN", "DELETED", "REGRET", "LEAST PERIOD WITHOUT REGRET"],
        ["console-consumer-*", "3", "0", "1h"],
        ["weekly", "1", "1", "6h"],
        ["expired", "0", "0", "1h"],
    ]
    assert alerts[1] == "  it would have reported up to 4 groups at a time"
    assert log.exists()


def keys(value: Any) -> Iterator[str]:
    """The names of all fields, but for those that are verdicts."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield name
            if name != "lastStep":
                yield from keys(child)
    elif isinstance(value, list):
        for child in value:
            yield from keys(child)


def test_json_is_as_documented(lived: str, tmp_path: Path) -> None:
    """It has the very fields of docs/cli-reference.md; more regret than allowed makes it end with 3."""
    arguments = ("--warehouse", lived, "--step", "1h", "-o", "json", "--log-file", tmp_path / "spark.log")
    said = program("backtest", "-f", file_of(tmp_path, policy()), "--max-regret", 0, *arguments)
    assert (said.code, said.errors) == (3, [])
    found = json.loads(said.out)
    (documented,) = re.findall(r"\n## group-hygiene backtest\n.*?\nJSON: (.*?)\n\n", DOCS.read_text(), re.DOTALL)
    assert {*keys(found)} == {*re.findall(r"`(\w+)(?:\[\])?`", documented)}
    (one,) = found.pop("policies")
    assert found == {
        "clusterID": "cluster",
        "historyBegan": "2026-11-20T12:00:00Z",
        "readAt": "2026-11-21T12:00:00Z",
        "from": "2026-11-20T12:00:00Z",
        "to": "2026-11-21T12:00:00Z",
        "step": "1h",
        "bytesScanned": sum(table.size(lived) for table in (ACTIVITY, COMMITS, GROUP_STATES)),
        "errors": [],
    }
    assert (one["namespace"], one["name"], one["action"], one["deleted"], one["regret"]) == (
        *("kafka", "idle", "Delete", 4, 1),
    )
    assert len(one["steps"]) == 25
    assert one["steps"][4] == {
        **{"at": "2026-11-20T16:00:00Z", "groups": 5, "matched": 1, "marked": 1, "deleted": 2, "regret": 1},
    }
    assert one["regrets"] == [
        {
            "group": "weekly",
            "pattern": "weekly",
            "markedAt": "2026-11-20T14:20:00Z",
            "deletedAt": "2026-11-20T15:20:00Z",
            "cameBackAt": "2026-11-20T18:30:01Z",
            "by": "Join",
        }
    ]
    assert one["periods"]["field"] == "idleFor"
    assert one["periods"]["tried"][1] == {"period": "2h", "deleted": 4, "regret": 1}
    assert one["gracePeriods"][0] == {"period": "1h", "deleted": 4, "regret": 1}
    first = one["patterns"][0]
    assert (first["pattern"], first["leastWithoutRegret"]) == ("console-consumer-*", "1h")
    assert first["tried"][0] == {"period": "1h", "deleted": 3, "regret": 0}
    # `late` has just come; who is deleted here was there until the end in truth.
    assert one["lastStep"] == {"Match": 4, "TooRecent": 2}


@pytest.mark.parametrize(("most", "code"), [(0, 3), (1, 0), (None, 0)], ids=["above", "at", "not-given"])
def test_regret_that_is_allowed(ask: Asked, tmp_path: Path, most: int | None, code: int) -> None:
    """The names of the groups that would be missed; it ends with 3 where they are more than that many."""
    allowed = () if most is None else ("--max-regret", most)
    said = ask("-f", file_of(tmp_path, policy()), "--step", "1h", "-o", "name", *allowed)
    assert (said.code, said.out) == (code, "weekly\n")
    assert ("--max-regret is 0" in said.err) is (code == 3)


def test_none_is_missed(ask: Asked, tmp_path: Path) -> None:
    """No table of regret, and no name."""
    file = file_of(tmp_path, policy(match={"groups": ["console-consumer-*"]}))
    said = ask("-f", file, "--step", "1h", "--max-regret", 0)
    assert said.code == 0
    assert "  it would have deleted 3 groups; none of them was used again" in said.out.splitlines()
    assert "REGRETTED" not in said.out
    assert ask("-f", file, "--step", "1h", "-o", "name").out == ""
    without_groups = ask("-f", file_of(tmp_path, policy(match={"groups": ["nobody-*"]})), "--step", "1h")
    assert "  it would have deleted 0 groups; so there is no regret" in without_groups.out.splitlines()


def test_the_connection_protects(ask: Asked, tmp_path: Path) -> None:
    """Whom a KafkaConnection of the files protects is kept; one of another name, or namespace, says nothing."""
    other = connection() | {"metadata": {"name": "main", "namespace": "other"}, "spec": PROTECTS}
    for objects, regret in (([policy(), connection(**PROTECTS)], 0), ([policy(), other], 1)):
        found = json.loads(ask("-f", file_of(tmp_path, *objects), "--step", "1h", "-o", "json").out)["policies"][0]
        assert found["regret"] == regret
        assert found["lastStep"].get("Protected", 0) == 1 - regret


@pytest.mark.parametrize(
    ("namespace", "spec", "says"),
    [
        pytest.param("kafka", {"limits": {"minIdleFor": "20h"}}, "when.idleFor is 20h", id="floor"),
        pytest.param(
            "team",
            {
                "access": [{"namespaces": {"names": ["team"]}, "groups": ["none-*"], "actions": ["Delete"]}],
                "limits": {"minIdleFor": "1h", "minGracePeriod": "1h"},
            },
            "",
            id="granted-other-groups",
        ),
        pytest.param(
            "team",
            {
                "access": [
                    {
                        "namespaces": {"selector": {"matchLabels": {"a": "b"}}},
                        "groups": ["none-*"],
                        "actions": ["Delete"],
                    }
                ]
            },
            "",
            id="granted-by-labels",
        ),
        pytest.param("team", {}, "CrossNamespaceRefused", id="not-granted"),
    ],
)
def test_a_policy_is_tried_as_it_would_run(
    ask: Asked, tmp_path: Path, namespace: str, spec: dict[str, Any], says: str
) -> None:
    """What the KafkaConnection of the files takes from it would not be deleted either."""
    tried = policy(connectionRef={"name": "main", "namespace": "kafka"})
    tried["metadata"]["namespace"] = namespace
    said = ask("-f", file_of(tmp_path, tried, policy("own"), connection(**spec)), "--step", "1h", "-o", "json")
    found = {each["name"]: each for each in json.loads(said.out)["policies"]}
    assert says in said.err
    assert ("idle" in found) is (says != "CrossNamespaceRefused")
    if "idle" in found and namespace == "team":
        # Labels are not known here: such a policy is tried as it is.
        assert found["idle"]["deleted"] == (0 if "limits" in spec else found["own"]["deleted"])


PROTECTS = {"bootstrapServers": ["kafka:9092"], "protect": ["week*"]}


@pytest.mark.parametrize(
    ("own", "of_all", "expected"),
    [
        pytest.param({"maxPercent": 100}, {}, [], id="none"),
        pytest.param({"maxPercent": 40}, {}, [], id="as-many-as-allowed"),
        pytest.param({"maxPercent": 39}, {"maxPercent": 90}, ["LimitExceeded at 1 step: 2 of 5 groups"], id="percent"),
        pytest.param({"maxPercent": 100}, {"maxPercent": 39}, ["LimitExceeded at 1 step: 2 of 5 groups"], id="of-all"),
        pytest.param(
            {"maxPercent": 100}, {"maxPerRun": 1}, ["maxPerRun 1 spreads 2 deletions over 2 runs"], id="a-run"
        ),
    ],
)
def test_limits(ask: Asked, tmp_path: Path, own: dict[str, int], of_all: dict[str, int], expected: list[str]) -> None:
    """It is told what limits would have held back, the policy's and those of a KafkaConnection in the files."""
    file = file_of(tmp_path, policy(delete=own), connection(limits=of_all))
    days = tables(ask("-f", file, "--step", "1h").out)[0]
    lines = days[2 : next(number for number, line in enumerate(days) if line.startswith("AT "))]
    assert [line.strip()[: len(start)] for line, start in zip(lines, expected, strict=True)] == expected


def test_expires_within(ask: Asked, tmp_path: Path) -> None:
    """It can be tried where it is told how long the brokers keep offsets; `weekly` has none that could expire."""
    file = file_of(tmp_path, policy(when={"idleFor": "2h", "expiresWithin": "24h"}))
    said = ask("-f", file, "--step", "1h", "--offsets-retention", "1d", "-o", "json")
    assert said.code == 0
    assert json.loads(said.out)["policies"][0]["deleted"] == 3


def test_times_of_another_zone(ask: Asked, tmp_path: Path) -> None:
    """Are told in UTC, as all others are."""
    times = ("--from", "2026-11-20T16:00:00+02:00", "--to", "2026-11-20T10:00:00-10:00")
    found = json.loads(ask("-f", file_of(tmp_path, policy()), "--step", "1h", "-o", "json", *times).out)
    assert (found["from"], found["to"]) == ("2026-11-20T14:00:00Z", "2026-11-20T20:00:00Z")
    assert found["policies"][0]["steps"][0]["at"] == "2026-11-20T14:00:00Z"


HELD = "the tables hold the history from 2026-11-20T12:00:00Z to 2026-11-21T12:00:00Z"


@pytest.mark.parametrize(
    ("arguments", "idle_for", "message"),
    [
        pytest.param(
            "--from 2030-01-01", "2h", f"--from 2030-01-01T00:00:00Z is later than the log was read: {HELD}", id="from"
        ),
        pytest.param(
            "--to 2030-01-01", "2h", f"--to 2030-01-01T00:00:00Z is later than the log was read: {HELD}", id="to"
        ),
        pytest.param(
            "--from 2026-11-21 --to 2026-11-20T13:00:00Z",
            "2h",
            f"--from 2026-11-21T00:00:00Z is after --to 2026-11-20T13:00:00Z: that range is empty; {HELD}",
            id="empty",
        ),
        pytest.param(
            "--from 2026-11-21",
            "2h",
            "between 2026-11-21T00:00:00Z and 2026-11-21T12:00:00Z there is no step of 24h: take a shorter --step, or "
            f"a longer range; {HELD}",
            id="step",
        ),
        pytest.param(
            "",
            "48h",
            "GroupPolicy kafka/idle: the history from 2026-11-20T12:00:00Z on is 24h long, shorter than its idleFor "
            "and gracePeriod of 49h: regrets would be unknown. The tables go back to "
            "2026-11-20T12:00:00Z, which is enough from 2026-11-22T13:00:00Z on",
            id="short",
        ),
    ],
)
def test_what_the_tables_cannot_tell(ask: Asked, tmp_path: Path, arguments: str, idle_for: str, message: str) -> None:
    """Is said in one sentence, with what they can."""
    with pytest.raises(HygieneError) as raised:
        ask("-f", file_of(tmp_path, policy(when={"idleFor": idle_for})), *arguments.split())
    assert str(raised.value) == message


@pytest.mark.usefixtures("without_java")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param("-f {file} --warehouse {file}", "--warehouse {file} is not a folder", id="warehouse-is-a-file"),
        pytest.param("-f {file}", "Missing option '--warehouse'", id="no-warehouse"),
        pytest.param("--warehouse {folder}", "Missing option '-f'", id="no-file"),
        pytest.param("-f {file} --warehouse {folder} --step 0", "'0' is not a duration like 30d", id="step-0"),
        pytest.param("-f {file} --warehouse {folder} --step 0s", "it must be from 1ms to 3650d", id="step-0s"),
        pytest.param("-f {file} --warehouse {folder} --step soon", "'soon' is not a duration like 30d", id="step"),
        pytest.param(
            "-f {file} --warehouse {folder} --from soon", "a day like 2030-01-31, or a duration like 30d", id="from"
        ),
        pytest.param("-f {file} --warehouse {folder} --from 30x", "'30x' is not a time like", id="ago"),
        pytest.param(
            "-f {file} --warehouse {folder} --from 0001-01-01T00:00:00+05:00", "can't be converted to UTC", id="first"
        ),
        pytest.param("-f {file} --warehouse {folder} --from 2026-11-20T00:00:00", "has no time zone", id="no-zone"),
        pytest.param("-f {file} --warehouse {folder} --max-regret -1", "-1 is not in the range", id="regret"),
        pytest.param("-f {folder}/none.yaml --warehouse {folder}", "none.yaml can't be read", id="no-such-file"),
        pytest.param("-f {bad} --warehouse {folder}", "bad:1: is not valid YAML", id="no-yaml"),
        pytest.param("-f {other} --warehouse {folder}", "there is no GroupPolicy in {other}", id="no-policy"),
        pytest.param(
            "-f {topics} --warehouse {folder}", "kafka/topics: when.deletedTopics can't be tried", id="none-left"
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, arguments: str, says: str) -> None:
    """In one sentence, with exit code 1, before Spark starts."""
    names = {name: tmp_path / name for name in ("folder", "file", "bad", "other", "topics")}
    names["folder"].mkdir()
    names["file"].write_text(yaml.safe_dump(policy()))
    names["bad"].write_text("spec: [")
    names["other"].write_text(yaml.safe_dump(connection()))
    names["topics"].write_text(yaml.safe_dump(policy("topics", when={"idleFor": "2h", "deletedTopics": "All"})))
    said = called("backtest", "--log-file", tmp_path / "spark.log", *arguments.format(**names).split())
    assert (said.code, said.out, len(said.errors)) == (1, "", 1)
    assert says.format(**names) in said.errors[0]
    assert not (tmp_path / "spark.log").exists()


def test_there_are_no_tables(tmp_path: Path) -> None:
    """It is said what to do, and neither the folder nor anything in it is made."""
    warehouse = tmp_path / "warehouse"
    file, log = file_of(tmp_path, policy()), tmp_path / "spark.log"
    said = program("backtest", "-f", file, "--warehouse", warehouse, "--log-file", log)
    assert (said.code, said.out) == (1, "")
    assert said.errors == [f"Error: there are no tables at {warehouse} yet: run `group-hygiene pipeline run` first"]
    assert {path.name for path in tmp_path.iterdir()} == {file.name, log.name}


def test_a_report(spark: SparkSession, tmp_path: Path) -> None:
    """Of groups with any names, after a first run of the pipeline: nothing is suggested yet, and the page says why.

    It takes the place of what was there; a link stays one.
    """
    warehouse, folder, log = tmp_path / "warehouse", tmp_path / "reports", tmp_path / "spark.log"
    lives = {name: [classic(-9 * DAY, 1), commit(-8 * DAY), classic(-8 * DAY, 0)] for name in HOSTILE}
    Bronze(spark, str(warehouse), moment(5 * 3600)).write(lives)
    folder.mkdir()
    file, link = folder / "report.html", tmp_path / "link.html"
    file.write_text("before")
    link.symlink_to(file)
    connection = tmp_path / "connection.yaml"
    owners = [{"name": "everything", "groups": ["*"]}]
    spec = {"bootstrapServers": ["kafka:9092"], "owners": owners}
    head = {"apiVersion": "grouphygiene.io/v1alpha1", "kind": "KafkaConnection", "metadata": {"name": "main"}}
    connection.write_text(json.dumps(head | {"spec": spec}))
    said = program(
        "report", "--warehouse", warehouse, "--connection-file", connection, "--output-file", link, "--log-file", log
    )
    assert (said.code, said.out, said.errors) == (0, "", [])
    page = file.read_text(encoding="utf-8")
    note = "The history in the tables is 19 h long: policies are suggested here once the pipeline has run for 14 days."
    assert note in page
    assert f"Note: {note}" in said.err
    (data,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    units = json.loads(data)["units"]
    assert {row[0] for unit in units for row in unit["rows"]} == {printable(name) for name in HOSTILE}
    assert {unit["sort"][1] for unit in units} == {"everything"}
    assert page.rstrip().endswith("</html>")
    beside = ["report.csv", file.name, "report.json"]
    assert (link.is_symlink(), sorted(path.name for path in folder.iterdir())) == (True, beside)
    numbers = json.loads((folder / "report.json").read_text())
    assert (numbers["groups"], numbers["clusterId"]) == (len(HOSTILE), "cluster")
    since = ("--since", folder / "report.json")
    said = program("report", "--warehouse", warehouse, *since, "--output-file", link, "--log-file", log)
    assert (said.code, said.errors) == (0, [])
    assert "Since the report of" in file.read_text(encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(numbers | {"clusterId": "another"}))
    said = program("report", "--warehouse", warehouse, *since, "--output-file", link, "--log-file", log)
    assert (said.code, said.errors) == (1, [f"Error: {folder / 'report.json'} is of another cluster, 'another'"])


DAY = 86_400.0


def test_no_tables_no_report(tmp_path: Path) -> None:
    """The report that was there stays as it was."""
    file, log = tmp_path / "report.html", tmp_path / "spark.log"
    file.write_text("before")
    said = program("report", "--warehouse", tmp_path / "warehouse", "--output-file", file, "--log-file", log)
    assert (said.code, said.out) == (1, "")
    (error,) = said.errors
    assert error == (
        f"Error: there are no tables at {tmp_path / 'warehouse'} yet: run `group-hygiene pipeline run` first"
    )
    assert file.read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {file.name, log.name}


@pytest.mark.usefixtures("without_java")
@pytest.mark.parametrize(
    ("file", "says"),
    [
        pytest.param(
            "{folder}", "{folder} is a folder: name a file in it, as --output-file {folder}/report.html", id="folder"
        ),
        pytest.param("{folder}/none/a.html", "there is no folder {folder}/none for a.html", id="no-folder"),
        pytest.param("{folder}/file/a.html", "there is no folder {folder}/file for a.html", id="file-as-folder"),
        pytest.param("/proc/report.html", "/proc/report.html can't be written: ", id="unwritable"),
        pytest.param("{folder}/" + "x" * 300, "can't be written: File name too long", id="long"),
        pytest.param("{folder}/loop", "{folder}/loop can't be written: ", id="loop"),
        pytest.param("{folder}/pipe", "{folder}/pipe is not a regular file", id="pipe"),
        pytest.param("/dev/null", "/dev/null is not a regular file", id="device"),
        pytest.param("{folder}/a.json", "a.json is the name of a file beside the page", id="json"),
    ],
)
def test_a_file_that_cannot_be_written(tmp_path: Path, file: str, says: str) -> None:
    """Is refused before Spark starts."""
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    log = tmp_path.with_suffix(".log")
    arguments = ("--warehouse", tmp_path, "--output-file", file.format(folder=tmp_path), "--log-file", log)
    said = called("report", *arguments)
    assert (said.code, said.out, len(said.errors)) == (1, "", 1)
    assert says.format(folder=tmp_path) in said.errors[0]
    assert sorted(tmp_path.iterdir()) == before


def test_a_report_that_does_not_fit(tmp_path: Path) -> None:
    """On a disk without room for it, the one before stays, and nothing of the new one."""
    file = tmp_path / "report.html"
    file.write_text("before")
    # What a process may write at the most is, to it, like a disk that is full.
    write = "import pathlib, resource, sys; from group_hygiene.cli.spark_commands import _write; "
    write += "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)); "
    write += "_write(pathlib.Path(sys.argv[1]), 20_000 * b'x')"
    done = subprocess.run(
        [sys.executable, "-c", write, str(file)], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.stderr.splitlines()[-1].endswith(f"UsageError: {file} can't be written: File too large")
    assert (file.read_text(), [path.name for path in tmp_path.iterdir()]) == ("before", [file.name])
