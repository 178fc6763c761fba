"""Wait for something that another process does."""

import time
from collections.abc import Callable
from typing import TypeVar

from faults.errors import NotReached

T = TypeVar("T")


def wait_for(what: Callable[[], T], name: str, seconds: float = 60.0, pause: float = 0.1) -> T:
    """Ask until the answer is true, and return it. Raises NotReached with `name` and the last answer."""
    end = time.monotonic() + seconds
    while not (answer := what()):
        if time.monotonic() > end:
            raise NotReached(f"{name}: not within {seconds:.0f} s (last answer: {str(answer)[:200]})")
        time.sleep(pause)
    return answer
