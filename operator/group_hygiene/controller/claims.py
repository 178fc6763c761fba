"""Finds the consumer groups that custom resources of other products name. Reads only.

The objects belong to other teams: the bytes of a page, the number of objects and the time are limited. Only fields that
are needed are decoded. If objects can't be read completely, or the name of a group can't be resolved, they may name any
group.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import kubernetes.client
import msgspec
from msgspec import UNSET, Raw, UnsetType

from group_hygiene.controller.requests import PAGE, TIMEOUT_S, ListPage, ask, call, content
from group_hygiene.errors import ApiError, Forbidden, NotFound
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Claims
from group_hygiene.model.groups import ID_MAX
from group_hygiene.model.reasons import Refusal
from group_hygiene.process import memory

T = TypeVar("T")
Kind = tuple[str, str]
# The JSON at a path of an object; None = missing or null.
Json = Raw | None

KEDA = "keda.sh"
_KAFKA_TRIGGERS = frozenset({"kafka", "apache-kafka"})
_OVERRIDE = "consumer.override.group.id"


class ClaimLimits(NamedTuple):
    """page_bytes: of one response of the API server; etcd limits an object to 1.5 MB by default.

    objects: the listed objects and those that they refer to. elements: of one list in an object. named_bytes: memory
    for the groups that objects name and for the objects' names. prefixes: of groups, in all ShadowLinks, as each group
    is compared with each prefix. references: workloads and ConfigMaps to which the objects of one namespace refer.
    """

    page: int = PAGE.objects
    page_bytes: int = PAGE.bytes
    objects: int = 20_000
    elements: int = 50_000
    named_bytes: int = 32_000_000
    prefixes: int = 1_000
    references: int = 2_000
    seconds: float = 60.0


_LIMITS = ClaimLimits()
# Memory to read a page, as a multiple of its bytes.
_PAGE_COPIES = 4
# Memory of a dictionary entry in addition to its texts.
_ENTRY_BYTES = 300
_CONFIG_MAP_KEY = re.compile(r"[-._a-zA-Z0-9]+")


class _Metadata(msgspec.Struct):
    name: str
    namespace: str = ""


class _Item(msgspec.Struct):
    kind: str
    metadata: _Metadata
    spec: Raw = Raw(b"null")

    @property
    def owner(self) -> str:
        return f"{self.kind} {self.metadata.namespace}/{self.metadata.name}"


class _Unknown(Exception):
    """An object names a group, but its name is unknown."""


class _LongList(Exception):
    """A list in an object has too many elements."""


class _LastRead(NamedTuple):
    began: float
    claims: Claims | Refusal


class ClaimReader:
    """Reads all claims of a Kubernetes cluster. Thread-safe: one thread reads for all threads that wait."""

    def __init__(self, client: kubernetes.client.ApiClient, limits: ClaimLimits = _LIMITS) -> None:
        self._client, self._limits = client, limits
        self._custom = kubernetes.client.CustomObjectsApi(client)
        self._apis = kubernetes.client.ApisApi(client)
        self._reading = threading.Lock()
        self._last = _LastRead(-math.inf, Claims())

    def read(self, age: float = 0.0) -> Claims | Refusal:
        """All groups that objects name; a Refusal = some may be missing, for the reason in it.

        No result is older than the call, or this many seconds before it: callers share a read that began while they
        waited for an earlier one.
        """
        asked = time.monotonic() - age
        if self._last.began >= asked:
            return self._last.claims
        # Wait for the read that is in progress, and for one that serves all waiting threads.
        if not self._reading.acquire(timeout=2 * max(self._limits.seconds, TIMEOUT_S)):
            return Refusal(reasons.CLAIMED, "earlier reads of objects that may name groups take too long")
        try:
            if self._last.began < asked:
                began = time.monotonic()
                self._last = _LastRead(began, self._read())
            return self._last.claims
        finally:
            self._reading.release()

    def _read(self) -> Claims | Refusal:
        reading = _ClaimReading(self._client, self._limits)
        try:
            for (group, plural), version in self.kinds().items():
                for item in reading.objects(group, version, plural):
                    try:
                        _KINDS[group, plural](reading, item)
                    except _LongList:
                        most = self._limits.elements
                        raise _Unknown(f"{item.owner}, or its target, has a list of over {most} elements") from None
        except (memory.TooMuch, _Unknown) as problem:
            return Refusal(reasons.CLAIMED, str(problem))
        except ApiError as error:
            return Refusal.of(error)
        if len(reading.prefixes) > self._limits.prefixes:
            return Refusal(reasons.CLAIMED, f"ShadowLinks name more than {self._limits.prefixes} prefixes of groups")
        return Claims(reading.named, reading.synced, reading.prefixes)

    def kinds(self) -> dict[Kind, str]:
        """(API group, plural) -> a served version, of the installed custom resources that may name groups.

        The preferred version of an API group need not serve each resource: another resource may be at a newer version.
        """
        served: dict[Kind, str] = {}
        for group in ask(self._apis.get_api_versions).groups:
            missing = {kind for kind in _KINDS if kind[0] == group.name}
            if not missing:
                continue
            preferred = group.preferred_version.version
            others = [entry.version for entry in group.versions if entry.version != preferred]
            for version in (preferred, *others):
                if not missing:
                    break
                names = {each.name for each in ask(self._custom.get_api_resources, group.name, version).resources}
                found = {kind for kind in missing if kind[1] in names}
                served |= dict.fromkeys(sorted(found), version)
                missing -= found
        return served


class _ClaimReading:
    """One read of all objects, within the limits. named, synced, prefixes: a name -> the object that names it."""

    def __init__(self, client: kubernetes.client.ApiClient, limits: ClaimLimits) -> None:
        self._custom = kubernetes.client.CustomObjectsApi(client)
        self._apps = kubernetes.client.AppsV1Api(client)
        self._core = kubernetes.client.CoreV1Api(client)
        self._limits = limits
        self._objects_left, self._bytes_left = limits.objects, limits.named_bytes
        self._until = time.monotonic() + limits.seconds
        # By namespace: the workloads and ConfigMaps that its objects refer to; and the last answer about each kind.
        self._references = Tally[str]()
        self._last: dict[str, tuple[tuple[str, str, str], bytes | None]] = {}
        self.named: dict[str, str] = {}
        self.synced: dict[str, str] = {}
        self.prefixes: dict[str, str] = {}

    def objects(self, group: str, version: str, plural: str) -> Iterator[_Item]:
        list_kind = partial(self._custom.list_cluster_custom_object, group, version, plural)
        where, following, page = f"{plural}.{group}", "", self._limits.page
        while True:
            more = {"_continue": following} if following else {}
            self.check_time()
            try:
                body = self._ask(list_kind, limit=page, **more)
                listed = None if body is None else _decoded(body, _PAGE)
            except Forbidden:
                raise _Unknown(f"no permission to list {where} in all namespaces") from None
            except RecursionError:
                raise _Unknown(f"one of {where} is nested too deeply") from None
            if listed is None:
                # A few large objects may share a page with many small ones.
                if page == 1:
                    raise _Unknown(f"one of {where} takes more than {self._limits.page_bytes} bytes")
                page = max(1, page // 10)
                continue
            for item in listed.items:
                self.take()
                yield item
            following = listed.metadata.following
            if not following:
                return

    def add(self, names: dict[str, str], item: _Item, *groups: str) -> None:
        """Add to `named`, `synced` or `prefixes`. Skip ids that are too long: such groups are never deleted."""
        for name in groups:
            if len(name) > ID_MAX:
                continue
            if name not in names:
                # Up to four bytes a character.
                self._bytes_left -= _ENTRY_BYTES + 4 * len(name) + len(item.owner)
            if self._bytes_left < 0:
                raise _Unknown("objects name more groups than the operator can hold")
            names[name] = item.owner

    def elements(self, value: Json) -> list[Raw]:
        """The elements of a list; empty for any other value. Raises _LongList."""
        if value is None:
            return []
        # A list has at most one element more than commas.
        if bytes(value).count(b",") >= self._limits.elements:
            raise _LongList
        try:
            return _LIST.decode(value)
        except msgspec.ValidationError:
            return []

    def variable(self, pod: Json, container: str, name: str, namespace: str) -> str:
        """The value of an environment variable of a pod template. Raises _Unknown if it can't be resolved."""
        every = self.elements(_at(pod, "spec", "containers"))
        containers = [each for each in every if not container or _text(each, "name") == container]
        if not containers:
            raise _Unknown(f"has no container {container}".rstrip())
        # If several have the same name, Kubernetes takes the last.
        entries = [each for each in self.elements(_at(containers[0], "env")) if _text(each, "name") == name]
        entry = entries[-1] if entries else None
        value, key = _text(entry, "value"), _at(entry, "valueFrom", "configMapKeyRef")
        if key is not None:
            value = self._config_map(namespace, _text(key, "name"), _text(key, "key"))
        if not value:
            raise _Unknown("does not set it, or sets it from another source, such as a Secret or envFrom")
        # A reference to another variable, or `$$`, which escapes `$`.
        if ("$(" in value or "$$" in value) and key is None:
            raise _Unknown("sets it with references to other variables")
        return value

    def _config_map(self, namespace: str, name: str, key: str) -> str:
        """The text under a key of a ConfigMap; empty if there is none."""
        if not name:
            raise _Unknown("refers to a ConfigMap without a name")
        try:
            body = self._once("ConfigMap", namespace, name, self._core.read_namespaced_config_map)
        except NotFound:
            raise _Unknown(f"refers to ConfigMap {name}, which does not exist") from None
        except Forbidden:
            raise _Unknown(f"refers to ConfigMap {name}: no permission to get configmaps in that namespace") from None
        if body is None:
            raise _Unknown(f"refers to ConfigMap {name}, which takes more than {self._limits.page_bytes} bytes")
        return _text(_decoded(body, _OBJECT), "data", key) if _CONFIG_MAP_KEY.fullmatch(key) else ""

    def template(self, api_version: str, kind: str, namespace: str, name: str) -> Json:
        """The pod template of a workload. Raises _Unknown."""
        workloads = {
            "Deployment": self._apps.read_namespaced_deployment,
            "StatefulSet": self._apps.read_namespaced_stateful_set,
        }
        if api_version.partition("/")[0] != "apps" or kind not in workloads or not name:
            raise _Unknown(
                f"{api_version} {kind} {name} can't be read: only Deployments and StatefulSets of apps/v1 can"
            )
        try:
            body = self._once(kind, namespace, name, workloads[kind])
        except NotFound:
            raise _Unknown(f"{kind} {name} does not exist") from None
        except Forbidden:
            raise _Unknown(f"can't be read: no permission to get {kind.lower()}s.apps in all namespaces") from None
        if body is None:
            raise _Unknown(f"{kind} {name} takes more than {self._limits.page_bytes} bytes")
        return _at(_decoded(body, _OBJECT), "spec", "template")

    def take(self) -> None:
        self._objects_left -= 1
        if self._objects_left < 0:
            raise _Unknown(f"there are more than {self._limits.objects} objects that may name groups")

    def check_time(self) -> None:
        if time.monotonic() > self._until:
            raise _Unknown(f"objects that may name groups could not be read in {self._limits.seconds:.0f} s")

    def _once(self, kind: str, namespace: str, name: str, method: Callable[..., Any]) -> bytes | None:
        """The answer about a workload or ConfigMap. The last one of each kind is remembered."""
        if self._last.get(kind, (None,))[0] != (of := (kind, namespace, name)):
            self._references[namespace] += 1
            if self._references[namespace] > self._limits.references:
                raise _Unknown(f"is one of more than {self._limits.references} that objects of the namespace refer to")
            self._last[kind] = of, self._ask(method, name, namespace)
        return self._last[kind][1]

    def _ask(self, method: Callable[..., Any], *arguments: str, **options: Any) -> bytes | None:
        """The bytes of a response; None = it is larger than the limit. Raises ApiError and memory.TooMuch."""
        memory.require(_PAGE_COPIES * self._limits.page_bytes, "a page of objects that may name groups")
        request = partial(method, *arguments, _preload_content=False, _request_timeout=TIMEOUT_S, **options)
        return call(lambda: content(request(), self._limits.page_bytes))


