"""The settings of a Kafka client: its brokers, TLS, SASL and Amazon MSK, and Kafka's client properties. No I/O."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum

import javaproperties
from msgspec import field

from group_hygiene.errors import AuthenticationFailed, UsageError
from group_hygiene.model import reasons
from group_hygiene.spec.fields import Hidden, SpecPart, is_namespace


class Mechanism(StrEnum):
    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"
    AWS_MSK_IAM = "AWS_MSK_IAM"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts; ca None = the system's. verify_hostname False accepts a certificate for any host."""

    ca: str | None = None
    certificate: str | None = None
    private_key: Hidden | None = None
    verify_hostname: bool = True


@dataclass(frozen=True, slots=True)
class OAuth:
    """Where to get tokens: the client credentials grant of RFC 6749, section 4.4. `ca` is a PEM text."""

    token_endpoint: str
    client_id: str
    client_secret: Hidden
    scope: str | None = None
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class Sasl:
    mechanism: Mechanism
    username: str | None = None
    password: Hidden | None = None
    oauth: OAuth | None = None
    msk: MskIam | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a client, including secrets. With equal settings it need not reconnect.

    timeout: of one whole scan, and of connecting. requests_per_second: the limit; None = no limit.
    """

    bootstrap_servers: tuple[str, ...]
    tls: Tls | None = None
    sasl: Sasl | None = None
    timeout: timedelta = timedelta(seconds=30)
    requests_per_second: int | None = None


def with_granted_hosts(settings: Settings, namespace: str, grants: Iterable[MskGrant]) -> Settings:
    """The settings of a connection in this namespace, with the brokers that may get tokens of the operator's identity.

    Raises AuthenticationFailed with the reason IdentityNotAllowed if the connection needs one, and none is granted.
    """
    sasl = settings.sasl
    if sasl is None or sasl.msk is None:
        return settings
    login = sasl.msk
    hosts = tuple(each.host for each in grants if (each.namespace, each.role_arn) == (namespace, login.role_arn))
    if not hosts:
        whose = "assume that role" if login.role_arn else "use its own AWS identity"
        message = (
            f"sasl.mechanism AWS_MSK_IAM: the operator may not {whose} for connections of namespace {namespace}: "
            "start it with --allow-msk-identity NAMESPACE=HOST[,ROLE_ARN]"
        )
        raise AuthenticationFailed(message, reasons.IDENTITY_NOT_ALLOWED)
    return replace(settings, sasl=replace(sasl, msk=replace(login, hosts=Hosts(hosts))))


# Logins to Amazon MSK by IAM, and which brokers may get tokens of this process's own AWS identity. Pure.
#
# A token names no cluster: for 15 minutes it proves an identity to every MSK cluster of its region. So a broker that
# gets one can log in elsewhere as that identity. Authors of KafkaConnections choose the brokers, and brokers choose the
# addresses of other brokers. So each address is checked before a connection: the operator's flags name the namespaces
# and hosts.

_REGION = r"[a-z]{2,5}(-[a-z]{1,20}){1,3}-[0-9]{1,2}"
_ROLE = r"arn:aws[a-z-]{0,10}:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,576}"
_LABEL = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?"
# At least two labels after a star, so that no pattern covers a whole top-level domain.
_HOST = re.compile(rf"\*(\.{_LABEL}){{2,}}|{_LABEL}(\.{_LABEL})*")
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# As AWS names its brokers: b-1.CLUSTER.ID.c2.kafka.REGION.amazonaws.com, boot-ID.c1.kafka-serverless.REGION....
_MSK_HOST = re.compile(rf"[a-z0-9.-]+\.kafka(-serverless)?\.(?P<region>{_REGION})\.amazonaws\.com(\.cn)?")


@dataclass(frozen=True, slots=True)
class Hosts:
    """Patterns of host names: a name, or `*.` and the end of names. In lower case, without a final dot."""

    patterns: tuple[str, ...]

    def include(self, host: str) -> bool:
        name = host.removesuffix(".").lower()
        if _NAME.fullmatch(name) is None:
            return False
        return any(name.endswith(each[1:]) if each.startswith("*") else name == each for each in self.patterns)


@dataclass(frozen=True, slots=True)
class MskIam:
    """A login by IAM. role_arn: a role to assume; None = the process's own identity.

    hosts: the brokers that may get a token; None = any.
    """

    region: str
    role_arn: str | None = None
    hosts: Hosts | None = None


class MskIamSpec(SpecPart, frozen=True, kw_only=True):
    """`spec.sasl.awsMskIam`."""

    region: str
    role_arn: str | None = field(name="roleARN", default=None)

    def login(self) -> MskIam:
        """With the brokers that AWS runs, unless a caller replaces them (`with_granted_hosts`)."""
        return MskIam(self.region, self.role_arn, run_by_aws(self.region))


def run_by_aws(region: str, servers: Iterable[str] = ()) -> Hosts:
    """The host names of MSK's brokers in a region, which no customer of AWS runs; and of `servers` (host:port)."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    named = (server.rpartition(":")[0].removesuffix(".").lower() for server in servers)
    return Hosts((f"*.kafka.{region}.{domain}", f"*.kafka-serverless.{region}.{domain}", *named))


