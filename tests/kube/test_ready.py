"""What a status means, by each reason: conditions, the Events and gauges beside them, the verdicts of Flux and Argo CD.

The status is built and written by the operator's own code, and judged as a real API server stores it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from kubernetes.client import CoreV1Api, CustomObjectsApi
from kubernetes.config import new_client_from_config
from msgspec import structs

from group_hygiene.controller.admission import AdmittedPolicy, Granted, Grants
from group_hygiene.controller.api import KINDS, Api
from group_hygiene.controller.objects import CONNECTIONS, KEEPS, POLICIES, RESTORES, Objects
from group_hygiene.controller.policies import Alerting, Executed, Policies
from group_hygiene.controller.services import Services
from group_hygiene.controller.statuses import Recorder, Unserved
from group_hygiene.engine.pattern_notes import PatternNote
from group_hygiene.engine.plan import FAILURES
from group_hygiene.engine.restorable import GroupResult, ResultKind
from group_hygiene.errors import Unreachable
from group_hygiene.model import reasons
from group_hygiene.model.entries import OutcomeType
from group_hygiene.model.evidence import Outcome, Protections, Verdict
from group_hygiene.model.group_keep import KeptGroup
from group_hygiene.model.groups import Coverage
from group_hygiene.model.reasons import Refusal
from group_hygiene.observe.conditions import connection_not_ready
from group_hygiene.observe.metrics import Metrics
from group_hygiene.observe.of_objects import (
    ConnectionFacts,
    LedgerFacts,
    build_connection_status,
    build_keep_status,
    build_restore_status,
)
from group_hygiene.observe.outbox import Outbox, Sender
from group_hygiene.process.clock import SystemClock
from group_hygiene.process.egress import Egress
from group_hygiene.spec.connection import admit, grant, parse_connection
from group_hygiene.spec.policy import Limits, parse_policy
from testing.sandbox import flux
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.lua import assess
from tests.kube.access import make_namespaces
from tests.unit.make import NOW, activity, evidence, group, match, plan, refused, snapshot

SCRIPT = (Path(__file__).parents[2] / "deploy" / "argocd" / "health.lua").read_text()
API = "grouphygiene.io/v1alpha1"
OWNER, TEAM = "ready-owner", "ready-team"
GRANTS = [{"namespaces": {"names": [TEAM]}, "groups": ["team-*"], "actions": ["Alert"]}]
CONNECTION = {"bootstrapServers": ["kafka:9092"], "access": GRANTS}


class Shown(NamedTuple):
    """What is shown. ready: status and reason of Ready. waits: Reconciling or Stalled, if one is True; "" = neither.

    others: the other conditions. events: type and reason of each. evidenced, blocked: the gauges
    `policy_evidence_ready` and `deletion_blocked`; None = no series. flux, argo_cd: their verdicts.
    """

    ready: str
    waits: str
    flux: str
    argo_cd: str
    others: str = ""
    events: str = ""
    evidenced: float | None = None
    blocked: float | None = None


@dataclass(frozen=True)
class Run:
    """A run of a policy that found this. spec: the policy's. conditions: of the run, as for `make.plan`.

    namespace: of the policy, whose connection is the owner's. halted: why its marks could not be written.
    """

    spec: Mapping[str, Any]
    verdicts: Sequence[Verdict] = ()
    coverage: Coverage | None = None
    incomplete: tuple[str, ...] = ()
    outcomes: Sequence[Outcome] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = OWNER
    halted: Refusal | None = None


@dataclass(frozen=True)
class Problem:
    """A policy that does not run. refusal: of the whole round; None = the operator finds out by the objects.

    namespace: of the policy, whose connection is the owner's. unknown_field: whether it was applied with one.
    """

    spec: Mapping[str, Any]
    refusal: Refusal | None = None
    namespace: str = OWNER
    connection: str = "main"
    unknown_field: bool = False


def covered(reason: str = "", partitions: int = 50) -> Coverage:
    return Coverage(Refusal(reason, "because") if reason else None, partitions, 50, NOW, timedelta(hours=1))


def unproven(reason: str, **protections: Any) -> Verdict:
    """A group that stays since this source of protection could not be read."""
    return structs.replace(refused("a", reason), evidence=evidence(protections=Protections(**protections)))


def failed(reason: str) -> Outcome:
    return Outcome("a", OutcomeType.FAILED, reason, "because")


MATCH = {"groups": ["team-*"]}
DELETE = {"match": MATCH, "when": {"unchangedFor": "72h"}, "action": "Delete"}
ENFORCE = DELETE | {"mode": "Enforce"}
IDLE = ENFORCE | {"when": {"idleFor": "72h"}}
ALERT = {"match": MATCH, "action": "Alert"}
EXPIRES = ALERT | {"when": {"expiresWithin": "24h"}}
FINE, TRIED, STUCK = ("Current", "Healthy"), ("InProgress", "Progressing"), ("Failed", "Degraded")
UNBLOCKED = "DeletionBlocked False NotBlocked"
KNOWN = Verdict(group("b"), evidence(activity=activity(90), unchanged=None), None)
EXPIRES_FIRST = Verdict(
    group("a"), evidence(retention=timedelta(days=7)), Refusal(reasons.EXPIRES_FIRST, "Kafka deletes its offsets")
)


def ready(reason: str, **others: Any) -> Shown:
    return Shown(f"True {reason}", "", *FINE, **others)


def retried(reason: str, **others: Any) -> Shown:
    return Shown(f"False {reason}", "Reconciling", *TRIED, **{"events": f"Warning {reason}", **others})


def stuck(reason: str, **others: Any) -> Shown:
    return Shown(f"False {reason}", "Stalled", *STUCK, **{"events": f"Warning {reason}", **others})


def without_evidence(reason: str) -> tuple[Run, Shown]:
    """The tables answer for no group of the policy."""
    shown = stuck if reason in ("EvidenceNotConfigured", "EvidenceOfAnotherCluster") else retried
    others = f"{UNBLOCKED}, EvidenceReady False {reason}"
    return Run(IDLE, [refused("a", reason)], covered(reason, 0)), shown(reason, others=others, evidenced=0, blocked=0)


def refusing(reason: str, waits: Callable[..., Shown]) -> tuple[Run, Shown]:
    """A policy that enforces, and whose deletions this reason forbids."""
    run = Run(ENFORCE, [match("a")], conditions={"refusals": (Refusal(reason, "because"),)})
    return run, waits(reason, others=f"DeletionBlocked True {reason}", blocked=1)


POLICIES_TABLE = [
    # Nothing is wrong.
    pytest.param(Run(DELETE), ready("Succeeded", blocked=0), id="no-group"),
    pytest.param(Run(DELETE, [refused("a")]), ready("Succeeded", blocked=0), id="no-group-matches"),
    pytest.param(
        Run(DELETE, [match("a")]),
        ready("Succeeded", events="Normal GroupsMatched", blocked=0),
        id="dry-run",
    ),
    pytest.param(
        Run(DELETE, [match("a")], conditions={"total": 1}),
        ready("Succeeded", events="Normal GroupsMatched", blocked=0),
        id="dry-run-beyond-its-limit",
    ),
    pytest.param(
        Run(ENFORCE, [match("a")], outcomes=[Outcome("a", OutcomeType.DELETED, reasons.DELETED, "deleted")]),
        ready("Succeeded", others=UNBLOCKED, events="Normal GroupsDeleted", blocked=0),
        id="deletes",
    ),
    pytest.param(
        Run(ALERT, [match("a")]),
        ready("Succeeded", others="Alerting True GroupsMatched", events="Warning GroupsMatched", blocked=0),
        id="alerts",
    ),
    pytest.param(
        Run(ALERT, [refused("a")]),
        ready("Succeeded", others="Alerting False NoGroupsMatched", blocked=0),
        id="no-alert",
    ),
    pytest.param(
        Run(ALERT | {"notify": {"groupsAtLeast": 2}}, [match("a")]),
        ready("Succeeded", others="Alerting False TooFewGroups", blocked=0),
        id="too-few-for-an-alert",
    ),
    # Anybody who abandons groups in Kafka could cause it.
    pytest.param(
        Run(ENFORCE, [match("a")], conditions={"total": 1}),
        ready("Succeeded", others="DeletionBlocked True LimitExceeded", events="Warning LimitExceeded", blocked=1),
        id="LimitExceeded",
    ),
    pytest.param(
        Run(ENFORCE, [match("a"), match("b")], outcomes=[failed(reasons.DENIED)]),
        ready("Succeeded", others=UNBLOCKED, blocked=0),
        id="one-of-several-can-not-be-deleted",
    ),
    # Of the spec.
    pytest.param(
        Run(ENFORCE | {"when": {"unchangedFor": "30d"}}, [EXPIRES_FIRST]),
        ready(
            "Succeeded",
            others=f"{UNBLOCKED}, MayNeverMatch True ExpiresFirst",
            events="Warning ExpiresFirst",
            blocked=0,
        ),
        id="MayNeverMatch",
    ),
    pytest.param(
        Run(EXPIRES | {"interval": "24h"}, [KNOWN], covered()),
        ready(
            "MayWarnLate",
            others="EvidenceReady True EvidenceReady, Alerting True GroupsMatched",
            events="Warning GroupsMatched",
            evidenced=1,
            blocked=0,
        ),
        id="MayWarnLate",
    ),
    # Evidence.
    *(
        pytest.param(*without_evidence(reason), id=f"{reason}-for-every-group")
        for reason in (
            *("EvidenceNotConfigured", "EvidenceOfAnotherCluster", "EvidenceMissing", "EvidenceStale"),
            *("EvidenceIncomplete", "EvidenceUnreadable", "EvidenceWentBack"),
        )
    ),
    pytest.param(
        Run(IDLE, [], covered("EvidenceNotConfigured", 0)),
        stuck(
            "EvidenceNotConfigured",
            others=f"{UNBLOCKED}, EvidenceReady False EvidenceNotConfigured",
            evidenced=0,
            blocked=0,
        ),
        id="EvidenceNotConfigured-and-no-group",
    ),
    pytest.param(
        Run(EXPIRES, [refused("a", "EvidenceNotConfigured")], covered("EvidenceNotConfigured", 0)),
        stuck(
            "EvidenceNotConfigured",
            others="EvidenceReady False EvidenceNotConfigured, Alerting False NoGroupsMatched",
            evidenced=0,
            blocked=0,
        ),
        id="EvidenceNotConfigured-of-an-alert",
    ),
    pytest.param(
        Run(IDLE, [refused("a", "EvidenceMissing"), KNOWN], covered("EvidenceStale", 49)),
        ready(
            "Succeeded",
            others=f"{UNBLOCKED}, EvidenceReady False EvidenceMissing",
            events="Warning EvidenceMissing",
            evidenced=1,
            blocked=0,
        ),
        id="EvidenceMissing-for-some-groups",
    ),
    pytest.param(
        Run(IDLE, [refused("a", "Protected")], covered()),
        ready("Succeeded", others=f"{UNBLOCKED}, EvidenceReady True EvidenceReady", evidenced=1, blocked=0),
        id="groups-that-need-no-evidence",
    ),
    pytest.param(
        Run(ALERT | {"match": {"groups": ["*"]}}, [refused("team-a")], namespace=TEAM),
        ready("AccessLimited", others="Alerting False NoGroupsMatched", blocked=0),
        id="AccessLimited",
    ),
    # Nothing can be judged, or deleted.
    pytest.param(
        Run(
            ENFORCE,
            [match("a")],
            incomplete=("broker 1: lost",),
            conditions={"refusals": (Refusal("SnapshotIncomplete", "because"),), "complete": False},
        ),
        retried("SnapshotIncomplete", others="DeletionBlocked True SnapshotIncomplete", blocked=1),
        id="SnapshotIncomplete",
    ),
    *(
        pytest.param(
            Run(ENFORCE, [refused("a", reason)]),
            retried(reason, others=UNBLOCKED, blocked=0),
            id=f"{reason}-of-every-group",
        )
        for reason in sorted(FAILURES)
    ),
    *(
        pytest.param(
            Run(ENFORCE, [unproven(reason, **{source: unread})]),
            retried(reason, others=UNBLOCKED, blocked=0),
            id=f"{reason}-since-its-source-could-not-be-read",
        )
        for reason, source, unread in (
            ("ClaimedByResource", "claimed", Refusal("ApiServerError", "no answer")),
            *(("MirrorMakerTarget", "mirrored", None), ("StreamsGroup", "streams", None)),
            ("StreamsStateExists", "streams", None),
        )
    ),
    pytest.param(
        Run(ENFORCE, [refused("a", "FailoverTarget")]),
        stuck("FailoverTarget", others=UNBLOCKED, blocked=0),
        id="FailoverTarget",
    ),
    pytest.param(
        Run(ENFORCE, [match("a")], conditions={"limits": Limits(min_groups=1_000)}),
        stuck("ClusterTooSmall", others="DeletionBlocked True ClusterTooSmall", blocked=1),
        id="ClusterTooSmall",
    ),
    pytest.param(
        Run(ENFORCE, [match("a")], halted=Refusal("TooManyChanges", "because")),
        ready("Succeeded", others="DeletionBlocked True TooManyChanges", events="Warning TooManyChanges", blocked=1),
        id="TooManyChanges",
    ),
    pytest.param(
        Run(ENFORCE, [match("a")], outcomes=[failed(reasons.DELETE_FAILED)]),
        retried("DeleteFailed", others=UNBLOCKED, blocked=0),
        id="DeleteFailed-of-every-group",
    ),
    *(
        pytest.param(*refusing(reason, retried), id=reason)
        for reason in ("OffsetsTopicGrown", "TotalUnknown", "TopicsUnknown", "LedgerUnavailable")
    ),
    *(
        pytest.param(*refusing(reason, stuck), id=reason)
        for reason in (
            *("ClusterChanged", "ClockSkew", "TopicsHidden"),
            *("LedgerReset", "LedgerOwnedByAnother", "LedgerChanged"),
        )
    ),
    # It does not run.
    pytest.param(
        Problem(ENFORCE | {"suspend": True}), Shown("True Suspended", "", "Current", "Suspended"), id="Suspended"
    ),
    pytest.param(Problem(ENFORCE, connection="absent"), retried("ConnectionNotFound"), id="ConnectionNotFound"),
    pytest.param(
        Problem(ALERT, namespace=TEAM, connection="absent"),
        retried("CrossNamespaceRefused"),
        id="CrossNamespaceRefused-by-none",
    ),
    pytest.param(
        Problem(ALERT, namespace=TEAM, connection="closed"),
        retried("CrossNamespaceRefused"),
        id="CrossNamespaceRefused",
    ),
    pytest.param(Problem(ENFORCE, namespace=TEAM), retried("ActionNotGranted"), id="ActionNotGranted"),
    pytest.param(Problem(ENFORCE, unknown_field=True), stuck("InvalidSpec"), id="InvalidSpec"),
    pytest.param(
        Problem(ENFORCE, connection_not_ready(Unreachable("no broker answers"), OWNER, f"{OWNER}/main")),
        retried("ConnectionNotReady"),
        id="ConnectionNotReady",
    ),
    *(
        pytest.param(Problem(ENFORCE, Refusal(reason, "because")), retried(reason), id=reason)
        for reason in (
            *("TooManyGroups", "MemoryExhausted", "InternalError", "ApiServerError", "CRDOutdated", "Terminating"),
        )
    ),
]


class Place:
    """The operator's own parts on the API server, with the connections `main` and `closed`, which grants nothing."""

    def __init__(self, server: ApiServer, client: Any) -> None:
        self.server, self.api, self.core, self.custom = server, Api(client), CoreV1Api(client), CustomObjectsApi(client)
        self.metrics, self.objects, clock = Metrics(), Objects(), SystemClock()
        recorder, grants = Recorder(self.api), Grants(self.api, clock)
        missing = cast("Any", None)
        services = Services(
            api=self.api,
            objects=self.objects,
            grants=grants,
            unserved=missing,
            recorder=recorder,
            metrics=self.metrics,
            workers=missing,
            leadership=cast("Any", SimpleNamespace(namespace="hygiene", seconds_left=lambda: 60.0)),
            installation="tests",
            clock=clock,
        )
        self.writer = services.status_writer()
        sender = Sender(Outbox(f"{OWNER}/main"), Egress(), lambda: False, lambda: None, lambda _kind, _arrived: None)
        alerting = Alerting(self.api, self.metrics, clock, self.writer, sender)
        self.policies = Policies(services, missing, self.writer, alerting)
        self.unserved = Unserved(self.api, self.objects, grants, self.writer, lambda: True, services.stopping)
        for name, spec in (("main", CONNECTION), ("closed", CONNECTION | {"access": []})):
            self.objects.put(CONNECTIONS, self.create(CONNECTIONS, OWNER, name, spec))

    def create(self, plural: str, namespace: str, name: str, spec: Mapping[str, Any], *options: str) -> dict[str, Any]:
        """As kubectl applies it."""
        metadata = {"namespace": namespace, "name": name}
        obj = {"apiVersion": API, "kind": KINDS[plural], "metadata": metadata, "spec": spec}
        self.server.kubectl("apply", *options, "-f", "-", input=json.dumps(obj))
        return dict(self.api.get(plural, namespace, name))

    def ran(self, obj: dict[str, Any], run: Run) -> None:
        """As the loop of the connection does it."""
        connection = parse_connection(self.api.get(CONNECTIONS, OWNER, "main"))
        given = grant(connection, run.namespace, None)
        policy = admit(connection, parse_policy(obj), given)
        seen = snapshot(incomplete=run.incomplete, coverage=run.coverage)
        made = plan(policy, run.verdicts, **run.conditions)
        if run.halted is not None:
            made = made.halted(run.halted)
        entry = AdmittedPolicy(obj, policy, Granted(connection, run.namespace, given))
        self.policies._publish(connection, entry, Executed(made, run.outcomes), seen)

    def did_not_run(self, obj: dict[str, Any], problem: Problem) -> None:
        if problem.refusal is not None:
            self.writer.write_problem(POLICIES, obj, problem.refusal)
            return
        key = obj["metadata"]["namespace"], obj["metadata"]["name"]
        # With what was applied, as the watch shows it.
        self.objects.put(POLICIES, self.stored(POLICIES, *key))
        self.unserved._write(POLICIES, key)

    def shown(self, plural: str, before: Mapping[str, Any]) -> Shown:
        """By the object and its Events as they are stored, and by the metrics."""
        namespace, name = before["metadata"]["namespace"], before["metadata"]["name"]
        obj = self.stored(plural, namespace, name)
        found = {each["type"]: f"{each['status']} {each['reason']}" for each in obj["status"].get("conditions", ())}
        waits = [kind for kind in ("Reconciling", "Stalled") if kind in found]
        for kind in waits:
            assert found[kind] == f"True {found['Ready'].partition(' ')[2]}"
        (of_flux,), (of_argo_cd,) = flux.assess([obj]), assess(SCRIPT, [obj])
        selector = f"involvedObject.uid={obj['metadata']['uid']}"
        events = self.core.list_namespaced_event(namespace, field_selector=selector).items
        rest = [kind for kind in found if kind not in ("Ready", "Reconciling", "Stalled")]
        return Shown(
            found.get("Ready", ""),
            ", ".join(waits),
            of_flux,
            of_argo_cd.status,
            ", ".join(f"{kind} {found[kind]}" for kind in rest),
            ", ".join(sorted(f"{each.type} {each.reason}" for each in events)),
            self.gauge("policy_evidence_ready", namespace, name) if plural == POLICIES else None,
            self.gauge("deletion_blocked", namespace, name) if plural == POLICIES else None,
        )

    def stored(self, plural: str, namespace: str, name: str) -> dict[str, Any]:
        group, version = API.split("/")
        return dict(self.custom.get_namespaced_custom_object(group, version, namespace, plural, name))

    def gauge(self, name: str, namespace: str, policy: str) -> float | None:
        labels = {"namespace": namespace, "policy": policy}
        return self.metrics.registry.get_sample_value(f"group_hygiene_{name}", labels)


