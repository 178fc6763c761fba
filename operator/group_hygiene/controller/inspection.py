"""The requests of `doctor` to the API server: its version and clock, CRDs and permissions. Reads only.

Permissions are checked with access reviews, which the API server answers and does not store.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import kubernetes.client

from group_hygiene.controller.api import KINDS
from group_hygiene.controller.claims import KEDA
from group_hygiene.controller.objects import Object
from group_hygiene.controller.requests import ask
from group_hygiene.errors import ApiError, NotFound
from group_hygiene.spec.crds import GROUP

_NAME_LABEL, _NAME = "app.kubernetes.io/name", "group-hygiene"
_EVENTS, _NAMESPACES, _LEASES = ("", "events"), ("", "namespaces"), ("coordination.k8s.io", "leases")


class Server(NamedTuple):
    """version: as `kubectl version` shows it. ahead: of this machine's clock, with an error of up to two seconds."""

    version: str
    ahead: timedelta


class Permission(NamedTuple):
    """A permission that the operator needs. what_for: the effect if it is missing. namespace: empty = all."""

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


SEES_ALL = Permission("list", GROUP, "kafkaconnections", "it serves some namespaces only")


def rights(
    namespace: str,
    lease_namespace: str,
    lease: str,
    secrets: Collection[str] = (),
    *,
    by_label: bool = False,
    everywhere: bool = False,
) -> tuple[Permission, ...]:
    """The permissions that the operator needs for the objects of that namespace.

    Roles in the namespace suffice, and so do ClusterRoles. secrets: the names of those that the connection refers to.
    by_label: whether the connection selects namespaces by their labels. everywhere: whether it serves all namespaces.
    """

    def here(verb: str, group: str, resource: str, what_for: str) -> Permission:
        return Permission(verb, group, resource, what_for, namespace=namespace)

    found = [here(verb, GROUP, plural, "it sees no policy") for plural in KINDS for verb in ("get", "list", "watch")]
    found += [here("patch", GROUP, f"{plural}/status", "no status is written") for plural in KINDS]
    found.append(here("delete", GROUP, "grouprestores", "none is deleted after its ttlSecondsAfterFinished"))
    found += [here(verb, *_EVENTS, "no Event is recorded") for verb in ("create", "get", "patch")]
    found += [
        Permission("get", "", "secrets", "it can't read credentials", name, namespace) for name in sorted(secrets)
    ]
    found.append(Permission("get", *_NAMESPACES, "it does not start", "kube-system", "kube-system"))
    found += [Permission(verb, *_LEASES, "it never leads", lease, lease_namespace) for verb in ("get", "update")]
    found.append(Permission("create", *_LEASES, "it never leads", namespace=lease_namespace))
    if everywhere:
        found.append(Permission("list", *_LEASES, "it can't follow another release", lease))
    if by_label:
        found.append(here("get", *_NAMESPACES, "no namespace is admitted by its labels"))
    return tuple(found)


def claim_rights(kinds: Collection[tuple[str, str]]) -> tuple[Permission, ...]:
    """The permissions, in all namespaces, for these custom resources (API group, plural) of other products.

    Without one of them no group is deleted.
    """
    found = tuple(Permission("list", *kind, "no group is deleted (ClaimedByResource)") for kind in kinds)
    if not any(group == KEDA for group, _ in kinds):
        return found
    why = "no group is deleted if KEDA takes a group's id from a workload's environment (ClaimedByResource)"
    return found + tuple(Permission("get", "apps", plural, why) for plural in ("deployments", "statefulsets"))


class Inspection:
    """Requests to one API server. Raises ApiError, like Api."""

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        self._client = client
        self._version = kubernetes.client.VersionApi(client)
        self._authentication = kubernetes.client.AuthenticationV1Api(client)
        self._authorization = kubernetes.client.AuthorizationV1Api(client)
        self._custom = kubernetes.client.CustomObjectsApi(client)

    def server(self) -> Server:
        """Its version, and its clock by the Date header of its response."""
        asked = datetime.now(UTC)
        answer = ask(self._version.get_code_with_http_info)
        body, headers = answer[0], answer[2]
        between = asked + (datetime.now(UTC) - asked) / 2
        try:
            # The header is truncated to whole seconds: add half a second, the average error.
            there = parsedate_to_datetime(headers["Date"]) + timedelta(seconds=0.5)
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise ApiError("the API server's response has no valid Date header") from error
        # Python finds no zone in a header that lacks one, nor in two that a proxy sent: HTTP has no zone but GMT.
        return Server(str(body.git_version), (there if there.tzinfo else there.replace(tzinfo=UTC)) - between)

    def user(self) -> str:
        """The name of the authenticated user; empty = the API server can't report it (before Kubernetes 1.28)."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            return str(ask(self._authentication.create_self_subject_review, review).status.user_info.username)
        except NotFound:
            return ""

    def may(self, right: Permission, account: str = "") -> bool:
        """Whether the user has this permission. account: check this ServiceAccount, `namespace/name`, instead.

        Only some users may check other accounts.
        """
        resource, _, subresource = right.resource.partition("/")
        attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
        spec: dict[str, Any] = {
            "resourceAttributes": attributes | {"name": right.name, "namespace": right.namespace},
        }
        create: Any = self._authorization.create_self_subject_access_review
        if account:
            namespace, _, name = account.partition("/")
            spec["user"] = f"system:serviceaccount:{namespace}:{name}"
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
            spec["groups"] = list(groups)
            create = self._authorization.create_subject_access_review
        return bool(ask(create, {"spec": spec}).status.allowed)

    def metrics_peers(self, namespace: str) -> list[Object] | None:
        """The peers whose pods may reach those of the operator in this namespace, by its NetworkPolicies; None = all.

        An empty list: none may, but the node's probes. A peer without fields stands for all.
        """
        place = ("networking.k8s.io", "v1", namespace, "networkpolicies")
        found = ask(self._custom.list_namespaced_custom_object, *place, limit=500)
        peers, closed = list[Object](), False
        for spec in (policy["spec"] for policy in found["items"]):
            selector, types = spec.get("podSelector") or {}, spec.get("policyTypes") or ["Ingress"]
            labels = selector.get("matchLabels") or {}
            # Others may select these pods, too, by labels that are not known here: they only open more.
            if "Ingress" in types and labels.get(_NAME_LABEL, _NAME) == _NAME and not selector.get("matchExpressions"):
                closed = True
                for rule in spec.get("ingress") or ():
                    peers += rule.get("from") or [{}]
        return peers if closed else None

    def crd(self, plural: str) -> Object | None:
        """One of the operator's CRDs as it is installed; None = it is not."""
        place = ("apiextensions.k8s.io", "v1", "customresourcedefinitions", f"{plural}.{GROUP}")
        try:
            return dict(ask(self._custom.get_cluster_custom_object, *place))
        except NotFound:
            return None
