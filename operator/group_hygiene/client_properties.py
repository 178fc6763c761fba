"""Kafka's own client properties (`--command-config` of its tools), read into Tls and Sasl.

Pure: files that a property names are read by the function that the caller hands in. What this client can't do (JKS,
GSSAPI, ...) is an error and never quietly left out; no message shows a value, which may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from group_hygiene.connection import Mechanism, OAuth, Sasl, Tls
from group_hygiene.errors import UsageError
from group_hygiene.secret import Hidden

ReadFile = Callable[[str], str]

_PROTOCOLS = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
_MODULES = {
    Mechanism.PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Mechanism.OAUTHBEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
_OAUTH_HANDLERS = tuple(
    f"org.apache.kafka.common.security.oauthbearer.{package}OAuthBearerLoginCallbackHandler"
    for package in ("", "secured.")
)
_USED = frozenset(
    {
        "bootstrap.servers",
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.login.callback.handler.class",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
        "ssl.endpoint.identification.algorithm",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
_NO_STORE_PASSWORD = "is for JKS and PKCS12: a PEM store has no password"
_UNSUPPORTED = {
    "config.providers": "is not supported: write the values themselves, or use --connection",
    "sasl.client.callback.handler.class": "is not supported: Java classes can't be loaded here",
    "ssl.engine.factory.class": "is not supported: Java classes can't be loaded here",
    "ssl.key.password": "is not supported: the private key must be PEM without a password",
    "ssl.keystore.password": _NO_STORE_PASSWORD,
    "ssl.truststore.password": _NO_STORE_PASSWORD,
}
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_JAAS_TOKEN = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[=;]|[^\s=;"']+)""", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """What the properties say. `ignored`: the names of those that mean nothing here, sorted."""

    bootstrap_servers: tuple[str, ...]
    tls: Tls | None
    sasl: Sasl | None
    ignored: tuple[str, ...]


def parse_client_properties(text: str, read_file: ReadFile) -> ClientProperties:
    """The text of a properties file as ClientProperties. Raises UsageError, which names the property."""
    properties = {name: value.strip() for name, value in parse_properties(text).items()}
    for name, why in _UNSUPPORTED.items():
        if name in properties:
            raise UsageError(f"{name} {why}")
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise UsageError(f"security.protocol must be one of {', '.join(_PROTOCOLS)}")
    with_tls, with_sasl = _PROTOCOLS[protocol]
    servers = [server.strip() for server in properties.get("bootstrap.servers", "").split(",")]
    return ClientProperties(
        bootstrap_servers=tuple(server for server in servers if server),
        tls=_tls(properties, read_file) if with_tls else None,
        sasl=_sasl(properties) if with_sasl else None,
        ignored=tuple(sorted(properties.keys() - _USED)),
    )


