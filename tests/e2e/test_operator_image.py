"""The operator as it is shipped: its wheel in a clean environment, made by the steps of its image in an empty folder.

Really installed: each package of the image's lock and the project's wheel, with no variable in the environment but PATH
and the like; the packages come from the cache (`python -m testing.sandbox prepare`). No image is built.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_hygiene import __version__
from testing.sandbox.waiting import wait_for
from testing.sandbox.wheels import wheels
from tests.dockerfile import IMAGES, carry_out, instructions
from tests.e2e.conftest import ROOT, RunningOperator, World

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """/opt/group-hygiene of the operator's image."""
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels("operator")), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    root = carry_out(IMAGES / "operator.Dockerfile", tmp_path_factory.mktemp("image"), offline)
    return root / "opt" / "group-hygiene"


def _call(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """A program of the image, elsewhere than in the checkout and with no variable that leads there."""
    command: list[str | Path] = [home / "bin" / argv[0], *argv[1:]]
    return subprocess.run(command, env={}, cwd=home, capture_output=True, text=True, timeout=300, check=False)


def test_the_wheel_is_whole(home: Path) -> None:
    """Help, version and kinds come from what was installed, and nothing of this checkout can be imported there."""
    asked = _call(home, "group-hygiene", "--help")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "Find Kafka consumer groups that no client uses" in asked.stdout
    assert _call(home, "group-hygiene", "--version").stdout.split()[-1] == __version__
    where = _call(home, "python", "-c", "import group_hygiene, sys; print(group_hygiene.__file__, *sys.path)").stdout
    assert where.startswith(str(home / "lib"))
    assert str(ROOT) not in where
    crds = list(yaml.safe_load_all(_call(home, "group-hygiene", "crds").stdout))
    assert sorted(map(repr, crds)) == sorted(repr(yaml.safe_load(f.read_text())) for f in (ROOT / "crds").iterdir())
    (one,) = yaml.safe_load_all(_call(home, "group-hygiene", "crds", "grouppolicy").stdout)
    assert one["spec"]["names"]["kind"] == "GroupPolicy"


def test_the_bill_of_materials_names_all_that_is_installed(home: Path) -> None:
    """Each package in the version of the lock, and neither pip nor setuptools; the same folder gives the same text."""
    text = (home / "sbom.cdx.json").read_text()
    bill: dict[str, Any] = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/kafka-group-hygiene@{__version__}"
    named = {component["purl"] for component in bill["components"]}
    installed = {path.name for path in home.glob("lib/python*/site-packages/*.dist-info")}
    assert len(named) + 1 == len(installed)
    locked = {
        f"pkg:pypi/{n}@{v}" for n, v in re.findall(r"^(\S+)==(\S+)", (IMAGES / "operator.lock").read_text(), re.M)
    }
    assert named <= locked
    assert "pkg:pypi/kopf@1.45.2" in named
    again = subprocess.run([home / "bin/python", IMAGES / "sbom.py", home], capture_output=True, text=True, check=True)
    assert again.stdout == text


# The program under a user that has no entry in /etc/passwd, as containers have it.
_NAMELESS = """\
import pwd
from group_hygiene.cli import main

def missing(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = missing
main()
"""


@pytest.mark.parametrize("nameless", [pytest.param(False, id="as-it-is"), pytest.param(True, id="user-without-name")])
def test_the_operator_starts(home: Path, world: World, service_account: Path, tmp_path: Path, nameless: bool) -> None:
    """As the image's ENTRYPOINT and CMD say, under the shipped roles: ready, and SIGTERM ends it with 0."""
    steps = dict(instructions(IMAGES / "operator.Dockerfile"))
    argv = [*json.loads(steps["ENTRYPOINT"]), *json.loads(steps["CMD"]), "--health-port", "0"]
    log = tmp_path / "operator.log"
    with log.open("wb") as file:
        environment = {"KUBECONFIG": str(service_account)}
        program: list[str | Path] = [home / "bin" / "python", "-c", _NAMELESS] if nameless else [home / "bin" / argv[0]]
        process = subprocess.Popen([*program, *argv[1:]], env=environment, cwd=tmp_path, stdout=file, stderr=file)
    try:
        operator = RunningOperator(process, log)
        wait_for(lambda: operator.http("/readyz")[0] == 200)
        assert f'version="{__version__}"' in operator.http("/metrics")[1]
    finally:
        code = operator.stop()
    assert code == 0, log.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(("keep", "billing", "--for", "1d", "--why", "x"), "--by", id="keep"),
        pytest.param(("doctor", "--connection", "main"), "no Kubernetes API server is configured", id="doctor"),
        pytest.param(("history", "--connection", "main"), "no Kubernetes API server is configured", id="history"),
    ],
)
def test_commands_of_a_user_without_name_and_home(home: Path, arguments: tuple[str, ...], says: str) -> None:
    """As in the operator's pod on a platform that assigns users: what is missing is reported, without a traceback."""
    command: list[str | Path] = [home / "bin" / "python", "-c", _NAMELESS, *arguments]
    done = subprocess.run(command, env={}, cwd=home, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode not in (0, 2)
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
