"""What objects of KEDA, Strimzi, Knative and Redpanda name, read from a real API server with their CRDs installed."""

from __future__ import annotations

import json
import sys
import threading
import traceback
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import new_client_from_config

from group_hygiene.controller.api import Api
from group_hygiene.controller.claims import KINDS, ClaimLimits, ClaimReader, _ClaimReading
from group_hygiene.model.evidence import Claims
from group_hygiene.model.reasons import Refusal
from testing.faults.kube import Kube
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import OVERLAYS
from testing.sandbox.waiting import wait_for
from tests.kube.access import wait_until_allowed
from tests.kube.claiming import KINDS as CRDS
from tests.kube.claiming import claiming, install_kinds, pod, workload

NAMESPACE = "payments"
# For a machine that is busy; nothing here takes that long.
_SECONDS = 60
# Deeper than Python's own parser goes.
DEEP = '{"a":' * 3000 + "{}" + "}" * 3000


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """An API server of its own, with the CRDs of others, and the operator's roles."""
    with ApiServer() as server:
        for namespace in (NAMESPACE, "group-hygiene"):
            server.kubectl("create", "namespace", namespace)
        install_kinds(server)
        roles = OVERLAYS.parent / "base" / "rbac-claims.yaml"
        server.kubectl("create", "serviceaccount", "group-hygiene", "-n", "group-hygiene")
        server.kubectl("apply", "-f", str(roles))
        yield server


@pytest.fixture(scope="module")
def as_operator(server: ApiServer) -> str:
    """A kubeconfig of the operator's account, which has no other rights than those to see claims."""
    path = server.kubeconfig_for_service_account("group-hygiene", "group-hygiene")
    wait_until_allowed(server, f"--kubeconfig={path}", "get", "statefulsets.apps", "-A")
    return str(path)


@contextmanager
def objects(server: ApiServer, *items: dict[str, Any]) -> Iterator[None]:
    """These objects, for a while. Without kubectl, since there are many tests."""
    kube, made = Kube(server), []
    try:
        for item in items:
            path = _path(item)
            kube.call("POST", path, item)
            made.append(f"{path}/{item['metadata']['name']}")
        yield
    finally:
        for path in made:
            kube.call("DELETE", path)


def _path(item: dict[str, Any]) -> str:
    """Of all objects of its kind in its namespace."""
    version, kind = item["apiVersion"], item["kind"]
    plural = CRDS[kind][0] if kind in CRDS else f"{kind.lower()}s"
    return f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{item['metadata']['namespace']}/{plural}"


def claims(kubeconfig: str) -> Claims | Refusal:
    with new_client_from_config(kubeconfig) as client:
        return Api(client).claimed_groups()


def owner(kubeconfig: str, group: str) -> str | None:
    found = claims(kubeconfig)
    assert not isinstance(found, Refusal), found
    return found.owner(group)


def problem(kubeconfig: str) -> str:
    found = claims(kubeconfig)
    assert isinstance(found, Refusal), found
    return found.message


def kafka_trigger(**metadata: str) -> dict[str, Any]:
    return {"triggers": [{"type": "kafka", "metadata": {"topic": "orders", **metadata}}]}


FROM_ENV = kafka_trigger(consumerGroupFromEnv="GROUP")


def container(name: str = "main", **entry: Any) -> dict[str, Any]:
    return {"name": name, "env": [{"name": "GROUP", **entry}]} if entry else {"name": name}


def include(**fields: str) -> dict[str, Any]:
    return {"consumerOffsetSyncOptions": {"groupFilters": [{"filterType": "include", **fields}]}}


