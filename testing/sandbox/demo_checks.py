"""The checks of the demo: one row per kind of group, one line per claim about the operator.

They compare the operator's status with Kafka's own responses and the clients' own progress.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from testing.sandbox.demo_clients import Ledger, Position, Seen, View
from testing.sandbox.demo_kubernetes import ENFORCED, IDLE, POLICY, Kubernetes
from testing.sandbox.demo_screen import Check, Row
from testing.sandbox.example_groups import SUMMER_PROMO, TOPICS, Kind, Shop, come_back

TITLES = ("group", "what it is", "before", "after", "why")

# The policies with unchangedFor; the deleting one last, as its entries take precedence.
UNCHANGED = ("random-ids", "report-unused", POLICY)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass
class Story:
    """The observations of a run of the demo.

    before: the groups in Kafka before the operator had a policy; dry: their names at the end of the dry run.
    unchanged: group -> why the policies with unchangedFor skip it, in the dry run.
    baseline: committed offsets, and done: each client's progress, just before mode Enforce. after: at the end.
    reasons: group -> why the operator skips it, from status.sample. ledger: at the end.
    """

    kinds: Sequence[Kind]
    before: Mapping[str, Seen]
    dry: frozenset[str] = frozenset()
    unchanged: Mapping[str, str] = field(default_factory=dict)
    baseline: Mapping[str, Mapping[Position, int]] = field(default_factory=dict)
    done: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, Seen] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def gone(self) -> frozenset[str]:
        return frozenset(self.before) - frozenset(self.after)


def reasons_in(objects: Mapping[str, Mapping[str, Any]], *policies: str) -> dict[str, Mapping[str, Any]]:
    """Group -> its entry in status.sample; if several policies have one, that of the last policy."""
    samples = [(objects[name].get("status") or {}).get("sample") or [] for name in policies]
    return {entry["group"]: entry for sample in samples for entry in sample}


def check_groups(story: Story, shop: Shop) -> list[Row]:
    """One row per kind: unused groups are gone; needed ones exist, unchanged, and their clients work."""
    # A first record in the silent topic.
    shop.produce(["fire-alarms"], 1)
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda kind: _row(story, kind, shop), story.kinds))


def _row(story: Story, kind: Kind, shop: Shop) -> Row:
    group = kind.groups[0]
    before, after = story.before[group], story.after.get(group)
    waiting = f", lag {before.waiting}" if before.waiting and before.state == "Empty" else ""
    start = f"{before.state}{waiting}"
    if kind.abandoned:
        left = [name for name in kind.groups if name in story.after]
        detail = f"{len(left)} still there" if left else ""
        end = after.state if after else "deleted"
        return Row(
            Check(f"{kind.name} is gone", detail),
            (kind.name, kind.what, start, end, "idle" if kind.by_log else "unused"),
        )
    problems = ["the operator deleted it"] if group in story.ledger.deleted else []
    problems += _offset_problems(story, kind)
    works, how = _works(story, kind, shop)
    if not works:
        problems.append(how)
    reason = story.reasons.get(group, "?")
    if reason != kind.reason:
        problems.append(f"the operator's reason is {reason} and not {kind.reason}")
    end = f"{after.state}, {how if works else 'broken'}" if after else "deleted"
    return Row(Check(f"{group} is untouched", "; ".join(problems)), (group, kind.what, start, end, reason))


def _offset_problems(story: Story, kind: Kind) -> list[str]:
    """A live client may move its offsets forward; all other needed offsets must be unchanged."""
    group = kind.groups[0]
    if group not in story.after:
        return ["it is not there any more"]
    now = story.after[group].offsets
    lost = [p for p, at in story.baseline[group].items() if now.get(p, -1) < at and p[0] != kind.stale]
    moved = [] if kind.client else [p for p, at in now.items() if story.baseline[group].get(p) != at]
    return [f"lost its offset for {topic}-{number}" for topic, number in sorted({*lost, *moved})]


def _works(story: Story, kind: Kind, shop: Shop) -> tuple[bool, str]:
    """Whether its client made progress since Enforce, or continues where it stopped; with a description."""
    group = kind.groups[0]
    if kind.client is not None:
        if kind.client.wait_for(story.done[kind.client.name] + 1):
            return True, "reads" if story.before[group].state == "Stable" else "commits"
        return False, f"its client stopped working: {kind.client.error or 'nothing done'}"
    # An application of Streams has internal topics, too.
    topic, committed = next((topic, at) for (topic, _), at in story.baseline[group].items() if topic in TOPICS)
    problem = come_back(shop, group, topic, committed)
    return problem is None, problem or "resumed"


def check_operator(story: Story, kubernetes: Kubernetes) -> list[Check]:
    """Compare the operator's status, events, log and metrics with what really happened."""
    objects = kubernetes.objects()
    gone, policies = story.gone, [objects[name].get("status") or {} for name in (POLICY, IDLE)]
    return [
        _deleted_topic(story),
        _dry_run(story, objects),
        same(
            f"status.totals.deleted add up to {len(gone)}: the number of groups that are gone from Kafka",
            sum(status.get("totals", {}).get("deleted", 0) for status in policies),
            len(gone),
        ),
        same(
            f"status.groups.total of the connection is {len(story.after)}: the number of groups that are left",
            (objects["main"].get("status") or {}).get("groups", {}).get("total"),
            len(story.after),
        ),
        _backups(story),
        _event(kubernetes, len(gone)),
        _conditions(objects),
        _objects_untouched(objects),
        _log(kubernetes),
    ]


