"""`python -m testing.sandbox.outside`: runs the demo's checks on an existing Kafka and Kubernetes, for example in kind.

The operator must run there and read KafkaConnections of the namespace kafka. The Kafka must have no groups yet.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import yaml

from testing.sandbox.demo_checks import TITLES, UNCHANGED, Story, check_groups, reasons_in, same
from testing.sandbox.demo_clients import View
from testing.sandbox.demo_command import CommandLine
from testing.sandbox.demo_kubernetes import EXAMPLES, NAMESPACE, POLICY
from testing.sandbox.demo_screen import Check, Screen
from testing.sandbox.errors import NotReached, SandboxError
from testing.sandbox.example_groups import LEFT, LIVING, Shop, leave, make_all, topic_deleted
from testing.sandbox.kubectl import kubectl
from testing.sandbox.waiting import wait_for

_PROTECTED, _UNUSED = "old-billing", "random-ids"


def main() -> int:
    """Returns 0 only if every check passed."""
    parser = argparse.ArgumentParser("python -m testing.sandbox.outside", description=__doc__)
    parser.add_argument("--bootstrap-server", required=True, help="address of the Kafka for this machine")
    parser.add_argument("--inside", required=True, help="address of the same Kafka for the operator")
    options = parser.parse_args()
    shop = Shop(options.bootstrap_server)
    try:
        return 0 if _run(shop, options.inside) else 1
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shop.close()


def _run(shop: Shop, inside: str) -> bool:
    shop.open()
    # The pipeline, which judges by the log, does not run there.
    kinds = leave(shop, [kind for kind in LEFT if not kind.by_log])
    topic_deleted(shop)
    kinds += make_all(shop, LIVING)
    view, screen = View(shop.bootstrap), Screen()
    story = Story(kinds, view.groups())
    kubectl("apply", "-f", "-", input=yaml.safe_dump_all(_objects(inside)))
    expected = sum(len(kind.groups) for kind in kinds if kind.looks_abandoned)
    _wait(lambda: _status(POLICY).get("groups", {}).get("matched", 0) >= expected)
    story.dry = frozenset(view.states())
    story.baseline = view.offsets(story.before)
    story.done = {client.name: client.done for client in shop.clients}
    kubectl("patch", "kgp", POLICY, "-n", NAMESPACE, "--type=merge", "-p", '{"spec": {"mode": "Enforce"}}')
    _wait(lambda: _status(POLICY).get("groups", {}).get("marked", 0) >= expected)
    CommandLine(shop.bootstrap).run("keep", _PROTECTED, "--for", "30d", "--why", "invoices until the year ends")
    _wait(lambda: _status(POLICY).get("totals", {}).get("deleted", 0) >= expected - 1)
    # The run after the deletion, for the remaining groups and reasons.
    _wait(lambda: not any(_status(name).get("groups", {}).get("matched", 1) for name in (POLICY, _UNUSED)))
    story.after, story.ledger = view.groups(), view.ledger()
    statuses = {name: {"status": _status(name)} for name in UNCHANGED}
    story.reasons = {group: entry.get("reason", "") for group, entry in reasons_in(statuses, *UNCHANGED).items()}
    rows = check_groups(story, shop)
    screen.table(TITLES, rows)
    checks = _checks(story, statuses[POLICY]["status"])
    screen.checks(checks)
    return screen.result([*(row.check for row in rows), *checks])


def _wait(true: Callable[[], bool]) -> None:
    """If it never becomes true, the checks will fail."""
    with suppress(NotReached):
        wait_for(true)


def _checks(story: Story, status: dict[str, Any]) -> list[Check]:
    gone = story.gone
    ready = {c["type"]: c["status"] for c in status["conditions"] if c["type"] in ("Ready", "DeletionBlocked")}
    return [
        same("the dry run deleted nothing", sorted(set(story.before) - story.dry), []),
        same(f"status.totals.deleted is {len(gone)}, as many as are gone", status["totals"]["deleted"], len(gone)),
        same("the ledger holds a backup of each of them", sorted(gone - story.ledger.backups.keys()), []),
        same("the policy is Ready, and no deletion is blocked", ready, {"Ready": "True", "DeletionBlocked": "False"}),
    ]


def _objects(inside: str) -> list[dict[str, Any]]:
    """The connection of the demo at that address, without its tables and receivers; and the policies that need none."""
    files = [EXAMPLES / f"{name}.yaml" for name in ("connection", *(f"policy-{policy}" for policy in UNCHANGED))]
    objects: list[dict[str, Any]] = [yaml.safe_load(file.read_text()) for file in files]
    spec = objects[0]["spec"]
    objects[0]["spec"] = {name: spec[name] for name in spec if name not in ("activity", "receivers")}
    objects[0]["spec"]["bootstrapServers"] = [inside]
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, *objects]


def _status(policy: str) -> dict[str, Any]:
    found = yaml.safe_load(kubectl("get", "kgp", policy, "-n", NAMESPACE, "-o", "json").stdout)
    return dict(found.get("status") or {})


if __name__ == "__main__":
    sys.exit(main())
