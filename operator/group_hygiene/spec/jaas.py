r"""Kafka's `sasl.jaas.config`: `MODULE required name="value" ...;` (org.apache.kafka.common.security.JaasConfig). Pure.

Java reads it with java.io.StreamTokenizer: a quoted text ends at the end of its line, and \ begins an escape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from group_hygiene.errors import UsageError
from group_hygiene.spec.connection import Mechanism

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

_TOKEN = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[=;]|[^\s=;"']+)""", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_QUOTED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


def format_jaas(mechanism: str, options: Mapping[str, str]) -> str:
    """The options of the login module of a SASL mechanism, as text, including secret values."""
    pairs = "".join(f' {name}="{value.translate(_QUOTED)}"' for name, value in options.items())
    return f"{LOGIN_MODULES[mechanism]} required{pairs};"


def parse_jaas(text: str, mechanism: str) -> dict[str, str]:
    """The options of the login module. Raises UsageError without their values, also for another mechanism's module."""
    malformed = UsageError('sasl.jaas.config must have the form: MODULE required name="value" ...;')
    tokens, position = list[str](), 0
    for found in _TOKEN.finditer(text):
        if found.start() != position:
            raise malformed
        tokens.append(found[1])
        position = found.end()
    if text[position:].strip() or len(tokens) < 3 or tokens[-1] != ";" or ";" in tokens[:-1]:
        raise malformed
    if tokens[0] != LOGIN_MODULES[mechanism]:
        raise UsageError(f"sasl.jaas.config must begin with {LOGIN_MODULES[mechanism]} for sasl.mechanism {mechanism}")
    pairs = tokens[2:-1]
    if len(pairs) % 3 or any(sign != "=" for sign in pairs[1::3]):
        raise malformed
    return {name: _unquoted(value) for name, value in zip(pairs[::3], pairs[2::3], strict=True)}


def _unquoted(token: str) -> str:
    if token[0] not in "\"'":
        return token
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), token[1:-1], flags=re.DOTALL)
