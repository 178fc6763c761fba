r"""Kafka's `sasl.jaas.config`: `MODULE required name="value" ...;` (org.apache.kafka.common.security.JaasConfig). Pure.

Read as Kafka reads it, by java.io.StreamTokenizer: another reading could be another password.
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
    return token["word"] if quoted is None else _ESCAPE.sub(_unescaped, quoted)


def _unescaped(escape: re.Match[str]) -> str:
    character = escape[1]
    return chr(int(character, 8)) if character[0] in "01234567" else _ESCAPED.get(character, character)
