"""How object stores are reached: what a Secret must say, where the operator's own identity may go, and what is sent."""

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest
from aiohttp import web

from group_hygiene.errors import SecretProblem, UsageError
from group_hygiene.evidence.reader import Reading, Tables, refused
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.process.egress import Egress, parse_egress
from group_hygiene.spec.connection import ActivitySpec, SecretName
from group_hygiene.spec.storage import Allowed, Store, parse_grant, read_store
from testing.sandbox.kafka.tls import Authority
from tests.receiving import Receiver
from tests.warehouse import Warehouse, idle

_KEYS = {"AWS_ACCESS_KEY_ID": "TENANT", "AWS_SECRET_ACCESS_KEY": "tenants-secret-key"}
_GOOGLE = {"private_key": "k", "private_key_id": "i", "client_email": "e", "type": "service_account"}
# What a pod has that runs with an identity of its cloud.
_POD = {
    "AWS_ACCESS_KEY_ID": "OPERATOR",
    "AWS_SECRET_ACCESS_KEY": "operators-secret-key",
    "AWS_SESSION_TOKEN": "operators-session-token",
    "AZURE_STORAGE_TOKEN": "operators-bearer-token",
    "AZURE_STORAGE_ACCOUNT_KEY": "b3BlcmF0b3I=",
}
_LOOPBACK = parse_egress(["127.0.0.0/8", "::1"])


