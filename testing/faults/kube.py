"""An administrator's client of the API server, without a proxy: a few calls of JSON over HTTPS."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from testing.faults.errors import FaultsError
from testing.sandbox.kubernetes import ApiServer

Object = dict[str, Any]
_PLURALS = {
    "KafkaConnection": "kafkaconnections",
    "GroupPolicy": "grouppolicies",
    "GroupRestore": "grouprestores",
    "GroupKeep": "groupkeeps",
}
_OURS = "/apis/grouphygiene.io/v1alpha1"


class Kube:
    """Thread-safe: each call opens a new connection."""

    def __init__(self, server: ApiServer, token: str = "") -> None:
        """token: of another user."""
        self._token = token or json.loads(server.kubeconfig.read_text())["users"][0]["user"]["token"]
        self._host, port = server.url.removeprefix("https://").split(":")
        self._port = int(port)
        self._trust = ssl.create_default_context(cafile=str(server.certificate))

    def call(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        """Raises FaultsError with the API server's response."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=30, context=self._trust)
        try:
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 300:
            raise FaultsError(f"{method} {path}: {answer.status} {text[:300]}")
        return dict(json.loads(text))

    def apply(self, obj: Object) -> Object:
        """Server-side apply of one of our custom resources."""
        path = f"{_path(obj)}?fieldManager=faults&force=true"
        return self.call("PATCH", path, obj, "application/apply-patch+yaml")

    def get(self, kind: str, namespace: str, name: str) -> Object:
        return self.call("GET", f"{_OURS}/namespaces/{namespace}/{_PLURALS[kind]}/{name}")

    def patch(self, kind: str, namespace: str, name: str, spec: Object) -> Object:
        path = f"{_OURS}/namespaces/{namespace}/{_PLURALS[kind]}/{name}"
        return self.call("PATCH", path, {"spec": spec}, "application/merge-patch+json")

    def delete(self, kind: str, namespace: str, name: str) -> None:
        self.call("DELETE", f"{_OURS}/namespaces/{namespace}/{_PLURALS[kind]}/{name}")

    def namespace(self, name: str) -> None:
        body: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        self.call("POST", "/api/v1/namespaces", body)


def _path(obj: Object) -> str:
    metadata = obj["metadata"]
    return f"{_OURS}/namespaces/{metadata['namespace']}/{_PLURALS[obj['kind']]}/{metadata['name']}"
