"""What Amazon MSK checks of a token, by AWS's specification of Signature Version 4, without AWS's own code."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlsplit

ACCESS_KEY, SECRET_KEY = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
ROLE_ARN = "arn:aws:iam::111122223333:role/group-hygiene"


@dataclass(frozen=True)
class Login:
    """What a verified token says. session: the session token of temporary credentials, empty = none."""

    access_key: str
    region: str
    session: str


def verified(token: str, secret_key: str) -> Login:
    """Raises ValueError if the token is not a URL for kafka-cluster:Connect that was signed with this secret key.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
    """
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("ascii"))
    query = dict(parse_qsl(url.query, strict_parsing=True))
    # Neither is signed: the signer adds the user agent later.
    query.pop("User-Agent")
    signature = query.pop("X-Amz-Signature")
    access_key, day, region, service, ending = query["X-Amz-Credential"].split("/")
    scope = f"{day}/{region}/{service}/{ending}"
    for right in (
        (url.scheme, url.netloc, url.path) == ("https", f"kafka.{region}.amazonaws.com", "/"),
        (service, ending) == ("kafka-cluster", "aws4_request"),
        query["Action"] == "kafka-cluster:Connect",
        query["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256",
        query["X-Amz-SignedHeaders"] == "host",
        query["X-Amz-Date"].startswith(day),
        0 < int(query["X-Amz-Expires"]) <= 900,
    ):
        if not right:
            raise ValueError(f"not a token for MSK: {sorted(query)}")
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query.items())
    request = "\n".join(
        [
            *("GET", "/", "&".join("=".join(pair) for pair in pairs), f"host:{url.netloc}", "", "host"),
            hashlib.sha256(b"").hexdigest(),
        ]
    )
    to_sign = "\n".join(
        [query["X-Amz-Algorithm"], query["X-Amz-Date"], scope, hashlib.sha256(request.encode()).hexdigest()]
    )
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, service, ending):
        key = hmac.digest(key, part.encode(), "sha256")
    if not hmac.compare_digest(hmac.digest(key, to_sign.encode(), "sha256").hex(), signature):
        raise ValueError("the signature is wrong")
    return Login(access_key, region, query.get("X-Amz-Security-Token", ""))
