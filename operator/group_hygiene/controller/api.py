"""The requests to the Kubernetes API server: those of the operator, and those of `doctor`.

Every call has a timeout; every failure is an ApiError. `doctor` reads only: it checks permissions with access reviews,
which the API server answers and does not store.
"""

from __future__ import annotations

import base64
import binascii
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes.client
import kubernetes.config
import urllib3

from group_hygiene import USER_AGENT
from group_hygiene.controller.claims import KEDA, ClaimReader
from group_hygiene.controller.objects import CONNECTIONS, KEEPS, POLICIES, RESTORES, ListedObject, Object, trimmed
from group_hygiene.controller.requests import TIMEOUT_S, ask, call, read_as_deep_as_the_api_server, read_rows
from group_hygiene.errors import ApiError, Forbidden, HygieneError, NotFound, SecretProblem
from group_hygiene.model import reasons
from group_hygiene.model.naming import truncated_list
from group_hygiene.spec.crds import GROUP, VERSION, fields_of_schema, spec_fields
from group_hygiene.spec.fields import SecretRef

KINDS = {CONNECTIONS: "KafkaConnection", POLICIES: "GroupPolicy", RESTORES: "GroupRestore", KEEPS: "GroupKeep"}
_LEASES = ("coordination.k8s.io", "v1")
# For so long published schemas count as current.
SCHEMAS_S = 30.0
# A watch that began before a CRD changed goes on under the old one for at most twice the --request-timeout of the API
# server, by default 60 s (crdHandler.tearDown of apiextensions-apiserver).
_OLD_WATCH_S = 150.0
# How many fields a message names.
_FIELDS_SHOWN = 5
# Of one value of a Secret.
SECRET_BYTES = 256 << 10
_POD_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_NAME_LABEL, _NAME = "app.kubernetes.io/name", "group-hygiene"
_EVENT_OBJECTS, _NAMESPACE_OBJECTS = ("", "events"), ("", "namespaces")
_LEASE_OBJECTS = ("coordination.k8s.io", "leases")