class Bucket(Receiver):
    """A server that has the files of a folder as objects, as far as reading needs: GET, ranges and ListObjectsV2."""

    folder: Path | None = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override]
        answer = await super()._serve(request)
        if self.folder is None or answer.status != 200:
            return answer
        path, query = unquote(urlsplit(request.path_qs).path).lstrip("/"), parse_qs(urlsplit(request.path_qs).query)
        if "list-type" in query:
            return web.Response(text=self._listed(query["prefix"][0], path), content_type="application/xml")
        file = self.folder / path
        return web.FileResponse(file) if file.is_file() else web.Response(status=404)

    def _listed(self, prefix: str, bucket: str) -> str:
        assert self.folder is not None
        root = self.folder / bucket
        entries = "".join(
            f"<Contents><Key>{escape(str(file.relative_to(root)))}</Key><Size>{file.stat().st_size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            for file in sorted(root.rglob("*"))
            if file.is_file() and str(file.relative_to(root)).startswith(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"


@pytest.fixture
def server() -> Iterator[Bucket]:
    with Bucket() as bucket:
        yield bucket


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has an identity of its own, as a pod has."""
    for name, value in _POD.items():
        monkeypatch.setenv(name, value)


def _asked(uri: str, texts: Mapping[str, str], egress: Egress = _LOOPBACK) -> Reading | Refusal:
    spec = ActivitySpec(uri, secret_ref=SecretName("bucket"))
    try:
        store = spec.store(lambda name, keys: {key: texts[key] for key in keys if key in texts})
    except SecretProblem as error:
        return Refusal(reasons.EVIDENCE_UNREADABLE, str(error))
    return Tables(spec, store, egress).read(["billing"], 60)


def _of_the_operator(receiver: Receiver) -> list[str]:
    sent = [f"{request.path} {dict(request.headers)}" for request in receiver.requests]
    return [request for request in sent if "OPERATOR" in request or "operators-" in request]


@pytest.mark.parametrize(
    ("uri", "texts"),
    [
        pytest.param("s3://b/x", {"AWS_ENDPOINT_URL": "{http}", "AWS_ALLOW_HTTP": "true"}, id="endpoint-alone"),
        pytest.param("s3://b/x", {"AWS_REGION": "x@localhost:{port}/"}, id="a-host-as-region"),
        pytest.param("s3://b/x", {**_KEYS, "AWS_REGION": "x@localhost:{port}/"}, id="a-host-as-region-with-keys"),
        pytest.param(
            "s3://b/x", {**_KEYS, "AWS_ENDPOINT_URL": "https://s3@localhost:{port}"}, id="a-login-in-the-endpoint"
        ),
        pytest.param("az://c/x", {"AZURE_STORAGE_ACCOUNT_NAME": "localhost:{port}/x"}, id="a-host-as-account"),
        pytest.param(
            "s3://b/x",
            {**_KEYS, "AWS_ENDPOINT_URL": "{http}", "AWS_ALLOW_HTTP": "true", "AWS_SECRET_ACCESS_KEY": ""},
            id="half-of-the-keys",
        ),
        pytest.param(
            "s3://b/x", {**_KEYS, "AWS_ENDPOINT_URL": "{http}", "AWS_ALLOW_HTTP": "true"}, id="keys-and-no-token"
        ),
    ],
)
def test_the_operators_identity_goes_to_no_tenants_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pod: None, uri: str, texts: dict[str, str]
) -> None:
    """Whatever a Secret leaves out or puts elsewhere: no key, token or signature of the operator leaves it."""
    authority = Authority(tmp_path / "ca")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    with Receiver() as plain, Receiver(authority.issue("store")) as secure:
        given = {key: text.format(http=plain.url().rstrip("/"), port=secure.port) for key, text in texts.items()}
        assert isinstance(_asked(uri, given), Refusal)
        assert _of_the_operator(plain) + _of_the_operator(secure) == []


def test_tables_behind_an_endpoint(tmp_path: Path, server: Bucket, pod: None) -> None:
    """With complete credentials and an allowed endpoint they are read, and each request is signed with these."""
    Warehouse(tmp_path / "b" / "main").write([idle("billing")])
    server.folder = tmp_path
    texts = {**_KEYS, "AWS_ENDPOINT_URL": server.url().rstrip("/"), "AWS_ALLOW_HTTP": "true"}
    reading = _asked("s3://b/main", texts)
    assert isinstance(reading, Reading), reading
    assert reading.groups.keys() == {"billing"}
    assert all("Credential=TENANT/" in request.headers["Authorization"] for request in server.requests)
    assert _of_the_operator(server) == []


@pytest.mark.parametrize(
    ("host", "egress", "why"),
    [
        pytest.param("127.0.0.1", Egress(), "an address of the operator itself", id="loopback"),
        pytest.param("localhost", Egress(), "an address of the operator itself", id="a-name-of-loopback"),
        pytest.param("169.254.169.254", Egress(), "a cloud's metadata service", id="metadata"),
        pytest.param("[fd00:ec2::254]", Egress(), "a cloud's metadata service", id="metadata-v6"),
        pytest.param("10.1.2.3", parse_egress(["minio.example.com"]), "does not name", id="not-listed"),
    ],
)
def test_endpoints_go_where_receivers_may(server: Bucket, host: str, egress: Egress, why: str) -> None:
    """The rules of `--allow-receiver` hold for them, by the address that is connected to."""
    texts = {**_KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{server.port}", "AWS_ALLOW_HTTP": "true"}
    answer = _asked("s3://b/x", texts, egress)
    assert isinstance(answer, Refusal)
    assert why in answer.message
    assert server.requests == []


def test_redirects_lead_nowhere(server: Bucket) -> None:
    """An endpoint can't send the operator on to another host or port."""
    with Receiver() as other:
        server.answers["/b/x/coverage/_delta_log/_last_checkpoint"] = (307, {"Location": other.url("/elsewhere")})
        texts = {**_KEYS, "AWS_ENDPOINT_URL": server.url().rstrip("/"), "AWS_ALLOW_HTTP": "true"}
        answer = _asked("s3://b/x", texts)
        assert isinstance(answer, Refusal)
        assert server.at("/b/x/coverage/_delta_log/_last_checkpoint")
        assert other.requests == []


def test_a_host_that_leads_elsewhere_a_moment_later(server: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that was checked is the one that is connected to: the name is not looked up again."""
    asked = []
    real = socket.getaddrinfo

    def look_up(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "rebinding.example.com":
            asked.append(host)
            host = "127.0.0.1" if len(asked) > 1 else "10.255.255.1"
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    endpoint = f"http://rebinding.example.com:{server.port}"
    answer = _asked("s3://b/x", {**_KEYS, "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"}, Egress())
    assert isinstance(answer, Refusal)
    assert asked
    assert server.requests == []


@pytest.mark.parametrize(
    ("uri", "texts", "places"),
    [
        pytest.param("s3://b/x", _KEYS, {"s3.us-east-1.amazonaws.com:443"}, id="s3"),
        pytest.param(
            "s3a://b/x", {**_KEYS, "AWS_REGION": "cn-north-1"}, {"s3.cn-north-1.amazonaws.com.cn:443"}, id="cn"
        ),
        pytest.param(
            "s3://b/x",
            {**_KEYS, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"},
            {"b.s3.us-east-1.amazonaws.com:443"},
            id="v",
        ),
        pytest.param("s3://b", {**_KEYS, "AWS_ENDPOINT_URL": "http://MinIO.:9000/"}, {"minio:9000"}, id="endpoint"),
        pytest.param("s3://b/x", {**_KEYS, "AWS_ENDPOINT_URL": "https://[::1]"}, {"::1:443"}, id="v6"),
        pytest.param(
            "gs://b/x",
            {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(_GOOGLE | {"gcs_base_url": "https://evil.example.com"})},
            {"storage.googleapis.com:443", "www.googleapis.com:443", "oauth2.googleapis.com:443"},
            id="google",
        ),
        pytest.param(
            "abfss://c@acct.dfs.core.windows.net/x",
            {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=x"},
            {"acct.blob.core.windows.net:443", "acct.dfs.core.windows.net:443", "login.microsoftonline.com:443"},
            id="azure",
        ),
    ],
)
def test_what_a_secret_leads_to(uri: str, texts: dict[str, str], places: set[str]) -> None:
    """Only to hosts of the provider, or to the endpoint; a host that a key of Google's names is ignored."""
    store = read_store(uri, "bucket", texts)
    assert {f"{place.host}:{place.port}" for place in store.places} == places
    assert "evil" not in "".join(value.reveal() for value in store.options.values())
    for text in texts.values():
        assert text not in repr(store.options)


@pytest.mark.parametrize(
    ("uri", "texts", "problem"),
    [
        pytest.param("s3://b/x", {"AWS_ACCESS_KEY_ID": "a"}, "no complete credentials", id="no-secret-key"),
        pytest.param("s3://b/x", {"AZURE_STORAGE_ACCOUNT_KEY": "a"}, "no complete credentials", id="of-another-cloud"),
        pytest.param("s3://b/x", {**_KEYS, "AWS_REGION": "eu/x"}, "no valid AWS_REGION", id="region"),
        pytest.param("s3://b/x", {**_KEYS, "AWS_ACCESS_KEY_ID": "a\nb"}, "no valid AWS_ACCESS_KEY_ID", id="two-lines"),
        pytest.param("s3://b/x", {**_KEYS, "AWS_ENDPOINT_URL": "ftp://h"}, "no valid AWS_ENDPOINT_URL", id="scheme"),
        pytest.param("s3://b/x", {**_KEYS, "AWS_ENDPOINT_URL": "http://h/p"}, "no valid AWS_ENDPOINT_URL", id="path"),
        pytest.param(
            "s3://b/x", {**_KEYS, "AWS_ENDPOINT_URL": "http://h:99999"}, "no valid AWS_ENDPOINT_URL", id="port"
        ),
        pytest.param("s3://b/x", {**_KEYS, "AWS_ENDPOINT_URL": "http://[:"}, "no valid AWS_ENDPOINT_URL", id="bracket"),
        pytest.param(
            "gs://b/x", {"GOOGLE_SERVICE_ACCOUNT_KEY": "{"}, "must be a key of a service account", id="google"
        ),
        pytest.param("gs://b/x", {"GOOGLE_SERVICE_ACCOUNT_KEY": "[" * 9999}, "must be a key", id="google-deep"),
        pytest.param(
            "az://c/x", {"AZURE_STORAGE_ACCOUNT_KEY": "YQ=="}, "lacks AZURE_STORAGE_ACCOUNT_NAME", id="account"
        ),
        pytest.param(
            "abfss://c@a.dfs.core.windows.net/x",
            {"AZURE_STORAGE_ACCOUNT_NAME": "b", "AZURE_STORAGE_ACCOUNT_KEY": "YQ=="},
            "another AZURE_STORAGE_ACCOUNT_NAME",
            id="two-accounts",
        ),
        pytest.param(
            "az://c/x",
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_CLIENT_ID": "i", "AZURE_STORAGE_TENANT_ID": "t"},
            "no complete credentials",
            id="client-without-its-secret",
        ),
        pytest.param(
            "az://c/x",
            {
                "AZURE_STORAGE_ACCOUNT_NAME": "a",
                "AZURE_STORAGE_CLIENT_ID": "i",
                "AZURE_STORAGE_CLIENT_SECRET": "s",
                "AZURE_STORAGE_TENANT_ID": "t/../../evil",
            },
            "no valid AZURE_STORAGE_TENANT_ID",
            id="a-path-as-tenant",
        ),
    ],
)
def test_a_secret_that_is_not_used(uri: str, texts: dict[str, str], problem: str) -> None:
    """Incomplete or malformed: nothing is asked for, and the message names keys, not values."""
    with pytest.raises(SecretProblem, match=problem) as caught:
        read_store(uri, "bucket", texts)
    assert all(len(text) < 4 or text not in str(caught.value) for text in texts.values())


@pytest.mark.parametrize(
    ("namespace", "uri", "allowed"),
    [
        pytest.param("team-a", "s3://bucket/team-a", True, id="the-place-itself"),
        pytest.param("team-a", "s3://bucket/team-a/", True, id="with-a-slash"),
        pytest.param("team-a", "s3://bucket/team-a/main", True, id="below"),
        pytest.param("team-a", "s3://bucket/team-a-b/main", False, id="beside"),
        pytest.param("team-a", "s3://bucket", False, id="above"),
        pytest.param("team-a", "s3://other/team-a", False, id="another-bucket"),
        pytest.param("team-b", "s3://bucket/team-a/main", False, id="another-namespace"),
        pytest.param("team-b", "gs://all", True, id="a-whole-bucket"),
        pytest.param("team-b", "gs://all/x", True, id="below-a-bucket"),
        pytest.param("team-b", "gs://all-of-it/x", False, id="beside-a-bucket"),
    ],
)
def test_the_operators_identity_is_granted(namespace: str, uri: str, allowed: bool) -> None:
    """Without a Secret a connection has tables read only where the operator's flags allow it to its namespace."""
    grants = tuple(map(parse_grant, ["team-a=s3://bucket/team-a/", "team-b=gs://all"]))
    assert (refused(ActivitySpec(uri), namespace, Allowed(identity=grants)) is None) is allowed
    refusal = refused(ActivitySpec(uri), namespace, Allowed())
    assert refusal is not None
    assert "--allow-activity-identity" in refusal.message
    assert refused(ActivitySpec(uri, secret_ref=SecretName("bucket")), namespace, Allowed()) is None


@pytest.mark.parametrize(
    "entry",
    [
        "s3://bucket/x",
        "team-a",
        "=s3://b",
        "*=s3://b",
        "team-a=/srv",
        "team-a=file:///srv",
        "team-a=s3://b/../x",
        "a=b",
    ],
)
def test_what_is_no_grant(entry: str) -> None:
    """A namespace and an address of an object store, and no pattern."""
    with pytest.raises(UsageError):
        parse_grant(entry)


def test_with_its_own_identity_the_environment_counts(
    tmp_path: Path, server: Bucket, monkeypatch: Any, pod: None
) -> None:
    """Where the flags allow it, the operator finds its credentials as every program in its pod does."""
    Warehouse(tmp_path / "b" / "main").write([idle("billing")])
    server.folder = tmp_path
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url().rstrip("/"))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    reading = Tables(ActivitySpec("s3://b/main")).read(["billing"], 60)
    assert isinstance(reading, Reading), reading
    assert reading.groups.keys() == {"billing"}
    assert all("Credential=OPERATOR/" in request.headers["Authorization"] for request in server.requests)


def test_a_store_without_options_is_no_identity(server: Bucket, monkeypatch: pytest.MonkeyPatch, pod: None) -> None:
    """A reader that is given no credentials finds none: not in the environment, and not at a metadata service."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url().rstrip("/"))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    answer = Tables(ActivitySpec("s3://b/main"), Store({}, frozenset())).read(["billing"], 20)
    assert isinstance(answer, Refusal)
    assert server.requests == []