def _group(item: _Item, obj: Json, *path: str) -> str:
    """The group's name at a path of an object; empty if there is none. A number is returned as text.

    Raises _Unknown for any other value, as its own controller may convert it in any way.
    """
    value = _at(obj, *path)
    try:
        return "" if value is None else str(_TEXT_OR_NUMBER.decode(value))
    except msgspec.ValidationError:
        raise _Unknown(f"{item.owner} names its group in {path[-1]}, which is not text") from None


def _scaled_object(reading: _ClaimReading, item: _Item) -> None:
    target = _at(item.spec, "scaleTargetRef")

    def template() -> Json:
        api_version, kind = _text(target, "apiVersion") or "apps/v1", _text(target, "kind") or "Deployment"
        return reading.template(api_version, kind, item.metadata.namespace, _text(target, "name"))

    _triggers(reading, item, template, _text(target, "envSourceContainerName"))


def _scaled_job(reading: _ClaimReading, item: _Item) -> None:
    container = _text(item.spec, "envSourceContainerName")
    _triggers(reading, item, lambda: _at(item.spec, "jobTargetRef", "template"), container)


def _triggers(reading: _ClaimReading, item: _Item, template: Callable[[], Json], container: str) -> None:
    """Groups of KEDA's Kafka triggers.

    If a trigger has both names, older versions of KEDA take the variable (parseKafkaMetadata), and later ones take
    `consumerGroup` without the spaces around it (ScalerConfig.configParamValue): all of them count.
    """
    for trigger in reading.elements(_at(item.spec, "triggers")):
        if _text(trigger, "type") not in _KAFKA_TRIGGERS:
            continue
        named = [_group(item, trigger, "metadata", key) for key in ("consumerGroup", "group")]
        variable = _text(trigger, "metadata", "consumerGroupFromEnv")
        if variable:
            reading.take()
            reading.check_time()
            try:
                named.append(reading.variable(template(), container, variable, item.metadata.namespace))
            except _Unknown as problem:
                raise _Unknown(
                    f"{item.owner} names its group by environment variable {variable}, and its target {problem}"
                ) from None
        reading.add(reading.named, item, *filter(None, (*named, *map(str.strip, named))))


