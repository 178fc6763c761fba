"""Permissions as a real API server's authorizer sees them; other tests use the server, too."""

from __future__ import annotations

import http
import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.waiting import wait_for

# Resource -> API group, of those that tests ask for. An unknown name is an error: it would always be refused.
_GROUPS = {
    **dict.fromkeys(("grouppolicies", "grouprestores", "groupkeeps", "kafkaconnections"), "grouphygiene.io"),
    **dict.fromkeys(("configmaps", "events", "namespaces", "persistentvolumeclaims", "pods", "secrets"), ""),
    **dict.fromkeys(("serviceaccounts", "services", "*"), ""),
    "customresourcedefinitions.apiextensions.k8s.io": "apiextensions.k8s.io",
    "leases": "coordination.k8s.io",
    "roles": "rbac.authorization.k8s.io",
    "statefulsets.apps": "apps",
}


def can_i(server: ApiServer, who: str, *question: str) -> bool:
    """Ask by SelfSubjectAccessReview, as `kubectl auth can-i` does, without a process for each question.

    who: the option of kubectl for the user, `--kubeconfig=<file>` or `--as=<user>`; question: kubectl's arguments.
    """
    option, _, value = who.partition("=")
    config = json.loads((server.kubeconfig if option == "--as" else Path(value)).read_text())
    (context,), (user,) = config["contexts"], config["users"]
    attributes = _attributes(question, context["context"]["namespace"])
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    headers = {"Authorization": f"Bearer {user['user']['token']}", "Content-Type": "application/json"}
    if option == "--as":
        headers["Impersonate-User"] = value
    host, _, port = server.url.removeprefix("https://").rpartition(":")
    trust = ssl.create_default_context(cafile=str(server.certificate))
    connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=trust)
    try:
        body = json.dumps({**review, "spec": {"resourceAttributes": attributes}})
        connection.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    assert answer.status == http.HTTPStatus.CREATED, text
    status: dict[str, Any] = json.loads(text)["status"]
    assert status["allowed"] or "evaluationError" not in status, status
    return bool(status["allowed"])


def _attributes(question: tuple[str, ...], namespace: str) -> dict[str, str]:
    """The ResourceAttributes of `VERB RESOURCE[/NAME] [--subresource=NAME] [-n NAMESPACE | -A]`."""
    verb, target, *options = question
    resource, _, name = target.partition("/")
    attributes = {"verb": verb, "group": _GROUPS[resource], "resource": resource.partition(".")[0], "name": name}
    while options:
        match options.pop(0).partition("="):
            case ("-A", "", ""):
                namespace = ""
            case ("-n", "", ""):
                namespace = options.pop(0)
            case ("--subresource", "=", subresource):
                attributes["subresource"] = subresource
            case unknown:
                raise ValueError(f"not an option of a question: {unknown}")
    return {**attributes, "namespace": namespace}


def wait_until_allowed(server: ApiServer, who: str, *question: str) -> None:
    """The authorizer reads new bindings from a watch, a moment after they are stored."""
    wait_until(server, who, True, *question)


def wait_until(server: ApiServer, who: str, allowed: bool, *question: str) -> None:
    """The same of rights that come or go."""
    name = f"{' '.join(question)} is {'allowed' if allowed else 'refused'}"
    wait_for(lambda: can_i(server, who, *question) is allowed, name)


def make_namespaces(server: ApiServer, *names: str) -> None:
    """Those of them that no other test has made."""
    for name in names:
        done = server.kubectl("create", "namespace", name, check=False)
        assert done.returncode == 0 or "already exists" in done.stderr, done.stderr
