"""The pipeline in pods of a node, with its tables in an S3 store, and the operator's pod that deletes by them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from pyarrow.fs import S3FileSystem

from testing.sandbox.node import Node
from testing.sandbox.node.kafka import NAMESPACE, NodeKafka
from testing.sandbox.s3 import REGION, Bucket, S3Store
from testing.sandbox.spark.event_log import SETTINGS, tasks_by_executor
from testing.sandbox.spark.jars import jars
from testing.sandbox.waiting import wait_for
from tests import stored
from tests.e2e.conftest import Groups
from tests.e2e.test_evidence import commits_again_and_again
from tests.node import release
from tests.node.release import PIPELINE_IMAGE, REPOSITORY

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "deploy" / "pipeline"
EXAMPLES = ROOT / "examples"
# Of the driver and the executors that spark-submit.sh starts.
SPARK = "group-hygiene-spark"
BUCKET = "kafka-hygiene"
FOLDER = f"{BUCKET}/group-hygiene/main"
# Of a run of Spark on a machine that does other things too.
SECONDS = 600
_ANY_USER = 1000680000
_RESTRICTED = "pod-security.kubernetes.io/enforce"
# Options for a node of two cores; two executors from the start, where so little would need one.
_SMALL = {
    "spark.kubernetes.driver.request.cores": "100m",
    "spark.kubernetes.executor.request.cores": "100m",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.dynamicAllocation.minExecutors": "2",
}


@pytest.fixture(scope="module")
def store(node: Node) -> Iterator[S3Store]:
    """A store that pods reach."""
    with S3Store([BUCKET], node.place()) as store:
        yield store


@pytest.fixture(scope="module")
def bucket(node: Node, kafka: NodeKafka, store: S3Store) -> Bucket:
    """The bucket, with the Secret that the manifests name, and the pipeline's image on the node."""
    release.require_current(PIPELINE_IMAGE)
    node.load_image(PIPELINE_IMAGE)
    made = store.bucket(BUCKET)
    _apply(node, _bucket_secret(made, NAMESPACE))
    return made


