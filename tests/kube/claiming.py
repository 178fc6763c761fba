"""CRDs of other products that name consumer groups, as far as the operator reads them, by their published schemas.

Sources: kedacore/keda config/crd/bases; strimzi/strimzi-kafka-operator packaging/install; knative-extensions/
eventing-kafka-broker control-plane/config; redpanda-data/redpanda-operator operator/config/crd/bases.
"""

from __future__ import annotations

from typing import Any

from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import use_crds

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_ANY: Schema = {"x-kubernetes-preserve-unknown-fields": True}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_TRIGGERS = _list(
    _object(type=_TEXT, metadata={"type": "object", "additionalProperties": _TEXT}) | {"required": ["type", "metadata"]}
)
_TARGET = _object(apiVersion=_TEXT, kind=_TEXT, name=_TEXT, envSourceContainerName=_TEXT)
_FILTER = _object(
    name=_TEXT | {"default": "*"},
    filterType=_TEXT | {"enum": ["include", "exclude"]},
    patternType=_TEXT | {"default": "literal", "enum": ["literal", "prefixed"]},
)
_SYNC = _object(groupFilters=_list(_FILTER), interval=_TEXT | {"default": "30s"}, paused={"type": "boolean"})

# kind -> plural, API group, versions that are served (the first is stored), schema of spec
KINDS: dict[str, tuple[str, str, tuple[str, ...], Schema]] = {
    "ScaledObject": ("scaledobjects", "keda.sh", ("v1alpha1",), _object(scaleTargetRef=_TARGET, triggers=_TRIGGERS)),
    "ScaledJob": (
        *("scaledjobs", "keda.sh", ("v1alpha1",)),
        _object(jobTargetRef=_ANY, envSourceContainerName=_TEXT, triggers=_TRIGGERS),
    ),
    # Another kind of the API group is served in a newer version than KafkaConnector.
    "Kafka": ("kafkas", "kafka.strimzi.io", ("v1", "v1beta2"), _ANY),
    "KafkaConnector": ("kafkaconnectors", "kafka.strimzi.io", ("v1beta2",), _object(config=_ANY)),
    "KafkaSource": ("kafkasources", "sources.knative.dev", ("v1beta1", "v1"), _object(consumerGroup=_TEXT)),
    "ConsumerGroup": ("consumergroups", "internal.kafka.eventing.knative.dev", ("v1alpha1",), _ANY),
    "ShadowLink": (
        *("shadowlinks", "cluster.redpanda.com", ("v1alpha2",)),
        _object(shadowCluster=_ANY, sourceCluster=_ANY, consumerOffsetSyncOptions=_SYNC),
    ),
}


def install_kinds(server: ApiServer, *kinds: str) -> None:
    """The CRDs of these kinds, or of all of them, established and known to clients."""
    chosen = kinds or tuple(KINDS)
    use_crds(server, *(_crd(kind, *KINDS[kind]) for kind in chosen))


def _crd(kind: str, plural: str, group: str, versions: tuple[str, ...], spec: Schema) -> dict[str, Any]:
    schema = {"openAPIV3Schema": _object(spec=spec)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {"name": name, "served": True, "storage": name == versions[0], "schema": schema} for name in versions
            ],
        },
    }


def claiming(kind: str, name: str, spec: Any, namespace: str = "payments") -> dict[str, Any]:
    """An object of one of these kinds."""
    _, group, versions, _ = KINDS[kind]
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": f"{group}/{versions[0]}", "kind": kind, "metadata": metadata, "spec": spec}


def workload(kind: str, name: str, *containers: dict[str, Any], namespace: str = "payments") -> dict[str, Any]:
    """A Deployment or StatefulSet of these containers, of which the sandbox runs no pod."""
    labels = {"app": name}
    spec: dict[str, Any] = {"selector": {"matchLabels": labels}, "template": pod(*containers, labels=labels)}
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def pod(*containers: dict[str, Any], labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod template of containers, each with a name and its `env`."""
    rows = [{"image": "example/consumer", **container} for container in containers]
    return {"metadata": {"labels": labels or {}}, "spec": {"containers": rows, "restartPolicy": "Always"}}
