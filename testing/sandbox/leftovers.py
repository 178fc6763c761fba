"""The groups of the tutorial: five unused ones, and five that only seem unused. None has a running client."""

from testing.sandbox.example_groups import (
    CAUGHT_UP,
    OLD_SERVICE,
    PREVIEW,
    PROTECTED,
    SINK,
    STREAMS,
    Shop,
    anonymous,
    assign_and_commit,
    leave,
    perf_tests,
)


def make_leftovers(bootstrap: str) -> int:
    """Make them on an empty cluster; returns their number. Raises SandboxError."""
    shop = Shop(bootstrap)
    shop.fill()
    needed = (CAUGHT_UP, SINK, STREAMS, PROTECTED)
    left = leave(shop, (perf_tests(2), anonymous("orders"), PREVIEW, OLD_SERVICE, *needed))
    # As Flink does; its client may come back at any time.
    work = assign_and_commit(shop, "fraud-check", advance=False)
    next(work)
    work.close()
    return sum(len(kind.groups) for kind in left) + 1
