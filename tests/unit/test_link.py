"""What a connection remembers between runs, without Kafka or an API server."""

from __future__ import annotations

from typing import Any, cast

from group_hygiene.controller.api import Api
from group_hygiene.controller.link import Link
from group_hygiene.spec.storage import Allowed


def a_connection(uid: str = "u", **status: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "kafka", "name": "main", "uid": uid}, "spec": None, "status": status}


def test_the_cluster_is_known_once_an_object_names_it() -> None:
    """The object may have lacked the id when it was read first. What is known then stays, while the object does."""
    link = Link("kafka", "main", cast(Api, None), "an-id", Allowed())
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
