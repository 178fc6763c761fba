"""The workflows, which nothing here can run: GitHub would take them, and what they call is there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from readme_renderer import markdown
from trove_classifiers import classifiers

from testing.sandbox.actionlint import lint
from testing.sandbox.helm import helm, program
from testing.sandbox.node.requirements import PACKAGES

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


def test_actions_are_pinned_by_commit() -> None:
    """With the full version in a comment, and one commit for each version: an action's owner may move a tag."""
    commits: dict[str, set[str]] = {}
    for file in FILES:
        used = [step["uses"] for step in _steps(file) if "uses" in step]
        assert used
        pinned = re.findall(r"uses: ([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)$", file.read_text(), re.MULTILINE)
        assert [f"{action}@{commit}" for action, commit, _ in pinned] == used
        for action, commit, version in pinned:
            commits.setdefault(f"{action}@{version}", set()).add(commit)
    assert [version for version, found in commits.items() if len(found) > 1] == []
    assert len(set().union(*commits.values())) == len(commits)


@pytest.mark.parametrize("file", WORKFLOWS)
def test_what_they_run_is_there(file: Path) -> None:
    """Each target of make, each script and each recipe; and bash can read each step."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in _steps(file):
        script = step.get("run", "")
        assert set(re.findall(r"\bmake ([a-z-]+)", script)) <= targets
        for path in re.findall(r"(?:^|\s)(\.ci/\S+|deploy/(?:(?:images|kind)/|release)\S+|\S+-config\.yaml)", script):
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


_GITHUB = {
    "GITHUB_SERVER_URL": "https://git.example.com",
    "GITHUB_REPOSITORY": "Some-Owner/hygiene",
    "GITHUB_REPOSITORY_OWNER": "Some-Owner",
}
_SOURCE = "https://git.example.com/Some-Owner/hygiene"
EACH_HOME = pytest.mark.parametrize("home", [HOME_URL, ""], ids=["site", "no-site"])


def _run_step(job: str, words: str, folder: Path, **variables: str) -> None:
    """Run the step of release.yml whose script has these words, in this folder."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    (script,) = [step["run"] for step in jobs[job]["steps"] if words in step.get("run", "")]
    environment = {**os.environ, **_GITHUB, **variables, "HOME": str(folder)}
    environment["PATH"] = f"{program().parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@EACH_HOME