@pytest.mark.parametrize(
    ("item", "group"),
    [
        pytest.param(claiming("ScaledObject", "x", kafka_trigger(consumerGroup="orders")), "orders", id="ScaledObject"),
        pytest.param(
            claiming("ScaledObject", "x", kafka_trigger(consumerGroup=" orders ")), "orders", id="ScaledObject-spaces"
        ),
        pytest.param(
            claiming("ScaledJob", "x", {"jobTargetRef": {}} | kafka_trigger(consumerGroup="nightly")),
            "nightly",
            id="ScaledJob",
        ),
        pytest.param(
            claiming("ScaledJob", "x", {"jobTargetRef": {"template": pod(container(value="nightly"))}} | FROM_ENV),
            "nightly",
            id="ScaledJob-by-a-variable-of-its-pods",
        ),
        # The API group prefers v1, and this kind is not served there.
        pytest.param(claiming("KafkaConnector", "sink", {"config": {}}), "connect-sink", id="KafkaConnector"),
        pytest.param(
            claiming("KafkaConnector", "sink", {"config": {"consumer.override.group.id": "orders"}}),
            "orders",
            id="KafkaConnector-override",
        ),
        # YAML takes it for a number, and Strimzi hands its text on (OrderedProperties).
        pytest.param(
            claiming("KafkaConnector", "sink", {"config": {"consumer.override.group.id": 12345}}),
            "12345",
            id="KafkaConnector-number",
        ),
        pytest.param(claiming("KafkaSource", "x", {"consumerGroup": "events"}), "events", id="KafkaSource"),
        pytest.param(
            claiming("ConsumerGroup", "x", {"template": {"spec": {"configs": {"Configs": {"group.id": "trigger"}}}}}),
            "trigger",
            id="ConsumerGroup",
        ),
        pytest.param(
            claiming("ConsumerGroup", "x", {"template": {"spec": {"configs": {"Configs": {"group.id": 12345}}}}}),
            "12345",
            id="ConsumerGroup-number",
        ),
        pytest.param(claiming("ShadowLink", "x", include(name="orders")), "orders", id="ShadowLink"),
        pytest.param(
            claiming("ShadowLink", "x", include(name="pay-", patternType="prefixed")), "pay-1", id="ShadowLink-prefix"
        ),
        pytest.param(claiming("ShadowLink", "x", include(name="*")), "anything", id="ShadowLink-all"),
        pytest.param(
            claiming("ShadowLink", "x", {"consumerOffsetSyncOptions": {"paused": True}}),
            "anything",
            id="ShadowLink-without-filters",
        ),
    ],
)
def test_each_kind_names_its_groups(server: ApiServer, as_operator: str, item: dict[str, Any], group: str) -> None:
    """With the shipped role, and in whichever version the kind is served; another group is nobody's."""
    with objects(server, item):
        named = f"{item['kind']} {NAMESPACE}/{item['metadata']['name']}"
        assert owner(as_operator, group) == named
        if group != "anything":
            assert owner(as_operator, "nobody") is None
    assert owner(as_operator, group) is None


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(workload("Deployment", "worker", container(value="orders")), id="Deployment"),
        pytest.param(workload("StatefulSet", "worker", container(value="orders")), id="StatefulSet"),
        pytest.param(
            workload("Deployment", "worker", container("sidecar"), container("consumer", value="orders")),
            id="second-container",
        ),
    ],
)
def test_a_group_that_a_variable_of_the_target_names(
    server: ApiServer, as_operator: str, target: dict[str, Any]
) -> None:
    """As KEDA reads it: from the container that is named, or else the first."""
    names = [one["name"] for one in target["spec"]["template"]["spec"]["containers"]]
    reference = {"name": "worker", "kind": target["kind"], "apiVersion": "apps/v1"}
    if len(names) > 1:
        reference["envSourceContainerName"] = "consumer"
    scaled = claiming("ScaledObject", "worker", {"scaleTargetRef": reference} | FROM_ENV)
    with objects(server, target, scaled):
        assert owner(as_operator, "orders") == f"ScaledObject {NAMESPACE}/worker"


