"""The library's settings for a cluster: TLS, SASL, and which brokers may get tokens of this process's identity."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import ssl
import tempfile
import threading
import time
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from kafka.net.sasl.oauth import AbstractTokenProvider

from group_hygiene.errors import AuthenticationFailed, SecretProblem
from group_hygiene.model import reasons
from group_hygiene.process.egress import Egress, system_authorities, trusting
from group_hygiene.spec.client_settings import Hosts, MskIam, OAuth, Settings, Tls

if TYPE_CHECKING:
    from group_hygiene.process.post import Gate, HttpRequest


_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END|\Z)", re.DOTALL)
# In PEM, RSA of 8,192 bits has some 6,500 characters.
_KEY_LENGTH = 8_000
_NO_KEY = (
    "tls.certificateSecretRef and tls.privateKeySecretRef must name PEM texts that belong together, the key without a "
    "password and of at most 8192 bits"
)


def library_config(settings: Settings, timeout: float, egress: Egress | None = None) -> dict[str, Any]:
    """The library's settings for the cluster. timeout: seconds to get a token. egress: see `client.connect`.

    Raises SecretProblem for malformed PEM.
    """
    config: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "reconnect_backoff_max_ms": 1_000,
        "security_protocol": ("SASL_" if settings.sasl else "") + ("SSL" if settings.tls else "PLAINTEXT"),
        "ssl_context": client_context(settings.tls) if settings.tls else None,
    }
    sasl = settings.sasl
    if sasl is not None:
        config["sasl_mechanism"] = str(sasl.mechanism)
        if sasl.oauth is not None:
            config["sasl_oauth_token_provider"] = TokenProvider(sasl.oauth, timeout, egress)
        elif sasl.msk is not None:
            # MSK accepts the tokens of AWS's signer by this mechanism; AWS_MSK_IAM is one of Java clients.
            config["sasl_mechanism"] = "OAUTHBEARER"
            config["sasl_oauth_token_provider"] = MskTokenProvider(sasl.msk)
        else:
            config["sasl_plain_username"] = sasl.username
            config["sasl_plain_password"] = sasl.password
    return config


def token_hosts(settings: Settings) -> Hosts | None:
    """The brokers that may get tokens of this process's identity; None = any. Checks the bootstrap servers' hosts.

    Raises AuthenticationFailed with the reason IdentityNotAllowed.
    """
    hosts = settings.sasl.msk.hosts if settings.sasl is not None and settings.sasl.msk is not None else None
    if hosts is None:
        return None
    for server in settings.bootstrap_servers:
        host = server.rpartition(":")[0]
        if not hosts.include(host):
            message = (
                f"bootstrapServers: {host} may not get tokens of this AWS identity, only {', '.join(hosts.patterns)}"
            )
            raise AuthenticationFailed(message, reasons.IDENTITY_NOT_ALLOWED)
    return hosts


def client_context(tls: Tls) -> ssl.SSLContext:
    """The SSL context, with the client's certificate if there is one. Raises SecretProblem."""
    context = trusting(tls.ca, "tls.caSecretRef")
    context.check_hostname = tls.verify_hostname
    if tls.certificate is not None and tls.private_key is not None:
        _load_client_certificate(context, tls.certificate, tls.private_key.reveal())
    return context


