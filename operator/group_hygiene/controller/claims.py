"""Which consumer groups custom resources of other products name. Reads only.

The objects belong to other teams: pages are bounded in bytes, and all of them in number and time. What can't be read to
its end, or names a group in a way that can't be followed, may name any group.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import kubernetes.client

from group_hygiene.controller.requests import TIMEOUT_S, call
from group_hygiene.errors import ApiError, Forbidden, NotFound
from group_hygiene.model import Claims, Fault

Kind = tuple[str, str]
Object = Mapping[str, Any]

KEDA = "keda.sh"
_KAFKA_TRIGGERS = frozenset({"kafka", "apache-kafka"})


class Limits(NamedTuple):
    """page_bytes: of one answer of the API server. objects: all that are listed, and all that these refer to.

    prefixes: of groups, in all ShadowLinks, as each group is compared with each of them.
    """

    page: int = 100
    page_bytes: int = 8_000_000
    objects: int = 20_000
    prefixes: int = 1_000
    seconds: float = 60.0


_LIMITS = Limits()


class _Unknown(Exception):
    """An object names a group, and which one can't be said."""


@dataclass
class _Found:
    named: dict[str, str] = field(default_factory=dict)
    synced: dict[str, str] = field(default_factory=dict)
    prefixes: dict[str, str] = field(default_factory=dict)