def test_the_released_chart_asks_for_the_released_images(tmp_path: Path, home: str) -> None:
    """The step that packs it, really run: images are those that were pushed, links lead to the published docs."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    shutil.copytree(ROOT / "deploy" / "helm", tmp_path / "deploy" / "helm")
    shutil.copy(ROOT / "deploy" / "release.py", tmp_path / "deploy" / "release.py")
    _run_step("chart", "helm package", tmp_path, REGISTRY="ghcr.io", VERSION="1.2.3", HOME_URL=home)
    chart = tmp_path / "deploy" / "helm" / "group-hygiene"
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert (metadata["home"], metadata.get("icon")) == (home or _SOURCE, f"{home}/icon.svg" if home else None)
    assert (metadata["sources"], [each["name"] for each in metadata["maintainers"]]) == ([_SOURCE], ["Some-Owner"])
    values = (chart / "values.yaml").read_text()
    runbook = f"{home}/runbook.html" if home else f"{_SOURCE}/blob/v1.2.3/docs/runbook.md"
    assert yaml.safe_load(values)["monitoring"]["rules"]["runbookUrl"] == runbook
    assert "not published" not in values
    readme = (chart / "README.md").read_text()
    _assert_absolute(readme, home, "1.2.3")
    assert "not published" not in readme
    assert "helm install group-hygiene oci://ghcr.io/some-owner/charts/group-hygiene --version 1.2.3 " in readme
    linted = helm("lint", "--strict", tmp_path / "group-hygiene-1.2.3.tgz")
    assert ("icon is recommended" in linted.stdout, linted.returncode) == (not home, 0)
    pipeline = "{namespace: kafka, name: main, warehouse: x, secrets: []}"
    connections = tmp_path / "values.yaml"
    connections.write_text(f"pipeline: {{enabled: true, connections: [{pipeline}]}}")
    done = helm("template", "x", tmp_path / "group-hygiene-1.2.3.tgz", "--values", connections)
    images = {f"ghcr.io/some-owner/{entry['name']}:1.2.3" for entry in jobs["images"]["strategy"]["matrix"]["include"]}
    assert set(re.findall(r"image: (\S+)", done.stdout)) == images
    annotated = yaml.safe_load(metadata["annotations"]["artifacthub.io/images"])
    assert {entry["image"] for entry in annotated} == images
    (tags,) = [step["with"]["tags"] for step in jobs["images"]["steps"] if "tags" in step.get("with", {})]
    assert tags.startswith("${{ env.REGISTRY }}/${{ steps.owner.outputs.owner }}/${{ matrix.name }}:")


def _assert_absolute(markdown: str, home: str, version: str) -> None:
    """Each link leads to the published docs, to this version of a file that is there, or to somewhere else."""
    links = re.findall(r"\]\(([^)\s]+)\)", markdown)
    assert len(links) > 10
    for link in links:
        if home and link.startswith(home):
            path = "docs" + link.removeprefix(home).partition("#")[0].replace(".html", ".md")
        elif link.startswith(_SOURCE):
            path = link.removeprefix(f"{_SOURCE}/blob/v{version}/").partition("#")[0]
            assert not (home and re.match(r"docs/.*[.]md$", path))
        else:
            assert re.match(r"https://|#", link), link
            continue
        assert (ROOT / path).exists(), link


@EACH_HOME
def test_the_page_of_the_package(tmp_path: Path, home: str) -> None:
    """PyPI renders the long description of the wheel, its links are absolute, and the addresses are known."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "deploy/release.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(
        ROOT / "operator", tmp_path / "operator", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info")
    )
    _run_step("wheel", "release.py", tmp_path, GITHUB_REF_NAME="v1.2.3", HOME_URL=home)
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    (named,) = [step for step in jobs["wheel"]["steps"] if "release.py" in step.get("run", "")]
    assert named in jobs["images"]["steps"]
    build = "import setuptools.build_meta as backend; print(backend.prepare_metadata_for_build_wheel('made'))"
    (tmp_path / "made").mkdir()
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, check=True)
    (folder,) = (tmp_path / "made").glob("*.dist-info")
    metadata = PathDistribution(folder).metadata
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = metadata["Description"]
    _assert_absolute(description, home, "1.2.3")
    assert "published yet" not in description
    assert "\npip install kafka-group-hygiene " in description
    page = markdown.render(description)
    assert page is not None
    assert re.findall(r'href="(?!https://|#)[^"]*"', page) == []
    urls = dict(entry.split(", ") for entry in metadata.get_all("Project-URL") or [])
    assert urls == {
        "Homepage": home or _SOURCE,
        "Source": _SOURCE,
        "Changelog": f"{_SOURCE}/blob/v1.2.3/CHANGELOG.md",
        **({"Documentation": f"{home}/index.html"} if home else {}),
    }
    # As a user of the package or the image sees them.
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "made")}
    address = f"{home}/patterns.html" if home else f"{_SOURCE}/blob/v1.2.3/docs/patterns.md"
    asked = [sys.executable, "-m", "group_hygiene.cli", "list", "--help"]
    shown = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True).stdout
    # click breaks lines after hyphens.
    assert f"{address}hasallplaceholders" in "".join(shown.split())
    # PyPI refuses a version with a classifier that it does not know.
    assert set(metadata.get_all("Classifier") or []) <= classifiers


def test_what_artifact_hub_reads() -> None:
    """The CRDs of the chart, and a file that says where its id comes from."""
    chart = ROOT / "deploy" / "helm" / "group-hygiene"
    annotations = yaml.safe_load((chart / "Chart.yaml").read_text())["annotations"]
    crds = [yaml.safe_load(file.read_text()) for file in sorted((chart / "files" / "crds").glob("*.yaml"))]
    named = yaml.safe_load(annotations["artifacthub.io/crds"])
    assert [(each["name"], each["kind"], each["version"]) for each in named] == [
        (crd["metadata"]["name"], crd["spec"]["names"]["kind"], crd["spec"]["versions"][0]["name"]) for crd in crds
    ]
    assert yaml.safe_load((chart.parent / "artifacthub-repo.yml").read_text()).keys() == {"repositoryID", "owners"}


def test_a_release_hands_out_no_more_than_is_needed() -> None:
    """GitHub's token goes to GitHub alone; an identity is shown to PyPI, when all else is there, and for signatures."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert text.count("secrets.GITHUB_TOKEN") == text.count("(env.REGISTRY == 'ghcr.io' && secrets.GITHUB_TOKEN)") == 2
    jobs = yaml.safe_load(text)["jobs"]
    writes = {
        name: {right for right, level in job.get("permissions", {}).items() if level == "write"}
        for name, job in jobs.items()
    }
    assert {name: rights for name, rights in writes.items() if rights} == {
        "images": {"packages", "id-token"},
        "chart": {"packages", "id-token"},
        "release": {"contents", "id-token"},
        "pypi": {"id-token"},
    }
    signs = {
        name for name, job in jobs.items() for step in job.get("steps", []) if "cosign sign" in step.get("run", "")
    }
    assert signs == writes.keys() - {"check", "wheel", "pypi"}
    assert set(jobs["pypi"]["needs"]) == {"wheel", "images", "chart", "release"}
