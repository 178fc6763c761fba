"""What each right of the operator is for: stories that come to no good end without it.

A right is written `verb resource`, as in `patch grouppolicies/status`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from faults.errors import NotReached
from faults.groups import Groups
from faults.kube import Kube, Object
from faults.waiting import wait_for
from sandbox.kubernetes import ApiServer

NAMESPACE = ACCOUNT = "group-hygiene"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
# Nobody listens there.
_NOWHERE = "127.0.0.1:1"
_API = "grouphygiene.io/v1alpha1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/group-hygiene"
# The kinds of others that name groups, as little of them as the operator reads.
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
    """An API server with an operator, and brokers. bootstrap: theirs, for the operator. name: begins what is made here.

    alive: whether the operator lives: what waits for one that ended has failed. patience: seconds.
    """

    server: ApiServer
    groups: Groups
    bootstrap: str
    name: str
    alive: Callable[[], bool]
    patience: float

    def wait(self, what: Callable[[], Any], name: str) -> Any:
        """Raises NotReached, at once where the operator has ended."""

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
        """A namespace in which the operator may read Secrets, as docs tell users to allow it."""
        full = f"{self.name}-{name}"
        self.kube.namespace(full)
        account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "group-hygiene-secrets"}
        binding = {"metadata": {"name": "group-hygiene-secrets"}, "roleRef": role, "subjects": [account]}
        self.kube.call("POST", f"{_RBAC}/namespaces/{full}/rolebindings", binding)
        return full

    def apply(self, kind: str, namespace: str, name: str, spec: Object) -> None:
        metadata = {"namespace": namespace, "name": name}
        self.kube.apply({"apiVersion": _API, "kind": kind, "metadata": metadata, "spec": spec})

    def is_ready(self, kind: str, namespace: str, name: str, reason: str, never: str = "") -> None:
        """Wait until its condition Ready has that reason. Raises NotReached, at once when it has the one of `never`."""

        def told() -> bool:
            status = self.kube.get(kind, namespace, name).get("status") or {}
            found = next((c["reason"] for c in status.get("conditions") or [] if c["type"] == "Ready"), None)
            if found is not None and found == never:
                raise NotReached(f"{kind} {name} is {never}")
            return bool(found == reason)

        self.wait(told, f"{kind} {name} is {reason}")


def leads(stage: Stage) -> None:
    """It takes the Lease, makes it where there is none, and renews it."""

    def renewed() -> str | None:
        items = stage.kube.call("GET", _LEASE.rpartition("/")[0])["items"]
        for item in items:
            if item["metadata"]["name"] == "group-hygiene" and item["spec"].get("holderIdentity"):
                return str(item["spec"]["renewTime"])
        return None

    first = stage.wait(renewed, "somebody leads")
    stage.wait(lambda: renewed() not in (None, first), "the Lease is renewed")


def sees(stage: Stage) -> None:
    """It sees objects of each kind that are there, and those that come, and says in their status what is wrong."""
    namespace = stage.namespace("sees")
    # The second ones come when the first lists are read, and are no business of a loop that runs already.
    for name in ("first", "second"):
        missing = {"connectionRef": {"name": f"{name}-missing"}}
        stage.apply("KafkaConnection", namespace, name, {"bootstrapServers": [_NOWHERE], "scan": {"timeout": "5s"}})
        stage.apply("GroupPolicy", namespace, name, {**missing, "match": {"groups": ["a"]}, "action": "Alert"})
        other = {"connectionRef": {"name": f"{name}-missing-too"}}
        stage.apply("GroupRestore", namespace, name, {**other, "groups": ["a"]})
        stage.is_ready("KafkaConnection", namespace, name, "BrokersUnreachable")
        stage.is_ready("GroupPolicy", namespace, name, "ConnectionNotFound")
        stage.is_ready("GroupRestore", namespace, name, "ConnectionNotFound")


def counts_events(stage: Stage) -> None:
    """What happens again is counted in the Event of the first time."""
    namespace = stage.namespace("events")
    stage.apply("KafkaConnection", namespace, "broken", {"bootstrapServers": [_NOWHERE], "scan": {"timeout": "5s"}})

    def counts() -> list[int]:
        events = stage.kube.call("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return [event["count"] for event in events if event["reason"] == "ConnectionNotFound"]

    # A turn of Ready is an event; there and back again, the first one comes once more.
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
    """A connection with a password gets as far as its brokers."""
    namespace = stage.namespace("secrets")
    secret = {"metadata": {"name": "hygiene"}, "stringData": {"password": "x"}}
    stage.kube.call("POST", f"/api/v1/namespaces/{namespace}/secrets", secret)
    sasl = {"mechanism": "SCRAM-SHA-512", "username": "hygiene", "password": {"name": "hygiene", "key": "password"}}
    spec = {"bootstrapServers": [_NOWHERE], "sasl": sasl, "scan": {"timeout": "5s"}}
    stage.apply("KafkaConnection", namespace, "main", spec)
    stage.is_ready("KafkaConnection", namespace, "main", "BrokersUnreachable", never="SecretForbidden")


def deletes_and_restores(stage: Stage) -> None:
    """An abandoned group goes, those that objects of others name stay, and it comes back when somebody wants it."""
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
        raise NotReached(f"{missing} is named by others, and was deleted")
    stage.apply("GroupRestore", namespace, "back", {**reference, "groups": [gone]})
    stage.is_ready("GroupRestore", namespace, "back", "Restored", never="PolicyChanged")


def claim_groups(stage: Stage, namespace: str) -> set[str]:
    """Make an object of each kind that names a group, and those whose workload's environment names it; the groups."""

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
STORIES: tuple[Story, ...] = (leads, sees, counts_events, reads_secrets, deletes_and_restores)
# Right -> the story that needs it.
NEEDED_BY: Mapping[str, Story] = {
    "create leases": leads,
    "get leases": leads,
    "update leases": leads,
    # At its start: which cluster is this?
    "get namespaces": leads,
    "get kafkaconnections": sees,
    "list kafkaconnections": sees,
    "watch kafkaconnections": sees,
    "list grouppolicies": sees,
    "watch grouppolicies": sees,
    "list grouprestores": sees,
    "watch grouprestores": sees,
    "patch kafkaconnections/status": sees,
    "patch grouppolicies/status": sees,
    "patch grouprestores/status": sees,
    "create events": counts_events,
    "get events": counts_events,
    "patch events": counts_events,
    "get secrets": reads_secrets,
    # Before each deletion, and each restore: is it still wanted?
    "get grouppolicies": deletes_and_restores,
    "get grouprestores": deletes_and_restores,
    "list scaledobjects": deletes_and_restores,
    "list scaledjobs": deletes_and_restores,
    "list kafkaconnectors": deletes_and_restores,
    "list kafkasources": deletes_and_restores,
    "list consumergroups": deletes_and_restores,
    "list shadowlinks": deletes_and_restores,
    # Of a workload whose environment holds the group's id.
    "get deployments": deletes_and_restores,
    "get statefulsets": deletes_and_restores,
}


