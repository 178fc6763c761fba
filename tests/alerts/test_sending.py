"""Messages on their way to real HTTP servers: what arrives, what is refused, and what nobody gets to see."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from group_hygiene.errors import SecretProblem, SpecError
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe import messages
from group_hygiene.observe.alerts import AlertType, Item, Status
from group_hygiene.observe.messages import Endpoint, body, post, read_endpoint
from group_hygiene.process import egress, runs
from group_hygiene.process.egress import parse_egress
from group_hygiene.spec.connection import Receiver as ReceiverSpec
from group_hygiene.spec.connection import ReceiverKind, Webhook
from group_hygiene.spec.crds import judged_part
from group_hygiene.spec.fields import Hidden, SecretRef, convert
from testing.sandbox.kafka.tls import Authority
from tests.examples import examples
from tests.leaks import leaks
from tests.receiving import Receiver

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
LOOPBACK = ("127.0.0.0/8", "::1")
TOKEN, KEY = "token-never-to-be-seen-1", "key-never-to-be-seen-2"


def firing(*groups: str) -> Item:
    return Item(
        status=Status.FIRING,
        type=AlertType.GROUPS_MATCHED,
        policy="kafka/unused",
        connection="kafka/main",
        since=NOW,
        groups=dict.fromkeys(groups, ""),
        total=len(groups),
        new=len(groups),
        action="Alert",
        mode="DryRun",
    )


def endpoint(url: str, kind: ReceiverKind = ReceiverKind.WEBHOOK, **secrets: Any) -> Endpoint:
    return Endpoint("r", kind, Hidden(url), **{name: Hidden(value) for name, value in secrets.items()})


def receiver_of(entry: dict[str, Any]) -> ReceiverSpec:
    """A receiver as a KafkaConnection has it."""
    (valid,) = judged_part("KafkaConnection", "spec.receivers", [entry])
    return convert(valid, ReceiverSpec, "spec.receivers[0]")


def send(to: Endpoint, *groups: str, allowed: tuple[str, ...] = LOOPBACK) -> Refusal | None:
    return send_and_wait(to, *groups, allowed=allowed)[0]


def send_and_wait(to: Endpoint, *groups: str, allowed: tuple[str, ...] = LOOPBACK) -> tuple[Refusal | None, float]:
    """Also the seconds that the receiver asks to wait."""
    content = body(to.kind, [firing(*groups)], NOW)

    async def sent() -> tuple[Refusal | None, float]:
        failure, wait, *_ = await post(to, content, NOW, parse_egress(allowed))
        # A handshake that was given up closes its connection a little later: in the operator the loop goes on.
        await asyncio.sleep(0.1)
        return failure, wait

    return asyncio.run(sent())


def test_a_webhook_gets_one_json_for_all(receiver: Receiver) -> None:
    """With the token, and a signature that the receiver can check with nothing but the key."""
    assert send(endpoint(receiver.url("/hook"), token=TOKEN, hmac=KEY), "a", "b") is None
    (request,) = receiver.at("/hook")
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert request.headers["Content-Type"] == "application/json"
    signed = f"{request.headers['X-Group-Hygiene-Timestamp']}.".encode() + request.body
    expected = "sha256=" + hmac.new(KEY.encode(), signed, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(request.headers["X-Group-Hygiene-Signature"], expected)
    message = request.json
    assert (message["version"], message["test"], len(message["alerts"])) == (1, False, 1)
    alert = message["alerts"][0]
    assert alert["groups"] == ["a", "b"]
    assert (alert["status"], alert["kind"], alert["policy"]) == ("firing", "GroupsMatched", "unused")


def test_slack_gets_text_that_is_no_markup(receiver: Receiver) -> None:
    """A group's id, which anybody may choose, calls nobody and makes no link."""
    assert (
        send(endpoint(receiver.url("/services/T/B/x"), ReceiverKind.SLACK), "<!channel>", "a\nb", "<http://evil|ok>")
        is None
    )
    (request,) = receiver.at("/services/T/B/x")
    text = request.json["text"]
    assert "<" not in text
    assert "`&lt;!channel&gt;`" in text
    assert "a\\nb" in text


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_is_followed(receiver: Receiver, status: int) -> None:
    """Not even to a place that would be allowed: it was not what the spec names."""
    receiver.answers["/hook"] = status, {"Location": receiver.url("/elsewhere")}
    failure = send(endpoint(receiver.url("/hook")))
    assert failure == Refusal(reasons.RECEIVER_FAILED, f"it answers {status}, and redirects are not followed")
    assert receiver.at("/elsewhere") == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "127.1"])  # noqa: S104
