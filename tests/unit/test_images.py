"""The images' recipes: their steps, what they pin, and what they may copy; installed by e2e/test_operator_image.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dockerfile import IMAGES, ROOT, instructions, steps

pytestmark = pytest.mark.slow

FILES = [pytest.param(file, id=file.name) for file in sorted(IMAGES.glob("*.Dockerfile"))]
_PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)(.*?)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)", re.MULTILINE)


def _pins(lock: Path) -> set[tuple[str, str, frozenset[str]]]:
    """Each package with its version and the sums of its files."""
    text = lock.read_text()
    found = _PIN.findall(text)
    assert len(found) == text.count("==") - len(re.findall(r";.*?==", text))
    return {(name, version, frozenset(re.findall(r"sha256:(\w+)", sums))) for name, version, _, sums in found}


@pytest.mark.parametrize("file", FILES)
def test_all_steps_are_in_the_script(file: Path) -> None:
    """RUN runs stages of steps.sh, each of which there is; nothing is done that a test could not do."""
    stages = re.findall(r"^  (\w+)\)$", (IMAGES / "steps.sh").read_text(), re.MULTILINE)
    assert set(steps(file)) <= set(stages)


@pytest.mark.parametrize("file", FILES)
def test_one_base_and_no_root_user(file: Path) -> None:
    """One Debian for all, which a build may replace; the last USER is a number, as runAsNonRoot wants it."""
    all_steps = instructions(file)
    assert all_steps[0] == ("ARG", "BASE=debian:bookworm-slim")
    assert {rest.split()[0] for name, rest in all_steps if name == "FROM"} == {"${BASE}"}
    users = [rest for name, rest in all_steps if name == "USER"]
    assert re.fullmatch(r"[1-9]\d*(:\d+)?", users[-1])


def test_what_a_build_is_given_arrives() -> None:
    """Each secret of build.sh is mounted where a step reads it, and each build argument has its ARG."""
    script, read = (IMAGES / "build.sh").read_text(), (IMAGES / "steps.sh").read_text()
    files = [param.values[0] for param in FILES]
    all_steps = [each for file in files if isinstance(file, Path) for each in instructions(file)]
    given = set(re.findall(r'--secret "id=(\w+)', script))
    assert given == {secret for _, rest in all_steps for secret in re.findall(r"--mount=type=secret,id=(\w+)", rest)}
    assert given == set(re.findall(r"\$secrets/(\w+)", read))
    arguments = {rest.partition("=")[0] for name, rest in all_steps if name == "ARG"}
    assert set(re.findall(r'--build-arg "(\w+)=', script)) <= arguments


class _Index(BaseHTTPRequestHandler):
    """Has nothing, and notes what it is asked for."""

    server: _Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Index)
        self.asked: list[str] = []


@pytest.mark.parametrize(
    ("step", "secret", "text"),
    [
        pytest.param("operator", "pip", "[global]\nindex-url = {url}\n", id="pip"),
        pytest.param(
            *("jars", "maven"),
            "<settings><mirrors><mirror><id>ours</id><mirrorOf>*</mirrorOf><url>{url}</url></mirror></mirrors></settings>",
            id="maven",
        ),
    ],
)
def test_a_secret_leads_to_another_index(tmp_path: Path, step: str, secret: str, text: str) -> None:
    """And is no variable of the build, nor an argument of the engine: it may hold a token."""
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            (tmp_path / secret).write_text(text.format(url=f"http://127.0.0.1:{server.server_port}/ours"))
            path = f"{Path(sys.executable).resolve().parent}:/usr/local/bin:/usr/bin:/bin"
            clean = {"PATH": path, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PIP_RETRIES": "0"}
            clean |= {"ROOT": str(tmp_path / "root"), "SECRETS": str(tmp_path)}
            clean |= {"MAVEN_OPTS": f"-Duser.home={tmp_path}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
            clean |= {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
            argv: list[str | Path] = [IMAGES / "steps.sh", step]
            done = subprocess.run(argv, env=clean, cwd=tmp_path, capture_output=True, timeout=300, check=False)
        finally:
            server.shutdown()
            thread.join()
    assert done.returncode != 0
    assert server.asked
    assert all(path.startswith("/ours/") for path in server.asked)


@pytest.mark.parametrize(
    "file",
    [
        "kustomize/base/deployment.yaml",
        "pipeline/cronjob.yaml",
        "pipeline/sparkapplication.yaml",
        "pipeline/spark-submit.sh",
    ],
)
def test_no_manifest_has_an_image_that_a_registry_could_have(file: str) -> None:
    """Without a registry, a cluster would pull the name from a public one, where anyone may push it.

    A name of an image has no capitals, so a cluster refuses the placeholder.
    """
    text = (ROOT / "deploy" / file).read_text()
    images = re.findall(r"^[^#\n]*image(?::\s|=)\s*(\S+)", text, re.MULTILINE)
    assert images
    allowed = r"REPLACE-WITH-YOUR-REGISTRY/group-hygiene(-pipeline)?:[\d.]+|\$\{IMAGE:\?your|\"\$image\""
    assert [image for image in images if not re.fullmatch(allowed, image)] == []


def test_manifests_name_no_user() -> None:
    """No manifest names a user: a platform that gives each namespace its own may do so."""
    deployment = yaml.safe_load((ROOT / "deploy" / "kustomize" / "base" / "deployment.yaml").read_text())
    job = yaml.safe_load((ROOT / "deploy" / "pipeline" / "cronjob.yaml").read_text())
    for workload in (deployment, job["spec"]["jobTemplate"]):
        context = workload["spec"]["template"]["spec"]["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context.keys().isdisjoint({"runAsUser", "runAsGroup", "fsGroup"})


@pytest.mark.parametrize("file", FILES)
def test_what_is_copied_reaches_the_engine(file: Path) -> None:
    """.dockerignore leaves in what COPY names."""
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name, rest in instructions(file):
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert any(source == entry or source.startswith(f"{entry}/") for entry in let_in)


@pytest.mark.parametrize("name", ["build", "operator", "pipeline"])
def test_locks_pin_what_the_tests_run_with(name: str) -> None:
    """The same version of each package, and the same files, as in deploy/requirements.lock; `make lock` writes all."""
    assert _pins(IMAGES / f"{name}.lock") <= _pins(ROOT / "deploy/requirements.lock")


def test_locks_pin_what_the_project_asks_for() -> None:
    """Each dependency, and of the extras those that an image is for; tools of the developers are in none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def named(requirements: list[str]) -> set[str]:
        return {re.split(r"[<>=~!; \[]", text)[0] for text in requirements}

    base = named(project["dependencies"])
    for image, wanted in (("operator", ["aws"]), ("pipeline", ["aws", "pipeline"])):
        pinned = {pin[0] for pin in _pins(IMAGES / f"{image}.lock")}
        assert base.union(*(named(extras[extra]) for extra in wanted)) <= pinned
        assert not pinned & {"pytest", "ruff", "mypy", "playwright", "mkdocs"}