@pytest.fixture(scope="module")
def place(api_server: ApiServer) -> Iterator[Place]:
    make_namespaces(api_server, OWNER, TEAM)
    with new_client_from_config(str(api_server.kubeconfig)) as client:
        yield Place(api_server, client)
    for namespace in (OWNER, TEAM):
        api_server.kubectl("delete", "kgk,kgr,kgp,kconn", "--all", "-n", namespace)


@pytest.mark.parametrize(("made", "shown"), POLICIES_TABLE)
def test_a_policy(place: Place, request: pytest.FixtureRequest, made: Run | Problem, shown: Shown) -> None:
    """A new object is in progress to both products; then they say what its conditions say."""
    name = request.node.callspec.id.lower()
    namespace, connection = made.namespace, made.connection if isinstance(made, Problem) else "main"
    spec = {**made.spec, "connectionRef": {"name": connection, "namespace": OWNER}}
    if isinstance(made, Problem) and made.unknown_field:
        obj = place.create(POLICIES, namespace, name, spec | {"onlyOn": "Sundays"}, "--validate=false")
    else:
        obj = place.create(POLICIES, namespace, name, spec)
    assert place.shown(POLICIES, obj) == Shown("", "", *TRIED)
    if isinstance(made, Problem):
        place.did_not_run(obj, made)
    else:
        place.ran(obj, made)
    assert place.shown(POLICIES, obj) == shown
    stored = place.stored(POLICIES, namespace, name)["status"]
    assert stored["observedGeneration"] == obj["metadata"]["generation"]
    for condition in stored["conditions"]:
        assert condition["message"] or condition["reason"] == "NotBlocked"


