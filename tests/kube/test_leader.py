"""The election on a real API server: one leads, others take over, and who lost the Lease does nothing any more."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
import pytest

from group_hygiene.controller.api import Api
from group_hygiene.controller.leader import NAME, Candidate
from group_hygiene.errors import HygieneError
from group_hygiene.process.clock import elapsed
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import operators_account
from testing.sandbox.waiting import PATIENCE, wait_for
from tests.e2e.conftest import RunningOperator, World, connection, policy, running_operator

# A holder that is not served for two thirds of it has lost the Lease, and this machine may be busy.
DURATION = 24
Start = Callable[[str, Path], RunningOperator]
Object = dict[str, Any]


@pytest.fixture(scope="module")
def account(server: ApiServer) -> Path:
    """A kubeconfig with exactly the rights that deploy/ gives to the operator, in the operator's namespace."""
    return operators_account(server)


@pytest.fixture
def namespace(server: ApiServer, request: pytest.FixtureRequest) -> str:
    name = "lease-" + "".join(c if c.isalnum() else "-" for c in request.node.name.lower()).strip("-")[:50].strip("-")
    server.kubectl("create", "namespace", name)
    return name


@pytest.fixture
def no_lease(server: ApiServer) -> None:
    """No Lease is left of another test."""
    server.kubectl("delete", "lease", NAME, "-n", "group-hygiene", "--ignore-not-found")


@pytest.fixture
def start(tmp_path: Path, no_lease: None) -> Iterator[Start]:
    """Starts operator processes, which end with the test."""
    with ExitStack() as stack:

        def start(name: str, kubeconfig: Path) -> RunningOperator:
            arguments = ("--lease-duration", str(DURATION), "--leader-election-namespace", "group-hygiene")
            return stack.enter_context(running_operator(kubeconfig, tmp_path / f"{name}.log", *arguments))

        yield start


