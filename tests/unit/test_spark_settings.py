"""The settings of Spark for an object store."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from group_hygiene.pipeline.jobs import s3a_settings

_KEYS = {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}
_PROVIDER = "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider"
_ROLE = {"AWS_ROLE_ARN": "arn:aws:iam::111122223333:role/x", "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token"}


@pytest.mark.parametrize(
    ("variables", "settings"),
    [
        pytest.param({}, {}, id="nothing"),
        pytest.param(_KEYS, {}, id="keys-alone"),
        pytest.param({"AWS_REGION": "eu-central-1"}, {"endpoint.region": "eu-central-1"}, id="region"),
        pytest.param(
            {**_KEYS, "AWS_ENDPOINT_URL": "http://h:9000", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"},
            {"endpoint": "http://h:9000", "path.style.access": "true", "endpoint.region": "us-east-1"},
            id="endpoint",
        ),
        pytest.param(
            {"AWS_ENDPOINT_URL": "https://h", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "True"},
            {"endpoint": "https://h", "path.style.access": "false"},
            id="buckets-are-hosts",
        ),
        pytest.param(_ROLE, {"aws.credentials.provider": _PROVIDER}, id="role-of-the-account"),
        pytest.param({**_ROLE, **_KEYS}, {}, id="keys-before-a-role"),
    ],
)
def test_s3a_goes_where_delta_rs_goes(variables: dict[str, str], settings: dict[str, str]) -> None:
    """Where the store is, and the role of a pod's account; never a key, which would be an argument of a process."""
    assert s3a_settings(variables) == {f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()}
