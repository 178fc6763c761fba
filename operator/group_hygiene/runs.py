"""Which run the code at hand belongs to, and what it is about: names that log lines, statuses, Events and spans carry.

They are context variables: set where something begins, and there for all that it calls in its thread or task. A thread
that it starts knows them only when it is started by `inheriting`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from types import MappingProxyType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# namespace and connection: of the KafkaConnection. policy and restore: `namespace/name`, as they may be elsewhere.
FIELDS = ("run", "namespace", "connection", "policy", "restore")
_about: ContextVar[Mapping[str, str]] = ContextVar("about", default=MappingProxyType({}))


@contextmanager
def about(**fields: str) -> Iterator[None]:
    """Within it, and in what it calls, these FIELDS hold, beside those that hold already."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def current() -> Mapping[str, str]:
    """The FIELDS that hold here."""
    return _about.get()


def new_id() -> str:
    """An id for one run of a connection's loop: short enough to be read out, and no two of one day are the same."""
    return secrets.token_hex(4)


def inheriting(call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Callable[[], R]:
    """The call, for another thread, in which the FIELDS of here hold."""
    return partial(copy_context().run, call, *arguments, **named)
