"""Spark's Kafka source, configured to read the whole offsets log, fast, and without writing to it.

It uses `assign`, never `subscribe`, which would join a consumer group, and so write records into the log that it reads.
Options go from this process to Spark's consumers in memory: they never become settings of the session, which are
visible in process lists and in Spark's web UI.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from pyspark.sql import DataFrame, SparkSession

from group_hygiene.errors import SecretProblem
from group_hygiene.kafka.cluster import OFFSETS_TOPIC
from group_hygiene.pipeline.ingest.decoder import SOURCE_COLUMNS
from group_hygiene.spec.connection import Mechanism, OAuth, Sasl, Settings, Tls
from group_hygiene.spec.jaas import OAUTH_HANDLER, format_jaas

# Records of one micro-batch, which is read again if a run is killed.
BATCH_RECORDS = 4_000_000
_SPLIT_RECORDS = 500_000
# By default, Spark finds offsets with an admin client that omits internal topics without an error.
_OFFSETS_BY_CONSUMER = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
_FAST = {
    "failOnDataLoss": "true",
    "maxRecordsPerPartition": str(_SPLIT_RECORDS),
    # Otherwise a poll at the end of each of the 50 partitions waits for half a second.
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "100000",
    "kafka.client.id": "group-hygiene-pipeline",
    # Prefix of its consumers' group.id. With `assign` no group is created, but an ACL may have to allow the name.
    "groupIdPrefix": "group-hygiene-pipeline",
}

Positions = Mapping[int, int]


def read_stream(spark: SparkSession, settings: Settings, start: Positions) -> DataFrame:
    """The committed records from `start` on (partition of the log -> offset), in SOURCE_COLUMNS."""
    spark.conf.set(_OFFSETS_BY_CONSUMER, "true")
    reader = spark.readStream.format("kafka").options(**_options(settings, start))
    reader = reader.option("kafka.isolation.level", "read_committed")
    reader = reader.option("startingOffsets", _positions(start)).option("maxOffsetsPerTrigger", str(BATCH_RECORDS))
    return reader.load().select(*SOURCE_COLUMNS)


def read_range(spark: SparkSession, settings: Settings, start: Positions, end: Positions) -> DataFrame:
    """Records from `start` to `end`, also of aborted transactions, in SOURCE_COLUMNS. Both have the same partitions."""
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
    """The connection as properties of the Java client, including secrets. Raises SecretProblem for a malformed key."""
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
            "ssl.keystore.key": _pkcs8(tls.private_key.reveal()),
        }
    if not tls.verify_hostname:
        properties["ssl.endpoint.identification.algorithm"] = ""
    return properties


def _sasl(sasl: Sasl) -> dict[str, str]:
    if sasl.oauth is not None:
        return _oauth(sasl.oauth)
    login = {"username": sasl.username or "", "password": sasl.password.reveal() if sasl.password else ""}
    return {"sasl.mechanism": str(sasl.mechanism), "sasl.jaas.config": format_jaas(sasl.mechanism, login)}


def _oauth(oauth: OAuth) -> dict[str, str]:
    login = {"clientId": oauth.client_id, "clientSecret": oauth.client_secret.reveal()}
    if oauth.scope:
        login["scope"] = oauth.scope
    if oauth.ca is not None:
        # The CA of the token endpoint is an option of the login module, not of the connection.
        login |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": oauth.ca}
    return {
        "sasl.mechanism": str(Mechanism.OAUTHBEARER),
        "sasl.oauthbearer.token.endpoint.url": oauth.token_endpoint,
        "sasl.login.callback.handler.class": OAUTH_HANDLER,
        "sasl.jaas.config": format_jaas(Mechanism.OAUTHBEARER, login),
    }


def _pkcs8(pem: str) -> str:
    """A PEM private key in PKCS 8, which Java requires. Raises SecretProblem if it is malformed or has a password."""
    try:
        key = load_pem_private_key(pem.encode(), None)
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SecretProblem(
            "tls.privateKeySecretRef must be a PEM private key without a password", "SecretInvalid"
        ) from error
