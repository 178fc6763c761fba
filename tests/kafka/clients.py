"""The product's client with something between it and the brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from group_hygiene.kafka.client import Call, Client


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


class Died(BaseException):
    """The process ends here."""


def die(*_: object) -> None:
    raise Died