def test_a_trigger_with_two_names_claims_both(server: ApiServer, as_operator: str) -> None:
    """Which of them KEDA takes depends on its version; and where one can't be followed, the other is not enough."""
    both = kafka_trigger(consumerGroup="payments", consumerGroupFromEnv="GROUP")
    scaled = claiming("ScaledObject", "worker", {"scaleTargetRef": {"name": "worker"}} | both)
    with objects(server, workload("Deployment", "worker", container(value="orders")), scaled):
        for group in ("payments", "orders"):
            assert owner(as_operator, group) == f"ScaledObject {NAMESPACE}/worker"
        assert owner(as_operator, "nobody") is None
    with objects(server, workload("Deployment", "worker", container()), scaled):
        assert "names its group by environment variable GROUP" in problem(as_operator)


def test_what_many_triggers_refer_to_is_read_once(server: ApiServer, as_operator: str) -> None:
    """One object of a team must not delay all scans of all connections; and what is too much may be any group."""
    triggers = {"triggers": FROM_ENV["triggers"] * 3_000}
    scaled = [
        claiming("ScaledObject", f"worker-{index}", {"scaleTargetRef": {"name": f"worker-{index}"}} | triggers)
        for index in range(2)
    ]
    targets = [workload("Deployment", f"worker-{index}", container(value="orders")) for index in range(2)]
    with objects(server, *targets, *scaled), new_client_from_config(as_operator) as client:
        asked, reader, ask = list[Any](), ClaimReader(client), _ClaimReading._ask

        def counted(self: _ClaimReading, method: Any, *arguments: str, **options: Any) -> bytes | None:
            asked.append(method)
            return ask(self, method, *arguments, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_ClaimReading, "_ask", counted)
            found = reader.read()
        assert isinstance(found, Claims)
        assert found.owner("orders") is not None
        # A list of each kind, and the two workloads.
        assert len(asked) <= len(KINDS) + 2
        assert reader.read(age=600) is found
        assert reader.read() is not found
        few = ClaimReader(client, ClaimLimits(references=1)).read()
        assert isinstance(few, Refusal)
        assert "one of more than 1 that objects of the namespace refer to" in few.message


def test_a_group_that_a_config_map_names(server: ApiServer, as_operator: str) -> None:
    """By default the operator reads none: then any group may be meant. Who lets it, has that group kept alone."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": NAMESPACE},
        "data": {"group": "orders"},
    }
    reference = {"configMapKeyRef": {"name": "settings", "key": "group"}}
    scaled = claiming("ScaledObject", "worker", {"scaleTargetRef": {"name": "worker"}} | FROM_ENV)
    with objects(server, config, workload("Deployment", "worker", container(valueFrom=reference)), scaled):
        assert problem(as_operator) == (
            f"ScaledObject {NAMESPACE}/worker names its group by environment variable GROUP, and its target refers to "
            "ConfigMap settings: no permission to get configmaps in that namespace"
        )
        assert owner(str(server.kubeconfig), "orders") == f"ScaledObject {NAMESPACE}/worker"


SECRET = {"secretKeyRef": {"name": "settings", "key": "group"}}


@pytest.mark.parametrize(
    ("target", "reference", "why"),
    [
        pytest.param(container(valueFrom=SECRET), {}, "as a Secret", id="secret"),
        pytest.param(
            container(valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}), {}, "another source", id="field"
        ),
        pytest.param(container(), {}, "another source", id="not-there"),
        pytest.param(container(value="$(PREFIX)-orders"), {}, "references to other variables", id="made-of-others"),
        pytest.param(container(value="a$$b"), {}, "references to other variables", id="escaped"),
        pytest.param(container(value="a"), {"envSourceContainerName": "b"}, "no container b", id="no-such-container"),
        pytest.param(container(value="a"), {"name": "absent"}, "absent does not exist", id="no-such-target"),
        pytest.param(
            container(value="a"),
            {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"},
            "argoproj.io/v1alpha1 Rollout worker can't be read: only Deployments and StatefulSets of apps/v1 can",
            id="another-kind",
        ),
    ],
)
def test_a_variable_that_cannot_be_followed_may_mean_any_group(
    server: ApiServer, as_operator: str, target: dict[str, Any], reference: dict[str, str], why: str
) -> None:
    """Whoever mends it learns which object it is."""
    scaled = claiming("ScaledObject", "worker", {"scaleTargetRef": {"name": "worker"} | reference} | FROM_ENV)
    with objects(server, workload("Deployment", "worker", target), scaled):
        said = problem(as_operator)
    assert said.startswith(f"ScaledObject {NAMESPACE}/worker names its group by environment variable GROUP")
    assert why in said


def connector(group: Any) -> dict[str, Any]:
    return claiming("KafkaConnector", "sink", {"config": {"consumer.override.group.id": group}})


def knative(group: Any) -> dict[str, Any]:
    return claiming("ConsumerGroup", "odd", {"template": {"spec": {"configs": {"Configs": {"group.id": group}}}}})


BY_VARIABLE = (
    f"KafkaConnector {NAMESPACE}/sink names its group by a variable in consumer.override.group.id, which only Kafka "
    "Connect can resolve"
)
NO_TEXT = f"KafkaConnector {NAMESPACE}/sink names its group in consumer.override.group.id, which is not text"


@pytest.mark.parametrize(
    ("item", "why"),
    [
        pytest.param(connector("${env:GROUP}"), BY_VARIABLE, id="variable"),
        pytest.param(connector("sink-${secrets:payments/sink:group}"), BY_VARIABLE, id="variable-inside"),
        pytest.param(connector(1.5), NO_TEXT, id="fraction"),
        pytest.param(connector(True), NO_TEXT, id="boolean"),
        pytest.param(connector(["a"]), NO_TEXT, id="list"),
        pytest.param(
            knative({"a": 1}),
            f"ConsumerGroup {NAMESPACE}/odd names its group in group.id, which is not text",
            id="Knative-object",
        ),
    ],
)
def test_a_name_that_only_its_controller_can_read_may_mean_any_group(
    server: ApiServer, as_operator: str, item: dict[str, Any], why: str
) -> None:
    """Kafka Connect's config providers put the name in, or the field holds no text."""
    with objects(server, item):
        assert problem(as_operator) == why