def _bucket_secret(bucket: Bucket, namespace: str) -> dict[str, Any]:
    metadata = {"name": "hygiene-bucket", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": bucket.variables}


@pytest.fixture
def spark_namespace(node: Node, bucket: Bucket) -> Iterator[None]:
    """The namespace of Spark's pods, as the header of spark-rbac.yaml creates it, with the Secret of the bucket."""
    header = (PIPELINE / "spark-rbac.yaml").read_text().partition("apiVersion")[0]
    commands = re.findall(r"^# +kubectl (.*)", header, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        node.kubectl(*command.split())
    _apply(node, _bucket_secret(bucket, SPARK))
    yield
    node.kubectl("delete", "namespace", SPARK)


@pytest.fixture(scope="module")
def restricted(node: Node, kafka: NodeKafka) -> Iterator[None]:
    """The namespace lets in only pods that meet the strictest of Kubernetes' standards for them."""
    node.kubectl("label", "namespace", NAMESPACE, f"{_RESTRICTED}=restricted")
    yield
    node.kubectl("label", "namespace", NAMESPACE, f"{_RESTRICTED}-")


@pytest.fixture(scope="module")
def operator(node: Node) -> Iterator[None]:
    """The operator as the README installs it."""
    release.install(node, f"rbac.secretNamespaces={{{NAMESPACE}}}")
    yield
    release.remove_everything(node)


@pytest.fixture(scope="module")
def connection(node: Node, operator: None, kafka: NodeKafka, bucket: Bucket) -> Iterator[None]:
    """The KafkaConnection of the quickstart, which names the pipeline's tables as the example of activity does."""
    made, _ = _documents(EXAMPLES / "quickstart.yaml")
    (example,) = _documents(EXAMPLES / "connection-activity.yaml")
    made["spec"]["activity"] = example["spec"]["activity"] | {"uri": f"s3://{FOLDER}"}
    _apply(node, made)
    yield
    node.kubectl("delete", "kconn", "main", "-n", NAMESPACE)


@pytest.fixture
def groups(kafka: NodeKafka) -> Iterator[Groups]:
    made = Groups(kafka)
    yield made
    made.close()


def _documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def _apply(node: Node, *objects: dict[str, Any]) -> None:
    node.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(objects))


def _get(node: Node, kind: str, name: str) -> dict[str, Any]:
    return dict(json.loads(node.kubectl("get", kind, name, "-n", NAMESPACE, "-o=json").stdout))


def _explain(node: Node) -> str:
    """The state of the cluster, for the message of a failure."""
    shown = [
        ("get", "kconn,kgp,cronjobs,jobs,pods,events", "-n", NAMESPACE),
        ("get", "kgp", "-n", NAMESPACE, "-o=yaml"),
        ("logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=group-hygiene-pipeline", "--tail=50"),
        ("get", "pods,events", "-n", SPARK),
        ("logs", "-n", SPARK, "-l", "spark-role=driver", "--tail=80"),
        ("logs", "-n", "group-hygiene", "deploy/group-hygiene", "--tail=50"),
    ]
    return "\n".join(node.kubectl(*command, check=False).stdout for command in shown)


def _manifests(folder: Path, changes: dict[str, str]) -> Path:
    """deploy/pipeline as a user makes it theirs: with the name of an image and of a bucket."""
    replaced = {
        "REPLACE-WITH-YOUR-REGISTRY/group-hygiene-pipeline:": f"{REPOSITORY}-pipeline:",
        "REPLACE-WITH-YOUR-BUCKET": BUCKET,
    }
    for file in PIPELINE.glob("*.yaml"):
        text = file.read_text()
        for old, new in (replaced | changes).items():
            text = text.replace(old, new)
        (folder / file.name).write_text(text)
    return folder


def _folder(bucket: Bucket, name: str) -> str:
    """Make a folder in a bucket, in the way that S3A recognizes; returns its URI."""
    files = S3FileSystem(
        access_key=bucket.access_key,
        secret_key=bucket.secret_key,
        endpoint_override=bucket.endpoint,
        region=REGION,
    )
    files.create_dir(f"{bucket.name}/{name}")
    return f"s3a://{bucket.name}/{name}"


def _submit(node: Node, warehouse: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """deploy/pipeline/spark-submit.sh, by the spark-submit that PySpark holds."""
    environment = {
        "PATH": os.pathsep.join([str(Path(pyspark.__file__).parent / "bin"), os.environ["PATH"]]),
        "KUBECONFIG": str(node.kubeconfig),
        "IMAGE": PIPELINE_IMAGE,
        "SECRET": "hygiene-bucket",
        "KEYS": "AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION AWS_ENDPOINT_URL AWS_ALLOW_HTTP",
        "MAX_EXECUTORS": "2",
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    return subprocess.run(
        [PIPELINE / "spark-submit.sh", node.api.url, warehouse, *options],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def _run_here(kafka: NodeKafka, warehouse: Path) -> None:
    """`group-hygiene pipeline run` on this machine, with tables in a folder."""
    command = [sys.executable, "-m", "group_hygiene.cli", "pipeline", "run", "--memory", "1g", "--jars", str(jars())]
    command += ["--bootstrap-server", kafka.plaintext_bootstrap, "--warehouse", str(warehouse)]
    command += ["--log-file", str(warehouse.with_suffix(".log"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("connection", "restricted")
def test_the_idle_group_goes_and_the_one_that_commits_stays(
    node: Node, groups: Groups, store: S3Store, tmp_path: Path
) -> None:
    """By tables that the CronJob's pods write, one run after the other, into a bucket.

    The pods have a root file system that is read-only, and no volume but /tmp and the token of their account.
    """
    topic = groups.topic("idle")
    groups.abandoned("idle-old", topic)
    groups.produce(topic)
    (policy,) = _documents(EXAMPLES / "policy-idle.yaml")
    policy["spec"] |= {
        "connectionRef": {"name": "main"},
        "interval": "5s",
        "mode": "Enforce",
        "match": {"groups": ["idle-*"]},
        "when": {"idleFor": "20s"},
        "delete": {"gracePeriod": "1s", "maxPercent": 100},
    }

    def runs() -> int:
        """How many of the CronJob's runs succeeded."""
        jobs = json.loads(node.kubectl("get", "jobs", "-n", NAMESPACE, "-o=json").stdout)["items"]
        return sum(job.get("status", {}).get("succeeded", 0) for job in jobs)

    def entry(group: str) -> dict[str, Any]:
        sample = _get(node, "kgp", "idle").get("status", {}).get("sample") or []
        return next((row for row in sample if row["group"] == group), {})

    def kept(group: str) -> bool:
        """Judged by the tables, and found in use."""
        row = entry(group)
        return "idleSince" in row and row.get("reason") in ("TooRecent", "RecentlyActive")

    with commits_again_and_again(groups, "idle-same", "idle-moving", topic):
        _apply(node, policy)
        # Each minute and not every ten; the history of all runs, to count them.
        every_minute = {
            '"*/10 * * * *"': '"* * * * *"',
            "successfulJobsHistoryLimit: 1": "successfulJobsHistoryLimit: 9",
            # As OpenShift does it: a user that has no name in the image. Spark's pods run as that of the image.
            "runAsNonRoot: true": f"runAsNonRoot: true\n            runAsUser: {_ANY_USER}",
        }
        node.kubectl("apply", "-k", str(_manifests(tmp_path, every_minute)))
        try:
            wait_for(lambda: "idle-old" not in groups.names(), lambda: _explain(node), SECONDS)
            wait_for(lambda: runs() >= 2, lambda: _explain(node), SECONDS)
            for group in ("idle-same", "idle-moving"):
                wait_for(lambda group=group: kept(group), lambda: _explain(node), SECONDS)  # type: ignore[misc]
            assert {"idle-same", "idle-moving"} <= groups.names()
            pods = node.kubectl("get", "pods", "-n", NAMESPACE, "-l=batch.kubernetes.io/job-name", "-o=json").stdout
        finally:
            node.kubectl("delete", "-k", str(tmp_path))
            node.kubectl("delete", "kgp", "idle", "-n", NAMESPACE)
    found = json.loads(pods)["items"]
    assert found
    for pod in found:
        assert pod["spec"]["securityContext"]["runAsUser"] == _ANY_USER
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        places = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert places == {"/tmp"}
    assert (store.folder(BUCKET) / "group-hygiene" / "main" / "activity" / "_delta_log").is_dir()


@pytest.mark.usefixtures("connection", "restricted", "bucket")
def test_the_cronjob_of_the_chart_writes_tables(node: Node, store: S3Store) -> None:
    """By the example values/pipeline.yaml, with the names of an image and of a bucket."""
    values = release.CHART.parent / "values" / "pipeline.yaml"
    options = {
        "image.repository": REPOSITORY,
        "pipeline.image.repository": f"{REPOSITORY}-pipeline",
        "pipeline.connections[0].warehouse": f"s3a://{BUCKET}/chart",
        # Only the job that this test creates.
        "pipeline.schedule": "0 0 1 1 *",
    }
    settings = [f"--set={name}={value}" for name, value in options.items()]
    release.run(node, "upgrade", "--install", release.NAME, release.CHART, f"--values={values}", *settings)
    job = ("job", "chart", "-n", NAMESPACE)
    try:
        node.kubectl("create", *job, "--from=cronjob/group-hygiene-pipeline-main")
        done = node.kubectl("wait", *job, "--for=condition=complete", f"--timeout={SECONDS - 60}s", check=False)
        assert done.returncode == 0, _explain(node)
    finally:
        node.kubectl("delete", *job, "--ignore-not-found")
        release.install(node, f"rbac.secretNamespaces={{{NAMESPACE}}}")
    assert (store.folder(BUCKET) / "chart" / "activity" / "_delta_log").is_dir()


@pytest.mark.usefixtures("connection", "spark_namespace")
def test_a_driver_and_two_executors_make_the_same_tables_as_one_machine(
    node: Node, kafka: NodeKafka, groups: Groups, store: S3Store, bucket: Bucket, tmp_path: Path
) -> None:
    """Row by row, by spark-submit.sh as it is; the work is done in an executor's pod."""
    topic = groups.topic("submitted")
    groups.abandoned("submitted-old", topic)
    for number in range(50):
        groups.simple(f"submitted-{number}", topic, 1)
    warehouse = f"{BUCKET}/submitted"
    for file in ("rbac.yaml", "spark-rbac.yaml"):
        node.kubectl("apply", "-f", str(PIPELINE / file))
    try:
        done = _submit(
            node, f"s3a://{warehouse}", SETTINGS | {"spark.eventLog.dir": _folder(bucket, "events")} | _SMALL
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}{_explain(node)}"
        log = node.kubectl("logs", "-n", SPARK, "-l", "spark-role=driver", "--tail=-1").stdout
        # It has all the rights that it uses.
        assert "is forbidden" not in log
        assert "Cannot list PVC" not in log
    finally:
        for file in ("spark-rbac.yaml", "rbac.yaml"):
            node.kubectl("delete", "-f", str(PIPELINE / file))
    _run_here(kafka, tmp_path / "local")
    tables = stored.rows(f"s3://{warehouse}", bucket.variables)
    assert all(tables.values()), {name: len(rows) for name, rows in tables.items()}
    assert tables == stored.rows(str(tmp_path / "local"))
    tasks = tasks_by_executor(store.folder(BUCKET) / "events")
    # So few records are one task.
    assert tasks.total(), tasks
    assert "driver" not in tasks, tasks
