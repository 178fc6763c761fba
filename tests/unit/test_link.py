"""What a connection remembers between runs, without Kafka or an API server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from group_hygiene.controller.api import Api
from group_hygiene.controller.link import Link
from group_hygiene.engine.context import Observation
from group_hygiene.engine.plan import RunConditions
from group_hygiene.kafka.client import Client
from group_hygiene.kafka.offsets_topic import Tail
from group_hygiene.ledger.contents import Contents
from group_hygiene.ledger.journal import Journal
from group_hygiene.model import reasons
from group_hygiene.model.evidence import Protections
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.storage import Allowed
from tests.unit.make import group, snapshot


def a_connection(uid: str = "u", spec: Any = None, **status: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "kafka", "name": "main", "uid": uid}, "spec": spec, "status": status}


def test_the_cluster_is_known_once_an_object_names_it() -> None:
    """The object may have lacked the id when it was read first. What is known then stays, while the object does."""
    link = Link("kafka", cast(Api, None), "an-id", Allowed())
    link.follow(a_connection())
    assert link.memory.cluster_id is None
    memory = link.memory
    link.follow(a_connection(clusterID="first"))
    assert link.memory is memory
    assert link.memory.cluster_id == "first"
    link.follow(a_connection(clusterID="second"))
    assert link.memory.cluster_id == "first"
    link.follow(a_connection("another"))
    assert link.memory.cluster_id is None


def test_the_spec_says_which_cluster_it_is() -> None:
    """Before the status, and also after an edit: who may edit the spec may also delete the object."""
    link = Link("kafka", cast(Api, None), "an-id", Allowed())
    link.follow(a_connection(spec={"clusterID": "right"}, clusterID="wrong"))
    assert link.memory.cluster_id == "right"
    assert link.memory.other_cluster("right") is None
    refusal = link.memory.other_cluster("wrong")
    assert refusal is not None
    assert refusal.reason == reasons.CLUSTER_CHANGED
    link.follow(a_connection(spec={"clusterID": "new"}, clusterID="wrong"))
    assert link.memory.cluster_id == "new"


@pytest.mark.parametrize(
    ("status", "answers", "expected"),
    [
        pytest.param({}, None, None, id="nothing-known"),
        pytest.param({}, "reached", None, id="another-cluster-answered"),
        pytest.param({}, "typed", "typed", id="it-answered"),
        pytest.param({"clusterID": "reached"}, "reached", "reached", id="another-cluster-in-the-status"),
        pytest.param({"clusterID": "earlier"}, "reached", "earlier", id="the-cluster-of-before"),
        pytest.param({"clusterID": "earlier"}, "typed", "typed", id="it-answered-later"),
    ],
)
def test_a_cluster_that_the_spec_no_longer_names_binds_no_more(
    status: dict[str, str], answers: str | None, expected: str | None
) -> None:
    """It may have been mistyped. What answered, or answered before, stays, also if another cluster answers later."""
    link = Link("kafka", cast(Api, None), "an-id", Allowed())
    link.follow(a_connection(spec={"clusterID": "typed"}, **status))
    if answers is not None:
        link.memory.note_cluster(answers)
    link.follow(a_connection(spec={"clusterID": "typed"}, **status))
    link.memory.note_cluster("later")
    assert link.memory.cluster_id == "typed"
    link.follow(a_connection(spec={}, **status))
    assert link.memory.cluster_id == expected


def test_an_answer_counts_again_without_the_cluster_of_the_spec() -> None:
    """Before the status has it."""
    link = Link("kafka", cast(Api, None), "an-id", Allowed())
    link.follow(a_connection(spec={}))
    link.memory.note_cluster("reached")
    link.follow(a_connection(spec={"clusterID": "typed"}))
    link.forget()
    link.follow(a_connection(spec={"clusterID": "typed"}))
    assert link.memory.cluster_id == "typed"
    link.follow(a_connection(spec={}))
    assert link.memory.cluster_id == "reached"


@pytest.mark.parametrize("spec", [None, "main", ["main"], {"clusterID": 7}])
def test_a_spec_of_any_shape_says_nothing(spec: Any) -> None:
    link = Link("kafka", cast(Api, None), "an-id", Allowed())
    link.follow(a_connection(spec=spec))
    link.follow(a_connection(spec=spec, clusterID="first"))
    assert link.memory.cluster_id == "first"


def test_what_reads_by_a_closed_client_is_forgotten() -> None:
    """After a failed round, or with another password, the next round reads the log by the new client."""
    link = Link("kafka", cast(Api, None), "an-id", Allowed())
    link.memory.tail = Tail(cast(Client, None), {0: (1, 0)}, {0: 5})
    link.close()
    assert link.memory.tail is None


@pytest.mark.parametrize("changed", [True, False])
def test_a_connection_shows_nothing_of_another_cluster(changed: bool) -> None:
    """Its groups would replace those in the status, and the names of its topics are not those of this connection."""
    refusals = [Refusal(reasons.CLUSTER_CHANGED, "another one")] if changed else []
    hidden, groups = Refusal(reasons.TOPICS_HIDDEN, "theirs"), {"g": group("g")}
    seen = Observation(snapshot(), {}, RunConditions(refusals=refusals), Protections(), groups, hidden)
    link = Link("kafka", cast(Api, None), "an-id", Allowed())
    link._features = ("AnyFeature",)
    obj = a_connection(spec={"bootstrapServers": ["kafka:9092"]})
    context: Any = SimpleNamespace(
        connection=parse_connection(obj), memory=link.memory, journal=Journal(None, Contents(), {})
    )
    facts = link.facts(context, seen, full=False, policies=[])
    found = facts.problem, facts.all_groups, facts.topics
    assert found == ((refusals[0], None, None) if changed else (None, groups, hidden))