def test_a_kind_that_may_not_be_listed(server: ApiServer) -> None:
    """It is named, with the right that is missing."""
    server.kubectl("create", "serviceaccount", "nobody", "-n", NAMESPACE)
    unprivileged = server.kubeconfig_for_service_account(NAMESPACE, "nobody")
    with new_client_from_config(str(unprivileged)) as client:
        kinds = ClaimReader(client).kinds()
    assert kinds.keys() == set(KINDS)
    assert (kinds["kafka.strimzi.io", "kafkaconnectors"], kinds["sources.knative.dev", "kafkasources"]) == (
        "v1beta2",
        "v1",
    )
    assert problem(str(unprivileged)).startswith("no permission to list ")


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("text", id="text"),
        pytest.param({"template": []}, id="list"),
        pytest.param({"template": {"spec": {"configs": {"Configs": ["group.id"]}}}}, id="list-for-a-map"),
    ],
)
def test_objects_of_any_shape(server: ApiServer, as_operator: str, spec: Any) -> None:
    """A kind that keeps unknown fields may hold anything: it names no group, and hides those of others."""
    scaled = claiming("ScaledObject", "x", kafka_trigger(consumerGroup="orders"))
    with objects(server, claiming("ConsumerGroup", "odd", spec), scaled):
        assert owner(as_operator, "orders") == f"ScaledObject {NAMESPACE}/x"


def test_an_object_that_is_nested_too_deeply_may_name_any_group(server: ApiServer, as_operator: str) -> None:
    """It fails as itself, and nothing else of a run does."""
    text = json.dumps(claiming("ConsumerGroup", "deep", "DEEP")).replace('"DEEP"', DEEP)
    server.kubectl("create", "-f", "-", input=text)
    try:
        assert problem(as_operator) == "one of consumergroups.internal.kafka.eventing.knative.dev is nested too deeply"
    finally:
        server.kubectl("delete", "--wait=false", "-f", "-", input=text)


