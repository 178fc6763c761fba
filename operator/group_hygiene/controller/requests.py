"""One request to the Kubernetes API server: how long it may take, and its failures as our own errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import urllib3
from kubernetes.client.exceptions import ApiException

from group_hygiene.errors import ApiError, Conflict, Forbidden, NotFound

TIMEOUT_S = 10

T = TypeVar("T")


def call(request: Callable[[], T]) -> T:
    """The answer to one request; every failure as an ApiError."""
    try:
        return request()
    except ApiException as error:
        kind = {404: NotFound, 409: Conflict, 403: Forbidden}.get(error.status, ApiError)
        raise kind(f"the API server answers {error.status} {error.reason}") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiError(f"the API server does not answer: {type(error).__name__}") from error
