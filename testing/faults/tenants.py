"""Scenario: a team with the role `edit` in one namespace makes random objects, while others' policies must run on."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

from testing.faults.errors import Broken, FaultsError
from testing.faults.hostile import last_runs
from testing.faults.kube import Kube, Object
from testing.faults.operators import ROOT, OperatorProcess
from testing.faults.stage import Stage
from testing.faults.world import World
from testing.sandbox.manifests import install_user_roles, use_crds
from testing.sandbox.proc import Peak

# The memory limit of the operator's pod in the chart.
_MEMORY_MB = 512
_INTERVAL_SECONDS = 10
# How many intervals may pass between two runs of a policy of another namespace.
_INTERVALS = 3
_OBJECTS, _MISSHAPEN = 2_000, 60
# Bytes of all annotations together: etcd has room for 2 GB, and keeps each version of an object for minutes.
_BYTES = 100 << 20
_ANNOTATIONS_MAX = 250_000
_TENANT, _VICTIM = "tenant", "victim"
_API = "grouphygiene.io/v1alpha1"
# kubectl writes it, and so can any user.
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_KINDS = ("GroupPolicy", "GroupRestore", "GroupKeep")


def random_tenants(stage: Stage) -> None:
    """Whatever a team writes, the operator lives, others' policies run and alert in time, and none of theirs shows."""
    chance = random.Random(stage.seed)
    stage.say(f"random tenants: --seed {stage.seed}, {stage.seconds:.0f} s")
    with ExitStack() as stack:
        inbox = stack.enter_context(_Inbox())
        name, secret = f"{stage.name}-1", f"{chance.getrandbits(64):x}"
        tenant, victim = f"{name}-{_TENANT}", f"{name}-{_VICTIM}"
        world = stack.enter_context(
            stage.world(
                lease=30,
                memory=_MEMORY_MB << 20,
                policy={"interval": f"{_INTERVAL_SECONDS}s", "match": {"groups": [f"{name}-old-*"]}},
                connection={
                    "receivers": [{"name": "people", "type": "Webhook", "webhook": {"address": inbox.url}}],
                    "access": [
                        _access(tenant, f"{tenant}-*", "Alert", "Delete", "DeleteOffsets", "Restore", "Keep"),
                        _access(victim, f"{victim}-*", "Alert"),
                    ],
                },
                prepare=partial(_store_misshapen, chance, tenant),
            )
        )
        if world.name != name:
            raise FaultsError(f"the world is {world.name}, and its objects are for {name}")
        world.kube.namespace(victim)
        world.kube.apply(_alerting(victim, name))
        leader = world.replicas.leader()
        world.groups.abandon({f"{tenant}-{index}": {(world.topic, 0): 1} for index in range(20)})
        writer = _Tenant(chance, _as_editor(world, tenant), tenant, name, victim)
        runs, end = _Runs(leader, {name, victim}), time.monotonic() + stage.seconds
        reported = 0
        peak = stack.enter_context(Peak(leader.pid))
        while time.monotonic() < end:
            group = f"{victim}-{secret}-{reported}"
            world.groups.abandon({group: {(world.topic, 0): 1}})
            until = time.monotonic() + _INTERVALS * _INTERVAL_SECONDS
            while group not in inbox.text() or time.monotonic() < until - 2 * _INTERVAL_SECONDS:
                writer.act()
                runs.look()
                if time.monotonic() > until:
                    raise Broken(f"no alert on a group of {victim} within {_INTERVALS} intervals; seed {stage.seed}")
            reported += 1
        stage.tried += writer.done
        stage.say(
            f"random tenants: {writer.done} requests, {writer.refused} of them refused, {len(writer.names)} objects; "
            f"at most {runs.longest:.1f} s between two runs, {reported} alerts; "
            f"at most {peak.mb:.0f} MB in the operator"
        )
        if peak.mb > _MEMORY_MB:
            raise Broken(
                f"the operator took {peak.mb:.0f} MB, more than the {_MEMORY_MB} MB of its pod; seed {stage.seed}"
            )
        if secret in writer.all_it_sees():
            raise Broken(f"the tenant sees groups of {victim}; seed {stage.seed}")
        # The next process reads all these objects at its start.
        world.succeed(leader)
        world.until_deleted(world.abandon(2))


def _access(namespace: str, groups: str, *actions: str) -> Object:
    return {"namespaces": {"names": [namespace]}, "groups": [groups], "actions": list(actions)}


def _alerting(namespace: str, owner: str) -> Object:
    spec = {
        "connectionRef": {"name": "main", "namespace": owner},
        "interval": f"{_INTERVAL_SECONDS}s",
        "match": {"groups": [f"{namespace}-*"]},
        "action": "Alert",
        "notify": {"receiverNames": ["people"]},
    }
    return {"apiVersion": _API, "kind": "GroupPolicy", "metadata": {"name": "p", "namespace": namespace}, "spec": spec}


