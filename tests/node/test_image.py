"""The tests of this folder run the sources of this checkout, and not an image of an older one."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from testing.sandbox.errors import SandboxError
from testing.sandbox.node import requirements
from tests.node import release
from tests.node.release import PIPELINE_IMAGE

_DOCS = release.ROOT / "docs" / "install.md"
_TOLERATED = 0.1
_PODMAN = """#!/bin/sh
[ -s "{answer}" ] || exit 125
cat "{answer}"
"""


@pytest.mark.parametrize(
    ("label", "error"),
    [
        pytest.param(None, "is missing: run make images", id="missing"),
        pytest.param("", "is older than this checkout", id="without-a-label"),
        pytest.param("1", "is older than this checkout", id="of-other-sources"),
        pytest.param("now", None, id="of-these-sources"),
    ],
)
def test_only_a_current_image_is_tested(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, label: str | None, error: str | None
) -> None:
    """By the label that build.sh gives it."""
    script = release.ROOT / "deploy" / "images" / "build.sh"
    if label == "now":
        label = subprocess.run([script, "--source"], capture_output=True, text=True, check=True).stdout.strip()
    answer = tmp_path / "answer"
    if label is not None:
        answer.write_text(json.dumps([{"Config": {"Labels": {"group-hygiene.source": label} if label else None}}]))
    podman = tmp_path / "podman"
    podman.write_text(_PODMAN.format(answer=answer))
    podman.chmod(0o755)
    monkeypatch.setattr(requirements, "PATH", f"{tmp_path}:{requirements.PATH}")
    if error is None:
        release.require_current("localhost/group-hygiene:1")
    else:
        with pytest.raises(SandboxError, match=error):
            release.require_current("localhost/group-hygiene:1")


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(("recipe", "name"), [("operator", release.IMAGE), ("pipeline", PIPELINE_IMAGE)])
def test_images_are_as_large_as_the_docs_say(recipe: str, name: str) -> None:
    """But for a tenth: Debian's updates change the size a little."""
    rows = re.findall(r"^\| `deploy/images/(\w+)\.Dockerfile` \|.*\| ([\d,]+) MB +\|$", _DOCS.read_text(), re.MULTILINE)
    documented = {file: int(size.replace(",", "")) for file, size in rows}
    release.require_current(name)
    inspect = [requirements.program("podman"), "image", "inspect", "--format={{.Size}}", name]
    size = int(subprocess.run(inspect, capture_output=True, text=True, check=True).stdout) / 1_000_000
    assert abs(size - documented[recipe]) < _TOLERATED * documented[recipe], f"{size:.0f} MB"