def test_the_table_has_each_reason() -> None:
    """That Ready of a policy may have, by the page on its kind."""
    page = (Path(__file__).parents[2] / "docs" / "kinds" / "grouppolicy.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("| `Ready` |")]
    documented = {part.split("`")[0] for part in line.rsplit("|", 2)[1].split("`")[1::2]}
    shown = {cast("Shown", param.values[1]).ready.partition(" ")[2] for param in POLICIES_TABLE}
    assert shown == documented


GOOD_FACTS = ConnectionFacts(snapshot(), (), None, None)
UNUSED = PatternNote("protect", "spec.protect[0]", "pay", unused=True)


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        pytest.param(GOOD_FACTS, ready("Connected"), id="Connected"),
        pytest.param(
            replace(GOOD_FACTS, snapshot=snapshot(incomplete=("broker 1: lost",))),
            retried("SnapshotIncomplete"),
            id="SnapshotIncomplete",
        ),
        pytest.param(
            replace(GOOD_FACTS, problem=Refusal("ClusterChanged", "because")), stuck("ClusterChanged"), id="cluster"
        ),
        pytest.param(Unreachable("no broker answers"), retried("BrokersUnreachable"), id="BrokersUnreachable"),
        pytest.param(
            replace(GOOD_FACTS, ledger=LedgerFacts("t", None, 0, Refusal("LedgerUnavailable", "because"))),
            ready("Connected", others="LedgerReady False LedgerUnavailable"),
            id="LedgerUnavailable",
        ),
        pytest.param(
            replace(GOOD_FACTS, has_activity=True, snapshot=snapshot(coverage=covered("EvidenceStale", 3))),
            ready("Connected", others="EvidenceReady False EvidenceStale", events="Warning EvidenceStale"),
            id="EvidenceStale",
        ),
        pytest.param(
            replace(GOOD_FACTS, patterns=[UNUSED]),
            ready("Connected", others="PatternsMatch False PatternsUnused"),
            id="PatternsUnused",
        ),
        pytest.param(
            replace(GOOD_FACTS, attests=True, topics=Refusal("TopicsHidden", "because")),
            ready("Connected", others="TopicsVisible False TopicsHidden"),
            id="TopicsHidden",
        ),
    ],
)
def test_a_connection(
    place: Place, request: pytest.FixtureRequest, facts: ConnectionFacts | Unreachable, shown: Shown
) -> None:
    """Its gauges are in tests/unit/test_metrics.py."""
    obj = place.create(CONNECTIONS, OWNER, request.node.callspec.id.lower(), CONNECTION)
    assert place.shown(CONNECTIONS, obj) == Shown("", "", *TRIED)
    if isinstance(facts, Unreachable):
        place.writer.write_problem(CONNECTIONS, obj, Refusal.of(facts))
    else:
        place.writer.write(CONNECTIONS, obj, build_connection_status(obj["metadata"]["generation"], {}, facts))
    assert place.shown(CONNECTIONS, obj) == shown


