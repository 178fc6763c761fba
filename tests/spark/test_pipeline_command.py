"""`group-hygiene pipeline` as users run it: it reads a secured cluster, shows no secret, and says what is wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from group_hygiene.cli import main
from testing.faults.offsets_log import expected, read
from testing.sandbox.kafka import KafkaCluster, Security
from testing.sandbox.kafka.security import format_jaas
from testing.sandbox.ports import Ports
from testing.sandbox.spark.jars import jars
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker, at
from tests.leaks import leaks
from tests.spark.bronze import tables
from tests.spark.conftest import FEW_PARTITIONS

# With what must be escaped somewhere on its way, and a part by which a leak is found in any form.
LEAK = "never-to-be-seen-71Kq"
PASSWORD = f'{LEAK}"\\,=n'
SECONDS = 300


@pytest.fixture
def secured() -> Iterator[KafkaCluster]:
    """A broker that asks for a certificate and a password."""
    security = Security(tls=True, client_auth="required", sasl="SCRAM-SHA-512", users={"hygiene": PASSWORD})
    with KafkaCluster(security=security, config=FEW_PARTITIONS) as cluster:
        yield cluster


def properties(cluster: KafkaCluster, file: Path) -> str:
    """The client's properties in a file; answers with a piece of the private key."""
    certificate = cluster.client_certificate("hygiene")
    store = file.with_suffix(".pem")
    key = certificate.key.read_text()
    store.write_text(certificate.certificate.read_text() + key)
    jaas = format_jaas("SCRAM-SHA-512", {"username": "hygiene", "password": PASSWORD})
    lines = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas.replace("\\", "\\\\"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(cluster.ca_file),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return key.splitlines()[3]


def test_a_secured_cluster_is_read_and_no_secret_is_seen(
    spark: SparkSession, secured: KafkaCluster, warehouse: str, tmp_path: Path
) -> None:
    """Neither in the list of processes, nor on Spark's web page, nor in what is printed, logged or written.

    That page is for this machine alone; and nothing is left in the folder where it was called.
    """
    maker = Maker(secured.plaintext_bootstrap)
    maker.simple(maker.name("simple"), at(maker.topic(records=1), 1))
    key = properties(secured, tmp_path / "client.properties")
    said, log, here = tmp_path / "said", tmp_path / "spark.log", tmp_path / "here"
    here.mkdir()
    ports = Ports()
    (port,) = ports.take(1)
    ports.release()
    command = [sys.executable, "-m", "group_hygiene.cli", "pipeline", "ingest", "--continuous", "--every", "1s"]
    command += ["--command-config", str(tmp_path / "client.properties"), "--warehouse", warehouse]
    command += ["--jars", str(jars()), "--log-file", str(log), "--ui-port", str(port), "--memory", "1g"]
    with said.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=here)
        try:
            wait_for(lambda: process.poll() is not None or "1 commits" in said.read_text(), seconds=SECONDS)
            assert process.poll() is None, said.read_text()
            listed, shown = list(processes()), list(pages(f"http://127.0.0.1:{port}"))
            # Another address of this machine, where one that listens at all of them would answer.
            with socket.socket() as elsewhere:
                assert elsewhere.connect_ex(("127.0.0.2", port)) != 0
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(SECONDS)
    assert code == 0
    assert list(here.iterdir()) == []
    written = [file.read_bytes().decode("latin-1") for file in Path(warehouse).rglob("*") if file.is_file()]
    assert any("group-hygiene" in text for text in listed)
    # The job of the ingest, whose tasks hold the secrets.
    assert any("reading.py" in text for text in shown)
    assert leaks([LEAK, key], [*listed, *shown, *written, said.read_text(), log.read_text()]) == set()
    assert tables(spark, warehouse).commits == expected(read(secured.plaintext_bootstrap)).commits
    maker.close()


def processes() -> Iterator[str]:
    """The arguments and the environment of every process on this machine."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            for file in ("cmdline", "environ"):
                try:
                    yield (process / file).read_bytes().decode(errors="replace")
                except OSError:
                    continue


def pages(url: str) -> Iterator[str]:
    """What Spark's web page and its REST API show of the session, its settings, its plans and its queries."""
    (application,) = json.loads(page(f"{url}/api/v1/applications"))
    api = f"{url}/api/v1/applications/{application['id']}"
    for name in ("environment", "jobs", "stages", "stages?details=true", "allexecutors", "storage/rdd"):
        yield page(f"{api}/{name}")
    executions = page(f"{api}/sql?details=true&planDescription=true&length=1000")
    yield executions
    for execution in json.loads(executions):
        yield page(f"{url}/SQL/execution/?id={execution['id']}")
    for name in ("environment", "jobs", "stages", "storage", "executors", "SQL"):
        yield page(f"{url}/{name}/")


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310
        text: str = answer.read().decode()
        return text