def region_of(servers: Iterable[str]) -> str | None:
    """The region in the name of an MSK broker (host:port); None = no name has one."""
    found = (_MSK_HOST.fullmatch(server.rpartition(":")[0].lower()) for server in servers)
    return next((match["region"] for match in found if match), None)


def is_region(text: str) -> bool:
    """Whether it has the form of a region's name, which becomes part of a host name."""
    return re.fullmatch(_REGION, text) is not None


def is_role(text: str) -> bool:
    """Whether it is the ARN of a role."""
    return re.fullmatch(_ROLE, text) is not None


@dataclass(frozen=True, slots=True)
class MskGrant:
    """For connections of this namespace, brokers with these hosts may get tokens.

    role_arn: of this role, which the operator assumes; None = of the operator's own identity.
    """

    namespace: str
    host: str
    role_arn: str | None = None


def parse_msk_grant(entry: str) -> MskGrant:
    """Parse NAMESPACE=HOST or NAMESPACE=HOST,ROLE_ARN. Raises UsageError."""
    namespace, _, rest = entry.partition("=")
    host, comma, role = rest.partition(",")
    example = "as in kafka=*.kafka.eu-west-1.amazonaws.com"
    if not is_namespace(namespace):
        raise UsageError(f"{entry!r} does not begin with a namespace, {example}")
    if not _HOST.fullmatch(host.lower()):
        raise UsageError(f"{entry!r} has no host name, nor *. with the end of host names, {example}")
    if comma and not is_role(role):
        raise UsageError(
            f"{entry!r} does not end with the ARN of a role, {example},arn:aws:iam::111122223333:role/kafka"
        )
    return MskGrant(namespace, host.lower(), role if comma else None)


# Kafka's `sasl.jaas.config`: `MODULE required name="value" ...;` (org.apache.kafka.common.security.JaasConfig). Pure.
#
# Read as Kafka reads it, by java.io.StreamTokenizer: another reading could be another password.

_PACKAGE = "org.apache.kafka.common.security"
LOGIN_MODULES: Mapping[str, str] = {
    Mechanism.PLAIN: f"{_PACKAGE}.plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: f"{_PACKAGE}.scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: f"{_PACKAGE}.scram.ScramLoginModule",
    Mechanism.OAUTHBEARER: f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule",
    # https://github.com/aws/aws-msk-iam-auth
    Mechanism.AWS_MSK_IAM: "software.amazon.msk.auth.iam.IAMLoginModule",
}
OAUTH_HANDLER = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler"
# Its older name.
OLD_OAUTH_HANDLER = f"{_PACKAGE}.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
# Of aws-msk-iam-auth: for AWS_MSK_IAM, and for OAUTHBEARER with the tokens of AWS's signers.
IAM_HANDLER = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
IAM_OAUTH_HANDLER = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"

