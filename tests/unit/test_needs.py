"""`make test` and `make test-extra` run each test that is not slow once, and CI runs both."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from sandbox import cache, crds, helm
from sandbox.errors import NotBasic
from sandbox.kafka import KafkaCluster
from sandbox.kafka.jars import VERSIONS, jars
from sandbox.prometheus import promtool
from tests.needs import LONG_ONES, needs_more

ROOT = Path(__file__).parents[2]
TARGETS = ("test", "test-extra", "test-all")


def _recipe(target: str) -> str:
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found
    return found[1]


def _runs(target: str, marks: set[str]) -> bool:
    """Whether the target runs tests with these markers; pytest reads expressions as Python does."""
    (options,) = re.findall(r"\$\(PYTEST\)(.*) \$\(PYTEST_ARGS\)", _recipe(target))
    expression = options.strip().removeprefix("-m ").strip('"') or "True"
    known = {"slow": "slow" in marks, "extra": "extra" in marks}
    return bool(eval(expression, {}, known))  # noqa: S307


def test_each_test_runs_in_ci() -> None:
    """In one of both targets unless it is slow, and in `make test-all` in any case."""
    for slow, extra in product((set[str](), {"slow"}), (set[str](), {"extra"})):
        runs = [_runs(target, slow | extra) for target in TARGETS]
        assert runs == [not slow and not extra, not slow and bool(extra), True]
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in script if line.startswith("make ")] == ["make check", "make test-extra", "make smoke"]
    assert " test " in re.findall(r"^check:(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]


@pytest.mark.parametrize("place", sorted(LONG_ONES))
def test_what_takes_long_is_there(place: str) -> None:
    """A file, or a test in it: a new name would bring it back into `make test`."""
    folder, *names = place.split("/")
    assert len(names) in (1, 2)
    file = ROOT / "tests" / folder / f"test_{names[0]}.py"
    assert file.is_file()
    assert all(f"def test_{name}(" in file.read_text() for name in names[1:])


def test_the_markers_change_no_selection() -> None:
    """What the targets have in common is all else: folders, tests that run elsewhere, and the caller's arguments."""
    assert all(_recipe(target).count("$(PYTEST)") == 1 for target in TARGETS)
    assert "ONLY_BASIC=1 $(PYTEST)" in _recipe("test")
    assert "ONLY_BASIC" not in _recipe("test-extra") + _recipe("test-all")


def _rules() -> None:
    promtool("check")


class _Chart:
    def render(self) -> None:
        helm.helm("template")


class _SmallChart(_Chart):
    """It inherits the need."""


def _chart() -> object:
    return _SmallChart()


def _crds() -> None:
    crds.PROMETHEUS.crds()


def _old_broker() -> None:
    KafkaCluster("2.8.2")


def _broker(version: str = VERSIONS[0]) -> None:
    KafkaCluster(version)


class _Collected(pytest.Function):
    """A test as pytest collects it, of a function outside of a test."""


@pytest.mark.parametrize(
    ("function", "needs"),
    [(_rules, True), (_chart, True), (_crds, True), (_old_broker, True), (_broker, False), (jars, False)],
)
def test_what_a_test_reaches(request: pytest.FixtureRequest, function: object, needs: bool) -> None:
    """A program of Prometheus, Helm by a method, CRDs of an object, a broker of another version; not a basic one."""
    item = _Collected.from_parent(request.node.parent, name="test_it", callobj=function)
    assert needs_more(item) == needs


def test_a_need_that_was_overlooked_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `make test`, also where the cache has the program."""
    monkeypatch.setenv(cache.ONLY_BASIC, "1")
    assert jars(VERSIONS[0]).is_dir()
    with pytest.raises(NotBasic, match=r"^helm-"):
        helm.program()
    with pytest.raises(NotBasic, match=r"^kafka-2\.8\.2-"):
        jars("2.8.2")
