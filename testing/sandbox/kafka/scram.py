"""SCRAM credentials as Kafka stores them (RFC 5802), so that a password itself never leaves this process."""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Self

ITERATIONS = 4096
_ALGORITHMS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


@dataclass(frozen=True)
class Credential:
    """A salted password. It allows to log in, so it stays in files of mode 0600."""

    algorithm: str
    salt: bytes
    salted: bytes

    @classmethod
    def of(cls, mechanism: str, password: str) -> Self:
        """Salt a password for SCRAM-SHA-256 or SCRAM-SHA-512."""
        algorithm = _ALGORITHMS[mechanism]
        salt = secrets.token_bytes(16)
        return cls(algorithm, salt, hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, ITERATIONS))

    def for_storage_tool(self, mechanism: str, name: str) -> str:
        """The value of --add-scram (KIP-900)."""
        return (
            f"{mechanism}=[name={name},iterations={ITERATIONS},"
            f'salt="{_base64(self.salt)}",saltedpassword="{_base64(self.salted)}"]'
        )

    def for_zookeeper(self) -> str:
        """The value in a znode of /config/users (Kafka's ScramCredentialUtils)."""
        client = hmac.digest(self.salted, b"Client Key", self.algorithm)
        stored = hashlib.new(self.algorithm, client).digest()
        server = hmac.digest(self.salted, b"Server Key", self.algorithm)
        keys = f"stored_key={_base64(stored)},server_key={_base64(server)}"
        return f"salt={_base64(self.salt)},{keys},iterations={ITERATIONS}"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
