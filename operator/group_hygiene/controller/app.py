"""The operator's process: starts the parts, wakes loops on kopf's events, and ends if any part fails.

Every replica watches; only the leader runs loops. kopf raises its ready flag before it has listed anything, retries a
refused list for ever, and waits as long as a `Retry-After` header says. So every request of its watches passes
`Watches`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, cast

import aiohttp
import kopf

from group_hygiene import USER_AGENT
from group_hygiene.controller.admission import Grants, parsed
from group_hygiene.controller.api import KINDS, SCHEMAS_S, Api, load_config, own_namespace
from group_hygiene.controller.health import Health
from group_hygiene.controller.leader import DURATION_S, Candidate
from group_hygiene.controller.loop import ConnectionLoop
from group_hygiene.controller.objects import (
    CONNECTIONS,
    USERS,
    Key,
    Object,
    Objects,
    forget_content,
    key_of,
)
from group_hygiene.controller.services import Services, Workers
from group_hygiene.controller.statuses import Recorder, StatusWriter, Unserved
from group_hygiene.errors import ApiError, HygieneError, NotFound
from group_hygiene.model.naming import message_shown
from group_hygiene.observe.metrics import Metrics
from group_hygiene.process import memory
from group_hygiene.process.clock import SystemClock
from group_hygiene.process.egress import Egress
from group_hygiene.spec.connection import Connection
from group_hygiene.spec.crds import GROUP, VERSION
from group_hygiene.spec.storage import Allowed

log = logging.getLogger(__name__)

_LIST_PAUSE_CAP_S = 30.0
# A watch that is closed for so long is reported: until then, the API server may just restart.
DOWN_S = 60.0

# A stop takes at most 20 s: runs in flight, then 5 s to release the Lease, then kopf ends, then it is cancelled.
_RUNS_END_WITHIN_S, _REST_ENDS_WITHIN_S = 12.0, 1.5
_BEAT_S = 2.0
_RETRY_CAP_S = 30
# Between two comparisons of the store with lists, after one that failed, and what a watch may be late.
_COMPARE_S, _COMPARE_AGAIN_S, _DELAY_S = 300.0, 1.0, 2.0
# More than the longest scan: a round that hangs because of its Kafka cluster ends before.
STUCK_S = 900.0


class Watches:
    """plurals: what is watched, in each of `namespaces`; none = all together. One per process, for its event loop."""

    def __init__(self, plurals: Collection[str], namespaces: Collection[str] = ()) -> None:
        self._namespaces = frozenset(namespaces or ("",))
        # Plural -> namespace of a watch that is not open ("" = all) -> since when, in monotonic seconds.
        self._closed = {plural: dict.fromkeys(self._namespaces, time.monotonic()) for plural in plurals}
        # Plural and namespace of watches that have never been open.
        self._new = {(plural, namespace) for plural in plurals for namespace in self._namespaces}
        self._problems: dict[str, str] = {}

    def is_open(self, plural: str) -> bool:
        """Whether its watches are open, or have been closed for less than a minute after they were open."""
        return not any(
            (plural, namespace) in self._new or time.monotonic() - since >= DOWN_S
            for namespace, since in list(self._closed[plural].items())
        )

    @property
    def served(self) -> frozenset[str]:
        """The namespaces ("" = all) without those where something has not been watched for a minute."""
        now = time.monotonic()
        closed = [list(each.items()) for each in self._closed.values()]
        return self._namespaces - {name for each in closed for name, since in each if now - since >= DOWN_S}

    @property
    def serves_all(self) -> bool:
        return self.served == self._namespaces

    def are_listed(self) -> bool:
        """Whether namespaces are served, and all their watches are open: all objects were listed then."""
        served = self.served
        return bool(served) and not any(served & each.keys() for each in self._closed.values())

    @property
    def problems(self) -> str:
        return "; ".join(self._problems.values()) or "the API server has not answered yet"

    async def login(self, **arguments: Any) -> kopf.AiohttpSession | None:
        """A login handler of kopf: the credentials of the process, in a session that passes every request here."""
        info = await asyncio.to_thread(partial(kopf.login_via_client, **arguments))
        if info is None:
            return None
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers() | {"User-Agent": USER_AGENT},
            trust_env=info.trust_env,
            proxy=info.proxy_url,
            middlewares=(self._pass,),
        )
        return kopf.AiohttpSession(
            server=info.server, default_namespace=info.default_namespace, aiohttp_session=session
        )

    async def _pass(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        parts = request.url.path.split("/")
        plural, namespace = parts[-1], parts[-2] if "namespaces" in parts else ""
        is_watch, pause = request.url.query.get("watch") == "true", 1.0
        verb, where = "watch" if is_watch else "list", f"in namespace {namespace}" if namespace else "in all namespaces"
        closed = self._closed.get(plural, {})
        closed.setdefault(namespace, time.monotonic())
        while True:
            try:
                response = await handler(request)
            except (OSError, aiohttp.ClientError, TimeoutError) as error:
                self._problems[plural] = f"the API server does not answer: {type(error).__name__}"
                raise
            if response.status < 400:
                if is_watch and plural in self._closed:
                    closed.pop(namespace, None)
                    self._new.discard((plural, namespace))
                return response
            problem = f"{verb} {plural} {where}: the API server answers {response.status} {response.reason}"
            if response.status == 403:
                problem = f"no permission to {verb} {plural}.{GROUP} {where}"
            if self._problems.get(plural) != problem:
                log.warning("%s; trying again", message_shown(problem))
            self._problems[plural] = problem
            if response.status != 429:
                return response
            response.release()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LIST_PAUSE_CAP_S)


class _NoDiffs(kopf.DiffBaseStorage):
    """Else kopf compares each object with an annotation, which any user may write, and copies both."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


