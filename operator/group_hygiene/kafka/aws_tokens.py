"""Tokens for Amazon MSK, by AWS's own signer (aws-msk-iam-sasl-signer-python) and the AWS identity of this process.

A token is a URL that is signed with AWS Signature Version 4. MSK accepts it by SASL/OAUTHBEARER. Who may get one:
`spec.msk`.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from group_hygiene.errors import AuthenticationFailed
from group_hygiene.spec.msk import MskIam

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
