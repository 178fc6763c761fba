"""The demo of `idleFor`: groups that never had members, judged by Kafka's own log of commits.

`unchangedFor` can judge none of them: for Kafka, the group of a consumer that only commits is Empty while it is in use.
"""

from collections.abc import Callable, Mapping
from typing import Any

from testing.sandbox.demo_checks import Story, reasons_in, same
from testing.sandbox.demo_kubernetes import IDLE
from testing.sandbox.demo_screen import Check, in_columns
from testing.sandbox.example_groups import Kind, Shop, assign_and_commit


def moving(shop: Shop) -> Kind:
    """A job that assigns its partitions, and commits its progress."""
    client = shop.employ("click-stats", lambda: assign_and_commit(shop, "click-stats", advance=True))
    return Kind("click-stats", "commits, and moves on", "TooRecent", client, by_log=True)


def stuck(shop: Shop) -> Kind:
    """Such a job that fails and retries, and commits the same offset forever: only the log shows that it is in use."""
    client = shop.employ("click-retry", lambda: assign_and_commit(shop, "click-retry", advance=False))
    return Kind("click-retry", "commits one offset forever", "TooRecent", client, by_log=True)


IDLE_KINDS: tuple[Callable[[Shop], Kind], ...] = (moving, stuck)


def is_done(story: Story, objects: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether the policy has deleted the idle group, and its status has the reasons of the others."""
    deleted = (objects[IDLE].get("status") or {}).get("totals", {}).get("deleted", 0)
    entries = reasons_in(objects, IDLE)
    needed = [kind for kind in story.kinds if kind.by_log and not kind.abandoned]
    return bool(deleted) and all(entries.get(kind.name, {}).get("reason") == kind.reason for kind in needed)


def lines(story: Story, objects: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The outcome of each group and why: for deleted ones from the ledger, for others from the status."""
    deleted = [group for group in _groups(story) if group in story.ledger.deleted]
    rows = [(group, "deleted", story.ledger.why.get(group, "")) for group in deleted]
    for group, entry in sorted(reasons_in(objects, IDLE).items()):
        if group not in deleted:
            rows.append((group, entry.get("reason", entry["verdict"]), entry.get("message", "")))
    return in_columns(rows) if rows else []


def check_idle(story: Story, objects: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Check what `idleFor` adds to `unchangedFor`, and that reading the log made no group."""
    return [_not_by_unchanged(story), _whole(objects), _no_trace(story)]


def _not_by_unchanged(story: Story) -> Check:
    found = {group: reason for group, reason in story.unchanged.items() if group in _groups(story)}
    claim = "unchangedFor could judge none of click-* and test-group-*: of each it says SimpleGroup"
    return same(claim, found, dict.fromkeys(_groups(story), "SimpleGroup"))


def _whole(objects: Mapping[str, Mapping[str, Any]]) -> Check:
    evidence = (objects["main"].get("status") or {}).get("evidence", {})
    covered, partitions = evidence.get("coveredPartitions"), evidence.get("partitions")
    detail = "" if partitions and covered == partitions else f"found {covered} of {partitions}"
    return Check("the tables that Spark made cover every partition of the offsets log", detail)


def _no_trace(story: Story) -> Check:
    made = sorted(frozenset(story.after) - frozenset(story.before))
    return Check("Spark read the offsets log and left no group behind", f"found {', '.join(made)}" if made else "")


def _groups(story: Story) -> list[str]:
    return [group for kind in story.kinds if kind.by_log for group in kind.groups]
