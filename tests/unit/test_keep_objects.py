"""`keep` of a user without rights to the connection, with answers of an API server that are hard to provoke."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from group_hygiene.cli import keep_requests
from group_hygiene.cli.keep_requests import KeepTerms
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.errors import Forbidden, NotAllowed, NotFound, UsageError
from group_hygiene.spec.fields import timestamp

_TERMS = KeepTerms(timedelta(days=1), "report", "ada")


def served(**kept: Any) -> dict[str, Any]:
    """A GroupKeep with this condition Kept."""
    condition = {"type": "Kept", "status": "True", "reason": "Kept", "message": "1 of 1", "observedGeneration": 1}
    condition |= {"lastTransitionTime": timestamp(datetime.now(UTC))} | kept
    return {"metadata": {"generation": 1}, "spec": {}, "status": {"conditions": [condition]}}


def unread(protected: int) -> dict[str, Any]:
    """A GroupKeep of a group whose existence could not be read."""
    found = served(status="False", reason="GroupUnreadable")
    found["status"]["counts"] = {"groups": 1, "protected": protected}
    return found


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
        pytest.param(unread(protected=1), ["g"], "", id="existence-not-read"),
        pytest.param(unread(protected=0), [], "It stays: kubectl delete kgk keep-", id="another-not-protected"),
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
    monkeypatch.setattr(keep_requests, "open_api", lambda *_: api)
    monkeypatch.setattr(keep_requests, "current_namespace", lambda *_: "team")
    monkeypatch.setattr(keep_requests, "_WAIT_S", 0.1)
    target = ChosenCluster(connection="main", namespace="kafka")
    report = keep_requests.keep_by_object(target, ["g"], _TERMS, NotAllowed("you may not read it"))
    assert [row["group"] for row in report.document["protected"]] == protected
    assert error in " ".join(report.errors)
    assert bool(report.errors) == bool(error)


def until(after: timedelta) -> dict[str, Any]:
    return served() | {"spec": {"until": timestamp(datetime.now(UTC) + after)}}


@pytest.mark.parametrize(
    ("before", "replaces", "error"),
    [
        pytest.param(served(), False, "keeps them without an end; --replace gives it one", id="without-an-end"),
        pytest.param(served(), True, "", id="without-an-end-replace"),
        pytest.param(until(timedelta(days=2)), False, "which is later; --replace shortens that", id="later"),
        pytest.param(until(timedelta(days=2)), True, "", id="later-replace"),
        pytest.param(until(timedelta(hours=1)), False, "", id="earlier"),
        pytest.param(Forbidden("you may not"), False, "No GroupKeep could be applied in namespace team", id="hidden"),
        pytest.param(
            Forbidden("you may not"), True, "Ask for get, create and patch on groupkeeps", id="hidden-replace"
        ),
    ],
)
def test_it_shortens_no_request_unasked(
    monkeypatch: pytest.MonkeyPatch, before: Any, replaces: bool, error: str
) -> None:
    """Another user may rely on it, whose GroupKeep has the same name; nor one that can't be read."""
    applied = list[Any]()

    def get(*_: Any) -> dict[str, Any]:
        if isinstance(before, Forbidden):
            raise before
        return served() if applied else dict(before)

    api = SimpleNamespace(get=get, apply_object=lambda _, obj: applied.append(obj))
    monkeypatch.setattr(keep_requests, "open_api", lambda *_: api)
    monkeypatch.setattr(keep_requests, "current_namespace", lambda *_: "team")
    target, terms = ChosenCluster(connection="main", namespace="kafka"), _TERMS._replace(replace=replaces)
    if not error:
        assert keep_requests.keep_by_object(target, ["g"], terms, NotAllowed("you may not read it")).errors == []
        return
    with pytest.raises(UsageError, match=error):
        keep_requests.keep_by_object(target, ["g"], terms, NotAllowed("you may not read it"))
    assert applied == []
