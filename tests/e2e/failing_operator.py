"""The operator with a fault of its own: it can't build the statuses of policies whose names end in `-broken`."""

from typing import Any

from group_hygiene import status
from group_hygiene.cli import main

build = status.build_status


def build_status(policy: Any, *arguments: Any) -> Any:
    if policy.name.endswith("-broken"):
        raise OverflowError("date value out of range")
    return build(policy, *arguments)


status.build_status = build_status  # type: ignore[assignment]

if __name__ == "__main__":
    main()
