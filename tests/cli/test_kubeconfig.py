"""Which namespace is meant where none is given: what kubectl would take."""

from __future__ import annotations

import os
import pwd
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_hygiene.cli.target import current_namespace
from group_hygiene.controller import api
from group_hygiene.controller.api import load_config
from group_hygiene.errors import HygieneError
from testing.sandbox.kafka.tls import Authority
from tests.cli.conftest import Run


def config(current: str | None, **namespaces: str | None) -> dict[str, Any]:
    """A kubeconfig with these contexts."""
    contexts = [
        {"name": name, "context": {"cluster": "c"} | ({"namespace": value} if value else {})}
        for name, value in namespaces.items()
    ]
    return {"contexts": contexts} | ({"current-context": current} if current else {})


@pytest.mark.parametrize(
    ("files", "namespace"),
    [
        pytest.param([config("b", a="one", b="two")], "two", id="current-context"),
        pytest.param([config("a", a=None)], "default", id="context-without"),
        pytest.param([config(None, a="one")], "default", id="no-current-context"),
        pytest.param([config("b", a="one")], "default", id="no-such-context"),
        pytest.param([config(None, a="one"), config("a", a="two")], "one", id="first-context-of-the-name"),
        pytest.param([config("a"), config("b", a="one", b="two")], "one", id="first-current-context"),
        pytest.param([{"contexts": None}, "a: [", ["x"], config("a", a="one")], "one", id="others-are-broken"),
        pytest.param([], "default", id="no-file"),
    ],
)
def test_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[Any], namespace: str) -> None:
    """That of the current context, over all files that $KUBECONFIG names."""
    names = [str(tmp_path / f"{number}.yaml") for number in range(len(files))]
    for name, content in zip(names, files, strict=True):
        Path(name).write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    monkeypatch.setitem(os.environ, "KUBECONFIG", os.pathsep.join([str(tmp_path / "absent"), *names]))
    assert current_namespace() == namespace


@pytest.mark.parametrize(
    ("context", "namespace"),
    [
        pytest.param("a", "one", id="another-than-the-current"),
        pytest.param("c", "default", id="no-such-context"),
    ],
)
def test_namespace_of_a_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str, namespace: str) -> None:
    """That of the named context, whatever is the current one."""
    (tmp_path / "config").write_text(yaml.safe_dump(config("b", a="one", b="two")))
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(tmp_path / "config"))
    assert current_namespace(context) == namespace
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(tmp_path / "absent"))
    assert current_namespace(context, tmp_path / "config") == namespace


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no entry in /etc/passwd."""

    def missing(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", missing)
    for name in ("HOME", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError):
        Path("~").expanduser()
    assert current_namespace() == "default"


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    """Its path, and of one without content what the library says."""
    absent, empty = tmp_path / "absent", tmp_path / "empty"
    empty.write_text("{}")
    with pytest.raises(HygieneError, match=f"there is no file {absent}$"):
        load_config(file=absent)
    with pytest.raises(HygieneError) as raised:
        load_config(file=empty)
    assert "there is no file" not in str(raised.value)


def server(url: str, **more: Any) -> dict[str, Any]:
    """A kubeconfig whose context `a` leads to this address."""
    return config("a", a=None) | {"clusters": [{"name": "c", "cluster": {"server": url}}]} | more


Listen = Callable[[Callable[[socket.socket], None]], int]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """A port of this machine, where a function has each connection."""
    with ExitStack() as stack:

        def start(answer: Callable[[socket.socket], None]) -> int:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def serve() -> None:
                with suppress(OSError):
                    while True:
                        accepted = stack.enter_context(listener.accept()[0])
                        with suppress(OSError):
                            answer(accepted)

            threading.Thread(target=serve, daemon=True).start()
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
            return int(listener.getsockname()[1])

        yield start


def _silent(_connection: socket.socket) -> None:
    """It never answers."""


def _plain(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def _read(run: Run, tmp_path: Path, content: Any, *options: str) -> str:
    """The error of a command that reads a KafkaConnection by this kubeconfig, without its beginning."""
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(content))
    answer = run("list", "--connection", "main", "-n", "kafka", "--kubeconfig", file, *options)
    assert (answer.code, answer.out) == (1, "")
    (line,) = answer.err.splitlines()
    return line.removeprefix("Error: ")


@pytest.mark.parametrize(
    ("way", "says"),
    [
        pytest.param(("https", None), "does not answer at 127.0.0.1:{port}: connection refused", id="refused"),
        pytest.param(("https", _silent), "does not answer at 127.0.0.1:{port}: timeout", id="no-handshake"),
        pytest.param(("http", _silent), "does not answer at 127.0.0.1:{port}: timeout", id="no-answer"),
        pytest.param(("https", _plain), "does not answer at 127.0.0.1:{port}: no TLS connection: ", id="no-tls"),
        pytest.param(("http", _plain), "answers 400 Bad Request", id="not-an-api-server"),
    ],
)
def test_an_api_server_that_cannot_be_used(
    run: Run,
    tmp_path: Path,
    listen: Listen,
    monkeypatch: pytest.MonkeyPatch,
    way: tuple[str, Callable[[socket.socket], None] | None],
    says: str,
) -> None:
    """One line with the cause and what to check, within the timeout of a request."""
    monkeypatch.setattr(api, "TIMEOUT_S", 0.5)
    scheme, answer = way
    port = 1 if answer is None else listen(answer)
    error = _read(run, tmp_path, server(f"{scheme}://127.0.0.1:{port}"))
    assert error.startswith(f"the API server {says.format(port=port)}")
    assert error.endswith("; check the kubeconfig, and whether the server can be reached: kubectl cluster-info")


def test_an_api_server_that_is_not_trusted(run: Run, tmp_path: Path, listen: Listen) -> None:
    """As without its certificate-authority-data, or behind a proxy that inspects TLS."""
    made = Authority(tmp_path).issue("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    port = listen(lambda connection: context.wrap_socket(connection, server_side=True).close())
    error = _read(run, tmp_path, server(f"https://127.0.0.1:{port}"))
    assert error.startswith(f"the API server does not answer at 127.0.0.1:{port}: its certificate is not trusted: ")


def test_an_api_server_whose_name_does_not_resolve(run: Run, tmp_path: Path) -> None:
    """As of a private cluster, outside of its network."""
    error = _read(run, tmp_path, server("https://no-such-host.invalid"))
    assert error.startswith("the API server does not answer at no-such-host.invalid:443: its name can't be resolved; ")


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        pytest.param(
            server("https://127.0.0.1:1"),
            ["--context", "prod"],
            "the kubeconfig has no context 'prod': `kubectl config get-contexts` lists its contexts",
            id="context",
        ),
        pytest.param(
            server("https://127.0.0.1:1", **{"current-context": "gone"}),
            [],
            "Expected object with name gone in {file}/contexts list: check it by `kubectl config view`",
            id="current-context",
        ),
        pytest.param(
            server("https://127.0.0.1:1", clusters=[]),
            [],
            "Expected object with name c in {file}/clusters list: check it by `kubectl config view`",
            id="cluster",
        ),
    ],
)
def test_a_kubeconfig_that_leads_nowhere(run: Run, tmp_path: Path, content: Any, options: list[str], says: str) -> None:
    """Its mistake, and the command that shows it."""
    error = _read(run, tmp_path, content, *options)
    assert error.endswith(says.format(file=tmp_path / "config"))
    assert "no Kubernetes API server is configured" not in error