@dataclass(frozen=True)
class OperatorOptions:
    """health_port: 0 = any free port. lease_namespace: None = the operator's own. lease_duration: in seconds.

    activity: where a pipeline's tables may be. egress: where alerts may be sent.
    namespaces: the operator serves only their objects; empty = all namespaces.
    """

    health_port: int = 8080
    lease_namespace: str | None = None
    lease_duration: int = DURATION_S
    activity: Allowed = field(default_factory=Allowed)
    egress: Egress = field(default_factory=Egress)
    namespaces: tuple[str, ...] = ()


class _Backoffs:
    """kopf's pauses between failed requests: endless, growing up to a limit. Each request iterates from the start."""

    def __iter__(self) -> Any:
        pause = 1
        while True:
            yield pause
            pause = min(pause * 2, _RETRY_CAP_S)


class Operator:
    """One operator process; `run` returns after a signal or `stop`, and raises when a part of it failed."""

    def __init__(self, options: OperatorOptions) -> None:
        self._options = options
        self._metrics = Metrics()
        self._objects = Objects(changed=self._on_change)
        self._watches = Watches(KINDS, options.namespaces)
        # Set once the store was compared with a list of each kind.
        self._synced = asyncio.Event()
        self._stop = asyncio.Event()
        self._stop_watching = asyncio.Event()
        self._failure: BaseException | None = None
        # Whether loops run: from the time when this process leads and knows the objects.
        self._serving = False
        self._loops: dict[tuple[str, str], tuple[ConnectionLoop, asyncio.Task[None]]] = {}
        self._following = ThreadPoolExecutor(1, "following")
        self._unserved: threading.Thread | None = None
        # With its resourceVersion, as last decoded in that thread.
        self._connections: dict[Key, tuple[str, Connection]] = {}

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped. Raises HygieneError if the CRDs are missing or no API server is configured."""
        self._loop = asyncio.get_running_loop()
        api = Api(load_config(), self._options.namespaces)
        await self._check_crds(api)
        workers = Workers()
        namespace = self._options.lease_namespace or own_namespace()
        of = namespace if self._options.namespaces else ""
        installation = await asyncio.to_thread(api.installation_id, of)
        # It has its own client, so that other requests do not delay it.
        self._leader = Candidate(Api(load_config(retries=False)), namespace, self._options.lease_duration)
        self._metrics.show_leadership(self._leads)
        self._metrics.show_watches(KINDS, self._watches.is_open)
        recorder, clock, stopping = Recorder(api), SystemClock(), threading.Event()
        grants, writer = Grants(api, clock), StatusWriter(api, self._objects, recorder, self._metrics, clock, namespace)
        unserved = Unserved(
            api, self._objects, grants, writer, lambda: self._leads() and not stopping.is_set(), stopping
        )
        self._services = Services(
            api,
            self._objects,
            grants,
            unserved,
            recorder,
            self._metrics,
            workers,
            self._leader,
            installation,
            clock,
            stopping,
            activity=self._options.activity,
            egress=self._options.egress,
        )
        health = Health(self._options.health_port, self._metrics.registry, self._is_ready)
        await health.start()
        log.info("serving /healthz, /readyz and /metrics on port %d", health.port)
        self._handle_signals()
        watch = self._guard(asyncio.create_task(self._watch(), name="watch"))
        beat = self._guard(asyncio.create_task(self._beat(health), name="heartbeat"))
        compare = self._guard(asyncio.create_task(self._keep_comparing(), name="comparison of the objects"))
        lead = self._guard(asyncio.create_task(self._lead(), name="leader election"))
        await self._stop.wait()
        log.info("stopping")
        self._services.stopping.set()
        self._services.unserved.wake()
        self._following.shutdown(wait=False, cancel_futures=True)
        for loop, _ in self._loops.values():
            loop.wake()
        tasks = [task for _, task in self._loops.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=_RUNS_END_WITHIN_S)
        lead.cancel()
        compare.cancel()
        # The thread of a cancelled task may still be running.
        in_flight = [task for task in tasks if not task.done() or task.cancelled()]
        if in_flight:
            log.warning("%d runs have not ended: the Lease is not released and expires", len(in_flight))
        else:
            await self._leader.release()
        await health.stop()
        # Stop kopf only now: when it ends, it cancels all tasks that were started after it, runs in flight too. Do not
        # cancel it while it ends: that made it hang.
        self._stop_watching.set()
        await asyncio.wait([watch], timeout=_REST_ENDS_WITHIN_S)
        for task in (watch, beat, *tasks):
            task.cancel()
        await asyncio.wait([watch, beat, lead, compare, *tasks], timeout=_REST_ENDS_WITHIN_S)
        workers.stop()
        log.info("stopped")
        if in_flight or not await asyncio.to_thread(self._join_unserved):
            _exit(0 if self._failure is None else 1)
        if self._failure is not None:
            raise self._failure

    def _join_unserved(self) -> bool:
        """Whether the thread has ended: one that still runs while the interpreter ends may abort the process."""
        if self._unserved is not None:
            self._unserved.join(_REST_ENDS_WITHIN_S)
        return self._unserved is None or not self._unserved.is_alive()

    async def _check_crds(self, api: Api) -> None:
        missing = await asyncio.to_thread(api.missing_crds)
        if missing:
            raise HygieneError(
                f"CRDs not installed on this API server: {', '.join(missing)}. Apply the files in crds/ first"
            )

    def _leads(self) -> bool:
        return self._leader.seconds_left() > 0

    def _is_ready(self) -> bool:
        """Whether this process knows all objects, watches them, and has read or created the Lease."""
        return self._synced.is_set() and all(map(self._watches.is_open, KINDS)) and self._leader.informed

    async def _lead(self) -> None:
        # A process that does not know the objects must not keep others from leading.
        await self._synced.wait()
        await self._leader.acquire()
        # The comparison may take longer than the Lease lasts: renewals do not wait for it.
        serve = self._guard(asyncio.create_task(self._serve(), name="comparison before serving"), endless=False)
        watchdog = self._guard(asyncio.create_task(self._give_up_when_stuck(), name="watchdog"))
        try:
            await self._leader.keep()
        finally:
            serve.cancel()
            watchdog.cancel()

    async def _serve(self) -> None:
        """Start the loops after a comparison, which reads what the previous leader wrote. Raises HygieneError."""
        try:
            async with asyncio.timeout(STUCK_S):
                while not await self._compare():
                    await asyncio.sleep(_COMPARE_AGAIN_S)
        except TimeoutError:
            raise HygieneError(f"gives up the lead: the objects could not be read for {STUCK_S:.0f} s") from None
        if self._stop.is_set():
            return
        self._unserved = threading.Thread(target=self._services.unserved.run, name="unserved", daemon=True)
        self._unserved.start()
        self._serving = True
        self._services.progress.made()
        for key in self._objects.keys(CONNECTIONS):
            self._wake(*key)
        for plural in USERS:
            for key in self._objects.keys(plural):
                self._services.unserved.check(plural, key)

    async def _give_up_when_stuck(self) -> None:
        """Raises HygieneError if this process can't do its work: the next leader may."""
        while True:
            await asyncio.sleep(_BEAT_S)
            # While the API server does not answer at all, no other process can do better, and the Lease ends by itself.
            if not self._watches.served and self._leader.answered_for >= DOWN_S:
                raise HygieneError(f"gives up the lead: it sees no changes of objects: {self._watches.problems}")
            busy = [loop.busy_since for loop, task in self._loops.values() if not task.done()]
            since = min(filter(None, busy), default=None)
            stuck = time.monotonic() - max(since or time.monotonic(), self._services.progress.at)
            if stuck > STUCK_S:
                raise HygieneError(f"gives up the lead: no round of any connection has ended for {stuck:.0f} s")

    async def _keep_comparing(self) -> None:
        while True:
            if not (self._watches.are_listed() and await self._compare()):
                await asyncio.sleep(_COMPARE_AGAIN_S)
                continue
            self._synced.set()
            end = time.monotonic() + _COMPARE_S
            await asyncio.sleep(SCHEMAS_S)
            while time.monotonic() < end and not await asyncio.to_thread(self._are_schemas_new):
                await asyncio.sleep(SCHEMAS_S)

    def _are_schemas_new(self) -> bool:
        """Whether the CRDs lack fields or have changed, so that the store may not be what the API server has."""
        api = self._services.api
        with suppress(ApiError):
            return any(api.crd_problem(plural) or api.is_schema_new(plural) for plural in KINDS)
        return True

    async def _compare(self) -> bool:
        """Compare the store with lists; False = one could not be read. A watch may have missed deletions and edits.

        Objects in namespaces that are not served leave the store.
        """
        api, served = self._services.api, self._watches.served
        if not served:
            return False
        is_complete = self._watches.serves_all
        self._objects.is_complete &= is_complete
        for plural in KINDS:
            sequence = self._objects.sequence
            try:
                self._objects.outdate(plural, await asyncio.to_thread(api.crd_problem, plural))
                rows = await asyncio.to_thread(api.list_rows, plural, served)
                gone, late = self._objects.compare(plural, rows, sequence)
                is_new = api.is_schema_new(plural)
                if is_new:
                    late = rows
                elif late:
                    # The watch may be about to report them.
                    await asyncio.sleep(_DELAY_S)
                for row in late:
                    # The watch may report it while others are read.
                    if is_new or self._objects.lacks(plural, row):
                        with suppress(NotFound):
                            self._objects.put(plural, await asyncio.to_thread(api.get, plural, *row.key))
            except ApiError as error:
                log.warning("the %s could not be listed: %s; trying again", plural, error)
                return False
            for key, uid in gone:
                self._objects.remove(plural, key, uid)
        self._objects.is_complete = is_complete
        return True

    async def _watch(self) -> None:
        registry = kopf.OperatorRegistry()
        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.watching.server_timeout = 300
        settings.watching.connect_timeout = 5
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 5
        settings.networking.error_backoffs = _Backoffs()
        # Pages of the first list, which kopf decodes completely (a user may give each object 1.5 MB of labels), and how
        # long the last event of an object stays in memory.
        settings.watching.chunk_size = 2
        settings.queueing.idle_timeout = 0.1
        # The API server ends a watch after server_timeout: one that stays silent for longer is dead.
        settings.watching.client_timeout = 330
        settings.persistence.diffbase_storage = _NoDiffs()
        kopf.on.login(registry=registry)(self._watches.login)
        for plural in KINDS:
            kopf.on.event(GROUP, VERSION, plural, registry=registry)(self._on_event)
        ready = asyncio.create_task(self._announce(flag := asyncio.Event()))
        others = asyncio.all_tasks()
        try:
            tasks = await kopf.spawn_tasks(
                registry=registry,
                settings=settings,
                standalone=True,
                # Without an identity kopf asks for the user's name, and a container's user may have none.
                identity=cast(Any, "group-hygiene"),
                clusterwide=not self._options.namespaces,
                namespaces=self._options.namespaces,
                ready_flag=flag,
                stop_flag=self._stop_watching,
            )
            for task in tasks:
                # When one fails, kopf ends the others, which may take for ever.
                self._guard(task, endless=False)
            await kopf.run_tasks(tasks, ignored=others)
        finally:
            ready.cancel()
        # kopf returns after a stop, maybe by a signal that only kopf received.
        self._stop.set()

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    async def _announce(self, flag: asyncio.Event) -> None:
        await flag.wait()
        # kopf replaced the signal handlers when it started; the operator's own handlers let runs in flight end first.
        self._handle_signals()
        where = ", ".join(self._options.namespaces) or "all namespaces"
        log.info("watching %s in %s", ", ".join(KINDS), where)

    async def _on_event(self, event: Any, resource: Any, **_: Any) -> None:
        """An object was added, edited or deleted."""
        obj, plural = event["object"], resource.plural
        try:
            if event["type"] == "DELETED":
                self._services.recorder.forget(obj["metadata"]["uid"])
                self._objects.remove(plural, key_of(obj), obj["metadata"]["uid"])
            else:
                self._objects.put(plural, obj)
        finally:
            # kopf holds the event for longer, and requests the removal of its own finalizer, which any user may write.
            forget_content(obj)

    def _on_change(self, *change: Any) -> None:
        """See Objects. A run may end after the event loop and the thread did."""
        if self._serving:
            with suppress(RuntimeError):
                self._following.submit(self._follow, *change)

    def _follow(self, plural: str, key: Key, connections: Collection[Key]) -> None:
        """Wake what a change of an object concerns. In a namespace without a grant it concerns no connection.

        In a thread of its own: a tenant's edits make it decode a connection, which may be large.
        """
        if plural == CONNECTIONS:
            self._services.unserved.check_naming(key)
        else:
            self._services.unserved.check(plural, key)
        for of in connections:
            obj = self._objects.get(CONNECTIONS, *of)
            if obj is None or plural == CONNECTIONS or self._may_grant(obj, key[0]):
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._wake, *of)

    def _may_grant(self, obj: Object, namespace: str) -> bool:
        key, version = key_of(obj), str(obj["metadata"]["resourceVersion"])
        known = self._connections.get(key)
        if known is None or known[0] != version:
            known = self._connections[key] = version, parsed(obj)[0]
        return self._services.grants.are_possible(known[1], namespace)

    def _wake(self, namespace: str, name: str) -> None:
        """Wake the loop of a connection; start it if the connection exists."""
        key = (namespace, name)
        if self._stop.is_set():
            return
        running = self._loops.get(key)
        if running is not None and not running[1].done():
            running[0].wake()
        elif self._objects.get(CONNECTIONS, namespace, name) is None:
            self._loops.pop(key, None)
            self._connections.pop(key, None)
        else:
            loop = ConnectionLoop(namespace, name, self._services)
            task = asyncio.create_task(loop.run(), name=f"connection {namespace}/{name}")
            self._loops[key] = (loop, self._guard(task, endless=False))

    async def _beat(self, health: Health) -> None:
        while True:
            health.beat()
            await asyncio.sleep(_BEAT_S)

    def _guard(self, task: asyncio.Task[None], endless: bool = True) -> asyncio.Task[None]:
        """End the process when a part of it fails: otherwise the operator seems healthy but does nothing."""

        def done(finished: asyncio.Task[None]) -> None:
            if finished.cancelled() or (not endless and finished.exception() is None):
                return
            failure = finished.exception() or RuntimeError(f"{finished.get_name()} ended")
            if not self._stop.is_set():
                self._failure = failure
                # A HygieneError explains itself; other errors need the traceback.
                trace = None if isinstance(failure, HygieneError) else failure
                log.critical("%s: %s: the operator ends", finished.get_name(), failure, exc_info=trace)
                self._stop.set()

        task.add_done_callback(done)
        return task


def _exit(code: int) -> NoReturn:
    """End the process while threads still run: Python would wait for each of them, also for requests that hang."""
    logging.shutdown()
    os._exit(code)


def run(options: OperatorOptions) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises HygieneError."""

    memory.return_freed()

    async def main() -> None:
        await Operator(options).run()

    asyncio.run(main())