class ClaimReader:
    """Reads all claims of a Kubernetes cluster. Thread-safe."""

    def __init__(self, client: kubernetes.client.ApiClient, limits: Limits = _LIMITS) -> None:
        self._custom = kubernetes.client.CustomObjectsApi(client)
        self._apis = kubernetes.client.ApisApi(client)
        self._apps = kubernetes.client.AppsV1Api(client)
        self._core = kubernetes.client.CoreV1Api(client)
        self._limits = limits

    def read(self) -> Claims | Fault:
        """All groups that objects name; a Fault = some may be missing, as its message says. Raises ApiError."""
        found, budget = _Found(), _Budget(self._limits)
        try:
            for (group, plural), version in self.kinds().items():
                for item in self._objects(group, version, plural, budget):
                    _KINDS[group, plural](_Reading(self, budget, item, found))
        except _Unknown as problem:
            return Fault("CLAIMS_UNKNOWN", str(problem))
        if len(found.prefixes) > self._limits.prefixes:
            return Fault("CLAIMS_UNKNOWN", f"ShadowLinks name more than {self._limits.prefixes} prefixes of groups")
        return Claims(found.named, found.synced, found.prefixes)

    def kinds(self) -> dict[Kind, str]:
        """(API group, plural) -> a version that is served, of the kinds that may name groups and are installed.

        A kind need not be served in the version that its API group prefers: another kind may be ahead of it.
        """
        groups = call(lambda: self._apis.get_api_versions(_request_timeout=TIMEOUT_S)).groups
        served: dict[Kind, str] = {}
        for group in groups:
            missing = {kind for kind in _KINDS if kind[0] == group.name}
            if not missing:
                continue
            preferred = group.preferred_version.version
            others = [entry.version for entry in group.versions if entry.version != preferred]
            for version in (preferred, *others):
                ask = partial(self._custom.get_api_resources, group.name, version, _request_timeout=TIMEOUT_S)
                names = {resource.name for resource in call(ask).resources} if missing else set()
                found = {kind for kind in missing if kind[1] in names}
                served |= dict.fromkeys(sorted(found), version)
                missing -= found
        return served

    def _objects(self, group: str, version: str, plural: str, budget: _Budget) -> Iterator[Object]:
        list_kind = partial(self._custom.list_cluster_custom_object, group, version, plural)
        where, following, page = f"{plural}.{group}", "", self._limits.page
        while True:
            more = {"_continue": following} if following else {}
            ask = partial(list_kind, limit=page, _preload_content=False, _request_timeout=TIMEOUT_S, **more)
            budget.check_time()
            try:
                body = call(lambda ask=ask: _content(ask(), self._limits.page_bytes))  # type: ignore[misc]
            except Forbidden:
                raise _Unknown(f"needs list on {where} in all namespaces") from None
            except RecursionError:
                raise _Unknown(f"one of {where} is nested too deeply") from None
            if body is None:
                # A few large objects may share a page with many small ones.
                if page == 1:
                    raise _Unknown(f"one of {where} takes more than {self._limits.page_bytes} bytes")
                page = max(1, page // 10)
                continue
            for item in body["items"]:
                budget.take()
                yield item
            following = body["metadata"].get("continue") or ""
            if not following:
                return

    def variable(self, pod: Any, container: str, name: str, namespace: str) -> str:
        """What an environment variable of a pod template is. Raises _Unknown where that isn't in reach."""
        containers = [c for c in _list(_at(pod, "spec", "containers")) if not container or _at(c, "name") == container]
        if not containers:
            raise _Unknown(f"has no container {container}".rstrip())
        # Of several of one name, Kubernetes takes the last.
        entries = [entry for entry in _list(_at(containers[0], "env")) if _at(entry, "name") == name]
        entry = entries[-1] if entries else {}
        value, key = _at(entry, "value"), _at(entry, "valueFrom", "configMapKeyRef")
        if key is not None:
            value = self._config_map(namespace, str(_at(key, "name"))).get(str(_at(key, "key")))
        if not isinstance(value, str) or not value:
            raise _Unknown("has no value for it but perhaps one from elsewhere, as from a Secret or envFrom")
        # References to other variables.
        if "$(" in value and key is None:
            raise _Unknown("refers to other variables")
        return value

    def _config_map(self, namespace: str, name: str) -> Mapping[str, str]:
        ask = partial(self._core.read_namespaced_config_map, name, namespace, _request_timeout=TIMEOUT_S)
        try:
            return call(ask).data or {}
        except NotFound:
            raise _Unknown(f"refers to ConfigMap {name}, which does not exist") from None
        except Forbidden:
            raise _Unknown(f"refers to ConfigMap {name}: needs get on configmaps in that namespace") from None

    def template(self, api_version: str, kind: str, namespace: str, name: str) -> Any:
        """The pod template of a workload. Raises _Unknown."""
        group = api_version.partition("/")[0]
        read = _WORKLOADS.get((group, kind))
        if read is None:
            raise _Unknown(f"{kind} {name} is of a kind that is not read")
        try:
            body = call(lambda: _content(read(self._apps, name, namespace), self._limits.page_bytes))
        except NotFound:
            raise _Unknown(f"{kind} {name} does not exist") from None
        except Forbidden:
            raise _Unknown(f"needs get on {kind.lower()}s.apps in all namespaces") from None
        return _at(body, "spec", "template")


class _Budget:
    def __init__(self, limits: Limits) -> None:
        self._left, self._limits = limits.objects, limits
        self._until = time.monotonic() + limits.seconds

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _Unknown(f"there are more than {self._limits.objects} objects that may name groups")

    def check_time(self) -> None:
        if time.monotonic() > self._until:
            raise _Unknown(f"objects that may name groups could not be read in {self._limits.seconds:.0f} s")


@dataclass
class _Reading:
    """One object, and what all of them name."""

    reader: ClaimReader
    budget: _Budget
    item: Object
    found: _Found

    @property
    def owner(self) -> str:
        return f"{self.item['kind']} {self.namespace}/{self.item['metadata']['name']}"

    @property
    def namespace(self) -> str:
        return str(self.item["metadata"]["namespace"])

    def name(self, *groups: Any) -> None:
        """Some kinds keep unknown fields of any shape: what is no text names no group."""
        self.found.named.update((group, self.owner) for group in groups if isinstance(group, str) and group)


def _scaled_object(reading: _Reading) -> None:
    target = _at(reading.item, "spec", "scaleTargetRef")

    def template() -> Any:
        api_version, kind = _at(target, "apiVersion") or "apps/v1", _at(target, "kind") or "Deployment"
        return reading.reader.template(str(api_version), str(kind), reading.namespace, str(_at(target, "name")))

    _triggers(reading, template, _at(target, "envSourceContainerName"))


def _scaled_job(reading: _Reading) -> None:
    spec = _at(reading.item, "spec")
    _triggers(reading, lambda: _at(spec, "jobTargetRef", "template"), _at(spec, "envSourceContainerName"))


def _triggers(reading: _Reading, template: Callable[[], Any], container: Any) -> None:
    """Groups of KEDA's Kafka triggers.

    Of a trigger with two names, older versions of KEDA take the variable's (parseKafkaMetadata), later ones
    `consumerGroup`, without the spaces around it (ScalerConfig.configParamValue): all count.
    """
    for trigger in _list(_at(reading.item, "spec", "triggers")):
        if _at(trigger, "type") not in _KAFKA_TRIGGERS:
            continue
        named = [group for key in ("consumerGroup", "group") if (group := _at(trigger, "metadata", key))]
        variable = _at(trigger, "metadata", "consumerGroupFromEnv")
        if variable:
            reading.budget.take()
            reading.budget.check_time()
            try:
                named.append(
                    reading.reader.variable(template(), str(container or ""), str(variable), reading.namespace)
                )
            except _Unknown as problem:
                raise _Unknown(
                    f"{reading.owner} names its group by environment variable {variable}, and its target {problem}"
                ) from None
        reading.name(*named, *(group.strip() for group in named if isinstance(group, str)))


def _connector(reading: _Reading) -> None:
    override = _at(reading.item, "spec", "config", "consumer.override.group.id")
    reading.name(override or f"connect-{reading.item['metadata']['name']}")


def _knative_source(reading: _Reading) -> None:
    reading.name(_at(reading.item, "spec", "consumerGroup"))


def _knative_consumer_group(reading: _Reading) -> None:
    """Triggers, channels and sources of Knative end up in one. Go writes the inlined map under its field's name."""
    configs = _at(reading.item, "spec", "template", "spec", "configs")
    reading.name(_at(configs, "Configs", "group.id"), _at(configs, "group.id"))


def _shadow_link(reading: _Reading) -> None:
    """Groups that are synced into the shadow cluster. Exclusions are not applied: Redpanda decides about those."""
    options = _at(reading.item, "spec", "consumerOffsetSyncOptions")
    if options is None:
        return
    filters = [one for one in _list(_at(options, "groupFilters")) if _at(one, "filterType") == "include"]
    for each in filters or [{}]:
        name = _at(each, "name") or "*"
        if _at(each, "patternType") == "prefixed":
            reading.found.prefixes[str(name)] = reading.owner
        elif name == "*":
            reading.found.prefixes[""] = reading.owner
        else:
            reading.found.synced[str(name)] = reading.owner


def _at(obj: Any, *path: str) -> Any:
    """What is at a path of an object; None where there is nothing, or it has another shape."""
    for key in path:
        obj = obj.get(key) if isinstance(obj, Mapping) else None
    return obj


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _content(response: Any, limit: int) -> Any:
    """The JSON of an answer, of which no more than so many bytes are read; None = it is larger."""
    with response:
        data = response.read(limit + 1, decode_content=True)
    try:
        return None if len(data) > limit else json.loads(data)
    except ValueError as error:
        raise ApiError("an answer of the API server is no JSON") from error


_RAW = {"_preload_content": False, "_request_timeout": TIMEOUT_S}
_WORKLOADS: Mapping[Kind, Callable[[kubernetes.client.AppsV1Api, str, str], Any]] = {
    ("apps", "Deployment"): lambda apps, name, namespace: apps.read_namespaced_deployment(name, namespace, **_RAW),
    ("apps", "StatefulSet"): lambda apps, name, namespace: apps.read_namespaced_stateful_set(name, namespace, **_RAW),
}

_KINDS: Mapping[Kind, Callable[[_Reading], None]] = {
    (KEDA, "scaledobjects"): _scaled_object,
    (KEDA, "scaledjobs"): _scaled_job,
    ("kafka.strimzi.io", "kafkaconnectors"): _connector,
    ("sources.knative.dev", "kafkasources"): _knative_source,
    ("internal.kafka.eventing.knative.dev", "consumergroups"): _knative_consumer_group,
    ("cluster.redpanda.com", "shadowlinks"): _shadow_link,
}
KINDS = tuple(_KINDS)
