"""How a secret looks where it must not be: in logs, messages and objects, as it is or written down in another way."""

from __future__ import annotations

import base64
from collections.abc import Iterable


def leaks(secrets: Iterable[str], texts: Iterable[str]) -> set[str]:
    """Those of the secrets that any of the texts shows."""
    everything = "\n".join(texts)
    return {secret for secret in secrets if any(form in everything for form in encodings(secret))}


def encodings(secret: str) -> set[str]:
    """The forms in which a part of a text may hide a secret: as it is, in hexadecimal, in base64 at any position."""
    raw = secret.encode()
    # The first and the last characters of base64 also depend on what is around.
    encoded = {base64.b64encode(bytes(shift) + raw)[4 if shift else 0 : -4].decode() for shift in range(3)}
    return {secret, raw.hex(), *encoded}