def same(claim: str, found: object, expected: object) -> Check:
    return Check(claim, "" if found == expected else f"found {found}")


def _deleted_topic(story: Story) -> Check:
    topics = sorted({topic for topic, _ in story.before[SUMMER_PROMO.pattern].offsets})
    return same("Kafka itself dropped what summer-promo had committed for the deleted topic", topics, ["promo"])


def _dry_run(story: Story, objects: Mapping[str, Mapping[str, Any]]) -> Check:
    missing = sorted(frozenset(story.before) - story.dry)
    others = [obj.get("status") or {} for name, obj in objects.items() if name not in (*ENFORCED, "main")]
    detail = f"gone in the dry run: {', '.join(missing)}" if missing else ""
    if any((status.get("totals") or {}).get("deleted") for status in others):
        detail = "a policy that never enforced says that it deleted groups"
    return Check("the dry run deleted nothing", detail)


def _backups(story: Story) -> Check:
    backups = story.ledger.backups
    wrong = [group for group in sorted(story.gone) if backups.get(group) != story.before[group].offsets]
    claim = f"the ledger topic holds a backup of each of the {len(story.gone)} groups, with exactly the offsets it had"
    return Check(claim, f"missing or wrong for {', '.join(wrong)}" if wrong else "")


def check_restored(story: Story, group: str, view: View, shop: Shop) -> list[Check]:
    """Whether a deleted group has its former offsets again in Kafka, and its consumer continues from them."""
    before, now = story.before[group].offsets, view.offsets([group])[group]
    offsets = ", ".join(f"{topic}-{number} at {at}" for (topic, number), at in sorted(before.items()))
    ((topic, _), committed), *_ = before.items()
    return [
        same(f"{group} has exactly the offsets that it had before: {offsets}", now, before),
        Check("a consumer of that group goes on where it was", come_back(shop, group, topic, committed) or ""),
    ]


def check_skipped(group: str, kubernetes: Kubernetes) -> Check:
    claim = f"the operator won't delete {group} once more: it counts one group as Reappeared"
    return same(claim, kubernetes.skipped("Reappeared"), 1)


def check_history(group: str, lines: Sequence[str]) -> Check:
    missing = [what for what in ("Marked", "Deleted", "Restored") if not any(f" {what} " in line for line in lines)]
    detail = f"no line has {', '.join(missing)}" if missing else ""
    return Check(f"the history of {group} has its mark, its deletion and its return", detail)


def _event(kubernetes: Kubernetes, gone: int) -> Check:
    """There may be several Events, as groups become due in several runs."""
    events = [event for event in kubernetes.events("GroupsDeleted") if " stale offsets " not in event["message"]]
    said = sum(int(event["message"].split()[1]) * int(event.get("count") or 1) for event in events)
    return same(f"the Events GroupsDeleted report {gone} groups", said, gone)


def _conditions(objects: Mapping[str, Mapping[str, Any]]) -> Check:
    bad = []
    for name, obj in objects.items():
        found = {c["type"]: c["status"] for c in (obj.get("status") or {}).get("conditions") or []}
        if found.get("Ready") != "True" or found.get("DeletionBlocked", "False") != "False":
            bad.append(f"{name}: {found}")
    return Check("the connection and all policies are Ready, and no deletion is blocked", "; ".join(bad))


def _objects_untouched(objects: Mapping[str, Mapping[str, Any]]) -> Check:
    bad = []
    for name, obj in objects.items():
        metadata = obj["metadata"]
        if metadata.get("finalizers") or set(metadata.get("annotations") or {}) - {_LAST_APPLIED}:
            bad.append(name)
    claim = "the operator put no finalizer and no annotation on any object"
    return Check(claim, f"it did on {', '.join(bad)}" if bad else "")


def _log(kubernetes: Kubernetes) -> Check:
    lines = [line for line in kubernetes.operator_log().splitlines() if " ERROR " in line or line.startswith("Trace")]
    return Check("the operator's log shows no error", f"{len(lines)}, the first: {lines[0]}" if lines else "")
