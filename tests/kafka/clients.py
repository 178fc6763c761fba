"""The product's client with something between it and the brokers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from group_hygiene.kafka.client import Call, Client
from testing.sandbox.waiting import PATIENCE


class Wrapped:
    """A client that a subclass makes behave in another way; all else is the client's."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class Around(Wrapped):
    """Does something before and after it sends requests of one type; both get how often that was, from 1 on."""

    def __init__(
        self,
        client: Client,
        kind: type,
        before: Callable[[int], object] = lambda _: None,
        after: Callable[[int], object] = lambda _: None,
    ) -> None:
        super().__init__(client)
        self._kind, self.before, self.after = kind, before, after
        self.count = 0

    def send_each(self, calls: Mapping[Any, Call], *arguments: Any) -> dict[Any, Any]:
        asked = any(isinstance(call.request, self._kind) for call in calls.values())
        self.count += asked
        if asked:
            self.before(self.count)
        answers = self._client.send_each(calls, *arguments)
        if asked:
            self.after(self.count)
        return answers


class Stepped(Wrapped):
    """Of a process that goes on only as far as a test lets it: it stops before certain requests."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._stops: list[type] = []
        self._at_stop, self._may_go_on = queue.SimpleQueue[bool](), threading.Semaphore(0)
        self._has_ended = True

    def begin(self, do: Callable[[], object], *stops: type) -> None:
        """Do it in a thread, up to the first stop. stops: before the next request of each type, in this order."""

        def run() -> None:
            try:
                do()
            finally:
                self._at_stop.put(False)

        self._stops, self._has_ended = list(stops), False
        threading.Thread(target=run, daemon=True).start()
        self._wait()

    def step(self) -> None:
        """Let it go on to the next stop, or to its end."""
        if not self._has_ended:
            self._may_go_on.release()
            self._wait()

    def send(self, call: Call, *arguments: Any) -> Any:
        self._stop_before({None: call})
        return self._client.send(call, *arguments)

    def send_each(self, calls: Mapping[Any, Call], *arguments: Any) -> dict[Any, Any]:
        self._stop_before(calls)
        return self._client.send_each(calls, *arguments)

    def _stop_before(self, calls: Mapping[Any, Call]) -> None:
        if self._stops and any(isinstance(call.request, self._stops[0]) for call in calls.values()):
            del self._stops[0]
            self._at_stop.put(True)
            self._may_go_on.acquire()

    def _wait(self) -> None:
        self._has_ended = not self._at_stop.get(timeout=PATIENCE)


class Died(BaseException):
    """The process ends here."""


def die(*_: object) -> None:
    raise Died
