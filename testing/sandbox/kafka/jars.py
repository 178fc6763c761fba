"""The jars of each Kafka version, from Maven, in the cache."""

import hashlib
from pathlib import Path

from testing.sandbox.cache import basic, cached, run_long
from testing.sandbox.prerequisites import MAVEN, find
from testing.sandbox.process import Command

VERSIONS = ("4.4.0", "4.3.0", "4.2.1", "4.2.0", "3.9.1", "2.8.2", "2.5.1")
# Maven Central has the brokers and clients of 4.4.0, but neither kafka-tools nor kafka-streams; those of 4.3.0 do not
# run with the clients of 4.4.0.
_TOOLS = {"4.4.0": "4.3.0"}
_POM, _CONNECT_POM, _SPRING_POM = (
    Path(__file__).with_name(name) for name in ("pom.xml", "connect.pom.xml", "spring.pom.xml")
)


@basic(lambda version: version in (VERSIONS[0], _TOOLS.get(VERSIONS[0])))
def jars(version: str) -> Path:
    """The directory with all jars of a version; downloads them if they are not cached."""
    return _downloaded("kafka", _POM, version, _TOOLS.get(version, version))


def connectors(version: str) -> Path:
    """The directory with connectors that run with `tool_jars` of this version (MirrorMaker 2, files), and WordCount."""
    return _downloaded("connect", _CONNECT_POM, version, _TOOLS.get(version, version))


def spring() -> Path:
    """The directory with Spring Cloud Stream and its Kafka binder."""
    return _downloaded("spring-cloud-stream", _SPRING_POM, "4.3.0", "")


def tool_jars(version: str) -> Path:
    """The directory that holds Kafka's command-line classes, Connect and Kafka Streams for brokers of a version."""
    return jars(_TOOLS.get(version, version))


def _downloaded(what: str, pom: Path, version: str, tools_version: str) -> Path:
    def download(into: Path) -> None:
        run_long(
            f"downloading {what} {version} with Maven (about 20 seconds, once)",
            Command(
                [
                    *(find(MAVEN), "-B", "-C", "-ntp", "-f", pom, f"-Dkafka.version={version}"),
                    f"-Dtools.version={tools_version}",
                    *(f"-DoutputDirectory={into}", "dependency:copy-dependencies"),
                ],
                log=Path("maven.log"),
            ),
        )

    # The name includes a hash of the pom, so that a changed one does not use the old jars.
    return cached(f"{what}-{version}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:8]}", download)
