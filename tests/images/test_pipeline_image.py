"""The pipeline as it is shipped: the steps of its image in an empty folder, and a run from there. `make images-check`.

Debian's packages are left out: Python and Java are this machine's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from group_hygiene.evidence.reader import Reading, Tables
from group_hygiene.spec.connection import ActivitySpec
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.prerequisites import JAVA, find
from testing.sandbox.wheels import wheels
from tests.dockerfile import IMAGES, carry_out
from tests.kafka.makers import Maker, at


def test_the_image_reads_the_offsets_log(tmp_path: Path) -> None:
    """With the jars and packages of the image alone; its bill of materials names both."""
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels("pipeline"))}
    # Where this machine's Maven keeps what it has downloaded; in an image it downloads anew.
    offline["MAVEN_OPTS"] = f"-Dmaven.repo.local={Path.home() / '.m2' / 'repository'}"
    settings = Path.home() / ".m2" / "settings.xml"
    if settings.exists():
        (tmp_path / "secrets").mkdir()
        shutil.copy(settings, tmp_path / "secrets" / "maven")
        offline["SECRETS"] = str(tmp_path / "secrets")
    root = carry_out(IMAGES / "pipeline.Dockerfile", tmp_path, offline, leave_out={"packages"})
    home = root / "opt" / "group-hygiene"
    named = {component["purl"] for component in json.loads((home / "sbom.cdx.json").read_text())["components"]}
    assert {"pkg:pypi/pyspark@4.2.0", "pkg:maven/io.delta/delta-spark_4.2_2.13@4.4.0"} <= named
    # Inside PySpark; and one that the image leaves out.
    assert "pkg:maven/org.apache.spark/spark-core_2.13@4.2.0" in named
    assert "pkg:maven/org.apache.spark/spark-mllib_2.13@4.2.0" not in named
    with KafkaCluster(config={"offsets.topic.num.partitions": "2"}) as kafka:
        make = Maker(kafka.bootstrap_servers)
        make.tag = ""
        make.simple("assigned", at(make.topic("orders", records=3), 2))
        make.close()
        environment = {
            "PATH": f"{home / 'bin'}:{find(JAVA).parent}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYSPARK_PYTHON": str(home / "bin" / "python"),
            "GROUP_HYGIENE_SPARK_JARS": str(home / "jars"),
        } | {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ}
        options = ("--bootstrap-server", kafka.bootstrap_servers, "--warehouse", tmp_path / "tables", "--memory", "1g")
        argv: list[str | Path] = [home / "bin" / "group-hygiene", "pipeline", "run", *options]
        done = subprocess.run(argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reading = Tables(ActivitySpec(str(tmp_path / "tables"))).read(["assigned", "other"], 60)
    assert isinstance(reading, Reading)
    assert set(reading.groups) == {"assigned"}