def _load_client_certificate(context: ssl.SSLContext, certificate: str, private_key: str) -> None:
    # OpenSSL would compute for minutes: for a password, as long as the text says; and with a large key, for each login.
    keys = _KEY.findall(f"{certificate}\n{private_key}")
    if any("ENCRYPTED" in key or len(key) > _KEY_LENGTH for key in keys):
        raise SecretProblem(_NO_KEY, reasons.SECRET_INVALID)
    # OpenSSL loads a key only from a file. The file exists for that time, readable only by this user.
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(certificate.rstrip() + "\n" + private_key.rstrip() + "\n")
        context.load_cert_chain(path, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise SecretProblem(_NO_KEY, reasons.SECRET_INVALID) from error
    finally:
        os.unlink(path)


# Tokens for SASL/OAUTHBEARER, by the client credentials grant (RFC 6749, section 4.4; KIP-768).

_RENEW_BEFORE_S = 30.0
_TIMEOUT_MAX_S = 10.0
# A token of a real endpoint has some kilobytes; brokers take no SASL request of more than 512 KB.
_ANSWER_BYTES = 64_000
_LIFETIME_MAX_S = 24 * 3600.0


class _TokenAnswer(msgspec.Struct):
    """The fields of the answer (RFC 6749, section 5.1) that are used. expires_in: seconds."""

    access_token: str
    expires_in: float = 300.0


# Created at import, as msgspec crashes if two threads read a type's annotations at once.
_DECODER = msgspec.json.Decoder(_TokenAnswer, strict=False)


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Returns one token for all connections until shortly before it expires. Thread-safe.

    timeout: seconds for the endpoint's whole answer, at most 10. egress: which addresses it may have; None = any.
    """

    def __init__(self, oauth: OAuth, timeout: float, egress: Egress | None = None) -> None:
        self._oauth, self._egress = oauth, egress
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = 0.0
        # Without credentials before an @, as messages show it.
        parts = urlsplit(oauth.token_endpoint)
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._context = None if oauth.ca is None else trusting(oauth.ca, "sasl.oauth.caSecretRef")
        self._timeout = min(_TIMEOUT_MAX_S, timeout)

    def token(self) -> str:
        """The current access token. Raises AuthenticationFailed with the endpoint's answer, never with a secret."""
        with self._lock:
            if time.monotonic() >= self._renew_at:
                self._token, lifetime = self._fetch()
                self._renew_at = time.monotonic() + max(1.0, min(lifetime, _LIFETIME_MAX_S) - _RENEW_BEFORE_S)
            return self._token

    def _fetch(self) -> tuple[str, float]:
        # Imported here: it takes longer to load than the rest of a command that needs no token.
        import aiohttp

        from group_hygiene.process.post import Gate, send

        gate = None if self._egress is None else Gate(self._egress, urlsplit(self._url).hostname or "")
        # Not asyncio.run: its end would wait for the thread of a name server that hangs.
        loop = asyncio.new_event_loop()
        try:
            status, _, body = loop.run_until_complete(send(self._request(gate)))
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            if gate is not None and gate.refused is not None:
                raise AuthenticationFailed(f"the token endpoint {self._shown} leads to {gate.refused}") from error
            raise AuthenticationFailed(f"the token endpoint {self._shown} does not answer") from error
        finally:
            loop.close()
        if status != 200:
            raise AuthenticationFailed(f"the token endpoint {self._shown} answers HTTP {status}")
        if len(body) > _ANSWER_BYTES:
            raise AuthenticationFailed(f"the token endpoint {self._shown} answers more than {_ANSWER_BYTES} bytes")
        try:
            answer = _DECODER.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise AuthenticationFailed(f"the token endpoint {self._shown} answers without a token") from error
        return answer.access_token, answer.expires_in

    def _request(self, gate: Gate | None) -> HttpRequest:
        from yarl import URL

        from group_hygiene.process.post import HttpRequest

        oauth = self._oauth
        credentials = f"{oauth.client_id}:{oauth.client_secret.reveal()}".encode()
        return HttpRequest(
            URL(self._url, encoded=True),
            {"grant_type": "client_credentials", **({"scope": oauth.scope} if oauth.scope else {})},
            {
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                "Authorization": "Basic " + base64.b64encode(credentials).decode("ascii"),
            },
            gate,
            self._context or system_authorities(),
            self._timeout,
            read=_ANSWER_BYTES + 1,
        )


# Tokens for Amazon MSK, by AWS's own signer (aws-msk-iam-sasl-signer-python) and the AWS identity of this process.
#
# A token is a URL that is signed with AWS Signature Version 4. MSK accepts it by SASL/OAUTHBEARER. Who may get one:
# `spec.client_settings`.

_CONNECT_S, _READ_S = 3, 5
_SESSION_NAME = "group-hygiene"
_MISSING = (
    "mechanism AWS_MSK_IAM needs AWS's signer, which is not installed: pip install 'kafka-group-hygiene[aws]' "
    "(both images have it)"
)
_NO_IDENTITY = (
    "no AWS credentials were found: give the ServiceAccount a role (IRSA or EKS Pod Identity); on the command line, "
    "set AWS_PROFILE or the variables of AWS"
)


class MskTokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Returns a new token for each login: signing sends nothing, and a new token is valid for longest. Thread-safe.

    Credentials are read where AWS's libraries search them: variables, profiles, the token of a ServiceAccount, EKS Pod
    Identity, EC2. They and those of a role are read again before they expire, each by one request of at most 8 s.
    """

    def __init__(self, login: MskIam) -> None:
        self._login = login
        try:
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        except ImportError as error:
            raise AuthenticationFailed(_MISSING) from error
        self._sign = MSKAuthTokenProvider.generate_auth_token_from_credentials_provider
        self._role = None if login.role_arn is None else _role(login)

    def token(self) -> str:
        """A new token. Raises AuthenticationFailed, with AWS's error code and never with a credential."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            credentials = _own() if self._role is None else self._role
            token, _ = self._sign(self._login.region, _provider(credentials.get_frozen_credentials()))
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", "no code"))
            raise AuthenticationFailed(f"AWS refuses {error.operation_name}: {code}") from error
        # RuntimeError: credentials that are expired also after a refresh.
        except (BotoCoreError, OSError, ValueError, RuntimeError) as error:
            raise AuthenticationFailed(f"AWS credentials could not be read: {type(error).__name__}") from error
        return str(token)


@cache
def session() -> Any:
    """The identity of this process, for all connections: AWS's libraries read it once, and again before it expires."""
    import botocore.config
    import botocore.session

    made = botocore.session.Session()
    limits = {"connect_timeout": _CONNECT_S, "read_timeout": _READ_S, "retries": {"total_max_attempts": 1}}
    made.set_default_client_config(botocore.config.Config(**limits))
    return made


def _own() -> Any:
    found = session().get_credentials()
    if found is None:
        raise AuthenticationFailed(_NO_IDENTITY)
    return found


def _role(login: MskIam) -> Any:
    """Credentials of the role, which are requested when they are needed."""
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials

    def fetch() -> Any:
        fetcher = AssumeRoleCredentialFetcher(
            client_creator=partial(session().create_client, region_name=login.region),
            source_credentials=_own(),
            role_arn=login.role_arn,
            extra_args={"RoleSessionName": _SESSION_NAME},
        )
        return fetcher.fetch_credentials()

    return DeferredRefreshableCredentials(refresh_using=fetch, method="assume-role")


def _provider(credentials: Any) -> Any:
    """The credentials, as the signer accepts them."""
    from botocore.credentials import CredentialProvider

    class Provider(CredentialProvider):  # type: ignore[misc]
        METHOD = "group-hygiene"

        def load(self) -> Any:
            return credentials

    return Provider()
