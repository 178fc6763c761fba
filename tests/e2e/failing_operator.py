"""The operator with faults of its own, in what it does for policies of certain names.

It can't build the statuses of policies whose names end in `-broken`, nor make a plan for those that end in
`-undecided`.
"""

from typing import Any

from group_hygiene.cli import main
from group_hygiene.controller import policies
from group_hygiene.engine import plan
from group_hygiene.observe import of_objects

build, decide = of_objects.build_status, plan.make_plan


def build_status(policy: Any, *arguments: Any) -> Any:
    if policy.name.endswith("-broken"):
        raise OverflowError("date value out of range")
    return build(policy, *arguments)


def make_plan(policy: Any, *arguments: Any) -> Any:
    if policy.name.endswith("-undecided"):
        raise ZeroDivisionError("division by zero")
    return decide(policy, *arguments)


policies.build_status = build_status  # type: ignore[assignment,attr-defined]
policies.make_plan = make_plan  # type: ignore[assignment,attr-defined]

if __name__ == "__main__":
    main()
