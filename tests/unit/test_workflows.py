"""The workflows, which nothing here can run: GitHub would take them, and what they call is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.actionlint import lint
from sandbox.helm import helm, program
from sandbox.node.requirements import PACKAGES

ROOT = Path(__file__).parents[2]
HOME_URL = "https://docs.example.com/group-hygiene"
FILES = [*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob("examples/**/*.yml")]
WORKFLOWS = [pytest.param(file, id=str(file.relative_to(ROOT))) for file in sorted(FILES)]


def _steps(file: Path) -> Iterator[dict[str, Any]]:
    for job in yaml.safe_load(file.read_text())["jobs"].values():
        yield from job.get("steps", [])


def test_actionlint_takes_them(tmp_path: Path) -> None:
    """All of them, with the inputs of well-known actions, expressions and contexts; and it would see a mistake."""
    assert len(FILES) == 3
    checked = lint(sorted(FILES))
    assert (checked.returncode, checked.stdout) == (0, "")
    wrong = tmp_path / "wrong.yml"
    wrong.write_text((ROOT / ".github" / "workflows" / "check.yml").read_text().replace("github.ref ", "github.rfe "))
    assert 'property "rfe" is not defined' in lint([wrong]).stdout


@pytest.mark.parametrize("file", WORKFLOWS)
def test_they_say_that_they_never_ran(file: Path) -> None:
    """Who reads one is told first."""
    header = "".join(line for line in file.read_text().partition("name:")[0].splitlines())
    assert re.search(r"[Nn]ever run", header)


@pytest.mark.parametrize("file", WORKFLOWS)
def test_actions_are_pinned_by_version(file: Path) -> None:
    """By a full version, not by a branch. An action's owner may still move the tag: only a commit would hold it."""
    used = [step["uses"] for step in _steps(file) if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@v\d+\.\d+\.\d+", action)] == []


@pytest.mark.parametrize("file", WORKFLOWS)
def test_what_they_run_is_there(file: Path) -> None:
    """Each target of make, each script and each recipe; and bash can read each step."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in _steps(file):
        script = step.get("run", "")
        assert set(re.findall(r"\bmake ([a-z-]+)", script)) <= targets
        for path in re.findall(r"(?:^|\s)(\.ci/\S+|deploy/(?:images|kind)/\S+|\S+-config\.yaml)", script):
            assert (ROOT / path).is_file()
        shell = re.sub(r"\$\{\{.*?\}\}", "x", script)
        assert subprocess.run(["bash", "-n"], input=shell, text=True, check=False).returncode == 0


def _jobs_with_a_node() -> list[Any]:
    """The steps of each job that starts a Kubernetes node by itself."""
    jobs = [
        (f"{file.name}: {name}", job.get("steps", []))
        for file in FILES
        for name, job in yaml.safe_load(file.read_text())["jobs"].items()
    ]
    scripts = {name: "\n".join(step.get("run", "") for step in steps) for name, steps in jobs}
    return [
        pytest.param(steps, id=name)
        for name, steps in jobs
        if re.search(r"\.ci/run|make test-node(?!.*KUBECONFIG=)", scripts[name])
    ]


@pytest.mark.parametrize("steps", _jobs_with_a_node())
def test_a_job_with_a_node_has_what_a_node_needs(steps: list[dict[str, Any]]) -> None:
    """Root with the variables of the job, and Debian's packages."""
    script = "\n".join(step.get("run", "") for step in steps)
    assert re.findall(r".*(?:\.ci/run|make test-node).*", script) == ['sudo -E env PATH="$PATH" .ci/run']
    (installed,) = re.findall(r"sudo apt-get install -q -y (.*)", script)
    assert set(installed.split()) | {"runc"} == PACKAGES


def test_a_job_with_a_node_is_found() -> None:
    """The test before this one has something to test."""
    assert [param.id for param in _jobs_with_a_node()] == ["check.yml: check"]


def test_the_released_chart_asks_for_the_released_images(tmp_path: Path) -> None:
    """The step that packs it, really run: images are those that were pushed, links lead to the published docs."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    (packing,) = [step["run"] for step in jobs["chart"]["steps"] if "helm package" in step.get("run", "")]
    shutil.copytree(ROOT / "deploy" / "helm", tmp_path / "deploy" / "helm")
    settings = {
        "REGISTRY": "ghcr.io",
        "GITHUB_REPOSITORY_OWNER": "Some-Owner",
        "VERSION": "1.2.3",
        "HOME_URL": HOME_URL,
    }
    environment = {**os.environ, **settings, "PATH": f"{program().parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    subprocess.run(["bash", "-ec", packing], cwd=tmp_path, env=environment, capture_output=True, check=True)
    chart = tmp_path / "deploy" / "helm" / "group-hygiene"
    assert yaml.safe_load((chart / "Chart.yaml").read_text())["home"] == HOME_URL
    rules = yaml.safe_load((chart / "values.yaml").read_text())["monitoring"]["rules"]
    assert rules["runbookUrl"] == f"{HOME_URL}/runbook.html"
    pipeline = "{namespace: kafka, name: main, warehouse: x, secrets: []}"
    connections = tmp_path / "values.yaml"
    connections.write_text(f"pipeline: {{enabled: true, connections: [{pipeline}]}}")
    done = helm("template", "x", tmp_path / "group-hygiene-1.2.3.tgz", "--values", connections)
    assert set(re.findall(r"image: (\S+)", done.stdout)) == {
        f"ghcr.io/some-owner/{entry['name']}:1.2.3" for entry in jobs["images"]["strategy"]["matrix"]["include"]
    }
    (tags,) = [step["with"]["tags"] for step in jobs["images"]["steps"] if "tags" in step.get("with", {})]
    assert tags.startswith("${{ env.REGISTRY }}/${{ steps.owner.outputs.owner }}/${{ matrix.name }}:")


def test_a_release_hands_out_no_more_than_is_needed() -> None:
    """GitHub's token goes to GitHub's registry only; only PyPI is shown an identity, and when all else is there."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert text.count("secrets.GITHUB_TOKEN") == text.count("(env.REGISTRY == 'ghcr.io' && secrets.GITHUB_TOKEN)") == 2
    jobs = yaml.safe_load(text)["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["pypi"]
    assert set(jobs["pypi"]["needs"]) == {"wheel", "images", "chart"}