class Clock:
    """Elapsed time that a test can let pass."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def __call__(self) -> float:
        return elapsed() + self.skipped


def _api(kubeconfig: Path) -> Api:
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    configuration.retries = False
    return Api(kubernetes.client.ApiClient(configuration))


def _leader(server: ApiServer, namespace: str, clock: Callable[[], float] = elapsed) -> Candidate:
    return Candidate(_api(server.kubeconfig), namespace, DURATION, clock)


def _lease(server: ApiServer, namespace: str = "group-hygiene") -> Object:
    return dict(json.loads(server.kubectl("get", "lease", NAME, "-n", namespace, "-o", "json").stdout))


def _mangle(server: ApiServer, namespace: str, patch: Object) -> None:
    server.kubectl("patch", "lease", NAME, "-n", namespace, "--type=merge", "-p", json.dumps(patch))


def _run(work: Awaitable[None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(PATIENCE):
            await work

    asyncio.run(within())


def _leads(operator: RunningOperator) -> bool:
    return "group_hygiene_leader 1.0" in operator.http("/metrics")[1]


@pytest.mark.slow
class TestLease:
    """The Lease itself, with leaders inside of this process."""

    def test_first_one_leads_and_the_other_waits(self, server: ApiServer, namespace: str) -> None:
        """The Lease is made; its holder has at most two thirds of the duration; a second one waits, and knows why."""

        async def story() -> None:
            first, second = _leader(server, namespace), _leader(server, namespace)
            assert first.seconds_left() == 0
            await first.acquire()
            assert 0 < first.seconds_left() <= DURATION * 2 / 3
            waiting, keeping = asyncio.create_task(second.acquire()), asyncio.create_task(first.keep())
            await asyncio.sleep(DURATION * 1.5)
            assert not waiting.done(), "the first one renews"
            assert second.informed
            assert (first.seconds_left() > 0, second.seconds_left()) == (True, 0)
            spec = _lease(server, namespace)["spec"]
            assert (spec["holderIdentity"], spec["leaseTransitions"]) == (first.identity, 0)
            assert spec["leaseDurationSeconds"] == DURATION
            assert first.identity.startswith(socket.gethostname() + "_")
            keeping.cancel()
            await first.release()
            assert first.seconds_left() == 0
            await waiting
            spec = _lease(server, namespace)["spec"]
            assert (spec["holderIdentity"], spec["leaseTransitions"]) == (second.identity, 1)

        _run(story())

    def test_abandoned_lease_is_taken_when_it_is_over(self, server: ApiServer, namespace: str) -> None:
        """One that stopped renewing has no seconds left before another leads, and can't renew after that."""

        async def story() -> None:
            clock = Clock()
            first, second = _leader(server, namespace, clock), _leader(server, namespace)
            await first.acquire()
            acquired = elapsed()
            await second.acquire()
            assert first.seconds_left() == 0
            # As if no time had passed for it: now only the Lease itself tells it.
            clock.skipped = acquired - elapsed()
            assert first.seconds_left() > 0
            assert (first.is_confirmed(), second.is_confirmed()) == (False, True)
            with pytest.raises(HygieneError, match=f"is held by {second.identity}"):
                await first.keep()

        _run(story())

    def test_time_that_stood_still_counts(self, server: ApiServer, namespace: str) -> None:
        """After a long stop nothing is left at once, and the Lease is not renewed, though nobody else took it."""

        async def story() -> None:
            clock = Clock()
            leader = _leader(server, namespace, clock)
            await leader.acquire()
            version = _lease(server, namespace)["metadata"]["resourceVersion"]
            clock.skipped = DURATION * 2 / 3
            assert leader.seconds_left() == 0
            with pytest.raises(HygieneError, match="lost the leadership: not renewed"):
                await leader.keep()
            assert _lease(server, namespace)["metadata"]["resourceVersion"] == version

        _run(story())

    def test_release_leaves_anothers_lease_alone(self, server: ApiServer, namespace: str) -> None:
        """One that never led, or no more, gives nothing back."""

        async def story() -> None:
            first, second = _leader(server, namespace), _leader(server, namespace)
            await second.release()
            await first.acquire()
            third = _leader(server, namespace)
            await third.release()
            assert _lease(server, namespace)["spec"]["holderIdentity"] == first.identity

        _run(story())

    @pytest.mark.parametrize(
        "spec",
        [
            pytest.param(None, id="no-spec"),
            pytest.param({"holderIdentity": None, "leaseDurationSeconds": None, "renewTime": None}, id="emptied"),
            pytest.param({"holderIdentity": "nobody-we-know", "renewTime": "9999-12-31T23:59:59.999999Z"}, id="future"),
            pytest.param({"holderIdentity": "nobody-we-know", "renewTime": "0001-01-01T00:00:00.000000Z"}, id="past"),
            pytest.param({"holderIdentity": "nobody-we-know", "leaseTransitions": 2**31 - 1}, id="countless"),
        ],
    )
    def test_mangled_lease(self, server: ApiServer, namespace: str, spec: Object | None) -> None:
        """Whatever stands in a Lease: its holder ends if it is not named any more, and another can take it."""

        async def story() -> None:
            first, second = _leader(server, namespace), _leader(server, namespace)
            await first.acquire()
            _mangle(server, namespace, {"spec": spec})
            with pytest.raises(HygieneError, match=f"is held by {(spec or {}).get('holderIdentity') or 'no process'}"):
                await first.keep()
            await second.acquire()
            assert _lease(server, namespace)["spec"]["holderIdentity"] == second.identity

        _run(story())

    def test_edits_that_leave_the_holder_are_borne(self, server: ApiServer, namespace: str) -> None:
        """A label, and numbers that somebody changed, do not end the leadership; what is ours is put right."""

        async def story() -> None:
            leader = _leader(server, namespace)
            await leader.acquire()
            keeping = asyncio.create_task(leader.keep())
            spec = {"leaseDurationSeconds": 2, "renewTime": None}
            _mangle(server, namespace, {"metadata": {"labels": {"a": "b"}}, "spec": spec})
            await asyncio.sleep(DURATION)
            assert not keeping.done()
            lease = _lease(server, namespace)
            assert (lease["metadata"]["labels"], lease["spec"]["leaseDurationSeconds"]) == ({"a": "b"}, DURATION)
            keeping.cancel()

        _run(story())

    def test_deleted_lease_ends_the_leadership(self, server: ApiServer, namespace: str) -> None:
        """It could have been another's for a moment; the next one makes a new Lease."""

        async def story() -> None:
            leader = _leader(server, namespace)
            await leader.acquire()
            server.kubectl("delete", "lease", NAME, "-n", namespace)
            with pytest.raises(HygieneError, match="was deleted"):
                await leader.keep()
            await _leader(server, namespace).acquire()

        _run(story())

    def test_only_one_of_many_gets_it(self, server: ApiServer, namespace: str) -> None:
        """Of eight that ask for a new Lease at the same time one leads, as compare-and-swap has it."""

        async def story() -> None:
            leaders = [_leader(server, namespace) for _ in range(8)]
            tasks = [asyncio.create_task(leader.acquire()) for leader in leaders]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(1)
            assert sum(leader.seconds_left() > 0 for leader in leaders) == 1
            for task in tasks:
                task.cancel()

        _run(story())

    def test_lease_that_may_not_be_read(self, server: ApiServer, account: Path, namespace: str) -> None:
        """It goes on asking, and does not count as one that stands by."""

        async def story() -> None:
            leader = Candidate(_api(account), namespace, DURATION)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3):
                    await leader.acquire()
            assert (leader.informed, leader.seconds_left()) == (False, 0)

        _run(story())


def test_installation_is_the_uid_of_kube_system(server: ApiServer, account: Path) -> None:
    """It may be read with the rights of deploy/."""
    uid = server.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}").stdout
    assert _api(account).installation_id() == uid


