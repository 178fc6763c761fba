"""deploy/pipeline/spark-submit.sh with a spark-submit that only records its arguments."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "deploy" / "pipeline"
SCRIPT = PIPELINE / "spark-submit.sh"
IMAGE = "registry.example.com/group-hygiene-pipeline:0.2.0"


def _run(folder: Path, script: Path = SCRIPT, **variables: str) -> subprocess.CompletedProcess[str]:
    program = folder / "programs" / "spark-submit"
    program.parent.mkdir(exist_ok=True)
    program.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", **variables}
    arguments = ["https://api.example.com:6443", "s3a://bucket/main"]
    return subprocess.run(
        [script, *arguments], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )


def _settings(folder: Path, script: Path = SCRIPT, **variables: str) -> dict[str, str]:
    done = _run(folder, script, IMAGE=IMAGE, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    pairs = [after.partition("=") for option, after in pairwise(lines) if option == "--conf"]
    return {name: value for name, _, value in pairs}


def _of_application() -> dict[str, Any]:
    return dict(yaml.safe_load((PIPELINE / "sparkapplication.yaml").read_text()))


def test_without_an_image_nothing_starts(tmp_path: Path) -> None:
    """No registry has a default one."""
    done = _run(tmp_path)
    assert done.returncode != 0
    assert "IMAGE" in done.stderr
    assert done.stdout == ""


def test_pods_run_in_their_own_namespace_with_their_own_accounts(tmp_path: Path) -> None:
    """Those that spark-rbac.yaml creates, for spark-submit.sh and for sparkapplication.yaml."""
    objects = list(yaml.safe_load_all((PIPELINE / "spark-rbac.yaml").read_text()))
    accounts = {obj["metadata"]["name"]: obj["metadata"] for obj in objects if obj["kind"] == "ServiceAccount"}
    application = _of_application()
    submitted = _settings(tmp_path, NAMESPACE="kafka")
    assert submitted["spark.kubernetes.namespace"] == application["metadata"]["namespace"] == "group-hygiene-spark"
    for settings in (submitted, application["spec"]["sparkConf"]):
        used = {settings[f"spark.kubernetes.authenticate.{role}.serviceAccountName"] for role in ("driver", "executor")}
        assert used == accounts.keys()
    assert {account["namespace"] for account in accounts.values()} == {"group-hygiene-spark"}
    (created,) = [obj for obj in objects if obj["kind"] == "Role"]
    assert created["metadata"]["namespace"] == "group-hygiene-spark"
    assert created["rules"][0]["resources"] == ["pods", "configmaps", "services"]


def test_both_ways_to_submit_have_the_same_settings(tmp_path: Path) -> None:
    """But for those that sparkapplication.yaml has in other fields, or does not have."""
    submitted, application = _settings(tmp_path), _of_application()["spec"]["sparkConf"]
    only_submitted = {"spark.kubernetes.namespace"}
    only_submitted |= {f"spark.kubernetes.{role}.podTemplateFile" for role in ("driver", "executor")}
    assert submitted.keys() - application.keys() == only_submitted
    differing = {name for name, value in application.items() if submitted.get(name) != value}
    assert differing == {"spark.kubernetes.container.image"}


def test_variables(tmp_path: Path) -> None:
    """Another namespace, and keys of a Secret: each is a word, also where it looks like a pattern of file names."""
    (tmp_path / "AWS_FILE").touch()
    settings = _settings(tmp_path, SPARK_NAMESPACE="spark", SECRET="store", KEYS="AWS_* OTHER")
    assert settings["spark.kubernetes.namespace"] == "spark"
    keys = {name.rpartition(".")[2]: value for name, value in settings.items() if ".executor.secretKeyRef." in name}
    assert keys == {"AWS_*": "store:AWS_*", "OTHER": "store:OTHER"}


def test_through_a_link(tmp_path: Path) -> None:
    """The template of the pods is beside the script itself."""
    link = tmp_path / "submit"
    link.symlink_to(SCRIPT)
    template = str(PIPELINE / "pod-template.yaml")
    assert _settings(tmp_path, link)["spark.kubernetes.driver.podTemplateFile"] == template
