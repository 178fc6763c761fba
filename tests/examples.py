"""How many examples a property test tries, or rounds a race has: few in `make test`, all in `make test-all`."""

import os

THOROUGH = "THOROUGH" in os.environ


def examples(every: int, few: int | None = None) -> int:
    """The number for `hypothesis.settings`; few: by default a quarter."""
    return every if THOROUGH else every // 4 if few is None else few