_FLAGS = {"required", "requisite", "sufficient", "optional"}
# As JaasConfig sets its StreamTokenizer: a word begins with a letter, `_`, `$` or a character from U+00A0 on, and may
# also have digits, dots and hyphens. A number is no word. `/` begins a comment to the end of the line, `/*` one that
# ends with `*/`. A quoted text ends at its quote or with its line.
_TOKEN = re.compile(
    r"""(?P<nothing> [\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /[^\r\n]* )
    | (?P<number> -?(?:[0-9]+\.?[0-9]*|\.[0-9]*) )
    | (?P<word> [A-Za-z_$\xa0-\U0010ffff][-A-Za-z0-9_.$\xa0-\U0010ffff]* )
    | "(?P<quoted> (?:\\.|[^"\\\r\n])* )"?
    | '(?P<single> (?:\\.|[^'\\\r\n])* )'?
    | (?P<sign> . )""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def parse_jaas(text: str, mechanism: str) -> dict[str, str]:
    """The options of the login module. Raises UsageError without their values, also for another mechanism's module."""
    malformed = UsageError('sasl.jaas.config must have the form: MODULE required name="value" ...;')
    # (text of a word, its sign): a number has neither.
    tokens = [(_text(found), found["sign"]) for found in _TOKEN.finditer(text) if found["nothing"] is None]
    if len(tokens) < 3 or [number for number, (_, sign) in enumerate(tokens, 1) if sign == ";"] != [len(tokens)]:
        raise malformed
    (module, _), (flag, _), *pairs, _ = tokens
    if module is None or flag is None or flag.lower() not in _FLAGS or len(pairs) % 3:
        raise malformed
    if any(sign != "=" for _, sign in pairs[1::3]) or any(value is None for value, _ in pairs[2::3]):
        raise malformed
    if module != LOGIN_MODULES[mechanism]:
        raise UsageError(f"sasl.jaas.config must begin with {LOGIN_MODULES[mechanism]} for sasl.mechanism {mechanism}")
    return {
        name: value
        for (name, _), (value, _) in zip(pairs[::3], pairs[2::3], strict=True)
        if name is not None and value is not None
    }


def _text(token: re.Match[str]) -> str | None:
    quoted = token["quoted"] if token["single"] is None else token["single"]
    if quoted is None:
        return token["word"]
    return _ESCAPE.sub(lambda e: chr(int(e[1], 8)) if e[1][0] in "01234567" else _ESCAPED.get(e[1], e[1]), quoted)


# Parses Kafka's client properties (`--command-config` of its tools) into Tls and Sasl.
#
# Pure: the caller passes the function that reads files. Unsupported properties (JKS, GSSAPI, ...) are errors, never
# ignored; no message shows a value, which may be a secret.

ReadFile = Callable[[str], str]

_PROTOCOLS = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
_SERVERS = "bootstrap.servers"
_CALLBACKS = "sasl.client.callback.handler.class"
_USED = frozenset(
    {
        _SERVERS,
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        _CALLBACKS,
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
# Of stores of these types, which are refused first.
_STORE_PASSWORDS = {
    "ssl.key.password": "is not supported: the private key must be PEM without a password",
    "ssl.keystore.password": _NO_STORE_PASSWORD,
    "ssl.truststore.password": _NO_STORE_PASSWORD,
}
_UNSUPPORTED = {
    "config.providers": "is not supported: write the values themselves, or use --connection",
    "ssl.engine.factory.class": "is not supported: Java classes can't be loaded here",
}
_NO_CLASSES = "is not supported: Java classes can't be loaded here"
# DER, and stores of Java, have such bytes; text has none.
_CONTROL = re.compile(r"[^\t\n\r -~]")
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """The parsed properties. ignored: the sorted names of those that have no effect here, each with a reason if known.

    clusters: see `clusters_of`.
    """

    bootstrap_servers: tuple[str, ...]
    tls: Tls | None
    sasl: Sasl | None
    ignored: tuple[str, ...]
    clusters: tuple[str, ...] = ()

    @property
    def has_login(self) -> bool:
        """Whether they prove an identity to brokers: by SASL or a client certificate."""
        return self.sasl is not None or (self.tls is not None and self.tls.private_key is not None)


def parse_client_properties(text: str, read_file: ReadFile, cluster: str | None = None) -> ClientProperties:
    """The text of a properties file as ClientProperties. Raises UsageError, which names the property.

    cluster: the one of several clusters in the file; None = properties without a name.
    """
    properties = _read(text)
    clusters = clusters_of(properties)
    if cluster is not None:
        if cluster not in clusters:
            known = f", only {', '.join(clusters)}" if clusters else ""
            raise UsageError(f"it has no cluster {cluster!r} ({cluster}.{_SERVERS}){known}")
        properties = _of_cluster(properties, clusters, cluster)
    for name, why in _UNSUPPORTED.items():
        if name in properties:
            raise UsageError(f"{name} {why}")
    if properties.get(_CALLBACKS, IAM_HANDLER) != IAM_HANDLER:
        raise UsageError(f"{_CALLBACKS} {_NO_CLASSES}")
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise UsageError(f"security.protocol must be one of {', '.join(_PROTOCOLS)}")
    with_tls, with_sasl = _PROTOCOLS[protocol]
    servers = [server.strip() for server in properties.get(_SERVERS, "").split(",")]
    tls = _tls(properties, read_file) if with_tls else None
    sasl = _sasl(properties, with_tls) if with_sasl else None
    if sasl is not None and sasl.msk is not None and tls is not None and not tls.verify_hostname:
        raise UsageError("ssl.endpoint.identification.algorithm must not be empty to log in by IAM: a token is for AWS")
    return ClientProperties(
        bootstrap_servers=tuple(server for server in servers if server),
        tls=tls,
        sasl=sasl,
        ignored=tuple(filter(None, (_ignored(name, None if cluster else protocol) for name in sorted(properties)))),
        clusters=clusters,
    )


def _ignored(name: str, protocol: str | None) -> str:
    """The name of a property that has no effect, and perhaps why; empty = it has one.

    protocol: None = of one of several clusters; the property may be for the others.
    """
    used = {} if protocol is None else dict(zip(("ssl", "sasl"), _PROTOCOLS[protocol], strict=True))
    if not used.get(name.partition(".")[0], True):
        return f"{name} (security.protocol is {protocol})"
    if name in _USED:
        return ""
    meant = get_close_matches(name, _USED, 1, 0.8)
    return f"{name} (did you mean {meant[0]}?)" if meant else name


def clusters_of(properties: Iterable[str]) -> tuple[str, ...]:
    """The names of the clusters in a file of several, as in MirrorMaker 2's: those with NAME.bootstrap.servers."""
    return tuple(sorted(each.removesuffix(f".{_SERVERS}") for each in properties if each.endswith(f".{_SERVERS}")))


def _of_cluster(properties: Mapping[str, str], clusters: Iterable[str], cluster: str) -> dict[str, str]:
    """The properties of one cluster, without its name; else those that have no cluster's name."""
    shared, own = dict[str, str](), dict[str, str]()
    for name, value in properties.items():
        # The longest, as a name may have dots.
        owner = max((each for each in clusters if name.startswith(f"{each}.")), key=len, default="")
        if owner == cluster:
            own[name.removeprefix(f"{cluster}.")] = value
        elif not owner and name != "clusters":
            shared[name] = value
    return shared | own


def _read(text: str) -> dict[str, str]:
    try:
        properties = {name: value.strip() for name, value in javaproperties.loads(text).items()}
        # Fails on half a surrogate pair.
        "".join(properties.values()).encode()
    except ValueError:
        raise UsageError("a property has a malformed \\u escape") from None
    return properties


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
        advice = f"set {store}.type=PEM"
        if location and not text:
            is_pem = "-----BEGIN " in read_file(location)
            advice = f"{location} is PEM: {advice}" if is_pem else _conversion(store, kind, location)
        raise UsageError(f"{store}.type {kind}{default} is not supported: {advice}")
    if text and location:
        raise UsageError(f"{store}.location must not be given with {inline}")
    found = text or read_file(location or "")
    if location and "-----BEGIN " not in found and _CONTROL.search(found):
        # Of PKCS12, the tag of its sequence.
        kind = "PKCS12" if found.startswith("0") else "JKS"
        message = f"{location} is not PEM, as {store}.type says; if it is a {kind} store,"
        raise UsageError(f"{message} {_conversion(store, kind, location)}")
    for name, why in _STORE_PASSWORDS.items():
        if name in properties:
            raise UsageError(f"{name} {why}")
    return found


def _conversion(store: str, kind: str, location: str) -> str:
    """How to make a PEM file of a store of Java: the lines for a shell, and the properties."""
    pem = f"{location}.pem"
    source, made = shlex.quote(location), shlex.quote(pem)
    lines = [f"keytool -list -rfc -keystore {source} > {made}"]
    if store == "ssl.keystore":
        pkcs12 = source
        lines = []
        if kind != "PKCS12":
            pkcs12 = shlex.quote(f"{location}.p12")
            lines.append(f"keytool -importkeystore -srckeystore {source} -destkeystore {pkcs12} -deststoretype PKCS12")
        # The private key gets no password: only this user may read it. OpenSSL 3 reads RC2 and 3DES, which an older
        # keytool uses, only with -legacy, which earlier ones lack.
        options = f"-in {pkcs12} -nodes -out {made}"
        lines.append(f"(umask 077; openssl pkcs12 {options} || openssl pkcs12 -legacy {options})")
    properties = f"{store}.type=PEM and {store}.location={pem}, without {store}.password and ssl.key.password"
    return "\n".join(["convert it by", *lines, f"and set {properties}"])


def _blocks(text: str, kind: str, where: str) -> str:
    """The PEM blocks of one kind, with line breaks as OpenSSL needs them: a property may have none."""
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


def _sasl(properties: Mapping[str, str], with_tls: bool) -> Sasl:
    name = properties.get("sasl.mechanism", "").upper()
    if name in ("", "GSSAPI"):
        default = "" if name else " (Kafka's default, GSSAPI, is not supported)"
        raise UsageError(f"sasl.mechanism must be one of {', '.join(Mechanism)}{default}")
    if name not in list(Mechanism):
        raise UsageError(f"sasl.mechanism must be one of {', '.join(Mechanism)}")
    mechanism = Mechanism(name)
    handler = properties.get("sasl.login.callback.handler.class")
    if handler and handler not in (OAUTH_HANDLER, OLD_OAUTH_HANDLER, IAM_OAUTH_HANDLER):
        raise UsageError(f"sasl.login.callback.handler.class {_NO_CLASSES}")
    jaas = properties.get("sasl.jaas.config", "")
    if not jaas and mechanism is not Mechanism.OAUTHBEARER:
        raise UsageError("sasl.jaas.config must be given with a SASL protocol")
    options = parse_jaas(jaas, mechanism) if jaas else {}
    if mechanism is Mechanism.AWS_MSK_IAM or (mechanism is Mechanism.OAUTHBEARER and handler == IAM_OAUTH_HANDLER):
        if not with_tls:
            raise UsageError("security.protocol must be SASL_SSL to log in by IAM: a token proves an identity")
        return Sasl(Mechanism.AWS_MSK_IAM, msk=_iam(options))
    if mechanism is Mechanism.OAUTHBEARER:
        return Sasl(mechanism, oauth=_oauth(properties, options))
    if not options.get("username") or "password" not in options:
        raise UsageError("sasl.jaas.config must hold username and password")
    return Sasl(mechanism, username=options["username"], password=Hidden(options["password"]))


def _iam(options: Mapping[str, str]) -> MskIam:
    """The login by IAM. Its region follows from the brokers' names or from variables, as for Java clients."""
    for name in options.keys() - {"awsRoleArn"}:
        way = ": set AWS_PROFILE" if name == "awsProfileName" else ""
        raise UsageError(f"sasl.jaas.config: {name} is not supported{way}")
    role = options.get("awsRoleArn")
    if role is not None and not is_role(role):
        raise UsageError("sasl.jaas.config: awsRoleArn must be the ARN of a role")
    return MskIam("", role)


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
