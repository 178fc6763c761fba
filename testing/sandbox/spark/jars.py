"""The jars that PySpark lacks, from Maven, in the cache."""

import hashlib
from pathlib import Path

from testing.sandbox.cache import cached, run_long
from testing.sandbox.prerequisites import MAVEN, find
from testing.sandbox.process import Command

_POM = Path(__file__).with_name("pom.xml")
_KAFKA_SOURCE = Path(__file__).with_name("kafka-source.xml")
# Additional jars of the pipeline's image.
_OBJECT_STORES = Path(__file__).parents[3] / "deploy" / "images" / "object-stores.xml"


def jars() -> Path:
    """The directory that holds Delta; downloads it when it is not cached."""
    return _jars("spark", _POM)


def jars_with_kafka_source() -> Path:
    """The directory with these and Spark's own Kafka source, for comparisons."""
    return _jars("spark-kafka-source", _POM, _KAFKA_SOURCE)


def jars_of_the_image() -> Path:
    """The directory with these and the jars that the pipeline's image adds for tables at s3a:// URIs."""
    return _jars("spark-object-stores", _POM, _OBJECT_STORES)


def _jars(name: str, *poms: Path) -> Path:
    def download(into: Path) -> None:
        for pom in poms:
            argv = (
                find(MAVEN),
                "-B",
                "-C",
                "-ntp",
                "-f",
                pom,
                f"-DoutputDirectory={into}",
                "dependency:copy-dependencies",
            )
            what = f"downloading jars for Spark with Maven, of {pom.name} (about 10 seconds, once)"
            run_long(what, Command(argv, log=Path("maven.log")))

    # The name includes a hash of the poms, so that a changed one does not use the old jars.
    digest = hashlib.sha256(b"".join(pom.read_bytes() for pom in poms)).hexdigest()[:8]
    return cached(f"{name}-{digest}", download)