def _connector(reading: _ClaimReading, item: _Item) -> None:
    """The group of a sink connector. Kafka Connect's config providers resolve `${...}` (ConfigTransformer)."""
    override = _group(item, item.spec, "config", _OVERRIDE)
    if "${" in override:
        raise _Unknown(
            f"{item.owner} names its group by a variable in {_OVERRIDE}, which only Kafka Connect can resolve"
        )
    reading.add(reading.named, item, override or f"connect-{item.metadata.name}")


def _knative_source(reading: _ClaimReading, item: _Item) -> None:
    reading.add(reading.named, item, *filter(None, [_group(item, item.spec, "consumerGroup")]))


def _knative_consumer_group(reading: _ClaimReading, item: _Item) -> None:
    """Knative creates one for each trigger, channel and source. Go writes the inlined map under its field's name."""
    configs = _at(item.spec, "template", "spec", "configs")
    found = (_group(item, configs, "Configs", "group.id"), _group(item, configs, "group.id"))
    reading.add(reading.named, item, *filter(None, found))


def _shadow_link(reading: _ClaimReading, item: _Item) -> None:
    """Groups that are synced into the shadow cluster. Exclusions are not applied: only Redpanda applies them."""
    options = _at(item.spec, "consumerOffsetSyncOptions")
    if options is None:
        return
    every = reading.elements(_at(options, "groupFilters"))
    included: list[Json] = [one for one in every if _text(one, "filterType") == "include"]
    for each in included or [None]:
        name = _text(each, "name") or "*"
        if _text(each, "patternType") == "prefixed":
            reading.add(reading.prefixes, item, name)
        elif name == "*":
            reading.add(reading.prefixes, item, "")
        else:
            reading.add(reading.synced, item, name)


