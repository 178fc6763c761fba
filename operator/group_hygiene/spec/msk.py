"""Logins to Amazon MSK by IAM, and which brokers may get tokens of this process's own AWS identity. Pure.

A token names no cluster: for 15 minutes it proves an identity to every MSK cluster of its region. So a broker that gets
one can log in elsewhere as that identity. Authors of KafkaConnections choose the brokers, and brokers choose the
addresses of other brokers. So each address is checked before a connection: the operator's flags name the namespaces and
hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import field

from group_hygiene.errors import UsageError
from group_hygiene.spec.fields import SpecPart, is_namespace

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
