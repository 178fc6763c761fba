"""Who may do what, and where, asked of a real API server that other tests use, too."""

import time

from sandbox.kubernetes import ApiServer


def can_i(server: ApiServer, who: str, *question: str) -> bool:
    """What the API server's authorizer says; who: the kubectl option that makes a call somebody's."""
    answer = server.kubectl("auth", "can-i", *question, who, check=False)
    assert answer.stdout.strip() in ("yes", "no"), answer.stderr
    return answer.stdout.strip() == "yes"


def wait_until_allowed(server: ApiServer, who: str, *question: str) -> None:
    """The authorizer reads new bindings from a watch, a moment after they are stored."""
    wait_until(server, who, True, *question)


def wait_until(server: ApiServer, who: str, allowed: bool, *question: str) -> None:
    """The same of rights that come or go."""
    deadline = time.monotonic() + 180
    while can_i(server, who, *question) is not allowed:
        assert time.monotonic() < deadline, f"{'not ' if allowed else ''}allowed: {' '.join(question)}"
        time.sleep(0.1)


def make_namespaces(server: ApiServer, *names: str) -> None:
    """Those of them that no other test has made."""
    for name in names:
        done = server.kubectl("create", "namespace", name, check=False)
        assert done.returncode == 0 or "already exists" in done.stderr, done.stderr
