"""One request to the Kubernetes API server: its timeout, and its failures as HygieneErrors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

import urllib3
from kubernetes.client.exceptions import ApiException

from group_hygiene.errors import ApiError, Conflict, Forbidden, NotFound, Refused
from group_hygiene.model.naming import message_shown

TIMEOUT_S = 10
# No request succeeds now: not authenticated, too many requests, or the API server is unavailable or too slow.
_UNAVAILABLE = frozenset({401, 429, 502, 503, 504})
_REFUSALS: Mapping[int, type[ApiError]] = {403: Forbidden, 404: NotFound, 409: Conflict}

_EXPLANATION_CHARS, _HEADER_CHARS = 300, 40

T = TypeVar("T")


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
        raise ApiError(f"the API server does not answer{where}: {type(error.reason).__name__}") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiError(f"the API server does not answer: {type(error).__name__}") from error


def _explanation(error: ApiException) -> str:
    """The message of the metav1.Status in the response, truncated; empty if there is none."""
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        return ""
    return f": {message_shown(message[:_EXPLANATION_CHARS])}" if isinstance(message, str) and message else ""