def test_without_spark_it_says_what_to_install() -> None:
    """Of the package as it is without its extra."""
    program = "import sys; sys.modules['pyspark'] = None; from group_hygiene.cli import main; main()"
    command = [sys.executable, "-c", program, "pipeline", "maintain", "--warehouse", "/data/hygiene"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert 'pip install "kafka-group-hygiene[pipeline]"' in done.stderr
    assert "Traceback" not in done.stderr


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["pipeline", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param("ingest --warehouse {folder}", "which Kafka cluster?", id="no-cluster"),
        pytest.param("ingest --bootstrap-server localhost:9092", "Missing option '--warehouse'", id="no-warehouse"),
        pytest.param("maintain --warehouse {file}", "is not a folder", id="warehouse-is-a-file"),
        pytest.param("maintain --warehouse hdfs://n/h", "neither a folder nor in an object", id="warehouse-in-hdfs"),
        pytest.param("maintain --warehouse {folder}/a%20b", "contains % or", id="warehouse-with-a-percent-sign"),
        pytest.param("maintain --warehouse {folder} --jars {folder}", "contains no jars", id="no-jars"),
        pytest.param("maintain --warehouse {folder} --jars {file}", "is a file", id="jars-is-a-file"),
        pytest.param(
            "ingest --warehouse {folder} --bootstrap-server 127.0.0.1:1 --timeout 2s", "127.0.0.1:1", id="unreachable"
        ),
        pytest.param(
            "ingest --warehouse {folder} --connection-file {file}",
            "must contain one KafkaConnection",
            id="no-connection",
        ),
        pytest.param("maintain --warehouse {folder} --memory 2x", "'2x' is not a size", id="no-size"),
        pytest.param("maintain --warehouse {folder} --log-file {file}/log", "log can't be written: ", id="no-log"),
        pytest.param("run --warehouse {folder} --every 1x --continuous", "is not a duration", id="no-duration"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, arguments: str, says: str) -> None:
    """In a line, with exit code 1, before Spark is started."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("apiVersion: v1\nkind: Nothing\n")
    filled = arguments.format(folder=tmp_path / "folder", file=tmp_path / "file").split()
    code, err = call(*filled)
    assert code == 1
    assert says in err


def test_its_log_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default one; it grows with each run."""
    log = default_log(tmp_path, monkeypatch)
    log.write_text("before\n")
    log.chmod(0o644)
    call("maintain", "--warehouse", str(tmp_path))
    assert log.read_text() == "before\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    log.unlink()
    call("maintain", "--warehouse", str(tmp_path))
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(lambda log, mine: log.symlink_to(mine), id="a-link"),
        pytest.param(lambda log, mine: log.symlink_to(mine.with_name("new")), id="a-link-to-nothing"),
        pytest.param(lambda log, mine: log.hardlink_to(mine), id="the-same-file"),
        pytest.param(lambda log, _: os.mkfifo(log), id="a-pipe"),
        pytest.param(lambda log, _: log.mkdir(), id="a-folder"),
    ],
)
def test_a_foreign_log_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path, Path], None]
) -> None:
    """Everybody can guess the name of the default one: a link there would have another file written to."""
    log, mine = default_log(tmp_path, monkeypatch), tmp_path / "mine"
    mine.write_text("precious\n")
    mine.chmod(0o644)
    put(log, mine)
    code, err = call("maintain", "--warehouse", str(tmp_path))
    assert code == 1
    assert f"{log} " in err
    assert "--log-file" in err
    assert (mine.read_text(), stat.S_IMODE(mine.stat().st_mode)) == ("precious\n", 0o644)
    assert not mine.with_name("new").exists()


def default_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is, if that folder is the one for temporary files. Without Java, so that Spark does not start."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("JAVA_HOME", str(folder))
    return folder / f"group-hygiene-spark-{os.getuid()}.log"


@pytest.mark.parametrize("java", ["", "-XX:+UseG1GC"], ids=["ours", "another-collector"])
def test_spark_starts_in_little_memory_and_beside_the_users_own_java(tmp_path: Path, java: str) -> None:
    """Java ends where it is told of two collectors, and Spark where it has too little memory."""
    command = [sys.executable, "-m", "group_hygiene.cli", "pipeline", "maintain", "--memory", "512m"]
    command += ["--warehouse", str(tmp_path), "--jars", str(jars()), "--log-file", str(tmp_path / "spark.log")]
    environment = os.environ | {"JAVA_TOOL_OPTIONS": java}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    # Without tables, there is nothing to do, once Spark has started.
    assert done.returncode == 0, done.stderr


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on the PATH nor in JAVA_HOME."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, err = call("maintain", "--warehouse", str(tmp_path))
    assert code == 1
    assert "Java 17" in err
