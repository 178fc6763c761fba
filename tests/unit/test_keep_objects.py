"""`keep` of a user without rights to the connection, with answers of an API server that are hard to provoke."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from group_hygiene.cli import keep_objects
from group_hygiene.cli.keep_requests import KeepTerms
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.errors import NotAllowed, NotFound
from group_hygiene.spec.durations import timestamp

_TERMS = KeepTerms(timedelta(days=1), "report", "ada")


def served(**kept: Any) -> dict[str, Any]:
    """A GroupKeep with this condition Kept."""
    condition = {"type": "Kept", "status": "True", "reason": "Kept", "message": "1 of 1", "observedGeneration": 1}
    condition |= {"lastTransitionTime": timestamp(datetime.now(UTC))} | kept
    return {"metadata": {"generation": 1}, "spec": {}, "status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    ("obj", "protected", "error"),
    [
        pytest.param(served(), ["g"], "", id="protected"),
        pytest.param(
            served(lastTransitionTime=timestamp(datetime.now(UTC) + timedelta(hours=23))),
            ["g"],
            "the request ends too early",
            id="clock-is-behind",
        ),
        pytest.param(
            served(observedGeneration=0), [], "no operator has served GroupKeep team/keep-", id="older-status"
        ),
        pytest.param(served(status="False", reason="BeingDeleted"), [], "no operator has served", id="being-deleted"),
        pytest.param(
            served(status="False", reason="AlreadyDeleted"), [], "It stays: kubectl delete kgk keep-", id="deleted"
        ),
    ],
)
def test_it_says_protected_only_if_the_operator_does(
    monkeypatch: pytest.MonkeyPatch, obj: dict[str, Any], protected: list[str], error: str
) -> None:
    answers: list[Any] = [NotFound("no such object"), obj]

    def get(*_: Any) -> dict[str, Any]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, NotFound):
            raise answer
        return dict(answer)

    api = SimpleNamespace(get=get, apply_object=lambda *_: None)
    monkeypatch.setattr(keep_objects, "open_api", lambda *_: api)
    monkeypatch.setattr(keep_objects, "current_namespace", lambda *_: "team")
    monkeypatch.setattr(keep_objects, "_WAIT_S", 0.1)
    target = ChosenCluster(connection="main", namespace="kafka")
    report = keep_objects.keep(target, ["g"], _TERMS, NotAllowed("you may not read it"))
    assert [row["group"] for row in report.document["protected"]] == protected
    assert error in " ".join(report.errors)
    assert bool(report.errors) == bool(error)
