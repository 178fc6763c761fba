r"""The location of a pipeline's tables, and the credentials to reach them. No I/O.

With a Secret, only its credentials are used: they must be complete, so that the library never searches for others, and
each host of a request follows from values that are checked here. Without a Secret, the identity of the operator's own
pod is used, and only below an address that its flags allow for that namespace: tenants may not read every bucket that
the operator may read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from group_hygiene.errors import SecretProblem, SpecError, UsageError
from group_hygiene.model import reasons
from group_hygiene.process.egress import Egress
from group_hygiene.spec.client_settings import MskGrant
from group_hygiene.spec.crds import judged_part
from group_hygiene.spec.fields import Hidden, is_namespace

_ACCOUNT = r"[a-z0-9]{1,24}"

_REGION = r"[a-z0-9]+(-[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?"
_ENDPOINT = rf"https?://({_LABEL}(\.{_LABEL})*\.?|\[[0-9a-fA-F:.]+\])(:[0-9]{{1,5}})?/?"
_SWITCH = r"(?i:true|false|1|0)"
_KEY = r"[!-~]{1,4096}"
_ID = r"[a-zA-Z0-9.-]{1,128}"
# The options of an object store that a Secret may contain, by the names of AWS, Google and Azure, with their syntax.
# Other options could make the operator use its own files or identities.
_GRAMMAR = {
    "AWS_ACCESS_KEY_ID": _KEY,
    "AWS_SECRET_ACCESS_KEY": _KEY,
    "AWS_SESSION_TOKEN": _KEY,
    "AWS_REGION": _REGION,
    "AWS_ENDPOINT_URL": _ENDPOINT,
    "AWS_ALLOW_HTTP": _SWITCH,
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": _SWITCH,
    "GOOGLE_SERVICE_ACCOUNT_KEY": r"(?s:.{1,16384})",
    "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
    "AZURE_STORAGE_ACCOUNT_KEY": r"[a-zA-Z0-9+/]{1,256}={0,2}",
    "AZURE_STORAGE_SAS_TOKEN": _KEY,
    "AZURE_STORAGE_CLIENT_ID": _ID,
    "AZURE_STORAGE_CLIENT_SECRET": _KEY,
    "AZURE_STORAGE_TENANT_ID": _ID,
}
STORAGE_OPTIONS = tuple(_GRAMMAR)
_S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_GOOGLE_KEY = "GOOGLE_SERVICE_ACCOUNT_KEY"
# Any of these is sufficient; the first complete one is used.
_AZURE_KEYS = (
    ("AZURE_STORAGE_ACCOUNT_KEY",),
    ("AZURE_STORAGE_SAS_TOKEN",),
    ("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID"),
)
# The fields of a Google key that sign requests. Other fields may name a host for requests.
_GOOGLE_FIELDS = ("private_key", "private_key_id", "client_email")
_GOOGLE_HOSTS = ("storage.googleapis.com", "www.googleapis.com", "oauth2.googleapis.com")


class HostPort(NamedTuple):
    """A host, in lower case and without a final dot, and a port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Store:
    """The options of an object store, with credentials only from a Secret.

    options: for the library, complete. places: all hosts that it may connect to. chosen: the Secret names them, not the
    provider.
    """

    options: Mapping[str, Hidden]
    places: frozenset[HostPort]
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class TableGrant:
    """For connections of this namespace, the operator's own identity may read tables at or below this address."""

    namespace: str
    prefix: str

    def covers(self, namespace: str, uri: str) -> bool:
        prefix = self.prefix.rstrip("/")
        return namespace == self.namespace and (uri.rstrip("/") == prefix or uri.startswith(f"{prefix}/"))


@dataclass(frozen=True, slots=True)
class Allowed:
    """Locations that the operator's flags allow: local folders, addresses for its own identity, hosts of endpoints.

    brokers: those that may get tokens of its AWS identity.
    """

    folders: tuple[Path, ...] = ()
    identity: tuple[TableGrant, ...] = ()
    egress: Egress = field(default_factory=Egress)
    brokers: tuple[MskGrant, ...] = ()


def _is_location(text: str) -> bool:
    """Whether it is the address of a folder in an object store, or an absolute path."""
    try:
        judged_part("KafkaConnection", "spec.activity.uri", text)
    except SpecError:
        return False
    return True


def is_path(uri: str) -> bool:
    """Whether an address is a path on the machine that reads it."""
    return uri.startswith(("/", "file:"))