def kept(reason: str, protected: bool, state: str = "") -> KeptGroup:
    return KeptGroup("g", protected, reason, "because" if reason else "", state)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        pytest.param([kept("", True, "Empty")], ready("Kept", others="Kept True Kept"), id="Kept"),
        pytest.param(
            [kept("AlreadyDeleted", False)],
            stuck("AlreadyDeleted", others="Kept False AlreadyDeleted"),
            id="AlreadyDeleted",
        ),
        pytest.param(
            [kept("GroupUnknown", True)], retried("GroupUnknown", others="Kept False GroupUnknown"), id="GroupUnknown"
        ),
        pytest.param(
            [kept("GroupUnreadable", True)],
            retried("GroupUnreadable", others="Kept False GroupUnreadable"),
            id="GroupUnreadable",
        ),
        pytest.param(
            [kept("BeingDeleted", False, "Empty")],
            retried("BeingDeleted", others="Kept False BeingDeleted"),
            id="BeingDeleted",
        ),
        pytest.param(
            [kept("ActionNotGranted", False)],
            retried("ActionNotGranted", others="Kept False ActionNotGranted"),
            id="ActionNotGranted-of-a-group",
        ),
        pytest.param(
            [kept("TooManyKeeps", False)], stuck("TooManyKeeps", others="Kept False TooManyKeeps"), id="TooManyKeeps"
        ),
        pytest.param(
            Refusal("KeepEnded", "until is over"), ready("KeepEnded", others="Kept False KeepEnded"), id="KeepEnded"
        ),
        *(
            pytest.param(Refusal(reason, "because"), retried(reason, others=f"Kept False {reason}"), id=reason)
            for reason in (
                *("LedgerUnavailable", "ActionNotGranted", "CrossNamespaceRefused", "ConnectionNotReady"),
                "TooManyChanges",
            )
        ),
        pytest.param(
            Refusal("InvalidSpec", "because"), stuck("InvalidSpec", others="Kept False InvalidSpec"), id="InvalidSpec"
        ),
    ],
)
def test_a_keep(
    place: Place, request: pytest.FixtureRequest, found: Sequence[KeptGroup] | Refusal, shown: Shown
) -> None:
    """Stalled only where waiting does not help."""
    spec = {"connectionRef": {"name": "main"}, "groups": ["g"], "reason": "needed"}
    obj = place.create(KEEPS, OWNER, request.node.callspec.id.lower(), spec)
    assert place.shown(KEEPS, obj) == Shown("", "", *TRIED)
    place.writer.write(KEEPS, obj, build_keep_status(obj, found, NOW))
    assert place.shown(KEEPS, obj) == shown


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        pytest.param(
            [GroupResult("g", ResultKind.RESTORED, "Restored", "all")],
            ready("Restored"),
            id="Restored",
        ),
        pytest.param([GroupResult("g", ResultKind.REFUSED, "NoBackup", "because")], stuck("NoBackup"), id="NoBackup"),
        pytest.param(
            [GroupResult("g", ResultKind.PARTLY, "PartlyRestored", "because")],
            stuck("PartlyRestored"),
            id="PartlyRestored",
        ),
        pytest.param(
            [GroupResult("g", ResultKind.WAITING, "GroupActive", "because")], retried("GroupActive"), id="GroupActive"
        ),
        *(
            pytest.param(Refusal(reason, "because"), retried(reason), id=reason)
            for reason in ("LedgerUnavailable", "ActionNotGranted", "ConnectionNotReady")
        ),
    ],
)
def test_a_restore(
    place: Place, request: pytest.FixtureRequest, found: Sequence[GroupResult] | Refusal, shown: Shown
) -> None:
    """One that is over, and did not restore all, waits for a user."""
    obj = place.create(
        RESTORES, OWNER, request.node.callspec.id.lower(), {"connectionRef": {"name": "main"}, "groups": ["g"]}
    )
    assert place.shown(RESTORES, obj) == Shown("", "", *TRIED)
    place.writer.write(RESTORES, obj, build_restore_status(obj, found, NOW))
    assert place.shown(RESTORES, obj) == shown
