"""Removes each permission of the operator's roles in turn, and checks that a story fails since it was denied.

`python -m testing.faults.rbac_minimal`. First all stories must pass with all permissions.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from testing.faults.errors import FaultsError
from testing.faults.groups import Groups
from testing.faults.kube import Kube, Object
from testing.faults.rights import (
    ACCOUNT,
    NAMESPACE,
    NEEDED_BY,
    STORIES,
    USER,
    Right,
    Stage,
    Story,
    asked,
    granted,
    install_claiming_kinds,
    make_namespace,
    timed,
)
from testing.sandbox.errors import NotReached, SandboxError
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import install
from testing.sandbox.process import Command, Keeper
from testing.sandbox.waiting import wait_for

_ROOT = Path(__file__).parents[2]
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
# Long enough for a busy machine, and short enough to see a renewal.
_LEASE_SECONDS = 18
# Seconds with all rights; without one, three times the story's usual time, and at least the second value.
_PATIENCE, _PATIENCE_MIN = 180.0, 20.0


class World:
    """An API server with the shipped roles, brokers, and successive operators."""

    def __init__(self, server: ApiServer, kafka: KafkaCluster, keeper: Keeper) -> None:
        self._server, self._kafka, self._keeper = server, kafka, keeper
        self._kube, self._groups = Kube(server), Groups(kafka.plaintext_bootstrap)
        self._account = server.kubeconfig_for_service_account(NAMESPACE, ACCOUNT)
        self._started = 0

    @contextmanager
    def without(self, right: Right) -> Iterator[None]:
        """Remove that verb on that resource from the role."""
        rules = self._kube.call("GET", right.role)["rules"]
        whole = rules[right.rule]
        others = {**whole, "resources": [name for name in whole["resources"] if name != right.resource]}
        own = {**whole, "resources": [right.resource], "verbs": [v for v in whole["verbs"] if v != right.verb]}
        changed = copy.deepcopy(rules)
        changed[right.rule : right.rule + 1] = [rule for rule in (others, own) if rule["resources"] and rule["verbs"]]
        self._set(right, changed, False)
        try:
            yield
        finally:
            self._set(right, rules, True)

    def _set(self, right: Right, rules: list[Any], allowed: bool) -> None:
        self._kube.call("PATCH", right.role, {"rules": rules}, "application/merge-patch+json")
        resource, _, subresource = right.resource.partition("/")
        asked = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
        asked |= {"namespace": right.where, "name": "group-hygiene" if resource == "leases" else ""}
        groups = ["system:serviceaccounts", "system:authenticated"]
        review: Object = {"spec": {"user": USER, "groups": groups, "resourceAttributes": asked}}

        def holds() -> bool:
            return bool(self._kube.call("POST", _REVIEWS, review)["status"]["allowed"]) == allowed

        # The authorizer watches roles, so a change takes effect with a delay.
        wait_for(holds, f"{right} is {'allowed' if allowed else 'refused'}")

    def play(self, story: Story, patience: float) -> float:
        """Run a story with a new operator; returns its seconds. Raises FaultsError if it fails."""
        self._started += 1
        name = f"rights-{self._started}"
        self._server.kubectl("delete", "lease", "group-hygiene", "-n", NAMESPACE, "--ignore-not-found")
        command = [sys.executable, "-m", "group_hygiene.cli", "operator", "--health-port", "0"]
        command += ["--lease-duration", str(_LEASE_SECONDS), "--leader-election-namespace", NAMESPACE]
        path = os.pathsep.join(map(str, (_ROOT / "operator", _ROOT)))
        environment = {"KUBECONFIG": str(self._account), "PYTHONPATH": path}
        log = self._keeper.scratch / f"{name}.log"
        operator = self._keeper.start(name, Command(command, log, environment))
        try:
            place = self._server, self._groups, self._kafka.bootstrap_servers
            return timed(story, Stage(*place, name, lambda: operator.exit_code() is None, patience))
        finally:
            operator.stop(0)
            # The objects must not affect the next operator.
            for kind in ("kgp", "kgr", "kconn"):
                self._server.kubectl("delete", kind, "--all", "-A")

    def requests(self) -> int:
        """Number of requests to the API server so far."""
        return len(self._server.audit_events())

    def was_refused(self, right: Right, since: int) -> bool:
        """Whether an operator's request for it was denied, after that many requests."""
        refused = asked(self._server, "forbid", since)
        # A ClusterRole may be bound in several namespaces, including the story's own.
        place = right.where if "/namespaces/" in right.role else ""
        return any(name == str(right) and place in ("", where) for name, where in refused)


def main() -> int:
    """Try all rights, or the given ones; 0 if each of them is needed."""
    chosen = sys.argv[1:]
    with ApiServer(audit_log=True) as server, KafkaCluster() as kafka, Keeper() as keeper:
        install(server)
        install_claiming_kinds(server)
        world = World(server, kafka, keeper)
        make_namespace(Kube(server), "rights")
        rights = granted(server)
        if {str(right) for right in rights} != set(NEEDED_BY):
            unknown = {str(right) for right in rights} ^ set(NEEDED_BY)
            raise FaultsError(f"the roles and the table of faults/rights.py differ in: {', '.join(sorted(unknown))}")
        took = {story: world.play(story, _PATIENCE) for story in STORIES}
        for story, seconds in took.items():
            click.echo(f"with all rights, {story.__name__} comes to its end in {seconds:.0f} s")
        click.echo(f"\n{'without':32} {'fails':22} as")
        tried = [right for right in rights if not chosen or str(right) in chosen]
        unneeded = sum(not _is_needed(world, right, took) for right in tried)
    click.echo(f"\n{len(tried)} rights taken away one by one: needed {len(tried) - unneeded}, not needed {unneeded}")
    return int(unneeded > 0)


def _is_needed(world: World, right: Right, took: dict[Story, float]) -> bool:
    story = NEEDED_BY[str(right)]
    with world.without(right):
        before = world.requests()
        try:
            world.play(story, max(_PATIENCE_MIN, 3 * took[story]))
        except (FaultsError, NotReached) as error:
            # It may fail for another reason, such as a slow machine.
            if not world.was_refused(right, before):
                raise FaultsError(
                    f"without {right} {story.__name__} fails, but that right was never denied: {error}"
                ) from error
            click.echo(f"{right!s:32} {story.__name__:22} {error}"[:160])
            return True
    click.echo(f"{right!s:32} NOTHING: {story.__name__} went well")
    return False


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (FaultsError, SandboxError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
