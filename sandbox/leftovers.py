"""The groups of the tutorial: five unused ones, and five that only seem unused. None has a running client."""

from sandbox.example_groups import (
    Kind,
    Shop,
    assign_and_commit,
    caught_up,
    make_all,
    old_report,
    old_service,
    protected,
    sink_connector,
    streams_application,
)

_CONSOLES = ("console-consumer-11873", "console-consumer-40216", "console-consumer-85290")


def make_leftovers(bootstrap: str) -> int:
    """Make them on an empty cluster; returns their number. Raises SandboxError."""
    shop = Shop(bootstrap)
    shop.fill()
    made = make_all(shop, (_consoles, old_report, old_service, _simple, *_NEEDED))
    return sum(len(kind.groups) for kind in made)


def _consoles(shop: Shop) -> Kind:
    for group in _CONSOLES:
        shop.use_and_leave(group, ["orders"])
    return Kind(_CONSOLES, "each looked at a topic once")


def _simple(shop: Shop) -> Kind:
    """Its client committed without joining, and may come back at any time."""
    work = assign_and_commit(shop, "fraud-check", advance=False)
    next(work)
    work.close()
    return Kind(("fraud-check",), "commits, never joins: Flink", "SimpleGroup")


_NEEDED = (caught_up, sink_connector, streams_application, protected)
