"""What the operator asks of the Kubernetes API server. Every call has a timeout, every failure is an ApiError."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import kubernetes.client
import kubernetes.config
import urllib3
from kubernetes.client.exceptions import ApiException

from group_hygiene.connection import SecretRef
from group_hygiene.errors import ApiError, Conflict, Forbidden, HygieneError, NotFound, SecretProblem

GROUP, VERSION = "grouphygiene.io", "v1alpha1"
CONNECTIONS, POLICIES = "kafkaconnections", "grouppolicies"
KINDS = {CONNECTIONS: "KafkaConnection", POLICIES: "GroupPolicy"}
_TIMEOUT_S = 10
_MERGE_PATCH = "application/merge-patch+json"

T = TypeVar("T")
Object = dict[str, Any]


def load_config() -> kubernetes.client.ApiClient:
    """A client by the pod's ServiceAccount, else by $KUBECONFIG. Raises HygieneError where there is neither."""
    try:
        kubernetes.config.load_config()
    except kubernetes.config.ConfigException as error:
        raise HygieneError(f"no Kubernetes API server to talk to (set KUBECONFIG, or run in a pod): {error}") from error
    return kubernetes.client.ApiClient()


class Api:
    """The few calls that the operator makes; thread-safe."""

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        self._custom = kubernetes.client.CustomObjectsApi(client)
        self._core = kubernetes.client.CoreV1Api(client)
        self._apis = kubernetes.client.ApisApi(client)
        self._extensions = kubernetes.client.ApiextensionsV1Api(client)

    def list_all(self, plural: str) -> list[Object]:
        """All objects of one of our kinds, in all namespaces, as the API server has them now."""
        answer = _call(
            lambda: self._custom.list_cluster_custom_object(GROUP, VERSION, plural, _request_timeout=_TIMEOUT_S)
        )
        return list(answer["items"])

    def get(self, plural: str, namespace: str, name: str) -> Object:
        """One object of our kinds. Raises NotFound."""
        arguments = (GROUP, VERSION, namespace, plural, name)
        return dict(_call(lambda: self._custom.get_namespaced_custom_object(*arguments, _request_timeout=_TIMEOUT_S)))

    def patch_status(self, plural: str, obj: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
        """Merge `patch` into the status of `obj`, if the object is still as it was read (else Conflict)."""
        metadata = obj["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": patch}
        arguments = (GROUP, VERSION, metadata["namespace"], plural, metadata["name"], body)
        return dict(
            _call(
                lambda: self._custom.patch_namespaced_custom_object_status(
                    *arguments, _content_type=_MERGE_PATCH, _request_timeout=_TIMEOUT_S
                )
            )
        )

    def read_secret(self, namespace: str, ref: SecretRef) -> str:
        """The text under one key of a Secret. Raises SecretProblem, which names the Secret and never its content."""
        where = f"Secret {namespace}/{ref.name}"
        try:
            secret = _call(lambda: self._core.read_namespaced_secret(ref.name, namespace, _request_timeout=_TIMEOUT_S))
        except NotFound:
            raise SecretProblem(f"{where} does not exist", "SecretNotFound") from None
        except Forbidden:
            advice = (
                f"bind the ClusterRole group-hygiene-secrets in namespace {namespace} to the operator's ServiceAccount"
            )
            raise SecretProblem(f"{where} may not be read: {advice}", "SecretForbidden") from None
        value = (secret.data or {}).get(ref.key)
        if value is None:
            raise SecretProblem(f"{where} has no key {ref.key!r}", "SecretKeyMissing")
        try:
            return base64.b64decode(value, validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError):
            raise SecretProblem(f"{where}: the value of {ref.key!r} is not UTF-8 text", "SecretInvalid") from None

    def missing_crds(self) -> list[str]:
        """Names of our CRDs that are not installed, or not served in this version."""
        missing = []
        for plural in KINDS:
            name = f"{plural}.{GROUP}"
            read = partial(self._extensions.read_custom_resource_definition, name, _request_timeout=_TIMEOUT_S)
            try:
                crd = _call(read)
            except NotFound:
                missing.append(name)
                continue
            if not any(version.name == VERSION and version.served for version in crd.spec.versions):
                missing.append(f"{name} (version {VERSION})")
        return missing

    def claimed_groups(self) -> dict[str, str] | None:
        """Group id -> the object that names it, of KEDA ScaledObjects and Strimzi KafkaConnectors of all namespaces.

        Kinds that are not installed name nothing. None = they are installed, and we may not list them.
        """
        claimed: dict[str, str] = {}
        installed = {group.name: group for group in _call(self._groups_and_versions).groups}
        for name, plural, names in _CLAIMING_KINDS:
            if name not in installed:
                continue
            version = installed[name].preferred_version.version
            list_kind = partial(self._custom.list_cluster_custom_object, name, version, plural)
            try:
                answer = _call(partial(list_kind, _request_timeout=_TIMEOUT_S))
            except NotFound:
                continue
            except Forbidden:
                return None
            for item in answer["items"]:
                owner = f"{item['kind']} {item['metadata']['namespace']}/{item['metadata']['name']}"
                # Those kinds keep unknown fields of any shape: what is no text names no group.
                claimed.update((group, owner) for group in names(item) if isinstance(group, str))
        return claimed

    def _groups_and_versions(self) -> Any:
        return self._apis.get_api_versions(_request_timeout=_TIMEOUT_S)

    def create_event(self, namespace: str, body: Object) -> None:
        """Create a core/v1 Event. Raises Conflict when one of that name exists."""
        _call(lambda: self._core.create_namespaced_event(namespace, body, _request_timeout=_TIMEOUT_S))

    def get_event_count(self, namespace: str, name: str) -> int:
        event = _call(lambda: self._core.read_namespaced_event(name, namespace, _request_timeout=_TIMEOUT_S))
        return int(event.count or 1)

    def patch_event(self, namespace: str, name: str, body: Object) -> None:
        _call(lambda: self._core.patch_namespaced_event(name, namespace, body, _request_timeout=_TIMEOUT_S))


def _scaled_object_groups(item: Mapping[str, Any]) -> list[Any]:
    triggers = (item.get("spec") or {}).get("triggers") or []
    metadata = [t.get("metadata") or {} for t in triggers if t.get("type") in ("kafka", "apache-kafka")]
    return [m[key] for m in metadata for key in ("consumerGroup", "group") if m.get(key)]


def _connector_groups(item: Mapping[str, Any]) -> list[Any]:
    override = ((item.get("spec") or {}).get("config") or {}).get("consumer.override.group.id")
    return [override or f"connect-{item['metadata']['name']}"]


_CLAIMING_KINDS: tuple[tuple[str, str, Callable[[Mapping[str, Any]], list[Any]]], ...] = (
    ("keda.sh", "scaledobjects", _scaled_object_groups),
    ("kafka.strimzi.io", "kafkaconnectors", _connector_groups),
)


def _call(call: Callable[[], T]) -> T:
    try:
        return call()
    except ApiException as error:
        kind = {404: NotFound, 409: Conflict, 403: Forbidden}.get(error.status, ApiError)
        raise kind(f"the API server answers {error.status} {error.reason}") from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiError(f"the API server does not answer: {type(error).__name__}") from error
