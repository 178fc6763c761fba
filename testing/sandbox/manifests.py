"""Applies the project's own manifests to an API server of the sandbox, as a user does; and other projects' CRDs."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.waiting import wait_for

_ROOT = Path(__file__).parents[2]
CRDS = _ROOT / "crds"
OVERLAYS = _ROOT / "deploy" / "kustomize" / "overlays"
_ACCOUNT = "group-hygiene"
_USER_ROLES = ("view", "edit", "admin")
# The operator's first requests: its resources, its cluster's id, and its Lease.
_FIRST_NEEDED = (
    ("get", "kconn,kgp,kgr", "-A"),
    ("auth", "can-i", "get", "namespaces/kube-system"),
    ("auth", "can-i", "update", "leases/group-hygiene", "-n", _ACCOUNT),
)


def install_crds(server: ApiServer) -> None:
    """Install the project's CRDs."""
    server.kubectl("apply", "-f", str(CRDS))
    server.wait_established("-f", str(CRDS))


def install(server: ApiServer, overlay: str = "cluster-wide") -> None:
    """Install the CRDs, and the operator's account, roles and Deployment (without pods, as there is no node)."""
    install_crds(server)
    server.kubectl("apply", "-k", str(OVERLAYS / overlay))


def install_user_roles(server: ApiServer) -> None:
    """Let users with view, edit or admin use the custom resources.

    Also gives these roles what they have in any cluster, as no controller aggregates them here.
    """
    server.kubectl("apply", "-f", str(OVERLAYS / "cluster-wide" / "rbac-users.yaml"))
    listed = json.loads(server.kubectl("get", "clusterroles", "-o", "json").stdout)["items"]
    roles = {role["metadata"]["name"]: role for role in listed}
    # In this order: edit includes view, and admin edit.
    for name in _USER_ROLES:
        wanted = [
            selector["matchLabels"].items() for selector in roles[name]["aggregationRule"]["clusterRoleSelectors"]
        ]
        roles[name]["rules"] = [
            rule
            for role in listed
            if any(labels <= role["metadata"].get("labels", {}).items() for labels in wanted)
            for rule in role["rules"] or ()
        ]
    changed = {"apiVersion": "v1", "kind": "List", "items": [roles[name] for name in _USER_ROLES]}
    server.kubectl("replace", "-f", "-", input=json.dumps(changed))


def operators_account(server: ApiServer) -> Path:
    """A kubeconfig with exactly the permissions that deploy/ grants to the operator, once they are effective.

    The authorizer watches roles and bindings, so they take effect with a delay, as do new CRDs.
    """
    path = server.kubeconfig_for_service_account(_ACCOUNT, _ACCOUNT)
    for question in _FIRST_NEEDED:
        wait_for(partial(_succeeds, server, *question, f"--kubeconfig={path}"), f"kubectl {' '.join(question)}")
    return path


def use_crds(server: ApiServer, *crds: Mapping[str, Any]) -> None:
    """Apply CustomResourceDefinitions, and wait until discovery has them, a moment after they are established."""
    names = [crd["metadata"]["name"] for crd in crds]
    server.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": crds}))
    server.wait_established(*(f"crd/{name}" for name in names))
    for name in names:
        wait_for(partial(_succeeds, server, "get", name, "-A"), f"{name} is served")


def _succeeds(server: ApiServer, *arguments: str) -> bool:
    return server.kubectl(*arguments, check=False).returncode == 0