def test_objects_are_bounded(server: ApiServer, as_operator: str) -> None:
    """In bytes, number and time: what is beyond that may name any group; a page that is too large is read in parts."""
    large = {"template": {"spec": {"configs": {"Configs": {"group.id": "large", "client.id": "x" * 400_000}}}}}
    items = [claiming("ConsumerGroup", f"large-{index}", large) for index in range(3)]
    items += [claiming("ShadowLink", "x", {"consumerOffsetSyncOptions": {"groupFilters": []}})]
    with objects(server, *items), new_client_from_config(as_operator) as client:

        def read(**limits: Any) -> Claims | Refusal:
            return ClaimReader(client, ClaimLimits(**limits)).read()

        whole = read()
        assert isinstance(whole, Claims)
        assert whole.named == {"large": f"ConsumerGroup {NAMESPACE}/large-2"}
        assert read(page_bytes=600_000) == whole
        for limits, why in (
            ({"page_bytes": 300_000}, "one of consumergroups.internal.kafka.eventing.knative.dev takes more than"),
            ({"elements": 0}, f"ShadowLink {NAMESPACE}/x, or its target, has a list of over 0 elements"),
            ({"named_bytes": 0}, "more groups than the operator can hold"),
            ({"objects": 3}, "there are more than 3 objects"),
            ({"prefixes": 0}, "more than 0 prefixes"),
            ({"seconds": 0.0}, "could not be read in 0 s"),
        ):
            found = read(**limits)
            assert isinstance(found, Refusal)
            assert why in found.message


def test_an_api_server_that_does_not_answer() -> None:
    """Any group may be claimed, and no caller has to expect an error: after a deletion, it would lose the outcomes."""
    with ApiClient(Configuration(host="http://127.0.0.1:1")) as client:
        found = ClaimReader(client).read()
    assert isinstance(found, Refusal)
    assert found.reason == "ApiServerError"


def test_fields_that_are_not_needed_take_no_memory(server: ApiServer, as_operator: str) -> None:
    """A kind keeps unknown fields, and each `{}` of them would become an object of 64 bytes."""
    names = ("small", "smaller")
    many: dict[str, Any] = {"config": {"x": [{}] * 200_000}}
    large = [claiming("KafkaConnector", name, many) for name in names]
    with objects(server, *large), new_client_from_config(as_operator) as client:
        reader = ClaimReader(client)
        tracemalloc.start()
        try:
            found = reader.read()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert isinstance(found, Claims)
    assert found.named.keys() == {f"connect-{name}" for name in names}
    assert peak < 16_000_000


class _Held(ClaimReader):
    """Waits at the beginning of each reading."""

    def __init__(self, client: ApiClient) -> None:
        super().__init__(client)
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)

    def kinds(self) -> dict[tuple[str, str], str]:
        self.begun.release()
        assert self.go.acquire(timeout=_SECONDS)
        return super().kinds()


def test_one_reading_is_for_all_who_wait(server: ApiServer, as_operator: str) -> None:
    """And for nobody who asked after it began: what is deleted is asked for again."""
    with new_client_from_config(as_operator) as client, ThreadPoolExecutor() as threads:
        reader = _Held(client)
        first = threads.submit(reader.read)
        assert reader.begun.acquire(timeout=_SECONDS)
        with objects(server, claiming("KafkaSource", "x", {"consumerGroup": "events"})):
            others = [threads.submit(reader.read) for _ in range(4)]
            wait_for(lambda: _asking() == 5, "five threads ask")
            reader.go.release(2)
            answers = [other.result(_SECONDS) for other in others]
            assert isinstance(answers[0], Claims)
            assert answers[0].owner("events") is not None
            assert all(answer is answers[0] for answer in answers)
            assert first.result(_SECONDS) is not answers[0]
        reader.go.release()
        assert reader.read() == Claims()


def _asking() -> int:
    """Threads that have asked for claims, and have no answer yet."""
    frames = [frame for top in sys._current_frames().values() for frame, _ in traceback.walk_stack(top)]
    return sum(frame.f_code is ClaimReader.read.__code__ and "asked" in frame.f_locals for frame in frames)
