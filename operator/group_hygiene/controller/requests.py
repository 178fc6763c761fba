"""One request to the Kubernetes API server: its timeout, and its failures as HygieneErrors."""

from __future__ import annotations

import json
import resource
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import urllib3
from kubernetes.client.exceptions import ApiException

from group_hygiene.controller.objects import ListedObject
from group_hygiene.errors import ApiError, Conflict, Forbidden, NotFound, Refused
from group_hygiene.model.naming import message_shown

TIMEOUT_S = 10
# No request succeeds now: not authenticated, too many requests, or the API server is unavailable or too slow.
_UNAVAILABLE = frozenset({401, 429, 502, 503, 504})
_REFUSALS: Mapping[int, type[ApiError]] = {403: Forbidden, 404: NotFound, 409: Conflict}

_EXPLANATION_CHARS, _HEADER_CHARS = 300, 40
# Levels of JSON that Go decodes, and so the API server. Users write some of them, as in metadata.managedFields.
_LEVELS = 10_000
# Of a thread's stack, and what a level takes of it at most: 420 bytes were measured, to encode with an indent.
_STACK_BYTES, _LEVEL_BYTES = 8 << 20, 600

T = TypeVar("T")
Item = TypeVar("Item")


class Page(NamedTuple):
    """Limits of one page of a list. etcd limits an object to 1.5 MB by default."""

    objects: int = 100
    bytes: int = 4_000_000


PAGE = Page()


class _ListMetadata(msgspec.Struct):
    following: str = msgspec.field(name="continue", default="")


class ListPage(msgspec.Struct, Generic[Item]):
    """A page of a list."""

    metadata: _ListMetadata
    items: list[Item]


class _Identity(msgspec.Struct):
    namespace: str
    name: str
    uid: str
    version: str = msgspec.field(name="resourceVersion")


class _Identified(msgspec.Struct):
    metadata: _Identity


# Created at import, as msgspec crashes if two threads read a type's annotations at once.
_ROWS = msgspec.json.Decoder(ListPage[_Identified])


def read_as_deep_as_the_api_server() -> None:
    """Let this process decode each object that the API server stores: by default Python decodes 1,000 levels.

    One object would otherwise end a watch, or make a list fail. Sets the stack of this thread and of later ones: with
    too small a stack, deep JSON would end the process. If the hard `ulimit -s` forbids it, fewer levels are decoded, as
    by Python 3.12 and later, which have a fixed limit for decoders in C: then a watch may fail.
    """
    stack, most = resource.getrlimit(resource.RLIMIT_STACK)
    if 0 <= stack < _STACK_BYTES:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_STACK, (_STACK_BYTES if most < 0 else min(_STACK_BYTES, most), most))
        stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    levels = _LEVELS + 2_000 if stack < 0 else min(_LEVELS + 2_000, stack // _LEVEL_BYTES)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), levels))
    threading.stack_size(_STACK_BYTES)


def call(request: Callable[[], T]) -> T:
    """The response to one request. Raises ApiError for every failure."""
    try:
        return request()
    except ApiException as error:
        kind = ApiError if error.status in _UNAVAILABLE else _REFUSALS.get(error.status, Refused)
        # The back-off of the caller decides when to try again, not the server.
        after = (error.headers or {}).get("Retry-After")
        wait = f" (Retry-After: {message_shown(after[:_HEADER_CHARS])})" if after else ""
        raise kind(f"the API server answers {error.status} {error.reason}{wait}{_explanation(error)}") from error
    except urllib3.exceptions.MaxRetryError as error:
        where = f" at {error.pool.host}:{error.pool.port}" if isinstance(error.pool, urllib3.HTTPConnectionPool) else ""
        raise ApiError(f"the API server does not answer{where}: {_cause(error.reason)}") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiError(f"the API server does not answer: {_cause(error)}") from error
    except RecursionError as error:
        raise ApiError("the answer of the API server is nested too deeply") from error


def ask(method: Callable[..., Any], *arguments: Any, timeout: float = TIMEOUT_S, **options: Any) -> Any:
    """The response to a method of the Kubernetes client. timeout: in seconds. Raises ApiError."""
    return call(partial(method, *arguments, _request_timeout=timeout, **options))


def content(response: Any, limit: int) -> bytes | None:
    """The body of a response; None = it is larger than the limit. Reads at most one byte more than the limit."""
    with response:
        data: bytes = response.read(limit + 1, decode_content=True)
    return None if len(data) > limit else data


def read_rows(method: Callable[..., Any]) -> Iterator[ListedObject]:
    """A list of objects, page by page: of each only what identifies it and its version. Raises ApiError."""
    following, size = "", PAGE.objects
    while True:
        more = {"_continue": following} if following else {}
        page = partial(method, limit=size, _preload_content=False, _request_timeout=TIMEOUT_S, **more)
        body = call(partial(lambda page: content(page(), PAGE.bytes), page))
        if body is None and size == 1:
            raise ApiError(f"an object takes more than {PAGE.bytes} bytes")
        if body is None:
            # A few large objects may share a page with many small ones.
            size = max(1, size // 10)
            continue
        try:
            listed = _ROWS.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ApiError("a list of the API server can't be decoded") from error
        for each in listed.items:
            yield ListedObject((each.metadata.namespace, each.metadata.name), each.metadata.uid, each.metadata.version)
        following, size = listed.metadata.following, min(size * 2, PAGE.objects)
        if not following:
            return


def _cause(error: Exception | None) -> str:
    """Why a request had no answer, in words; else the name of the error."""
    inner = error.args[0] if isinstance(error, urllib3.exceptions.SSLError) else None
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {inner.verify_message}"
    if isinstance(inner, ssl.SSLError) and inner.reason:
        return f"no TLS connection: {inner.reason}"
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "its name can't be resolved"
    if isinstance(error, urllib3.exceptions.NewConnectionError) and isinstance(error.__cause__, OSError):
        return str(error.__cause__.strerror).lower()
    return "timeout" if isinstance(error, urllib3.exceptions.TimeoutError) else type(error).__name__


def _explanation(error: ApiException) -> str:
    """The message of the metav1.Status in the response, truncated; empty if there is none."""
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        return ""
    return f": {message_shown(message[:_EXPLANATION_CHARS])}" if isinstance(message, str) and message else ""
