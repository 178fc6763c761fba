"""The purpose of each permission ("right") of the operator: stories that fail without it.

A right is written `verb resource`, as in `patch grouppolicies/status`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from testing.faults.groups import Groups
from testing.faults.kube import Kube, Object
from testing.sandbox.errors import NotReached
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import use_crds
from testing.sandbox.waiting import wait_for

NAMESPACE = ACCOUNT = "group-hygiene"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
# No server listens there.
_NOWHERE = "127.0.0.1:1"
_API = "grouphygiene.io/v1alpha1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/group-hygiene"
# Other projects' custom resources that name groups, with only the fields that the operator reads.
_CLAIMING = {
    ("keda.sh", "v1alpha1", "scaledobjects"): "ScaledObject",
    ("keda.sh", "v1alpha1", "scaledjobs"): "ScaledJob",
    ("kafka.strimzi.io", "v1beta2", "kafkaconnectors"): "KafkaConnector",
    ("sources.knative.dev", "v1", "kafkasources"): "KafkaSource",
    ("internal.kafka.eventing.knative.dev", "v1alpha1", "consumergroups"): "ConsumerGroup",
    ("cluster.redpanda.com", "v1alpha2", "shadowlinks"): "ShadowLink",
}


@dataclass(frozen=True)
class Right:
    """One verb on one resource of one rule. role: path of the Role or ClusterRole. where: its binding's namespace."""

    role: str
    where: str
    rule: int
    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


@dataclass(frozen=True)
class Stage:
    """An API server with an operator, and brokers. bootstrap: of the brokers, for the operator. name: a prefix.

    alive: whether the operator runs; if it has ended, waiting fails. patience: seconds.
    """

    server: ApiServer
    groups: Groups
    bootstrap: str
    name: str
    alive: Callable[[], bool]
    patience: float

    def wait(self, what: Callable[[], Any], name: str) -> Any:
        """Raises NotReached, at once if the operator has ended."""

        def asked() -> Any:
            answer = what()
            if not answer and not self.alive():
                raise NotReached(f"{name}: the operator has ended")
            return answer

        return wait_for(asked, name, self.patience)

    @property
    def kube(self) -> Kube:
        return Kube(self.server)

    def namespace(self, name: str) -> str:
        """A namespace in which the operator may read Secrets, by the RoleBinding of the docs."""
        full = f"{self.name}-{name}"
        make_namespace(self.kube, full)
        return full

    def apply(self, kind: str, namespace: str, name: str, spec: Object) -> None:
        metadata = {"namespace": namespace, "name": name}
        self.kube.apply({"apiVersion": _API, "kind": kind, "metadata": metadata, "spec": spec})

    def is_ready(self, kind: str, namespace: str, name: str, reason: str, never: str = "") -> None:
        """Wait until its condition Ready has that reason. Raises NotReached, at once if the reason is `never`."""

        def is_reported() -> bool:
            status = self.kube.get(kind, namespace, name).get("status") or {}
            found = next((c["reason"] for c in status.get("conditions") or [] if c["type"] == "Ready"), None)
            if found is not None and found == never:
                raise NotReached(f"{kind} {name} is {never}")
            return bool(found == reason)

        self.wait(is_reported, f"{kind} {name} is {reason}")


def leads(stage: Stage) -> None:
    """It creates or takes the Lease, and renews it."""

    def renewed() -> str | None:
        items = stage.kube.call("GET", _LEASE.rpartition("/")[0])["items"]
        for item in items:
            if item["metadata"]["name"] == "group-hygiene" and item["spec"].get("holderIdentity"):
                return str(item["spec"]["renewTime"])
        return None

    first = stage.wait(renewed, "the operator leads")
    stage.wait(lambda: renewed() not in (None, first), "the Lease is renewed")