def parse_grant(entry: str) -> TableGrant:
    """Parse NAMESPACE=URI. Raises UsageError, also for a path: `--allow-local-activity` is for these."""
    namespace, _, prefix = entry.partition("=")
    if not is_namespace(namespace):
        raise UsageError(f"{entry!r} does not begin with a namespace, as in team-a=s3://bucket/team-a")
    if not _is_location(prefix) or is_path(prefix):
        raise UsageError(f"{entry!r} does not end with the address of a folder, as in team-a=s3://bucket/team-a")
    return TableGrant(namespace, prefix)


def read_store(uri: str, secret: str, texts: Mapping[str, str]) -> Store:
    """The options of an address's store from a Secret's texts, by their keys.

    Raises SecretProblem, which names keys and never shows values.
    """
    values = {key: text.rstrip("\r\n") for key, text in texts.items() if key in _GRAMMAR}
    if not values:
        raise _problem(secret, f"has none of the keys {', '.join(STORAGE_OPTIONS)}", reasons.SECRET_KEY_MISSING)
    for key, value in values.items():
        if not re.fullmatch(_GRAMMAR[key], value):
            raise _problem(secret, f"holds no valid {key}")
    scheme, rest = uri.split("://", 1)
    if scheme in ("s3", "s3a"):
        return _s3(secret, rest, values)
    return _google(secret, values) if scheme == "gs" else _azure(secret, rest, values)


def _s3(secret: str, rest: str, values: Mapping[str, str]) -> Store:
    _require(secret, values, (_S3_KEYS,))
    bucket, region = rest.split("/", 1)[0], values.get("AWS_REGION", "us-east-1")
    endpoint = values.get("AWS_ENDPOINT_URL")
    chosen = endpoint is not None
    if endpoint is None:
        virtual = values.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("true", "1")
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        # Set, so that the library does not start AWS's own search for credentials.
        endpoint = f"https://{f'{bucket}.' if virtual else ''}s3.{region}.{domain}"
    given = {key: value for key, value in values.items() if key.startswith("AWS_")}
    # Some servers treat a path that begins with two slashes as another one.
    options = given | {"AWS_REGION": region, "AWS_ENDPOINT_URL": endpoint.rstrip("/")}
    return Store(_hidden(options), frozenset({_place(secret, endpoint)}), chosen)


def _google(secret: str, values: Mapping[str, str]) -> Store:
    _require(secret, values, ((_GOOGLE_KEY,),))
    try:
        key = json.loads(values[_GOOGLE_KEY])
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, dict) or not all(isinstance(key.get(name), str) for name in _GOOGLE_FIELDS):
        raise _problem(secret, f"holds no valid {_GOOGLE_KEY}: it must be a key of a service account, as JSON")
    text = json.dumps({name: key[name] for name in _GOOGLE_FIELDS} | {"disable_oauth": False})
    return Store(_hidden({_GOOGLE_KEY: text}), frozenset(HostPort(host, 443) for host in _GOOGLE_HOSTS))


def _azure(secret: str, rest: str, values: Mapping[str, str]) -> Store:
    named = re.match(rf"[^/@]+@({_ACCOUNT})\.", rest)
    account = values.get("AZURE_STORAGE_ACCOUNT_NAME") or (named and named[1])
    if not account:
        raise _problem(secret, "lacks AZURE_STORAGE_ACCOUNT_NAME", reasons.SECRET_KEY_MISSING)
    if named and account != named[1]:
        raise _problem(secret, "holds another AZURE_STORAGE_ACCOUNT_NAME than spec.activity.uri")
    keys = _require(secret, values, _AZURE_KEYS)
    options = {"AZURE_STORAGE_ACCOUNT_NAME": account} | {key: values[key] for key in keys}
    hosts = f"{account}.blob.core.windows.net", f"{account}.dfs.core.windows.net", "login.microsoftonline.com"
    return Store(_hidden(options), frozenset(HostPort(host, 443) for host in hosts))


def _require(secret: str, values: Mapping[str, str], sets: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """The first complete one of several sets of keys."""
    for keys in sets:
        if all(values.get(key) for key in keys):
            return keys
    choices = ", or ".join(" and ".join(keys) for keys in sets)
    raise _problem(secret, f"has no complete credentials: it must have {choices}", reasons.SECRET_KEY_MISSING)


def _place(secret: str, endpoint: str) -> HostPort:
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise _problem(secret, "holds no valid AWS_ENDPOINT_URL")
    return HostPort(host.rstrip("."), port or (443 if parts.scheme == "https" else 80))


def _hidden(options: Mapping[str, str]) -> dict[str, Hidden]:
    return {key: Hidden(value) for key, value in options.items()}


def _problem(secret: str, what: str, reason: str = reasons.SECRET_INVALID) -> SecretProblem:
    return SecretProblem(f"Secret {secret} of spec.activity.secretRef {what}", reason)
