"""What `doctor` finds where the API server refuses some of its questions, as it does to the operator's own account."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration

from group_hygiene.cli import doctor
from group_hygiene.cli.doctor import Account, CheckResult, Kubernetes
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.controller.api import Inspection
from group_hygiene.errors import ApiError
from group_hygiene.model import reasons
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.crds import PLURALS, load_crd

GROUP = "/apis/grouphygiene.io/v1alpha1"
OPENAPI = f"/openapi/v3{GROUP}"


class _Answers(ThreadingHTTPServer):
    """By path: the content of an answer; all others are Forbidden, or NotFound for None."""

    answers: Mapping[str, Any]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Answers)
        answer = self.server.answers.get(self.path, self.server)
        content = json.dumps({} if answer in (None, self.server) else answer).encode()
        self.send_response(403 if answer is self.server else 404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


Ask = Callable[[Mapping[str, Any]], Kubernetes]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """A doctor whose API server gives these answers."""
    server = _Answers(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = ApiClient(Configuration(host=f"http://127.0.0.1:{server.server_port}"))
    monkeypatch.setattr(doctor, "load_config", lambda **_: client)

    def answering(answers: Mapping[str, Any]) -> Kubernetes:
        server.answers = answers
        known = Kubernetes(ChosenCluster(namespace="kafka"), "main", Account("", "group-hygiene"))
        known.load()
        return known

    yield answering
    server.shutdown()


def _published(without: str = "") -> dict[str, Any]:
    """What the API server publishes of the CRDs, but for one field of the status of GroupPolicies."""
    schemas: dict[str, Any] = {"io.k8s.Other": {"type": "object"}}
    for kind in PLURALS:
        schema = load_crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        if kind == "GroupPolicy":
            schema["properties"]["status"]["properties"].pop(without, None)
        schema["properties"]["metadata"] = {"allOf": [{"$ref": "#/components/schemas/ObjectMeta"}]}
        named = [{"group": "grouphygiene.io", "version": "v1alpha1", "kind": kind}]
        schemas[f"io.grouphygiene.v1alpha1.{kind}"] = {**schema, "x-kubernetes-group-version-kind": named}
    return {"components": {"schemas": schemas}}


@pytest.mark.parametrize(
    ("answer", "results", "text"),
    [
        pytest.param(_published(), [CheckResult.OK] * 4, "serves v1alpha1", id="all-fields"),
        pytest.param(
            _published("lastRunID"), [CheckResult.WARNING, *[CheckResult.OK] * 3], "status.lastRunID", id="older-crds"
        ),
        pytest.param(None, [CheckResult.FAILED] * 4, "is not installed", id="no-crds"),
    ],
)
def test_crds_that_the_account_may_not_read(ask: Ask, answer: Any, results: list[CheckResult], text: str) -> None:
    """What the API server publishes to every user decides instead."""
    known = ask({OPENAPI: answer})
    found = list(doctor._crds(known))
    assert [finding.check for finding in found] == [f"CRD {kind}" for kind in PLURALS]
    assert [finding.result for finding in found] == results
    assert text in found[0].found


def _policies(namespace: str) -> dict[str, Any]:
    spec = {
        "connectionRef": {"name": "main", "namespace": "kafka"},
        "match": {"groups": ["a"]},
        "when": {"unchangedFor": "72h"},
        "action": "Delete",
        "mode": "Enforce",
    }
    return {"items": [{"metadata": {"name": "p", "namespace": namespace, "uid": "1", "generation": 1}, "spec": spec}]}


_LABELS = {"selector": {"matchLabels": {"team": "a"}}}


@pytest.mark.parametrize(
    ("access", "listed", "problems"),
    [
        pytest.param([], ["kafka"], [], id="own-namespace"),
        pytest.param([{"names": ["team-a"]}], ["kafka", "team-a"], [], id="another-namespace"),
        pytest.param([{"names": ["team-b"]}], ["kafka"], ["policies of namespace team-b can't"], id="refused"),
        pytest.param([_LABELS], ["kafka"], ["policies of namespaces that spec.access selects"], id="by-labels"),
    ],
)
def test_policies_of_an_operator_of_some_namespaces(
    ask: Ask, access: list[Any], listed: list[str], problems: list[str]
) -> None:
    """It may not list those of all namespaces, and those that may use the connection are known nevertheless."""
    known = ask({f"{GROUP}/namespaces/{name}/grouppolicies": _policies(name) for name in ("kafka", "team-a")})
    grants = [{"namespaces": namespaces, "groups": ["*"], "actions": ["Delete"]} for namespaces in access]
    spec = {"bootstrapServers": ["kafka:9092"], "access": grants}
    connection = parse_connection({"metadata": {"name": "main", "namespace": "kafka", "uid": "1"}, "spec": spec})
    found = list(doctor._receivers(known, connection))
    assert [policy.namespace for policy in known.policies] == listed
    assert all(policy.enforced for policy in known.policies)
    assert [finding.found[: len(text)] for finding, text in zip(found, problems, strict=False)] == problems
    assert [finding.result for finding in found] == ([CheckResult.WARNING] if problems else [CheckResult.OK])


@pytest.mark.parametrize(
    ("reason", "observed", "namespace", "result"),
    [
        pytest.param(reasons.CLOCK_SKEW, 1, "kafka", CheckResult.FAILED, id="only-a-run-finds-it"),
        pytest.param(reasons.LIMIT_EXCEEDED, 1, "kafka", CheckResult.WARNING, id="many-groups"),
        pytest.param(reasons.CLOCK_SKEW, 0, "kafka", None, id="edited-since"),
        pytest.param(reasons.CLOCK_SKEW, 1, "other", None, id="another-connection"),
    ],
)
def test_what_the_operator_refused(
    ask: Ask, reason: str, observed: int, namespace: str, result: CheckResult | None
) -> None:
    """What only a write shows is in the status of policies: `doctor` repeats it, once for each reason."""
    condition = {"type": "DeletionBlocked", "status": "True", "reason": reason, "message": "2h apart"} | {
        "lastTransitionTime": "2026-01-01T00:00:00Z"
    }
    listed = _policies("kafka")
    (first,) = listed["items"]
    first["status"] = {"observedGeneration": observed, "conditions": [condition]}
    first["spec"]["connectionRef"]["namespace"] = namespace
    listed["items"].append(first | {"metadata": first["metadata"] | {"name": "q", "uid": "2"}})
    known = ask({f"{GROUP}/namespaces/kafka/grouppolicies": listed})
    spec = {"bootstrapServers": ["kafka:9092"]}
    connection = parse_connection({"metadata": {"name": "main", "namespace": "kafka", "uid": "1"}, "spec": spec})
    assert [each.check for each in doctor._receivers(known, connection)] == ["receivers"]
    found = list(doctor._blocked(known.listed))
    says = [f"GroupPolicy kafka/p and 1 more, reported by the operator: {reason}: 2h apart"]
    assert [(each.result, each.found) for each in found] == [(result, says[0])] * (result is not None)


_MOMENT = "Tue, 15 Nov 1994 08:12:31"


@pytest.mark.parametrize(
    ("dates", "valid"),
    [
        pytest.param([f"{_MOMENT} GMT"], True, id="as-http-has-it"),
        pytest.param([_MOMENT], True, id="no-zone"),
        pytest.param([f"{_MOMENT} -0000"], True, id="unknown-zone"),
        pytest.param([f"{_MOMENT} GMT", f"{_MOMENT} GMT"], True, id="twice"),
        pytest.param([f"{_MOMENT} GMT", "no date"], True, id="then-none"),
        pytest.param(["no date"], False, id="no-date"),
        pytest.param(["Tue, 15 Nov 1994 99:12:31 GMT"], False, id="no-hour"),
        pytest.param(["Tue, 15 Nov 99999 08:12:31 GMT"], False, id="no-year"),
        pytest.param([], False, id="absent"),
    ],
)
def test_the_clock_of_an_api_server(dates: list[str], valid: bool) -> None:
    """A proxy before it may send its own Date, also without a zone: that is UTC, or no valid header."""

    class Dated(_Handler):
        def send_header(self, keyword: str, value: str) -> None:
            for shown in dates if keyword == "Date" else (value,):
                super().send_header(keyword, shown)

    server = _Answers(("127.0.0.1", 0), Dated)
    fields = (
        "major",
        "minor",
        "gitVersion",
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    )
    server.answers = {"/version/": dict.fromkeys(fields, "v1.36.3")}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    expected = datetime(1994, 11, 15, 8, 12, 31, tzinfo=UTC) - datetime.now(UTC)
    inspection = Inspection(ApiClient(Configuration(host=f"http://127.0.0.1:{server.server_port}")))
    with nullcontext() if valid else pytest.raises(ApiError, match="response has no valid Date header"):
        assert abs(inspection.server().ahead - expected) < timedelta(minutes=5)
    server.shutdown()
    server.server_close()