def load_config(
    retries: bool = True, context: str | None = None, file: Path | None = None
) -> kubernetes.client.ApiClient:
    """A client with the pod's ServiceAccount, else with $KUBECONFIG. Raises HygieneError if there is neither.

    context: of the kubeconfig; None = its current one. file: the kubeconfig, instead of $KUBECONFIG and the pod's.

    retries: whether the client sends a failed request once more, as a server that restarts leaves stale connections.
    False = a request takes no longer than its timeout. An answer is never waited for again: urllib3 would sleep for as
    long as its Retry-After header says, up to six hours.
    """
    read_as_deep_as_the_api_server()
    try:
        if context is None and file is None:
            kubernetes.config.load_config()
        else:
            kubernetes.config.load_kube_config(None if file is None else str(file), context)
    except kubernetes.config.ConfigException as error:
        names = [str(file)] if file else (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
        missing = [name for name in filter(None, names) if not os.path.isfile(os.path.expanduser(name))]
        if missing == list(filter(None, names)):
            found = f"there is no file {', '.join(missing)}"
            message = f"no Kubernetes API server is configured (set KUBECONFIG, or run in a pod): {found}"
        elif context is not None and str(error).endswith("/contexts list"):
            message = f"the kubeconfig has no context {context!r}: `kubectl config get-contexts` lists its contexts"
        else:
            message = f"{error}: check it by `kubectl config view`"
        raise HygieneError(message, reasons.API_SERVER_ERROR) from error
    except Exception as error:
        # The library does not catch what a malformed file leads to. The text may contain its credentials.
        message = f"the kubeconfig can't be read ({type(error).__name__}): check it by `kubectl config view`"
        raise HygieneError(message, reasons.API_SERVER_ERROR) from error
    configuration = kubernetes.client.Configuration.get_default_copy()
    # A run must not wait long for a server that is gone: a process that lost the lead waits for its runs to end.
    configuration.retries = urllib3.Retry(1, respect_retry_after_header=False) if retries else False
    client = kubernetes.client.ApiClient(configuration)
    client.user_agent = USER_AGENT
    return client


def own_namespace() -> str:
    """$POD_NAMESPACE, else the namespace of the pod's ServiceAccount, else the kubeconfig's, else `default`."""
    if named := os.environ.get("POD_NAMESPACE"):
        return named
    if _POD_NAMESPACE_FILE.exists():
        return _POD_NAMESPACE_FILE.read_text().strip()
    try:
        _, context = kubernetes.config.list_kube_config_contexts()
    except kubernetes.config.ConfigException:
        return "default"
    return str(context["context"].get("namespace") or "default")


class Api:
    """The calls that the operator makes; thread-safe. namespaces: only their objects are visible; empty = all."""

    def __init__(self, client: kubernetes.client.ApiClient, namespaces: Collection[str] = ()) -> None:
        self._namespaces = namespaces
        self._client = client
        self._custom = kubernetes.client.CustomObjectsApi(client)
        self._core = kubernetes.client.CoreV1Api(client)
        claims = ClaimReader(client)
        self.claimed_groups, self.claiming_kinds = claims.read, claims.kinds
        # When the schemas were read, in monotonic seconds.
        self._schemas: tuple[float, dict[str, Object]] = 0.0, {}
        # Kind -> when another schema than before was read.
        self._renewed: dict[str, float] = {}

    @property
    def serves_all(self) -> bool:
        """Whether it serves all namespaces."""
        return not self._namespaces

    def serves(self, namespace: str) -> bool:
        """Whether it serves this namespace, so that it knows all objects there."""
        return self.serves_all or namespace in self._namespaces

    def list_all(self, plural: str) -> list[Object]:
        """All current objects of one of the operator's CRDs, in all namespaces that it serves. For commands."""
        return [trimmed(obj) for method in self._lists(plural, self._namespaces) for obj in ask(method)["items"]]

    def list_rows(self, plural: str, namespaces: Collection[str]) -> list[ListedObject]:
        """Of these namespaces ("" = of all), page by page: of each object what identifies it, and its version."""
        return [row for each in self._lists(plural, list(filter(None, namespaces))) for row in read_rows(each)]

    def _lists(self, plural: str, namespaces: Collection[str]) -> list[Callable[..., Any]]:
        within = self._custom.list_namespaced_custom_object
        everywhere = partial(self._custom.list_cluster_custom_object, GROUP, VERSION, plural)
        return [partial(within, GROUP, VERSION, namespace, plural) for namespace in namespaces] or [everywhere]

    def get(self, plural: str, namespace: str, name: str) -> Object:
        """One object of the operator's CRDs. Raises NotFound."""
        if not self.serves(namespace):
            raise NotFound(f"the operator does not serve namespace {namespace}")
        return trimmed(ask(self._custom.get_namespaced_custom_object, GROUP, VERSION, namespace, plural, name))

    def patch_status(self, plural: str, obj: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
        """Merge `patch` into the status of `obj`. Raises Conflict if the object changed since it was read."""
        body = {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]}, "status": patch}
        method = self._custom.patch_namespaced_custom_object_status
        return dict(ask(method, *_place(plural, obj), body, _content_type="application/merge-patch+json"))

    def apply_object(self, plural: str, obj: Mapping[str, Any]) -> None:
        """Apply an object of the operator's CRDs (KEP-555), which creates it if there is none. Raises ApiError."""
        method, form = self._custom.patch_namespaced_custom_object, "application/apply-patch+yaml"
        ask(method, *_place(plural, obj), obj, field_manager="group-hygiene", force=True, _content_type=form)

    def delete(self, plural: str, obj: Mapping[str, Any]) -> None:
        """Delete this very object. Raises Conflict if it changed since it was read, and NotFound."""
        metadata = obj["metadata"]
        only = {"preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}}
        ask(self._custom.delete_namespaced_custom_object, *_place(plural, obj), body=only)

    def read_secret(self, namespace: str, ref: SecretRef) -> str:
        """The text under one key of a Secret. Raises SecretProblem, which names the Secret but never its content."""
        data, where = self._secret(namespace, ref.name)
        value = data.get(ref.key)
        if value is None:
            raise SecretProblem(f"{where} has no key {ref.key!r}", reasons.SECRET_KEY_MISSING)
        return _secret_text(value, where, ref.key)

    def read_secret_texts(self, namespace: str, name: str, keys: Collection[str]) -> dict[str, str]:
        """The texts under those of `keys` that a Secret has. Raises SecretProblem, like `read_secret`."""
        data, where = self._secret(namespace, name)
        return {key: _secret_text(data[key], where, key) for key in keys if key in data}

    def _secret(self, namespace: str, name: str) -> tuple[Mapping[str, str], str]:
        """A Secret's data in base64, and how messages name the Secret."""
        where = f"Secret {namespace}/{name}"
        try:
            secret = ask(self._core.read_namespaced_secret, name, namespace)
        except NotFound:
            raise SecretProblem(f"{where} does not exist", reasons.SECRET_NOT_FOUND) from None
        except Forbidden:
            advice = f"name {namespace} in the chart's rbac.secretNamespaces, or bind rbac-secrets.yaml's role there"
            raise SecretProblem(f"no permission to read {where}: {advice}", reasons.SECRET_FORBIDDEN) from None
        return secret.data or {}, where

    def namespace_labels(self, name: str) -> dict[str, str] | None:
        """The labels of a namespace; None = it is gone, or the operator lacks the permission to read it."""
        try:
            return dict(ask(self._core.read_namespace, name).metadata.labels or {})
        except (NotFound, Forbidden):
            return None

    def missing_crds(self) -> list[str]:
        """The operator's CRDs that the API server does not serve in this version. Needs no permission."""
        try:
            served = {resource.name for resource in ask(self._custom.get_api_resources, GROUP, VERSION).resources}
        except NotFound:
            served = set()
        return [f"{plural}.{GROUP} ({VERSION})" for plural in KINDS if plural not in served]

    def schemas(self) -> dict[str, Object]:
        """Kind -> its CRD's schema as published in OpenAPI v3, of the operator's CRDs; {} = none is served.

        Every authenticated user may read it (ClusterRole system:discovery). A change of a CRD shows within seconds.
        """
        path = f"/openapi/v3/apis/{GROUP}/{VERSION}"
        request = self._client.param_serialize(
            "GET", path, header_params={"Accept": "application/json"}, auth_settings=["BearerToken"]
        )

        def read() -> Any:
            response = self._client.call_api(*request, _request_timeout=TIMEOUT_S)
            response.read()
            return self._client.response_deserialize(response, {"200": "object"}).data

        named = "x-kubernetes-group-version-kind"
        try:
            published = call(read)["components"]["schemas"]
            return {kind["kind"]: schema for schema in published.values() for kind in schema.get(named, ())}
        except NotFound:
            return {}
        except (AttributeError, KeyError, TypeError) as error:
            raise ApiError("the API server's OpenAPI document has an unknown form") from error

    def crd_problem(self, plural: str) -> str | None:
        """Which fields of a spec the API server drops, since its CRD is older than this program; None = none.

        By a schema read at most 30 s ago. Raises ApiError, also if the schema is not published yet.
        """
        kind, (at, published) = KINDS[plural], self._schemas
        if kind not in published or time.monotonic() - at >= SCHEMAS_S:
            before, now, published = published, time.monotonic(), self.schemas()
            self._renewed |= {name: now for name in before if before[name] != published.get(name)}
            self._schemas = now, published
        if kind not in published:
            raise ApiError(f"the API server does not publish the schema of {kind} (yet)")
        lacks = sorted(spec_fields(kind) - fields_of_schema(published[kind]))
        if not lacks:
            return None
        shown = truncated_list(lacks, _FIELDS_SHOWN)
        return f"the CRD of {kind} in the API server is older than the operator: it lacks {shown}; apply the new CRDs"

    def is_schema_new(self, plural: str) -> bool:
        """Whether `crd_problem` saw the CRD change lately: a watch may still report objects without its new fields."""
        return time.monotonic() - self._renewed.get(KINDS[plural], -math.inf) < _OLD_WATCH_S

    def installation_id(self, namespace: str = "") -> str:
        """The uid of namespace kube-system, which identifies this Kubernetes cluster.

        namespace: the Lease's, if this operator serves only some namespaces; it becomes part of the id. Other operators
        may serve other namespaces of this cluster. With a shared id they would share a ledger, where each takes the
        other's policies for deleted ones and ends their marks.
        """
        return "-".join(filter(None, (str(ask(self._core.read_namespace, "kube-system").metadata.uid), namespace)))

    # Leases are plain JSON objects here: a time that Python can't represent must not stop an election.

    def get_lease(self, namespace: str, name: str, timeout: float) -> Object:
        """A coordination.k8s.io/v1 Lease; `timeout` in seconds. Raises NotFound."""
        place = (*_LEASES, namespace, "leases", name)
        return dict(ask(self._custom.get_namespaced_custom_object, *place, timeout=timeout))

    def find_lease(self, namespace: str, name: str, timeout: float) -> Object | None:
        """The Lease in a namespace of others, where the right to list those of this name is sufficient; None = none."""
        place, only = (*_LEASES, namespace, "leases"), f"metadata.name={name}"
        found = ask(self._custom.list_namespaced_custom_object, *place, field_selector=only, timeout=timeout)
        return next(map(dict, found["items"]), None)

    def create_lease(self, namespace: str, body: Object, timeout: float) -> Object:
        """Raises Conflict if it exists, NotFound if its namespace does not."""
        place = (*_LEASES, namespace, "leases")
        return dict(ask(self._custom.create_namespaced_custom_object, *place, body, timeout=timeout))

    def replace_lease(self, namespace: str, name: str, body: Object, timeout: float) -> Object:
        """Raises Conflict if it changed since `body` was read."""
        place = (*_LEASES, namespace, "leases", name)
        return dict(ask(self._custom.replace_namespaced_custom_object, *place, body, timeout=timeout))

    def create_event(self, namespace: str, body: Object) -> None:
        """Create a core/v1 Event. Raises Conflict if one of that name exists."""
        ask(self._core.create_namespaced_event, namespace, body)

    def get_event_count(self, namespace: str, name: str) -> int:
        return int(ask(self._core.read_namespaced_event, name, namespace).count or 1)

    def patch_event(self, namespace: str, name: str, body: Object) -> None:
        ask(self._core.patch_namespaced_event, name, namespace, body)


def _place(plural: str, obj: Mapping[str, Any]) -> tuple[str, ...]:
    return GROUP, VERSION, obj["metadata"]["namespace"], plural, obj["metadata"]["name"]


def _secret_text(value: str, where: str, key: str) -> str:
    # Each is held once for each field that names it.
    if len(value) * 3 // 4 - value.count("=") > SECRET_BYTES:
        size = f"is larger than {SECRET_BYTES // 1024} KiB: of a bundle of authorities, only those that sign are needed"
        raise SecretProblem(f"{where}: the value of {key!r} {size}", reasons.SECRET_INVALID)
    try:
        return base64.b64decode(value, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        form = "is not UTF-8 text; for TLS it must be PEM, not a JKS or PKCS12 store"
        raise SecretProblem(f"{where}: the value of {key!r} {form}", reasons.SECRET_INVALID) from None


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
    found += [here(verb, *_EVENT_OBJECTS, "no Event is recorded") for verb in ("create", "get", "patch")]
    found += [
        Permission("get", "", "secrets", "it can't read credentials", name, namespace) for name in sorted(secrets)
    ]
    found.append(Permission("get", *_NAMESPACE_OBJECTS, "it does not start", "kube-system", "kube-system"))
    found += [Permission(verb, *_LEASE_OBJECTS, "it never leads", lease, lease_namespace) for verb in ("get", "update")]
    found.append(Permission("create", *_LEASE_OBJECTS, "it never leads", namespace=lease_namespace))
    if everywhere:
        found.append(Permission("list", *_LEASE_OBJECTS, "it can't follow another release", lease))
    if by_label:
        found.append(here("get", *_NAMESPACE_OBJECTS, "no namespace is admitted by its labels"))
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
