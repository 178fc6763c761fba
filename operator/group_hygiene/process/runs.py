"""The current run, and the objects that it processes: fields for log lines, statuses and Events.

They are context variables: set at the start of an activity, and visible to everything that it calls in its thread or
task. A new thread has them only if it is started by `inheriting`.
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

# namespace and connection: of the KafkaConnection. policy, restore, keep: `namespace/name`, as theirs may differ.
FIELDS = ("run", "namespace", "connection", "policy", "restore", "keep")
_about: ContextVar[Mapping[str, str]] = ContextVar("about", default=MappingProxyType({}))


@contextmanager
def about(**fields: str) -> Iterator[None]:
    """Set these FIELDS within the context, in addition to those that are set already."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def current() -> Mapping[str, str]:
    """The FIELDS that are set here."""
    return _about.get()


def new_id() -> str:
    """An id for one run of a connection's loop: short enough to read out, and practically unique within a day."""
    return secrets.token_hex(4)


def inheriting(call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Callable[[], R]:
    """The call for another thread, with the FIELDS that are set here."""
    return partial(copy_context().run, call, *arguments, **named)
