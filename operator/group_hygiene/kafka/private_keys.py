"""Private keys in the form that Java reads: PKCS#8 (RFC 5208). Pure; keeps no key and shows none.

OpenSSL also takes the older forms, which cert-manager and many tools write by default: PKCS#1 (RFC 8017) for RSA, and
SEC 1 (RFC 5915) for elliptic curves.
"""

from __future__ import annotations

import base64
import binascii
import re

from group_hygiene.errors import SecretProblem

_BLOCK = re.compile(r"-----BEGIN ((?:RSA |EC )?PRIVATE KEY)-----(.*?)-----END \1-----", re.DOTALL)
_RSA = bytes.fromhex("06092a864886f70d0101010500")  # 1.2.840.113549.1.1.1, and NULL
_EC = bytes.fromhex("06072a8648ce3d0201")  # 1.2.840.10045.2.1
_VERSION_0 = bytes.fromhex("020100")
_SEQUENCE, _OCTETS, _PARAMETERS = 0x30, 0x04, 0xA0


def as_pkcs8(pem: str) -> str:
    """A PEM private key as PKCS#8 PEM. Raises SecretProblem where there is none without a password."""
    found = _BLOCK.search(pem)
    try:
        if found is None:
            raise ValueError("no block")
        der = base64.b64decode("".join(found[2].split()), validate=True)
        if found[1] == "RSA PRIVATE KEY":
            der = _wrapped(_RSA, der)
        elif found[1] == "EC PRIVATE KEY":
            der = _wrapped(_EC + _curve(der), der)
    except (ValueError, IndexError, binascii.Error) as error:
        raise SecretProblem("tls.privateKey must be a PEM private key without a password", "SecretInvalid") from error
    lines = base64.encodebytes(der).decode().replace("\n", "")
    body = "\n".join(lines[start : start + 64] for start in range(0, len(lines), 64))
    return f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n"


def _wrapped(algorithm: bytes, key: bytes) -> bytes:
    return _element(_SEQUENCE, _VERSION_0 + _element(_SEQUENCE, algorithm) + _element(_OCTETS, key))


def _element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _curve(sec1: bytes) -> bytes:
    """The curve's identifier: ECPrivateKey is SEQUENCE {1, OCTET STRING, [0] the curve, [1] the public key}."""
    _, inside, _ = _first(sec1)
    while inside:
        tag, content, inside = _first(inside)
        if tag == _PARAMETERS:
            return content
    raise ValueError("an elliptic curve key that does not name its curve")


def _first(der: bytes) -> tuple[int, bytes, bytes]:
    """The first element: its tag, its content, and what comes after it."""
    size, start = der[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start], "big")
    return der[0], der[start : start + size], der[start + size :]
