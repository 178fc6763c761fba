"""What somebody who looks after the operator asks of the API server: its version and clock, CRDs, rights. Reads only.

Who may do what is asked by access reviews, which the API server answers and does not keep.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, NamedTuple

import kubernetes.client

from group_hygiene.controller.api import GROUP, KINDS, VERSION, Object
from group_hygiene.controller.claims import KEDA
from group_hygiene.controller.requests import TIMEOUT_S, call
from group_hygiene.errors import ApiError, NotFound

_EVENTS, _NAMESPACES, _LEASES = ("", "events"), ("", "namespaces"), ("coordination.k8s.io", "leases")


class Server(NamedTuple):
    """version: as `kubectl version` shows it. ahead: its clock against ours, exact to a second or two."""

    version: str
    ahead: timedelta


class Right(NamedTuple):
    """One thing that the operator asks of the API server, and what it is for. namespace: empty = all."""

    verb: str
    group: str
    resource: str
    what_for: str
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{name}{where}"


def rights(namespace: str, lease_namespace: str, lease: str, by_label: bool = False) -> tuple[Right, ...]:
    """Without which the operator does not do all of its work for the objects of that namespace.

    It may have them there alone, or in all namespaces: either will do. by_label: whether the connection lets in
    namespaces by their labels.
    """

    def here(verb: str, group: str, resource: str, what_for: str) -> Right:
        return Right(verb, group, resource, what_for, namespace=namespace)

    found = [here(verb, GROUP, plural, "it sees no policy") for plural in KINDS for verb in ("get", "list", "watch")]
    found += [here("patch", GROUP, f"{plural}/status", "no status is written") for plural in KINDS]
    found += [here(verb, *_EVENTS, "no Event is recorded") for verb in ("create", "get", "patch")]
    found.append(here("get", "", "secrets", "what it must log in with is not read"))
    found.append(Right("get", *_NAMESPACES, "it does not start", "kube-system", "kube-system"))
    found += [Right(verb, *_LEASES, "it never leads", lease, lease_namespace) for verb in ("get", "update")]
    found.append(Right("create", *_LEASES, "it never leads", namespace=lease_namespace))
    if by_label:
        found.append(here("get", *_NAMESPACES, "no namespace is let in by its labels"))
    return tuple(found)


def claim_rights(kinds: Collection[tuple[str, str]]) -> tuple[Right, ...]:
    """Without which every group is kept where these kinds, (API group, plural), are installed: in all namespaces."""
    found = tuple(Right("list", *kind, "every group is kept (ClaimedByResource)") for kind in kinds)
    if not any(group == KEDA for group, _ in kinds):
        return found
    why = "every group is kept where KEDA takes a group's id from a workload's environment (ClaimedByResource)"
    return found + tuple(Right("get", "apps", plural, why) for plural in ("deployments", "statefulsets"))


class Inspection:
    """Questions to one API server. Raises ApiError, as Api does."""

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        self._client = client
        self._version = kubernetes.client.VersionApi(client)
        self._who = kubernetes.client.AuthenticationV1Api(client)
        self._rights = kubernetes.client.AuthorizationV1Api(client)
        self._custom = kubernetes.client.CustomObjectsApi(client)

    def server(self) -> Server:
        """Its version, and its clock by the header Date of its answer."""
        asked = datetime.now(UTC)
        answer = call(partial(self._version.get_code_with_http_info, _request_timeout=TIMEOUT_S))
        body, headers = answer[0], answer[2]
        between = asked + (datetime.now(UTC) - asked) / 2
        try:
            # Cut to whole seconds, so that on average it is half a second more.
            there = parsedate_to_datetime(headers["Date"]) + timedelta(seconds=0.5)
        except (KeyError, ValueError, TypeError) as error:
            raise ApiError("the API server's answer says no time") from error
        return Server(str(body.git_version), there - between)

    def user(self) -> str:
        """Who we are to it; empty = it does not tell (before Kubernetes 1.28)."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        ask = partial(self._who.create_self_subject_review, review, _request_timeout=TIMEOUT_S)
        try:
            return str(call(ask).status.user_info.username)
        except NotFound:
            return ""

    def may(self, right: Right, account: str = "") -> bool:
        """Whether we may do that, or the ServiceAccount `namespace/name`, which only some may ask for."""
        resource, _, subresource = right.resource.partition("/")
        attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
        spec: dict[str, Any] = {
            "resourceAttributes": attributes | {"name": right.name, "namespace": right.namespace},
        }
        create: Any = self._rights.create_self_subject_access_review
        if account:
            namespace, _, name = account.partition("/")
            spec["user"] = f"system:serviceaccount:{namespace}:{name}"
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
            spec["groups"] = list(groups)
            create = self._rights.create_subject_access_review
        return bool(call(partial(create, {"spec": spec}, _request_timeout=TIMEOUT_S)).status.allowed)

    def crd(self, plural: str) -> Object | None:
        """The CRD of one of our kinds as it is installed; None = it is not."""
        place = ("apiextensions.k8s.io", "v1", "customresourcedefinitions", f"{plural}.{GROUP}")
        try:
            return dict(call(lambda: self._custom.get_cluster_custom_object(*place, _request_timeout=TIMEOUT_S)))
        except NotFound:
            return None

    def schemas(self) -> dict[str, Object]:
        """The schema of each CRD of ours by kind, as OpenAPI v3 publishes it; {} = the API server serves none.

        Every authenticated user may read it (ClusterRole system:discovery). It follows a changed CRD within seconds.
        """
        path = f"/openapi/v3/apis/{GROUP}/{VERSION}"
        request = self._client.param_serialize(
            "GET", path, header_params={"Accept": "application/json"}, auth_settings=["BearerToken"]
        )

        def ask() -> Any:
            response = self._client.call_api(*request, _request_timeout=TIMEOUT_S)
            response.read()
            return self._client.response_deserialize(response, {"200": "object"}).data

        try:
            published = call(ask)["components"]["schemas"]
        except NotFound:
            return {}
        named = "x-kubernetes-group-version-kind"
        return {kind["kind"]: schema for schema in published.values() for kind in schema.get(named, ())}