def test_loopback_is_refused(receiver: Receiver, host: str) -> None:
    """However it is written: nothing arrives."""
    failure = send(endpoint(f"http://{host}:{receiver.port}/hook"), allowed=())
    assert failure is not None
    assert failure.reason in (reasons.RECEIVER_REFUSED, reasons.RECEIVER_FAILED)
    if host[0] not in "2" and host != "127.1":
        assert failure.reason == reasons.RECEIVER_REFUSED
    assert receiver.requests == []


def test_link_local_and_metadata_are_refused_before_anything_is_sent() -> None:
    """The address is judged, and no connection is tried."""
    for address in ("169.254.169.254", "[fd00:ec2::254]", "[fe80::1]", "100.100.100.200"):
        failure = send(endpoint(f"http://{address}/"), allowed=())
        assert failure is not None
        assert failure.reason == reasons.RECEIVER_REFUSED, address


def test_a_name_that_leads_elsewhere_later_leads_nowhere(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is connected to is what was looked up and checked; each look-up is checked anew."""
    answers = iter(["192.0.2.1", "127.0.0.1"])
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: str, port: int, *rest: Any) -> Any:
        # Clients in other threads of this process, such as Kafka's, look up the addresses of their own servers.
        if host != "evil.test":
            return real(host, port, *rest)
        looked_up.append(host)
        return real(next(answers), port, *rest)

    # The one thing here that is not real: nobody's name server can be made to lie on purpose.
    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(messages, "SECONDS", 1.0)
    first = send(endpoint(f"http://evil.test:{receiver.port}/hook"), allowed=())
    second = send(endpoint(f"http://evil.test:{receiver.port}/hook"), allowed=())
    assert first is not None
    assert first.reason == reasons.RECEIVER_FAILED
    assert second is not None
    assert second.reason == reasons.RECEIVER_REFUSED
    assert looked_up == ["evil.test", "evil.test"]
    assert receiver.requests == []


@pytest.fixture
def resolving(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Names of the test's own with their addresses; the list under "asked" has what was looked up."""
    names: dict[str, list[str]] = {"asked": []}
    real = socket.getaddrinfo

    def look_up(host: str, port: int, *rest: Any) -> Any:
        names["asked"].append(host)
        return [entry for address in names.get(host, [host]) for entry in real(address, port, *rest)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return names


def test_one_allowed_address_that_is_down_is_no_refusal(resolving: dict[str, list[str]]) -> None:
    """Only where all that a name leads to is refused, the spec or the list is to blame."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    resolving["both.test"] = ["169.254.169.254", "127.0.0.1"]
    failure = send(endpoint(f"http://both.test:{port}/"))
    assert failure == Refusal(reasons.RECEIVER_FAILED, "the connection failed")
    failure = send(endpoint(f"http://both.test:{port}/"), allowed=())
    assert failure is not None
    assert failure.reason == reasons.RECEIVER_REFUSED


def test_a_name_that_is_not_listed_is_not_looked_up(receiver: Receiver, resolving: dict[str, list[str]]) -> None:
    """A name server learns nothing of it; with networks on the list only its addresses can tell."""
    resolving["other.test"] = ["127.0.0.1"]
    failure = send(endpoint(f"http://other.test:{receiver.port}/"), allowed=("hooks.test",))
    assert failure is not None
    assert failure.reason == reasons.RECEIVER_REFUSED
    # Clients in other threads of this process may look up the addresses of their own servers.
    assert "other.test" not in resolving["asked"]
    assert send(endpoint(f"http://other.test:{receiver.port}/"), allowed=("hooks.test", *LOOPBACK)) is None


def test_too_many_look_ups(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are told as such: the name may well lead somewhere."""
    monkeypatch.setattr(egress, "_lookups", threading.BoundedSemaphore(1))
    with egress._lookups:
        failure = send(endpoint(f"http://localhost:{receiver.port}/"))
    assert failure is not None
    assert "was not resolved" in failure.message
    assert send(endpoint(f"http://localhost:{receiver.port}/")) is None


def test_no_proxy_of_the_environment_is_asked(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would connect for us, to whatever."""
    with Receiver() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert send(endpoint(receiver.url("/hook"))) is None
        assert proxy.requests == []
    assert len(receiver.requests) == 1


@pytest.fixture
def hanging() -> Iterator[int]:
    """A port that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_who_hangs_is_given_up(hanging: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time limit, with a reason."""
    monkeypatch.setattr(messages, "SECONDS", 0.5)
    failure = send(endpoint(f"http://127.0.0.1:{hanging}/"))
    assert failure is not None
    assert "does not answer" in failure.message


@pytest.fixture
def unreachable() -> Iterator[int]:
    """A port that takes no more connections, and refuses none."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        clients = [socket.socket() for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()[1]
        for client in clients:
            client.close()


def serve_once(answer: bytes) -> int:
    """The port of a server that reads one request, sends these bytes and closes the connection."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as client:
            client.recv(65_536)
            client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return int(server.getsockname()[1])


@pytest.mark.parametrize(
    ("place", "may_have_it"),
    [
        pytest.param("hangs", True, id="no-answer"),
        pytest.param("ends", True, id="connection-ends-before-an-answer"),
        pytest.param("late", True, id="a-gateway-got-no-answer"),
        pytest.param("busy", False, id="answers-503"),
        pytest.param("unreachable", False, id="no-connection-in-time"),
        pytest.param("closed", False, id="refused"),
    ],
)
def test_whether_a_receiver_may_have_a_message(
    place: str, may_have_it: bool, hanging: int, unreachable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if the request was sent, and nothing that was answered says that it was not taken."""
    monkeypatch.setattr(messages, "SECONDS", 1.0)
    ports = {"hangs": hanging, "unreachable": unreachable, "closed": 1}
    answers = {"ends": b"", "late": b"HTTP/1.1 504 \r\n\r\n", "busy": b"HTTP/1.1 503 \r\n\r\n"}
    port = ports[place] if place in ports else serve_once(answers[place])
    to = endpoint(f"http://127.0.0.1:{port}/", ReceiverKind.SLACK)
    result = asyncio.run(post(to, b"{}", NOW, parse_egress(LOOPBACK)))
    assert result.failure is not None
    assert result.unanswered is may_have_it, result.failure


@pytest.mark.parametrize(
    ("status", "message"), [(500, "it answers 500"), (404, "it answers 404"), (429, "it answers 429")]
)
def test_only_2xx_is_an_arrival(receiver: Receiver, status: int, message: str) -> None:
    """And a receiver may say how long to wait, within bounds."""
    receiver.answers["/hook"] = status, {"Retry-After": "7"}
    assert send_and_wait(endpoint(receiver.url("/hook"))) == (Refusal(reasons.RECEIVER_FAILED, message), 7.0)
    receiver.answers["/hook"] = status, {"Retry-After": "99999999"}
    failure, wait = send_and_wait(endpoint(receiver.url("/hook")))
    assert failure is not None
    assert wait <= 600


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        pytest.param("Thu, 31 Jan 2030 12:01:30 GMT", 90.0, id="date"),
        pytest.param("Thu, 31 Jan 2030 12:01:30 -0000", 90.0, id="date-without-zone"),
        pytest.param("Thu, 31 Jan 2030 11:00:00 GMT", 0.0, id="past"),
        pytest.param("Fri, 31 Jan 2031 12:00:00 GMT", 600.0, id="far"),
        pytest.param("Thu, 31 Jan 99999999999999999999 12:00:00 GMT", 0.0, id="no-date"),
        pytest.param("soon", 0.0, id="no-sense"),
    ],
)
def test_retry_after_may_be_a_date(receiver: Receiver, asked: str, seconds: float) -> None:
    """As RFC 9110 has it; what is neither asks for nothing."""
    receiver.answers["/hook"] = 503, {"Retry-After": asked}
    refusal = Refusal(reasons.RECEIVER_FAILED, "it answers 503")
    assert send_and_wait(endpoint(receiver.url("/hook"))) == (refusal, seconds)


def test_an_unreachable_receiver_is_a_failure() -> None:
    """Of the receiver, in words."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert send(endpoint(f"http://127.0.0.1:{port}/")) == Refusal(reasons.RECEIVER_FAILED, "the connection failed")


def test_tls_is_checked(tmp_path: Path) -> None:
    """The receiver's certificate must be signed by the authority that the spec names, and be for its host."""
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    with Receiver(ours.issue("receiver")) as secure:
        url = secure.url("/hook")
        trusting = Endpoint("r", ReceiverKind.WEBHOOK, Hidden(url), ca=ours.ca.read_text())
        assert send(trusting) is None
        for ca in (None, other.ca.read_text()):
            failure = send(Endpoint("r", ReceiverKind.WEBHOOK, Hidden(url), ca=ca))
            assert failure is not None
            assert failure.message.startswith("TLS fails")
        assert len(secure.requests) == 1


def test_the_systems_authorities_are_those_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle that was replaced, as by a new ConfigMap, counts for the next message: no restart is needed."""
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    bundle = tmp_path / "bundle.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    arrived = []
    with Receiver(ours.issue("receiver")) as secure:
        for authority in (other, ours, ours, other):
            new = tmp_path / "new.pem"
            new.write_bytes(authority.ca.read_bytes())
            new.replace(bundle)
            arrived.append(send(endpoint(secure.url("/hook"))) is None)
    assert arrived == [False, True, True, False]


def test_no_secret_in_logs_and_failures(
    receiver: Receiver, hanging: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although every logger is at DEBUG, and whatever fails."""
    monkeypatch.setattr(messages, "SECONDS", 0.5)
    caplog.set_level(logging.DEBUG)
    receiver.answers["/s3cr3t-path"] = 500
    texts: list[str] = []
    for url in (
        receiver.url("/s3cr3t-path"),
        f"http://127.0.0.1:{hanging}/s3cr3t-path",
        "http://no-such-host.invalid/s3cr3t-path",
        "http://127.0.0.1:1/s3cr3t-path",
        f"https://127.0.0.1:{receiver.port}/s3cr3t-path",
        "http://169.254.169.254/s3cr3t-path",
    ):
        to = endpoint(url, token=TOKEN, hmac=KEY)
        texts += [repr(send(to)), repr(to), str(to)]
    texts += [record.getMessage() + (record.exc_text or "") for record in caplog.records]
    assert leaks([TOKEN, KEY, "s3cr3t-path"], texts) == set()


@pytest.mark.parametrize(
    ("spec", "secrets", "said"),
    [
        pytest.param(
            {"slack": {"urlSecretRef": "u"}}, {"u": "not-a-url-never-seen"}, "no http or https URL", id="no-url"
        ),
        pytest.param(
            {"slack": {"urlSecretRef": "u"}}, {"u": "ftp://never-seen"}, "no http or https URL", id="other-scheme"
        ),
        pytest.param(
            {"slack": {"urlSecretRef": "u"}}, {"u": "http://a:x/never-seen"}, "no http or https URL", id="bad-port"
        ),
        pytest.param(
            {"slack": {"urlSecretRef": "u"}}, {"u": "http://a:99999/never"}, "no http or https URL", id="port-too-high"
        ),
        pytest.param(
            {"slack": {"urlSecretRef": "u"}}, {"u": "http://[::1/never"}, "no http or https URL", id="bad-ipv6"
        ),
        pytest.param(
            {"slack": {"urlSecretRef": "u"}}, {"u": "http://never\\b/"}, "no http or https URL", id="backslash"
        ),
        pytest.param(
            {"slack": {"urlSecretRef": "u"}}, {"u": "http://][]@?@"}, "no http or https URL", id="bracket-first"
        ),
        pytest.param(
            {"webhook": {"address": "http://a", "tokenSecretRef": "t"}},
            {"t": "never seen\r\nX: y"},
            "no token",
            id="token",
        ),
        pytest.param(
            {"webhook": {"address": "http://a", "hmacSecretRef": "h"}}, {"h": "\n"}, "is empty", id="hmac-empty"
        ),
        pytest.param(
            {"webhook": {"address": "http://a", "hmacSecretRef": "h"}},
            {"h": "x" * 8_001},
            "longer than",
            id="hmac-long",
        ),
        pytest.param(
            {"webhook": {"address": "https://a", "caSecretRef": "c"}}, {"c": "never-seen"}, "no certificate", id="ca"
        ),
        pytest.param(
            {"webhook": {"address": "https://a", "caSecretRef": "c"}}, {"c": "\n"}, "no certificate", id="ca-empty"
        ),
        pytest.param(
            {"webhook": {"urlSecretRef": "u", "tokenSecretRef": "t"}},
            {"u": "http://never:seen@a/", "t": "x"},
            "which excludes a token",
            id="user-and-token",
        ),
    ],
)
def test_secrets_that_are_wrong(spec: dict[str, Any], secrets: dict[str, str], said: str) -> None:
    """Say what is wrong with which of them, and never what they hold."""
    (kind,) = spec
    refs = {key: {"name": "s", "key": value} if key != "address" else value for key, value in spec[kind].items()}
    receiver = receiver_of({"name": "r", "type": kind.capitalize(), kind: refs})
    with pytest.raises(SecretProblem) as caught:
        read_endpoint(receiver, lambda ref: secrets[ref.key])
    assert said in str(caught.value)
    # Whoever shows it says which receiver.
    assert "receiver" not in str(caught.value)
    assert caught.value.reason == reasons.SECRET_INVALID
    assert "never" not in str(caught.value)


@given(st.text("http:/][@?#%a.0\\ \u200b\u2024é\x00", max_size=12), st.booleans())
@settings(max_examples=examples(500))
@example("][]@?@", False)
def test_any_text_is_an_address_or_refused(rest: str, secret: bool) -> None:
    """Whatever a spec or a Secret has there, no other error than that of the receiver."""
    url = f"http://{rest}"
    ref = SecretRef("s", "u")
    webhook = Webhook(url_secret_ref=ref) if secret else Webhook(address=url)
    receiver = ReceiverSpec("r", "Webhook", webhook=webhook)
    with suppress(SecretProblem, SpecError):
        read_endpoint(receiver, lambda _: url)


@pytest.mark.parametrize("address", ["http://a:99999/", "http://[::1/", "http://a\\b/"])
def test_an_address_that_cannot_be(address: str) -> None:
    """What the CRD's pattern lets through is a mistake of the spec, and no failure of a receiver."""
    receiver = receiver_of({"name": "r", "type": "Webhook", "webhook": {"address": address}})
    with pytest.raises(SpecError, match=r"^its address is no http or https URL$"):
        read_endpoint(receiver, lambda ref: ref.key)


@pytest.mark.parametrize(
    ("given", "posted"),
    [
        ("http://am:9093", "http://am:9093/api/v2/alerts"),
        ("http://am:9093/", "http://am:9093/api/v2/alerts"),
        ("http://am/prefix", "http://am/prefix/api/v2/alerts"),
        ("http://am/api/v2/alerts", "http://am/api/v2/alerts"),
        ("http://u:p@am?a=b\n", "http://u:p@am/api/v2/alerts?a=b"),
    ],
)
def test_where_an_alertmanager_takes_alerts(given: str, posted: str) -> None:
    """Below its base URL; a line end after a Secret's value is left out."""
    refs = {"urlSecretRef": {"name": "s", "key": "u"}}
    receiver = receiver_of({"name": "r", "type": "Alertmanager", "alertmanager": refs})
    read: list[SecretRef] = []

    def secret(ref: SecretRef) -> str:
        read.append(ref)
        return given

    assert read_endpoint(receiver, secret).url.reveal() == posted
    assert read == [SecretRef("s", "u")]


def test_hanging_look_ups_of_one_namespace_leave_others_theirs(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name server answers nobody; each of its look-ups keeps a thread, and it has a share of them only."""
    answers, real = threading.Event(), socket.getaddrinfo

    def look_up(host: str, *rest: Any) -> Any:
        if host.startswith("hangs"):
            answers.wait(60)
        return real("127.0.0.1", *rest)

    async def ask() -> list[BaseException | None]:
        with runs.about(namespace="slow"):
            slow = [asyncio.create_task(egress.look_up(f"hangs-{number}.test", 80)) for number in range(40)]
            await asyncio.sleep(0)
        with runs.about(namespace="other"):
            other = asyncio.create_task(egress.look_up("works.test", 80))
        await asyncio.wait([other])
        answers.set()
        await asyncio.wait(slow)
        return [task.exception() for task in (other, *slow)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    other, *slow = asyncio.run(ask())
    assert other is None
    assert {type(each) for each in slow} == {type(None), egress.TooManyLookUps}
