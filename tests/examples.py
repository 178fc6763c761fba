"""How many examples a property test tries: few in `make test`, all of them in `make test-all`."""

import os

THOROUGH = "THOROUGH" in os.environ


def examples(every: int, few: int | None = None) -> int:
    """The number for `hypothesis.settings`; few: by default a quarter."""
    return every if THOROUGH else every // 4 if few is None else few
