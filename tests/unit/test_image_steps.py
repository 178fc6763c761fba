"""deploy/images/steps.sh and sbom.py: jars are those of the lock, and all of them are in the bill of materials."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.dockerfile import IMAGES, ROOT

_MAVEN = """#!/usr/bin/env bash
for word; do case $word in -DoutputDirectory=*) into=${word#*=} ;; esac; done
[[ " $* " == *" -C "* ]] || { echo "wrong checksums would only be warned of" >&2; exit 1; }
mkdir -p "$into/org/example"
cp -r "$DOWNLOADS/." "$into/org/example/"
"""
# Two jars of a repository: name and version with their content.
_JARS = {("first", "1.0"): b"first", ("second", "2.0"): b"second"}


def _steps(folder: Path, lock: str) -> subprocess.CompletedProcess[str]:
    """Run the step `jars` with a Maven that gives `_JARS`, and with this lock."""
    images = folder / "source" / "deploy" / "images"
    shutil.copytree(IMAGES, images)
    (images / "jars.lock").write_text(lock)
    (folder / "source" / "testing" / "sandbox" / "spark").mkdir(parents=True)
    shutil.copy(ROOT / "testing" / "sandbox" / "spark" / "pom.xml", folder / "source" / "testing" / "sandbox" / "spark")
    for (name, version), content in _JARS.items():
        file = folder / "downloads" / name / version / f"{name}-{version}.jar"
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    program = folder / "programs" / "mvn"
    program.parent.mkdir()
    program.write_text(_MAVEN)
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "DOWNLOADS": str(folder / "downloads")}
    environment |= {"ROOT": str(folder / "root"), "SECRETS": str(folder / "none"), "TMPDIR": str(folder)}
    return subprocess.run([images / "steps.sh", "jars"], env=environment, capture_output=True, text=True, check=False)


def _lock(jars: dict[tuple[str, str], bytes]) -> str:
    return "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}-{version}.jar\n" for (name, version), content in jars.items()
    )


def test_jars_of_the_lock_are_installed(tmp_path: Path) -> None:
    """And their places in the repository are recorded."""
    done = _steps(tmp_path, _lock(_JARS))
    assert (done.returncode, done.stderr) == (0, "")
    home = tmp_path / "root" / "opt" / "group-hygiene" / "jars"
    assert {file.name for file in home.iterdir()} == {"first-1.0.jar", "second-2.0.jar", "coordinates.txt"}


@pytest.mark.parametrize(
    "locked",
    [
        pytest.param({**_JARS, ("second", "2.0"): b"other"}, id="another-content"),
        pytest.param({("first", "1.0"): b"first"}, id="one-more"),
        pytest.param({**_JARS, ("third", "3.0"): b"third"}, id="one-less"),
    ],
)
def test_other_jars_end_the_build(tmp_path: Path, locked: dict[tuple[str, str], bytes]) -> None:
    """The message shows which."""
    done = _steps(tmp_path, _lock(locked))
    assert done.returncode != 0
    assert re.search(r"^[<>] \w{64}  (second|third)", done.stderr, re.MULTILINE)


def test_the_lock_has_the_versions_of_the_poms() -> None:
    """Each dependency that they name; `make lock` writes it."""
    locked = set(re.findall(r"^\w{64}  (\S+)\.jar$", (IMAGES / "jars.lock").read_text(), re.MULTILINE))
    for pom in (ROOT / "testing" / "sandbox" / "spark" / "pom.xml", IMAGES / "object-stores.xml"):
        text = pom.read_text().partition("<build>")[0]
        versions = dict(re.findall(r"<(\w+\.version)>(.*?)</", text))
        named = re.findall(r"<artifactId>([\w.-]+)</artifactId><version>\$\{(.*?)\}", text)
        assert named
        assert {f"{name}-{versions[version]}" for name, version in named} <= locked


def test_maven_refuses_wrong_checksums_everywhere() -> None:
    """Without -C, Maven 3 only warns."""
    for file in (
        ROOT / "testing" / "sandbox" / "spark" / "jars.py",
        ROOT / "testing" / "sandbox" / "kafka" / "jars.py",
    ):
        assert '"-C"' in file.read_text()


def _jar(file: Path, *coordinates: str) -> None:
    """coordinates: GROUP/NAME of each jar that was packed into it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as jar:
        for each in coordinates:
            jar.writestr(f"META-INF/maven/{each}/pom.properties", "")


def test_jars_inside_of_pyspark_are_in_the_bill_of_materials(tmp_path: Path) -> None:
    """By the coordinates that belong to the file's name; without any, by that name; each once."""
    spark = tmp_path / "lib" / "python3.11" / "site-packages" / "pyspark" / "jars"
    _jar(spark / "spark-core_2.13-4.0.0.jar", "org.eclipse.jetty/jetty-util", "org.apache.spark/spark-core_2.13")
    _jar(spark / "jetty-util-9.4.jar", "org.eclipse.jetty/jetty-util")
    _jar(spark / "oro-2.0.8.jar")
    _jar(tmp_path / "jars" / "jetty-util-9.4.jar")
    (tmp_path / "jars" / "coordinates.txt").write_text("./org/eclipse/jetty/jetty-util/9.4/jetty-util-9.4.jar\n")
    argv: list[str | Path] = [sys.executable, IMAGES / "sbom.py", tmp_path]
    done = subprocess.run(argv, env=os.environ, capture_output=True, text=True, check=True)
    components: list[dict[str, Any]] = json.loads(done.stdout)["components"]
    jars = {component["purl"]: component for component in components if "pypi" not in component["purl"]}
    assert list(jars) == [
        "pkg:generic/oro@2.0.8",
        "pkg:maven/org.apache.spark/spark-core_2.13@4.0.0",
        "pkg:maven/org.eclipse.jetty/jetty-util@9.4",
    ]
    content = (spark / "oro-2.0.8.jar").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert jars["pkg:generic/oro@2.0.8"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert len({component["bom-ref"] for component in components}) == len(components)


def test_a_user_without_a_name_and_without_a_place_for_one_gets_advice(tmp_path: Path) -> None:
    """Java ends there with a stack trace."""
    getent = tmp_path / "getent"
    getent.write_text("#!/bin/sh\nexit 2\n")
    getent.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path / "missing")}
    argv: list[str | Path] = [IMAGES / "entrypoint.sh", "true"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{tmp_path / 'missing'} is not writable: mount a volume there" in done.stderr


def test_licences_stay() -> None:
    """Debian's packages have them in files with the name copyright."""
    for name in ("steps.sh", "build.sh"):
        text = (IMAGES / name).read_text()
        assert re.search(r'find "?\S*/usr/share/doc"? -type f ! -name copyright -delete', text)
        assert not re.search(r"rm -rf .*usr/share/(\{[^}]*)?doc", text)


def test_the_bill_of_materials_is_made_last() -> None:
    """Of an image's parts that stay."""
    text = (IMAGES / "steps.sh").read_text()
    for step in ("operator", "pipeline"):
        lines = re.search(rf"^  {step}\)\n(.*?)^    ;;$", text, re.MULTILINE | re.DOTALL)
        assert lines is not None
        assert lines[1].splitlines()[-1].strip() == "bill_of_materials"