def sees(stage: Stage) -> None:
    """It lists and watches the objects of each kind, and reports problems in their status."""
    namespace = stage.namespace("sees")
    # The second ones are made after the first lists, so only the watch shows them.
    for name in ("first", "second"):
        missing = {"connectionRef": {"name": f"{name}-missing"}}
        stage.apply("KafkaConnection", namespace, name, {"bootstrapServers": [_NOWHERE], "scan": {"timeout": "5s"}})
        stage.apply("GroupPolicy", namespace, name, {**missing, "match": {"groups": ["a"]}, "action": "Alert"})
        other = {"connectionRef": {"name": f"{name}-missing-too"}}
        stage.apply("GroupRestore", namespace, name, {**other, "groups": ["a"]})
        stage.apply("GroupKeep", namespace, name, {**other, "groups": ["a"], "reason": "needed"})
        stage.is_ready("KafkaConnection", namespace, name, "BrokersUnreachable")
        stage.is_ready("GroupPolicy", namespace, name, "ConnectionNotFound")
        stage.is_ready("GroupRestore", namespace, name, "ConnectionNotFound")
        stage.is_ready("GroupKeep", namespace, name, "ConnectionNotFound")


def counts_events(stage: Stage) -> None:
    """A repeated event is counted in the first Event."""
    namespace = stage.namespace("events")
    stage.apply("KafkaConnection", namespace, "broken", {"bootstrapServers": [_NOWHERE], "scan": {"timeout": "5s"}})

    def counts() -> list[int]:
        events = stage.kube.call("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return [event["count"] for event in events if event["reason"] == "ConnectionNotFound"]

    # A change of Ready is an event; changing it back and forth repeats the first one.
    for connection, reason, count in (
        ("missing", "ConnectionNotFound", 1),
        ("broken", "ConnectionNotReady", 1),
        ("missing", "ConnectionNotFound", 2),
    ):
        spec = {"connectionRef": {"name": connection}, "match": {"groups": ["a"]}, "action": "Alert"}
        stage.apply("GroupPolicy", namespace, "p", spec)
        stage.is_ready("GroupPolicy", namespace, "p", reason)
        stage.wait(partial(lambda wanted: counts() == [wanted], count), f"the event has count {count}")


def reads_secrets(stage: Stage) -> None:
    """A connection with a password reaches its brokers."""
    namespace = stage.namespace("secrets")
    secret = {"metadata": {"name": "hygiene"}, "stringData": {"password": "x"}}
    stage.kube.call("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)
    sasl = {
        "mechanism": "SCRAM-SHA-512",
        "username": "hygiene",
        "passwordSecretRef": {"name": "hygiene", "key": "password"},
    }
    spec = {"bootstrapServers": [_NOWHERE], "sasl": sasl, "scan": {"timeout": "5s"}}
    stage.apply("KafkaConnection", namespace, "main", spec)
    stage.is_ready("KafkaConnection", namespace, "main", "BrokersUnreachable", never="SecretForbidden")


def follows_another(stage: Stage) -> None:
    """It serves a connection that another release has served, as that one no longer leads."""
    namespace = stage.namespace("follows")
    spec = {"bootstrapServers": [_NOWHERE], "scan": {"timeout": "5s"}}
    path = f"/apis/{_API}/namespaces/{namespace}/kafkaconnections/main"
    stage.apply("KafkaConnection", namespace, "main", spec)
    stage.is_ready("KafkaConnection", namespace, "main", "BrokersUnreachable")
    served: Object = {"status": {"servedBy": "elsewhere", "conditions": []}}
    stage.kube.call("PATCH", f"{path}/status", served, "application/merge-patch+json")
    stage.is_ready("KafkaConnection", namespace, "main", "BrokersUnreachable")


def deletes_and_restores(stage: Stage) -> None:
    """An abandoned group is deleted, groups that other objects name stay, and a restore brings it back."""
    namespace, topic = stage.namespace("deletes"), stage.groups.topic(f"{stage.name}-deletes")
    install_claiming_kinds(stage.server)
    gone, named = f"{stage.name}-gone", claim_groups(stage, namespace)
    stage.groups.abandon({name: {(topic, 0): 3} for name in (gone, *named)})
    spec = {"bootstrapServers": stage.bootstrap.split(","), "ledger": {"topic": f"hygiene-{stage.name}"}}
    stage.apply("KafkaConnection", namespace, "main", spec)
    reference = {"connectionRef": {"name": "main"}}
    policy = {
        **reference,
        "interval": "5s",
        "mode": "Enforce",
        "match": {"groups": [f"{stage.name}-*"]},
        "when": {"unchangedFor": "1s"},
        "action": "Delete",
        "delete": {"gracePeriod": "1s", "maxPercent": 100},
    }
    stage.apply("GroupPolicy", namespace, "p", policy)

    def is_gone() -> bool:
        status = stage.kube.get("GroupPolicy", namespace, "p").get("status") or {}
        for row in status.get("sample") or []:
            if row["group"] == gone and row.get("reason") in ("ClaimedByResource", "PolicyChanged"):
                raise NotReached(f"{gone} is kept: {row['reason']}: {row.get('message')}")
        return gone not in stage.groups.listed()

    stage.wait(is_gone, f"{gone} is deleted")
    if missing := named - stage.groups.listed():
        raise NotReached(f"{missing} is named by other objects, but was deleted")
    stage.apply("GroupKeep", namespace, "kept", {**reference, "groups": sorted(named), "reason": "needed"})
    stage.is_ready("GroupKeep", namespace, "kept", "Kept", never="PolicyChanged")
    stage.apply("GroupRestore", namespace, "back", {**reference, "groups": [gone]})
    stage.is_ready("GroupRestore", namespace, "back", "Restored", never="PolicyChanged")
    stage.apply("GroupRestore", namespace, "passing", {**reference, "groups": [gone], "ttlSecondsAfterFinished": 0})
    path = f"/apis/{_API}/namespaces/{namespace}/grouprestores"

    def is_deleted() -> bool:
        return "passing" not in {item["metadata"]["name"] for item in stage.kube.call("GET", path)["items"]}

    stage.wait(is_deleted, "a restore that ended is deleted")


def claim_groups(stage: Stage, namespace: str) -> set[str]:
    """Make an object of each kind that names a group, also by its workload's environment; returns the groups."""

    def group(name: str) -> str:
        return f"{stage.name}-{name}"

    trigger = {"type": "kafka", "metadata": {"consumerGroup": group("scaled")}}
    _claim(stage, "scaledobjects", namespace, {"triggers": [trigger]})
    trigger = {"type": "kafka", "metadata": {"consumerGroup": group("job")}}
    _claim(stage, "scaledjobs", namespace, {"triggers": [trigger]})
    _claim(stage, "kafkaconnectors", namespace, {"config": {"consumer.override.group.id": group("connector")}})
    _claim(stage, "kafkasources", namespace, {"consumerGroup": group("source")})
    configs = {"Configs": {"group.id": group("trigger")}}
    _claim(stage, "consumergroups", namespace, {"template": {"spec": {"configs": configs}}})
    synced = {"groupFilters": [{"filterType": "include", "name": group("synced")}]}
    _claim(stage, "shadowlinks", namespace, {"consumerOffsetSyncOptions": synced})
    for kind in ("Deployment", "StatefulSet"):
        name = kind.lower()
        container = {"name": "main", "image": "example/consumer", "env": [{"name": "GROUP", "value": group(name)}]}
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec = {"selector": {"matchLabels": labels}, "serviceName": name, "template": template}
        if kind == "Deployment":
            del spec["serviceName"]
        body = {"metadata": {"name": name}, "spec": spec}
        stage.kube.call("POST", f"/apis/apps/v1/namespaces/{namespace}/{name}s", body)
        triggers = [{"type": "kafka", "metadata": {"consumerGroupFromEnv": "GROUP"}}]
        _claim(
            stage,
            "scaledobjects",
            namespace,
            {"scaleTargetRef": {"kind": kind, "name": name}, "triggers": triggers},
            name,
        )
    names = ("scaled", "job", "connector", "source", "trigger", "synced", "deployment", "statefulset")
    return {group(name) for name in names}


Story = Callable[[Stage], None]
STORIES: tuple[Story, ...] = (leads, sees, counts_events, reads_secrets, follows_another, deletes_and_restores)
# Right -> the story that needs it.
NEEDED_BY: Mapping[str, Story] = {
    "create leases": leads,
    "get leases": leads,
    "update leases": leads,
    "list leases": follows_another,
    # At its start, for the cluster's id.
    "get namespaces": leads,
    "list kafkaconnections": sees,
    "watch kafkaconnections": sees,
    "list grouppolicies": sees,
    "watch grouppolicies": sees,
    "list grouprestores": sees,
    "watch grouprestores": sees,
    "list groupkeeps": sees,
    "watch groupkeeps": sees,
    "patch kafkaconnections/status": sees,
    "patch grouppolicies/status": sees,
    "patch grouprestores/status": sees,
    "patch groupkeeps/status": sees,
    "delete grouprestores": deletes_and_restores,
    "create events": counts_events,
    "get events": counts_events,
    "patch events": counts_events,
    "get secrets": reads_secrets,
    # Before each deletion and restore, to check that the object still wants it.
    "get kafkaconnections": deletes_and_restores,
    "get grouppolicies": deletes_and_restores,
    "get grouprestores": deletes_and_restores,
    "get groupkeeps": deletes_and_restores,
    "list scaledobjects": deletes_and_restores,
    "list scaledjobs": deletes_and_restores,
    "list kafkaconnectors": deletes_and_restores,
    "list kafkasources": deletes_and_restores,
    "list consumergroups": deletes_and_restores,
    "list shadowlinks": deletes_and_restores,
    # A workload whose environment contains the group's id.
    "get deployments": deletes_and_restores,
    "get statefulsets": deletes_and_restores,
}


def make_namespace(kube: Kube, name: str) -> None:
    """Create a namespace, and bind the role for its Secrets there: the operator's manifests bind it nowhere."""
    kube.namespace(name)
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "group-hygiene-secrets"}
    binding = {"metadata": {"name": "group-hygiene-secrets"}, "roleRef": role, "subjects": [account]}
    kube.call("POST", f"{_RBAC}/namespaces/{name}/rolebindings", binding)


def granted(server: ApiServer) -> list[Right]:
    """All rights of the operator's account, by its bindings."""
    kube, rights = Kube(server), list[Right]()
    for kind in ("clusterrolebindings", "rolebindings"):
        for binding in kube.call("GET", f"{_RBAC}/{kind}")["items"]:
            if any(s["name"] == ACCOUNT and s.get("namespace") == NAMESPACE for s in binding.get("subjects") or []):
                rights += _of_role(kube, binding)
    return rights


def _of_role(kube: Kube, binding: Object) -> Iterator[Right]:
    where, name = binding["metadata"].get("namespace", ""), binding["roleRef"]["name"]
    place = f"namespaces/{where}/roles" if binding["roleRef"]["kind"] == "Role" else "clusterroles"
    role = f"{_RBAC}/{place}/{name}"
    for index, rule in enumerate(kube.call("GET", role)["rules"]):
        (group,) = rule["apiGroups"]
        for resource in rule["resources"]:
            yield from (Right(role, where, index, group, resource, verb) for verb in rule["verbs"])


def asked(server: ApiServer, decision: str, since: int = 0) -> set[tuple[str, str]]:
    """The operator's requests with that decision (`allow`, `forbid`) in the API server's audit log: (right, namespace).

    since: number of events of the log to skip. Requests of `kubectl` with the operator's account are skipped, too.
    """
    return {
        (_right(event["objectRef"], event["verb"]), event["objectRef"].get("namespace", ""))
        for event in server.audit_events()[since:]
        if event["user"]["username"] == USER
        and "objectRef" in event
        and event["annotations"]["authorization.k8s.io/decision"] == decision
        and not event.get("userAgent", "").startswith("kubectl")
    }


def _right(reference: dict[str, str], verb: str) -> str:
    subresource = reference.get("subresource")
    return f"{verb} {reference['resource']}" + (f"/{subresource}" if subresource else "")


def install_claiming_kinds(server: ApiServer) -> None:
    """Install CRDs of other projects that name groups, without schemas, once."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crds: list[Object] = []
    for (group, version, plural), kind in _CLAIMING.items():
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        crds.append(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": f"{plural}.{group}"},
                "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
            }
        )
    use_crds(server, *crds)


def _claim(stage: Stage, plural: str, namespace: str, spec: Object, name: str = "claims") -> None:
    group, version, _ = next(key for key in _CLAIMING if key[2] == plural)
    kind = _CLAIMING[group, version, plural]
    body = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": name}, "spec": spec}
    stage.kube.call("POST", f"/apis/{group}/{version}/namespaces/{namespace}/{plural}", body)


def timed(story: Story, stage: Stage) -> float:
    """Run a story; returns its seconds. Raises NotReached or FaultsError."""
    started = time.monotonic()
    story(stage)
    return time.monotonic() - started
