"""Which groups the policies of a scan select, and which policies are left out for want of time. No requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from group_hygiene.model.groups import Group
from group_hygiene.process.clock import TURNS
from group_hygiene.spec.policy import Policy

# What is yet to come is known once so many slices have taken this share of a scan's time. They may take so much of what
# is left; if they would take more, policies are left out until so much of that is taken, so that this is seldom. Those
# of other namespaces than the connection's are left out first, but for so much of it.
_KNOWN_SLICES, _KNOWN_FROM, _MAY_TAKE, _DOWN_TO, _FOR_OTHERS = 3, 0.05, 0.9, 0.8, 0.1
# Reads are expected to go on like those of so many last slices.
_LAST_SLICES = 10


class Budget:
    """The seconds of a scan that some policies take.

    limit: how many they may take together, now. Beyond it the most expensive ones of the namespace that takes most are
    left out, with those of this namespace that cost more than the share `alike` of the most expensive.
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

    def leave_out_costly(self, policies: Sequence[Policy], late: bool = False) -> Sequence[Policy]:
        """Down to the half, so that this is seldom: what was spent on those that are left out is lost.

        policies: all that are not left out so far. late: what is left was too little. Returns those that still are not
        left out.
        """
        limit = self._limit()
        if self.total <= limit and not late:
            return policies
        return self.leave_out_until(min(limit, self.total) / 2, policies, self._leave_out)

    def leave_out_until(
        self, most: float, policies: Sequence[Policy], leave_out: Callable[[Policy, float], None], staying: int = 0
    ) -> Sequence[Policy]:
        """Until those that are left took at most these seconds, or so many stay. See `leave_out_costly`."""
        left = {policy.key: policy for policy in policies}
        # Without those that were left out for another reason.
        self._spent = {key: spent for key, spent in self._spent.items() if key in left}
        while len(self._spent) > staying and sum(self._spent.values()) > most:
            largest = most_costly([left[key] for key in self._spent], self._spent)
            least = self._spent[largest.key] * self._alike
            for key, spent in list(self._spent.items()):
                alike = key == largest.key or (spent > least and left[key].namespace == largest.namespace)
                if alike and len(self._spent) > staying:
                    del self._spent[key]
                    leave_out(left.pop(key), spent)
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
            members = [policy for policy in policies if policy.crosses_namespace is crosses]
            most = f"a scan has {limit:.0f} s for the policies of {whose}"
            return Budget(members, lambda: limit, partial(self._leave_out, most))

        self.policies, self.size, self._groups, self._own = policies, size, groups, own
        self._refuse, self.done = leave_out, 0.0
        # Seconds of CPU time that all policies took, also those that are left out.
        self._charged = 0.0
        self._budgets = {
            False: budget(False, own, "the connection's own namespace"),
            True: budget(True, others, "all other namespaces than the connection's"),
        }

    def _leave_out(self, most: str, policy: Policy, seconds: float) -> None:
        self._refuse(
            policy,
            f"it took {seconds:.1f} s of CPU time so far, and {most}. Use fewer policies for the same groups, or fewer "
            "patterns with fewer stars and placeholders, or ask for a longer scan.timeout of the KafkaConnection",
        )

    def charge(self, policy: Policy, seconds: float) -> bool:
        """Count CPU time that a policy took: whether it is not left out."""
        budget = self._budgets[policy.crosses_namespace]
        self._charged += seconds
        budget.charge(policy, seconds)
        self.policies = budget.leave_out_costly(self.policies)
        return any(each.key == policy.key for each in self.policies)

    def fit(self, left: float, judging: float, reads: Sequence[float], writing: float) -> None:
        """Leave out costly policies if the scan would not end in time, but one of the connection's own namespace.

        left: seconds of the scan. judging, writing: what these took so far. reads: of each slice, for the connection's
        own. They are expected to go on like the faster ones of the last, as the first ones, and those that wait for
        others, are slower; and whatever is left out, as most groups are those of other policies, too.
        """
        if len(reads) < _KNOWN_SLICES or not judging or self.done == 1:
            return
        last = sorted(reads[-_LAST_SLICES:])
        reading = last[len(last) // 4] * len(reads) + writing
        took = judging + reading
        if took < _KNOWN_FROM * (took + left):
            return
        # The CPU time that all may have taken so far, if slices go on as before. A thread has less than has passed.
        may = left * _MAY_TAKE * self.done / (1 - self.done) - reading
        may = min(may * self._charged / judging, self._own * _MAY_TAKE * self.done)
        own, others = self._budgets[False], self._budgets[True]
        # If reads alone take too long, it is of no use.
        if 0 < may < own.total + others.total:
            leave_out = partial(self._leave_out, "the scan would not end within scan.timeout with all policies")
            most = max(may * _DOWN_TO - own.total, may * _FOR_OTHERS)
            self.policies = others.leave_out_until(most, self.policies, leave_out)
            self.policies = own.leave_out_until(may * _DOWN_TO - others.total, self.policies, leave_out, staying=1)

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
