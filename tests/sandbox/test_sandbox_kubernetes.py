"""The sandbox's API server: real, restartable, with RBAC and an audit log."""

import stat
import subprocess
from collections.abc import Iterator

import pytest

from testing.sandbox.errors import SandboxError
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.waiting import wait_for

pytestmark = pytest.mark.slow  # of what starts API servers, on which other tests stand
ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: default}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
"""


@pytest.fixture(scope="module")
def api() -> Iterator[ApiServer]:
    with ApiServer(audit_log=True) as running:
        yield running


def test_a_restart_keeps_the_objects(api: ApiServer) -> None:
    """The same address, certificate and objects are there after a restart, and old tokens are still good."""
    before = api.url
    api.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    api.kubectl("create", "serviceaccount", "before")
    kubeconfig = api.kubeconfig_for_service_account("default", "before")
    api.restart()
    assert api.url == before
    assert api.kubectl("get", "configmap", "kept", "-o", "jsonpath={.data.a}").stdout == "b"
    whoami = ["kubectl", f"--kubeconfig={kubeconfig}", "auth", "whoami"]
    answer = subprocess.run(whoami, capture_output=True, text=True, check=True)
    assert "system:serviceaccount:default:before" in answer.stdout


def test_a_service_account_may_do_what_its_role_says(api: ApiServer) -> None:
    """RBAC is on, and the token is in a file that only its owner can read."""
    api.kubectl("create", "serviceaccount", "reader")
    api.kubectl("apply", "-f", "-", input=ROLE)
    kubeconfig = api.kubeconfig_for_service_account("default", "reader")
    assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600

    def kubectl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", f"--kubeconfig={kubeconfig}", *arguments], capture_output=True, text=True, check=False
        )

    # The authorizer reads roles and bindings from watches, a moment after they are stored.
    wait_for(lambda: kubectl("get", "configmaps").returncode == 0)
    refused = kubectl("create", "configmap", "no")
    assert refused.returncode == 1
    assert "Forbidden" in refused.stderr or "forbidden" in refused.stderr


def test_the_audit_log_counts_writes(api: ApiServer) -> None:
    """Each request is one event, in order, a moment after it was answered."""
    before = len(api.audit_events())
    api.kubectl("create", "configmap", "counted")
    api.kubectl("delete", "configmap", "counted", "--wait=false")

    def writes() -> list[tuple[str, int]]:
        return [
            (event["verb"], event["responseStatus"]["code"])
            for event in api.audit_events()[before:]
            if event.get("objectRef", {}).get("name") == "counted" and event["verb"] in ("create", "delete")
        ]

    wait_for(lambda: len(writes()) >= 2)
    assert writes() == [("create", 201), ("delete", 200)]


def test_two_run_at_once(api: ApiServer) -> None:
    """They share nothing."""
    with ApiServer() as other:
        other.kubectl("create", "namespace", "only-here")
        assert other.url != api.url
        with pytest.raises(SandboxError, match="not found"):
            api.kubectl("get", "namespace", "only-here")
        with pytest.raises(SandboxError, match="audit_log"):
            other.audit_events()