def parse_properties(text: str) -> dict[str, str]:
    r"""The format of java.util.Properties: comments, `=`, `:` or blanks between, `\` at the line's end, `\uXXXX`."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        found = re.match(r"((?:[^\\=:\s]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
        if found is not None:
            properties[_unescaped(found[1])] = _unescaped(found[2])
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    pending: str | None = None
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if pending is None and (not line or line[0] in "#!"):
            continue
        line = (pending or "") + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = line[:-1]
            continue
        pending = None
        yield line
    if pending:
        yield pending


def _unescaped(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        return _ESCAPES.get(match[2], match[2])

    plain = re.sub(r"\\(?:u([0-9A-Fa-f]{4})|(.))", replaced, text, flags=re.DOTALL)
    # Java writes what lies beyond 16 bits as two halves.
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _tls(properties: Mapping[str, str], read_file: ReadFile) -> Tls:
    certificates = _store(properties, "ssl.truststore", "ssl.truststore.certificates", read_file)
    chain = _store(properties, "ssl.keystore", "ssl.keystore.certificate.chain", read_file)
    key = properties.get("ssl.keystore.key", "") if properties.get("ssl.keystore.certificate.chain") else chain
    if properties.get("ssl.keystore.key") and not chain:
        raise UsageError("ssl.keystore.certificate.chain must be given with ssl.keystore.key")
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if algorithm not in ("", "https"):
        raise UsageError("ssl.endpoint.identification.algorithm must be https, or empty to accept any host")
    return Tls(
        ca=_blocks(certificates, "CERTIFICATE", "the trust store") if certificates is not None else None,
        certificate=_blocks(chain, "CERTIFICATE", "the key store") if chain is not None else None,
        private_key=Hidden(_blocks(key or "", "PRIVATE KEY", "the key store")) if chain is not None else None,
        verify_hostname=algorithm == "https",
    )


def _store(properties: Mapping[str, str], store: str, inline: str, read_file: ReadFile) -> str | None:
    """The PEM text of a store, from its file or from the property itself; None = there is none."""
    text, location = properties.get(inline), properties.get(f"{store}.location")
    if not text and not location:
        return None
    kind = properties.get(f"{store}.type", "JKS").upper()
    if kind != "PEM":
        default = "" if f"{store}.type" in properties else ", Kafka's default,"
        raise UsageError(f"{store}.type {kind}{default} is not supported: set {store}.type=PEM and give it PEM texts")
    if text and location:
        raise UsageError(f"{store}.location must not be given with {inline}")
    return text or read_file(location or "")


def _blocks(text: str, kind: str, where: str) -> str:
    """The PEM blocks of one kind, each with its lines as OpenSSL wants them: a property may hold all in one line."""
    blocks = []
    for label, body in _BLOCK.findall(text):
        if label == "ENCRYPTED PRIVATE KEY" or "ENCRYPTED" in body:
            raise UsageError(f"the private key in {where} must be PEM without a password")
        if label.endswith(kind):
            data = "".join(body.split())
            lines = "\n".join(data[start : start + 64] for start in range(0, len(data), 64))
            blocks.append(f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n")
    if not blocks:
        raise UsageError(f"{where} must hold a PEM {kind.lower()}")
    return "".join(blocks)


def _sasl(properties: Mapping[str, str]) -> Sasl:
    name = properties.get("sasl.mechanism", "").upper()
    if name in ("", "GSSAPI"):
        default = "" if name else " (Kafka's default, GSSAPI, is not supported)"
        raise UsageError(f"sasl.mechanism must be one of {', '.join(Mechanism)}{default}")
    if name not in list(Mechanism):
        raise UsageError(f"sasl.mechanism must be one of {', '.join(Mechanism)}")
    mechanism = Mechanism(name)
    handler = properties.get("sasl.login.callback.handler.class")
    if handler and handler not in _OAUTH_HANDLERS:
        raise UsageError("sasl.login.callback.handler.class is not supported: Java classes can't be loaded here")
    options = _jaas_options(properties, mechanism)
    if mechanism is Mechanism.OAUTHBEARER:
        return Sasl(mechanism, oauth=_oauth(properties, options))
    if not options.get("username") or "password" not in options:
        raise UsageError("sasl.jaas.config must hold username and password")
    return Sasl(mechanism, username=options["username"], password=Hidden(options["password"]))


def _oauth(properties: Mapping[str, str], options: Mapping[str, str]) -> OAuth:
    endpoint = properties.get("sasl.oauthbearer.token.endpoint.url", "")
    if not re.match(r"https?://", endpoint):
        raise UsageError("sasl.oauthbearer.token.endpoint.url must be given, as an http or https URL")
    prefix = "sasl.oauthbearer.client.credentials.client"
    client_id = properties.get(f"{prefix}.id") or options.get("clientId")
    secret = properties.get(f"{prefix}.secret") or options.get("clientSecret")
    if not client_id or not secret:
        raise UsageError("sasl.jaas.config must hold clientId and clientSecret")
    scope = properties.get("sasl.oauthbearer.scope") or options.get("scope")
    return OAuth(endpoint, client_id, Hidden(secret), scope or None)


def _jaas_options(properties: Mapping[str, str], mechanism: Mechanism) -> dict[str, str]:
    """`module flag key="value" ...;` as its options (org.apache.kafka.common.security.JaasConfig)."""
    text = properties.get("sasl.jaas.config", "")
    if not text:
        if mechanism is Mechanism.OAUTHBEARER:
            return {}
        raise UsageError("sasl.jaas.config must be given with a SASL protocol")
    form = UsageError('sasl.jaas.config must have the form: MODULE required name="value" ...;')
    tokens, position = list[str](), 0
    for found in _JAAS_TOKEN.finditer(text):
        if found.start() != position:
            raise form
        tokens.append(found[1])
        position = found.end()
    if text[position:].strip() or len(tokens) < 3 or tokens[-1] != ";" or ";" in tokens[:-1]:
        raise form
    if tokens[0] != _MODULES[mechanism]:
        raise UsageError(f"sasl.jaas.config must begin with {_MODULES[mechanism]} for sasl.mechanism {mechanism}")
    pairs = tokens[2:-1]
    if len(pairs) % 3 or any(sign != "=" for sign in pairs[1::3]):
        raise form
    return {name: _jaas_value(value) for name, value in zip(pairs[::3], pairs[2::3], strict=True)}


def _jaas_value(token: str) -> str:
    if token[0] not in "\"'":
        return token
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), token[1:-1], flags=re.DOTALL)