def _as_editor(world: World, namespace: str) -> Kube:
    """A client with the role `edit` in this namespace, and no other right."""
    server, account = world.server, f"--serviceaccount={namespace}:editor"
    install_user_roles(server)
    server.kubectl("create", "serviceaccount", "editor", "-n", namespace)
    server.kubectl("create", "rolebinding", "editor", "--clusterrole=edit", account, "-n", namespace)
    kubeconfig = json.loads(server.kubeconfig_for_service_account(namespace, "editor").read_text())
    return Kube(server, kubeconfig["users"][0]["user"]["token"])


def _store_misshapen(chance: random.Random, namespace: str, world: World) -> None:
    """Objects of any shape, stored while the CRDs allowed all."""
    world.kube.namespace(namespace)
    crds = [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "crds").glob("*.yaml"))]
    lax = json.loads(json.dumps(crds))
    for crd in lax:
        for version in crd["spec"]["versions"]:
            version["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    use_crds(world.server, *lax)
    try:
        for index in range(_MISSHAPEN):
            whole = _policy(chance, namespace, namespace, namespace)
            spec = _nonsense(chance, 3) if chance.random() < 0.3 else _damaged(chance, whole)
            kind = chance.choice(_KINDS)
            metadata = {"name": f"misshapen-{index}", "namespace": namespace}
            world.kube.apply({"apiVersion": _API, "kind": kind, "metadata": metadata, "spec": spec})
    finally:
        use_crds(world.server, *crds)


@dataclass
class _Runs:
    """The longest time between two runs of the policy of each of these namespaces, in seconds."""

    leader: OperatorProcess
    namespaces: set[str]
    longest: float = 0.0
    _last: dict[str, tuple[float, float]] = field(default_factory=dict)
    _looked: float = 0.0

    def look(self) -> None:
        """Raises Broken if the operator ended, or a policy waits for too long."""
        now = time.monotonic()
        if now < self._looked + 1.0:
            return
        self._looked = now
        if not self.leader.alive:
            raise Broken("the operator has ended")
        with suppress(OSError):
            found = last_runs(self.leader)
            for namespace in self.namespaces:
                ran, seen = self._last.get(namespace, (0.0, now))
                self.longest = max(self.longest, now - seen)
                if found.get(namespace, 0.0) != ran:
                    self._last[namespace] = (found.get(namespace, 0.0), now)
                elif now - seen > _INTERVALS * _INTERVAL_SECONDS:
                    raise Broken(f"the policy of {namespace} had no run for {now - seen:.0f} s")


class _Inbox:
    """A webhook that keeps all texts that it receives."""

    def __enter__(self) -> _Inbox:
        self._texts = texts = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                texts.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def text(self) -> str:
        """All that has arrived since the last call, at least."""
        return "".join(self._texts)


# What a team may write


class _Tenant:
    """Writes into its namespace, and knows what it wrote. done, refused: requests."""

    def __init__(self, chance: random.Random, kube: Kube, namespace: str, owner: str, other: str) -> None:
        self._chance, self._kube, self._namespace = chance, kube, namespace
        self._owner, self._other = owner, other
        self.done = self.refused = self._bytes = 0
        self.names: dict[tuple[str, str], Object] = {}

    def act(self) -> None:
        """One request. The API server may refuse it, as it should: then nothing happened."""
        self.done += 1
        known = list(self.names)
        what = self._chance.random()
        try:
            if not known or (what < 0.6 and len(known) < _OBJECTS):
                self._write(self._chance.choice(_KINDS), f"n-{self._chance.randrange(_OBJECTS)}")
            elif what < 0.9:
                kind, name = self._chance.choice(known)
                # A restore runs once: its spec must not change.
                self._write(kind, name, self.names[kind, name] if kind == "GroupRestore" else None)
            else:
                kind, name = self._chance.choice(known)
                del self.names[kind, name]
                # Those with a finalizer stay.
                self._kube.delete(kind, self._namespace, name)
        except FaultsError:
            self.refused += 1

    def all_it_sees(self) -> str:
        """Its objects with their statuses, and the Events of its namespace."""
        ours = f"/apis/grouphygiene.io/v1alpha1/namespaces/{self._namespace}"
        places = [f"{ours}/{each}" for each in ("grouppolicies", "grouprestores", "groupkeeps")]
        places.append(f"/api/v1/namespaces/{self._namespace}/events")
        return "".join(json.dumps(self._kube.call("GET", place)) for place in places)

    def _write(self, kind: str, name: str, spec: Object | None = None) -> None:
        chance = self._chance
        if spec is None:
            spec = _MAKE[kind](chance, self._namespace, self._owner, self._other)
            if chance.random() < 0.1:
                spec = _damaged(chance, spec)
        size = chance.choice((0, 0, 0, 1_000, _ANNOTATIONS_MAX)) if self._bytes < _BYTES else 0
        self._bytes += size
        annotations = {"example.com/note": "x" * size, _APPLIED: chance.choice(("{}", "no JSON", "[" * 100_000))}
        metadata: Object = {"name": name, "namespace": self._namespace, "annotations": annotations}
        if chance.random() < 0.05:
            metadata["finalizers"] = ["example.com/never-removed"]
        self._kube.apply({"apiVersion": _API, "kind": kind, "metadata": metadata, "spec": spec})
        self.names[kind, name] = spec


def _reference(chance: random.Random, owner: str, other: str) -> Object:
    """A connection that is granted, foreign, or absent."""
    namespace = chance.choice((owner, owner, owner, other, "nowhere", f"absent-{chance.randrange(500)}"))
    name = chance.choice(("main", "main", "main", f"absent-{chance.randrange(500)}"))
    return {"name": name} if chance.random() < 0.1 else {"name": name, "namespace": namespace}


def _groups(chance: random.Random, namespace: str, other: str) -> list[str]:
    slow = ["*" + "a*" * 120 + f"b{index}" for index in range(64)]
    placed = [f"{namespace}-{chance.getrandbits(32):x}-" + "{date}wxyz*" * 20 for _ in range(64)]
    searched = [f"*{{hex}}-*{{hex}}-*{index}Z*" for index in range(64)]
    return chance.choice(
        (
            ["*"],
            [f"{namespace}-*"],
            [f"{other}-*"],
            [f"{namespace}-{{digits}}", "{uuid}"],
            slow,
            placed,
            searched,
            ["\u202e*", "job\nnight"],
        )
    )


def _policy(chance: random.Random, namespace: str, owner: str, other: str) -> Object:
    action = chance.choice(("Alert", "Alert", "Delete", "DeleteOffsets"))
    duration = partial(chance.choice, ("1s", "5s", "10m", "3d", "30d"))
    conditions: list[Object] = [{"idleFor": duration()}]
    if action != "DeleteOffsets":
        conditions += [{"unchangedFor": duration()}, {"unchangedFor": duration(), "lag": {"atLeast": 1}}]
    if action == "Alert":
        conditions += [{"expiresWithin": duration()}, {"committedOffsets": "Absent"}, {"deletedTopics": "Some"}, {}]
    spec: Object = {
        "connectionRef": _reference(chance, owner, other),
        "interval": chance.choice(("5s", "5s", "10s", "10m")),
        "action": action,
        "match": {
            "groups": _groups(chance, namespace, other),
            "exclude": chance.choice(([], _groups(chance, namespace, other))),
        },
        "when": chance.choice(conditions),
    }
    if action != "Alert":
        spec["mode"] = chance.choice(("DryRun", "Enforce"))
        member = action[:1].lower() + action[1:]
        spec[member] = {"gracePeriod": duration(), "maxPercent": 100, "backupRetention": chance.choice(("1h", "7d"))}
    elif chance.random() < 0.5:
        spec["notify"] = {"receiverNames": chance.choice((["people"], ["absent"], ["people", "absent"]))}
    if chance.random() < 0.2:
        spec["suspend"] = chance.random() < 0.5
    return spec


def _restore(chance: random.Random, namespace: str, owner: str, other: str) -> Object:
    spec: Object = {"connectionRef": _reference(chance, owner, other)}
    if chance.random() < 0.3:
        spec |= {"policyRef": {"name": f"n-{chance.randrange(_OBJECTS)}"}, "deletedAfter": "2026-01-01T00:00:00Z"}
    else:
        prefix = chance.choice((namespace, other))
        spec["groups"] = [f"{prefix}-{index}" for index in range(chance.choice((1, 10, 100, 1_000)))]
    if chance.random() < 0.3:
        spec["ttlSecondsAfterFinished"] = chance.choice((0, 1, 2**31 - 1))
    return spec


def _keep(chance: random.Random, namespace: str, owner: str, other: str) -> Object:
    prefix = chance.choice((namespace, namespace, other))
    spec: Object = {"connectionRef": _reference(chance, owner, other), "reason": "x" * chance.choice((1, 256))}
    spec["groups"] = [f"{prefix}-{chance.randrange(5_000)}-{index}" for index in range(chance.choice((1, 10, 100)))]
    if chance.random() < 0.3:
        spec["until"] = chance.choice(("1999-01-01T00:00:00Z", "2299-01-01T00:00:00Z"))
    return spec


_MAKE = {"GroupPolicy": _policy, "GroupRestore": _restore, "GroupKeep": _keep}


def _damaged(chance: random.Random, spec: Object) -> Object:
    """The same with nonsense in place of one field, at any depth."""
    spec = json.loads(json.dumps(spec))
    within, field_ = chance.choice(list(_places(spec)))
    within[field_] = _nonsense(chance, 2)
    return spec


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def _nonsense(chance: random.Random, depth: int) -> Any:
    """Any JSON value."""
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: chance.choice((True, False)),
        lambda: chance.choice((0, -1, 2**31, 2**63 - 1, 1e308)),
        lambda: chance.choice(("", "*", "x" * 10_000, "\u202e\x07", "main", "1s", "-1s", "{uuid}{uuid}")),
    ]
    if depth:
        kinds += [
            lambda: [_nonsense(chance, depth - 1) for _ in range(chance.randrange(5))],
            lambda: {
                chance.choice(("name", "namespace", "groups", "x")): _nonsense(chance, depth - 1) for _ in range(3)
            },
        ]
    return chance.choice(kinds)()
