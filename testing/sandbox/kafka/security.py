"""Authentication and authorization of a sandbox cluster's clients: TLS, SASL and the authorizer, as broker settings.

Only the client listener is secured. The internal listener (between brokers, and for making groups) stays plaintext;
with an authorizer its principal, User:ANONYMOUS, is a superuser.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from group_hygiene.spec.client_settings import LOGIN_MODULES

ADMIN = "admin"
SUPER_USERS = f"User:{ADMIN};User:ANONYMOUS"

Sasl = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
_QUOTED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


def format_jaas(mechanism: str, options: Mapping[str, str]) -> str:
    """The options of the login module of a SASL mechanism, as text, including secret values."""
    pairs = "".join(f' {name}="{value.translate(_QUOTED)}"' for name, value in options.items())
    return f"{LOGIN_MODULES[mechanism]} required{pairs};"


@dataclass(frozen=True)
class Security:
    """The requirements of the client listener.

    `users` is name -> password. The superuser `admin` always exists, with a random password unless one is given.
    With `client_auth="required"` the principal is the common name of the client's certificate (unless SASL sets it).
    `doors`: number of further such listeners of each broker, whose advertised ports belong to a proxy. The proxy
    terminates TLS: the broker behind it uses none.
    With OAUTHBEARER the broker accepts unsecured tokens (`sandbox.kafka.oauth`), which every client can make.
    """

    tls: bool = False
    client_auth: Literal["none", "required"] = "none"
    sasl: Sasl | None = None
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    authorizer: bool = False
    doors: int = 0

    def __post_init__(self) -> None:
        if self.client_auth == "required" and not self.tls:
            raise ValueError("client_auth='required' needs tls=True")
        if self.authorizer and self.sasl is None and self.client_auth == "none":
            raise ValueError("an authorizer needs sasl or client_auth='required': without, every client is a superuser")
        if self.sasl is not None and ADMIN not in self.users:
            object.__setattr__(self, "users", {ADMIN: secrets.token_urlsafe(16), **self.users})

    @property
    def protocol(self) -> str:
        """The client listener's security.protocol."""
        match (self.tls, self.sasl):
            case (False, None):
                return "PLAINTEXT"
            case (True, None):
                return "SSL"
            case (False, _):
                return "SASL_PLAINTEXT"
            case _:
                return "SASL_SSL"

    @property
    def door_protocol(self) -> str:
        """The security.protocol of the listeners behind doors."""
        return "PLAINTEXT" if self.sasl is None else "SASL_PLAINTEXT"

    @property
    def scram(self) -> bool:
        """Whether Kafka itself stores the users' credentials."""
        return self.sasl is not None and self.sasl.startswith("SCRAM")

    def sasl_properties(self, listeners: Sequence[str] = ("client",)) -> dict[str, str]:
        """Broker settings for SASL on the client listener, and on others that clients may use."""
        if self.sasl is None:
            return {}
        options: dict[str, str] = {}
        if self.sasl == "PLAIN":
            options = {f"user_{name}": password for name, password in self.users.items()}
        elif self.sasl == "OAUTHBEARER":
            # The broker's own login, which is never used, as brokers use the internal listener.
            options = {"unsecuredLoginStringClaim_sub": ADMIN}
        settings: dict[str, str] = {}
        for name in listeners:
            settings[f"listener.name.{name}.sasl.enabled.mechanisms"] = self.sasl
            mechanism = f"listener.name.{name}.{self.sasl.lower()}"
            settings[f"{mechanism}.sasl.jaas.config"] = format_jaas(self.sasl, options)
        return settings

    def authorizer_properties(self, kraft: bool) -> dict[str, str]:
        """Broker and controller settings for the authorizer; without an ACL nothing is allowed."""
        if not self.authorizer:
            return {}
        in_kraft = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        return {
            "authorizer.class.name": in_kraft if kraft else "kafka.security.authorizer.AclAuthorizer",
            "super.users": SUPER_USERS,
            "allow.everyone.if.no.acl.found": "false",
        }
