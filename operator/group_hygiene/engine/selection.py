"""Which groups the policies of a scan select, and which policies are left out for want of time. No requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from group_hygiene.model.groups import Group
from group_hygiene.process.clock import TURNS
from group_hygiene.spec.policy import Policy

# What policies will take is known once they have taken this share of a scan's time; and the share of what is left that
# they may take then, beside reads.
_KNOWN_FROM, _MAY_TAKE = 0.1, 0.75


class Budget:
    """The seconds of a scan that some policies take.

    limit: how many they may take together, now. Beyond it the most expensive ones of the namespace that takes most are
    left out, with those of this namespace that cost at least the share `alike` of the most expensive.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        limit: Callable[[], float],
        leave_out: Callable[[Policy, float], None],
        alike: float = 1.0,
    ) -> None:
        self._spent = {policy.key: 0.0 for policy in policies}
        self._limit, self._leave_out, self._alike = limit, leave_out, alike
        self.total = 0.0

    def charge(self, policy: Policy, seconds: float) -> None:
        """Count time that a policy took."""
        if policy.key in self._spent:
            self._spent[policy.key] += seconds
            self.total += seconds

    def leave_out_costly(
        self, policies: Sequence[Policy], late: bool = False, most: float | None = None
    ) -> Sequence[Policy]:
        """Down to the half, so that this is seldom: what was spent on those that are left out is lost.

        policies: all that are not left out so far. late: what is left was too little. most: down to these seconds,
        whatever the limit, and not the last one. Returns those that still are not left out.
        """
        limit = self._limit() if most is None else most
        if self.total <= limit and not late:
            return policies
        most, staying = (limit / 2, 0) if most is None else (most, 1)
        left = {policy.key: policy for policy in policies}
        # Without those that were left out for another reason.
        self._spent = {key: spent for key, spent in self._spent.items() if key in left}
        while len(self._spent) > staying and sum(self._spent.values()) > most:
            largest = most_costly([left[key] for key in self._spent], self._spent)
            least = self._spent[largest.key] * self._alike
            for key, spent in list(self._spent.items()):
                if len(self._spent) > staying and spent >= least and left[key].namespace == largest.namespace:
                    del self._spent[key]
                    self._leave_out(left.pop(key), spent)
        self.total = sum(self._spent.values())
        return list(left.values())


class Selection:
    """Iterates over the groups that each policy selects, of at most `size` different groups at a time.

    Groups that no policy selects don't count, so they cost no requests. policies: those that are not left out so far.
    own, others: seconds of CPU time for policies of the connection's namespace, and of all other namespaces. done: the
    share of all groups in the slices so far.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        groups: Mapping[str, Group],
        size: int,
        own: float,
        others: float,
        leave_out: Callable[[Policy, str], None],
    ) -> None:
        def budget(crosses: bool, limit: float, whose: str) -> Budget:
            def leave(policy: Policy, seconds: float) -> None:
                most = f"a scan has {limit:.0f} s for the policies of {whose}"
                if self._late:
                    most = "the scan would not end within scan.timeout with all policies"
                leave_out(
                    policy,
                    f"it took {seconds:.1f} s of CPU time so far, and {most}. Use fewer policies for the same groups, "
                    "or fewer patterns with fewer stars and placeholders, or ask for a longer scan.timeout of the "
                    "KafkaConnection",
                )

            members = [policy for policy in policies if policy.crosses_namespace is crosses]
            return Budget(members, lambda: limit, leave)

        self.policies, self.size, self._groups = policies, size, groups
        self.done, self._late = 0.0, False
        self._budgets = {
            False: budget(False, own, "the connection's own namespace"),
            True: budget(True, others, "all other namespaces than the connection's"),
        }

    def charge(self, policy: Policy, seconds: float) -> bool:
        """Count CPU time that a policy took: whether it is not left out."""
        budget = self._budgets[policy.crosses_namespace]
        budget.charge(policy, seconds)
        self.policies = budget.leave_out_costly(self.policies)
        return any(each.key == policy.key for each in self.policies)

    def fit(self, left: float, total: float) -> None:
        """Leave out costly policies of the connection's own namespace, but one, if the scan would not end in time.

        left, total: seconds of the scan. What others and reads took so far has shortened what is left.
        """
        budget = self._budgets[False]
        if self.done < 1 and budget.total > total * _KNOWN_FROM:
            self._late = True
            most = left * _MAY_TAKE * self.done / (1 - self.done)
            self.policies = budget.leave_out_costly(self.policies, most=most)
            self._late = False

    def __iter__(self) -> Iterator[Mapping[str, list[Group]]]:
        selected: dict[str, list[Group]] = {policy.key: [] for policy in self.policies}
        ids: set[str] = set()
        # Each slice has groups of all coordinators, which are asked at once.
        step = -(-len(self._groups) // self.size)
        names = list(self._groups)
        for first in range(step):
            found = self._select([self._groups[name] for name in names[first::step]])
            new = {group.id for each in found.values() for group in each}
            if ids and len(ids) + len(new) > self.size:
                self.done = first / step
                yield selected
                selected, ids = found, new
                continue
            for key, each in found.items():
                selected[key] += each
            ids |= new
        if ids:
            self.done = 1.0
            yield selected

    def _select(self, groups: Sequence[Group]) -> dict[str, list[Group]]:
        return {
            policy.key: list(
                filter(
                    policy.match.selects,
                    TURNS.each(policy.connection_namespace, groups, partial(self.charge, policy)),
                )
            )
            for policy in self.policies
            # What another one of its namespace took may have left it out.
            if self.charge(policy, 0.0)
        }


def most_costly(policies: Sequence[Policy], costs: Mapping[str, float]) -> Policy:
    """The policy with the highest costs (by key), of the namespace whose policies together have the highest."""
    of_namespaces = defaultdict[str, float](float)
    for policy in policies:
        of_namespaces[policy.namespace] += costs[policy.key]
    return max(policies, key=lambda policy: (of_namespaces[policy.namespace], costs[policy.key]))