class TestProcesses:
    """Operators as processes, with the roles of deploy/."""

    @pytest.mark.slow
    def test_one_leads_and_a_clean_stop_hands_over(self, server: ApiServer, account: Path, start: Start) -> None:
        """Both are ready, one leads and writes; after its clean stop the Lease is free, and the other leads."""
        first = start("first", account)
        wait_for(lambda: _leads(first))
        second = start("second", account)
        wait_for(lambda: second.http("/readyz")[0] == 200)
        assert first.http("/readyz")[0] == 200
        assert not _leads(second)
        server.kubectl("create", "namespace", "standby")
        names = [f"p{index}" for index in range(5)]
        for name in names:
            _apply_policy(server, "standby", name)
        wait_for(lambda: all(_ready_reason(server, "standby", name) == "ConnectionNotFound" for name in names))
        written = [
            operator.http("/metrics")[1].count("group_hygiene_status_writes_total{") for operator in (first, second)
        ]
        assert written == [1, 0]
        assert first.stop() == 0
        assert "released Lease group-hygiene/group-hygiene" in first.log()
        wait_for(lambda: _leads(second))

    def test_takes_over_after_a_crash(self, server: ApiServer, account: Path, start: Start) -> None:
        """A killed leader's Lease runs out, and the other leads and serves what was applied while it stood by."""
        first = start("first", account)
        wait_for(lambda: _leads(first))
        second = start("second", account)
        wait_for(lambda: second.http("/readyz")[0] == 200)
        server.kubectl("create", "namespace", "crash")
        first.process.kill()
        _apply_policy(server, "crash")
        wait_for(lambda: _leads(second))
        wait_for(lambda: _ready_reason(server, "crash") == "ConnectionNotFound")
        assert _lease(server)["spec"]["leaseTransitions"] == 1

    def test_a_stop_waits_for_no_request_that_hangs(self, server: ApiServer, account: Path, start: Start) -> None:
        """After SIGTERM the process ends, although one of its threads waits for an API server that does not answer."""
        server.kubectl("create", "namespace", "hangs")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.settimeout(PATIENCE)
            brokers = f"127.0.0.1:{silent.getsockname()[1]}"
            World(server).apply(connection("hangs", brokers), policy("hangs", "p"))
            first = start("first", account)
            # A run waits for brokers; after that it writes to the API server.
            with silent.accept()[0], server.paused():
                assert first.stop() == 0
        assert "runs have not ended" in first.log()
        # The run logs nothing more: the process has ended.
        assert first.log().rstrip().endswith("stopped")

    @pytest.mark.slow
    def test_frozen_leader_ends_without_a_write(self, server: ApiServer, account: Path, start: Start) -> None:
        """One that was stopped until another led ends when it goes on, and has written nothing since."""
        first = start("first", account)
        wait_for(lambda: _leads(first))
        second = start("second", server.kubeconfig)
        wait_for(lambda: second.http("/readyz")[0] == 200)
        server.kubectl("create", "namespace", "frozen")
        first.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: _leads(second))
        before = len(server.audit_events())
        _apply_policy(server, "frozen")
        wait_for(lambda: _ready_reason(server, "frozen") == "ConnectionNotFound")
        first.process.send_signal(signal.SIGCONT)
        assert first.process.wait(PATIENCE) == 1
        assert "lost the leadership" in first.log()
        assert "Traceback" not in first.log()
        # The second one is the administrator.
        by_first = [e for e in server.audit_events()[before:] if "serviceaccount" in e["user"]["username"]]
        assert [e["requestURI"] for e in by_first if e["verb"] not in ("get", "list", "watch")] == []
        assert _leads(second)

    @pytest.mark.slow
    def test_api_server_that_stays_away_ends_the_leader(self, server: ApiServer, account: Path, start: Start) -> None:
        """Nobody can know who leads then; a process started later leads once the old Lease has run out."""
        first = start("first", account)
        wait_for(lambda: _leads(first))
        server.stop_apiserver()
        try:
            assert first.process.wait(PATIENCE) == 1
            assert f"lost the leadership: not renewed for {DURATION * 2 / 3:.0f} s" in first.log()
            assert "Traceback" not in first.log()
        finally:
            server.start_apiserver()
        second = start("second", account)
        wait_for(lambda: _leads(second))


def _apply_policy(server: ApiServer, namespace: str, name: str = "p") -> None:
    """A policy whose connection, of the same name, does not exist: whoever acts says so in its status."""
    policy = {
        "apiVersion": "grouphygiene.io/v1alpha1",
        "kind": "GroupPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"connectionRef": {"name": name}, "match": {"groups": ["a"]}, "action": "Alert"},
    }
    server.kubectl("apply", "-f", "-", input=json.dumps(policy))


def _ready_reason(server: ApiServer, namespace: str, name: str = "p") -> str | None:
    found = World(server).condition("kgp", namespace, name, "Ready")
    return None if found is None else str(found["reason"])
