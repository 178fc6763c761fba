"""What the programs of bench/ share as commands: what they say meanwhile, and how they end."""

import signal
import sys
from collections.abc import Callable

from group_hygiene.process.start import start
from testing.bench.errors import BenchError
from testing.sandbox.errors import SandboxError


def say(text: str) -> None:
    """Progress: stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def run(work: Callable[[], None], *also: type[Exception]) -> int:
    """Do the work; answers with the exit code. also: what else ends it with a sentence rather than a traceback."""
    expected: tuple[type[Exception], ...] = (BenchError, SandboxError, *also)
    signal.signal(signal.SIGTERM, _interrupt)
    start()
    try:
        work()
    except expected as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
