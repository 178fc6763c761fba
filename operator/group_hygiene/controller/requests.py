"""One request to the Kubernetes API server: how long it may take, and its failures as our own errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import urllib3
from kubernetes.client.exceptions import ApiException

from group_hygiene.errors import ApiError, Conflict, Forbidden, NotFound, Refused

TIMEOUT_S = 10
# What says that no request of ours goes well now: who we are is not known, too many requests, out of order, too slow.
_UNAVAILABLE = frozenset({401, 429, 502, 503, 504})
_REFUSALS: Mapping[int, type[ApiError]] = {403: Forbidden, 404: NotFound, 409: Conflict}

T = TypeVar("T")


def call(request: Callable[[], T]) -> T:
    """The answer to one request; every failure as an ApiError."""
    try:
        return request()
    except ApiException as error:
        kind = ApiError if error.status in _UNAVAILABLE else _REFUSALS.get(error.status, Refused)
        raise kind(f"the API server answers {error.status} {error.reason}") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiError(f"the API server does not answer: {type(error).__name__}") from error