def granted(server: ApiServer) -> list[Right]:
    """All that the operator's account may, by what is bound to it."""
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
    """What the operator asked for and got that answer (`allow`, `forbid`), by the API server's log: (right, namespace).

    since: how many events of the log to leave out. What `kubectl` asked under the operator's account is left out.
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
    """The kinds of others that name groups, of any shape, once."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for (group, version, plural), kind in _CLAIMING.items():
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        crd = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
        }
        server.kubectl("apply", "-f", "-", input=json.dumps(crd))
        server.wait_established(f"crd/{plural}.{group}")
        # Clients are told of a new kind a moment after it is established.
        wait_for(partial(_is_served, server, f"{plural}.{group}"), f"{plural} are served")


def _is_served(server: ApiServer, kind: str) -> bool:
    return server.kubectl("get", kind, "-A", check=False).returncode == 0


def _claim(stage: Stage, plural: str, namespace: str, spec: Object, name: str = "claims") -> None:
    group, version, _ = next(key for key in _CLAIMING if key[2] == plural)
    kind = _CLAIMING[group, version, plural]
    body = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": name}, "spec": spec}
    stage.kube.call("POST", f"/apis/{group}/{version}/namespaces/{namespace}/{plural}", body)


def timed(story: Story, stage: Stage) -> float:
    """Seconds that a story took to its good end. Raises NotReached or FaultsError."""
    started = time.monotonic()
    story(stage)
    return time.monotonic() - started
