"""Spark's Kafka source, set up so that it reads all of the offsets log, fast, and leaves no trace in it.

`assign` and never `subscribe`: that joins a group, which is litter made by a hygiene tool, and new records in the very
log that is being read. Options go from this process to Spark's consumers in memory: they never become settings of the
session, which are shown in process lists and on Spark's web page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from group_hygiene.connection import Mechanism, OAuth, Sasl, Settings, Tls
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.kafka.private_keys import as_pkcs8
from group_hygiene.pipeline.decoding import SOURCE_COLUMNS

# One micro-batch: what is read again where a run ends before its end.
BATCH_RECORDS = 4_000_000
_SPLIT_RECORDS = 500_000
# Spark's admin client leaves internal topics out, without an error. Only the older way reads one.
_OFFSETS_BY_CONSUMER = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
_FAST = {
    "failOnDataLoss": "true",
    "maxRecordsPerPartition": str(_SPLIT_RECORDS),
    # A poll at the end of a partition otherwise waits for half a second, 50 times.
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "100000",
    "kafka.client.id": "group-hygiene-pipeline",
    # Of the names that its consumers give; with `assign`, no broker keeps one. It may have to be allowed by an ACL.
    "groupIdPrefix": "group-hygiene-pipeline",
}
_LOGIN_MODULES = {
    Mechanism.PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Mechanism.OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"

Positions = Mapping[int, int]


def read_stream(spark: SparkSession, settings: Settings, start: Positions) -> DataFrame:
    """The committed records from `start` on (partition of the log -> offset), in SOURCE_COLUMNS."""
    spark.conf.set(_OFFSETS_BY_CONSUMER, "true")
    reader = spark.readStream.format("kafka").options(**_options(settings, start))
    reader = reader.option("kafka.isolation.level", "read_committed")
    reader = reader.option("startingOffsets", _positions(start)).option("maxOffsetsPerTrigger", str(BATCH_RECORDS))
    return reader.load().select(*SOURCE_COLUMNS)


def read_range(spark: SparkSession, settings: Settings, start: Positions, end: Positions) -> DataFrame:
    """All records between, those of aborted transactions too, in SOURCE_COLUMNS. Both name the same partitions."""
    spark.conf.set(_OFFSETS_BY_CONSUMER, "true")
    reader = spark.read.format("kafka").options(**_options(settings, start))
    reader = reader.option("kafka.isolation.level", "read_uncommitted")
    reader = reader.option("startingOffsets", _positions(start)).option("endingOffsets", _positions(end))
    return reader.load().select(*SOURCE_COLUMNS)


def _options(settings: Settings, partitions: Positions) -> dict[str, str]:
    named = {f"kafka.{name}": value for name, value in client_properties(settings).items()}
    return _FAST | named | {"assign": json.dumps({OFFSETS_TOPIC: sorted(partitions)})}


def _positions(offsets: Positions) -> str:
    return json.dumps({OFFSETS_TOPIC: {str(partition): offset for partition, offset in offsets.items()}})


def client_properties(settings: Settings) -> dict[str, str]:
    """The connection as the Java client's properties, secrets included. Raises SecretProblem for a malformed key."""
    properties = {"bootstrap.servers": ",".join(settings.bootstrap_servers)}
    if settings.sasl is not None:
        properties["security.protocol"] = "SASL_SSL" if settings.tls else "SASL_PLAINTEXT"
        properties |= _sasl(settings.sasl)
    elif settings.tls is not None:
        properties["security.protocol"] = "SSL"
    if settings.tls is not None:
        properties |= _tls(settings.tls)
    return properties


def _tls(tls: Tls) -> dict[str, str]:
    properties: dict[str, str] = {}
    if tls.ca is not None:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": tls.ca}
    if tls.certificate is not None and tls.private_key is not None:
        properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": tls.certificate,
            "ssl.keystore.key": as_pkcs8(tls.private_key.reveal()),
        }
    if not tls.verify_hostname:
        properties["ssl.endpoint.identification.algorithm"] = ""
    return properties


def _sasl(sasl: Sasl) -> dict[str, str]:
    if sasl.oauth is not None:
        return _oauth(sasl.oauth)
    login = {"username": sasl.username or "", "password": sasl.password.reveal() if sasl.password else ""}
    return {"sasl.mechanism": str(sasl.mechanism), "sasl.jaas.config": _jaas(sasl.mechanism, login)}


def _oauth(oauth: OAuth) -> dict[str, str]:
    login = {"clientId": oauth.client_id, "clientSecret": oauth.client_secret.reveal()}
    if oauth.scope:
        login["scope"] = oauth.scope
    if oauth.ca is not None:
        # Whom the token endpoint's client trusts stands in the login module's options, not among the connection's.
        login |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": oauth.ca}
    return {
        "sasl.mechanism": str(Mechanism.OAUTHBEARER),
        "sasl.oauthbearer.token.endpoint.url": oauth.token_endpoint,
        "sasl.login.callback.handler.class": _OAUTH_HANDLER,
        "sasl.jaas.config": _jaas(Mechanism.OAUTHBEARER, login),
    }


def _jaas(mechanism: Mechanism, options: Mapping[str, str]) -> str:
    r"""As java.io.StreamTokenizer reads it: a quoted text ends at a line's end, and \ begins an escape."""
    pairs = " ".join(f'{name}="{_quoted(value)}"' for name, value in options.items())
    return f"{_LOGIN_MODULES[mechanism]} required {pairs};"


def _quoted(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return text
