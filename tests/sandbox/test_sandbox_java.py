"""How the sandbox calls Java: what a program prints does not depend on where the cache is."""

import shutil
import subprocess
from pathlib import Path

import pytest

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kafka.jars import VERSIONS, jars
from testing.sandbox.kafka.java import JavaProgram, java_command, record_classes


def test_a_copied_cache_changes_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the archive of classes is not used; an archive that Java can't load shows on stderr only."""
    KafkaCluster().prepare()
    original = jars(VERSIONS[0])
    archives = list(original.parent.glob(f"{original.name}-classes-*"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    copy = tmp_path / original.parent.name
    # No links: Java knows a file by any of its names.
    for folder in (original, *archives):
        shutil.copytree(folder, copy / folder.name)
    assert jars(VERSIONS[0]) == copy / original.name

    def of_another_folder(into: Path) -> None:
        shutil.copytree(archives[0], into, dirs_exist_ok=True)

    def run() -> tuple[int, int, str]:
        program = JavaProgram("kafka.tools.StorageTool", jars(VERSIONS[0]), ["random-uuid"], log_levels={"": "warn"})
        command = java_command(program, tmp_path / "tool.args")
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        return done.returncode, len(done.stdout.split()), done.stderr

    assert run() == (0, 1, "")
    record_classes(jars(VERSIONS[0]), of_another_folder)
    code, words, warning = run()
    assert (code, words) == (0, 1)
    assert "Unable to use shared archive" in warning