# Created at import, as msgspec crashes if two threads read a type's annotations at once.
_PAGE, _OBJECT = msgspec.json.Decoder(ListPage[_Item]), msgspec.json.Decoder(Raw)
_LIST, _TEXT = msgspec.json.Decoder(list[Raw]), msgspec.json.Decoder(str)
_TEXT_OR_NUMBER = msgspec.json.Decoder(str | int)


@lru_cache(maxsize=256)
def _field(key: str) -> msgspec.json.Decoder[Any]:
    """A decoder that returns one field of an object and skips the others."""
    fields = [("value", Raw | UnsetType, UNSET)]
    return msgspec.json.Decoder(msgspec.defstruct("Field", fields, rename={"value": key}))


def _at(obj: Json, *path: str) -> Json:
    """The value at a path of an object; None = missing or null, or the object has another shape."""
    for key in path:
        if obj is None:
            return None
        try:
            value = _field(key).decode(obj).value
        except msgspec.ValidationError:
            return None
        obj = None if value is UNSET or _is_null(value) else value
    return obj


def _is_null(value: Raw) -> bool:
    view = memoryview(value)
    return len(view) == 4 and bytes(view) == b"null"


def _text(obj: Json, *path: str) -> str:
    """The text at a path of an object; empty if there is none. Some CRDs accept fields of any shape."""
    value = _at(obj, *path)
    try:
        return "" if value is None else _TEXT.decode(value)
    except msgspec.ValidationError:
        return ""


def _decoded(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ApiError("a response of the API server can't be decoded") from error


_KINDS: Mapping[Kind, Callable[[_ClaimReading, _Item], None]] = {
    (KEDA, "scaledobjects"): _scaled_object,
    (KEDA, "scaledjobs"): _scaled_job,
    ("kafka.strimzi.io", "kafkaconnectors"): _connector,
    ("sources.knative.dev", "kafkasources"): _knative_source,
    ("internal.kafka.eventing.knative.dev", "consumergroups"): _knative_consumer_group,
    ("cluster.redpanda.com", "shadowlinks"): _shadow_link,
}
KINDS = tuple(_KINDS)
