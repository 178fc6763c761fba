"""Waits for a condition that another process fulfils."""

import time
from collections.abc import Callable
from typing import Literal, TypeVar

from testing.sandbox.errors import NotReached

# Seconds: long, as other tests may load the machine.
PATIENCE = 180.0
_FIRST_PAUSE_SECONDS = 0.02

T = TypeVar("T")


def wait_for(
    what: Callable[[], T | Literal[False] | None],
    name: str | Callable[[], str] = "",
    seconds: float = PATIENCE,
    pause: float = 0.25,
) -> T:
    """Call `what` until its result is true, and return that. Raises NotReached with `name` and the last result.

    pause: the longest one between two calls, in seconds; the first ones are shorter.
    """
    end, wait = time.monotonic() + seconds, min(_FIRST_PAUSE_SECONDS, pause)
    while not (answer := what()):
        if time.monotonic() > end:
            named = name if isinstance(name, str) else name()
            raise NotReached(f"{named}: not within {seconds:.0f} s (last answer: {str(answer)[:200]})")
        time.sleep(wait)
        wait = min(wait * 1.5, pause)
    return answer
