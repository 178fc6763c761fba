"""examples/admission: who may set mode Enforce, by a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.waiting import wait_for

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "admission" / "enforce.yaml")
_NAMESPACE, _WHO = "enforcing", ("--as=tenant", "-n", "enforcing")
_POLICY: dict[str, Any] = {
    "apiVersion": "grouphygiene.io/v1alpha1",
    "kind": "GroupPolicy",
    "metadata": {"name": "p"},
    "spec": {
        "connectionRef": {"name": "main"},
        "match": {"groups": ["a-*"]},
        "when": {"unchangedFor": "72h"},
        "action": "Delete",
    },
}


@pytest.fixture
def tenant(api_server: ApiServer) -> Iterator[ApiServer]:
    """A user with the role edit in one namespace, and the example."""
    api_server.kubectl("create", "namespace", _NAMESPACE)
    api_server.kubectl("apply", "-f", str(ROOT / "deploy/kustomize/overlays/cluster-wide/rbac-users.yaml"))
    for role in ("view", "edit"):
        # No controller adds them to the roles of these names here.
        _bind(api_server, role, f"group-hygiene-{role}")
    api_server.kubectl("apply", "-f", EXAMPLE)
    yield api_server
    api_server.kubectl("delete", "-f", EXAMPLE)
    # No controller ends a namespace here.
    api_server.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


def _bind(server: ApiServer, name: str, role: str) -> None:
    server.kubectl("create", "rolebinding", name, f"--clusterrole={role}", "--user=tenant", "-n", _NAMESPACE)


def _refused(server: ApiServer, *options: str, **spec: Any) -> str:
    """Why the tenant may not write such a policy; "" = it is written. options: of kubectl apply."""
    body = _POLICY | {"spec": _POLICY["spec"] | spec}
    done = server.kubectl("apply", *_WHO, *options, "-f", "-", input=json.dumps(body), check=False)
    assert done.returncode == 0 or "Forbidden" in done.stderr or "forbidden" in done.stderr, done.stderr
    return done.stderr if done.returncode else ""


def test_only_who_is_granted_enforce_may_set_it(tenant: ApiServer) -> None:
    """The role edit suffices for dry runs, alerts, and for what changes no spec; the verb, for policies that delete."""
    needs = "mode Enforce needs the verb enforce on grouppolicies.grouphygiene.io"
    # Dry, as what is written before the admission policy is in effect may stay.
    wait_for(lambda: needs in _refused(tenant, "--dry-run=server", mode="Enforce"))
    assert not _refused(tenant, action="Alert")
    assert not _refused(tenant, mode="DryRun")
    assert needs in _refused(tenant, mode="Enforce")
    _bind(tenant, "enforce", "group-hygiene-enforce")
    wait_for(lambda: not _refused(tenant, mode="Enforce"), "the grant is in effect")
    tenant.kubectl("delete", "rolebinding", "enforce", "-n", _NAMESPACE)
    wait_for(lambda: needs in _refused(tenant, "--dry-run=server", mode="Enforce", match={"groups": ["*"]}))
    tenant.kubectl("annotate", "kgp", "p", "by=tenant", *_WHO)
    tenant.kubectl(
        "patch",
        "kgp",
        "p",
        "--type=merge",
        "--subresource=status",
        "-p",
        '{"status": {"truncated": true}}',
        "-n",
        _NAMESPACE,
    )
    assert needs in _refused(tenant, mode="Enforce", when={"unchangedFor": "1s"})
    # The emergency stop.
    tenant.kubectl("patch", "kgp", "p", "--type=merge", "-p", '{"spec": {"suspend": true}}', *_WHO)
    assert needs in _refused(tenant, mode="Enforce", suspend=False)
    assert not _refused(tenant, mode="DryRun", when={"unchangedFor": "1s"})