def test_wheel_and_source_distribution_hold_the_same(tmp_path: Path) -> None:
    """What is built of the source distribution is what is built of the checkout, kinds and all data among it."""
    source = tmp_path / "source"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source)
    for name in ("operator", "crds"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    of_checkout = _wheel(source, tmp_path / "of-checkout")
    build = "import setuptools.build_meta as backend, sys; backend.build_sdist(sys.argv[1])"
    argv: list[str | Path] = [sys.executable, "-c", build, tmp_path / "sdist"]
    subprocess.run(argv, cwd=source, capture_output=True, check=True)
    (archive,) = (tmp_path / "sdist").glob("*.tar.gz")
    assert _wheel(archive, tmp_path / "of-sdist") == of_checkout
    package = ROOT / "operator" / "group_hygiene"
    # pathlib follows no link to a folder, as which the kinds are in the package.
    files = [*package.rglob("*"), *(package / "crds").iterdir()]
    there = {str(file.relative_to(ROOT / "operator")) for file in files if file.is_file()}
    assert {name for name in there if not name.endswith(".pyc")} <= of_checkout


def _wheel(source: Path, into: Path) -> set[str]:
    """The names of what is in the wheel that is built of it."""
    argv: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        into,
        source,
    ]
    subprocess.run(argv, capture_output=True, check=True)
    (wheel,) = into.iterdir()
    return set(zipfile.ZipFile(wheel).namelist())
