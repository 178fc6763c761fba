"""The jars that PySpark lacks, from Maven, kept in the cache."""

import hashlib
from pathlib import Path

from sandbox.cache import cached, run_long
from sandbox.prerequisites import MAVEN, find
from sandbox.process import Command

_POM = Path(__file__).with_name("pom.xml")


def jars() -> Path:
    """The directory that holds them; downloads them when they are not cached."""

    def download(into: Path) -> None:
        run_long(
            "downloading Spark's Kafka source and Delta with Maven (about 10 seconds, once)",
            Command(
                [*(find(MAVEN), "-B", "-ntp", "-f", _POM, f"-DoutputDirectory={into}", "dependency:copy-dependencies")],
                log=Path("maven.log"),
            ),
        )

    # The pom is part of the name: a changed one must not find the old jars.
    return cached(f"spark-{hashlib.sha256(_POM.read_bytes()).hexdigest()[:8]}", download)
