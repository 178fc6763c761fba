"""Receivers in both kinds, on a real API server: what is accepted and refused, and that the program says the same.

One defect per bad case, and exactly one complaint about it.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from kubernetes.client import CustomObjectsApi

from group_hygiene.connection import parse_connection
from group_hygiene.errors import SpecError
from group_hygiene.policy import parse_policy
from sandbox.kubernetes import ApiServer
from tests.kube.test_crds import Object, a_connection, a_policy, accepted, complaints, fields, schema_of

SECRET = {"name": "alerts", "key": "url"}
AT = {"address": "http://alertmanager.monitoring:9093"}
ALERTMANAGER: Object = {"name": "a", "alertmanager": AT}
SLACK: Object = {"name": "s", "slack": {"url": SECRET}}
URL_RULE = "must be a plain http or https URL, without credentials and without a query"
NAME_RULE = "must be lower-case letters, digits and '-'"
SECRET_RULE = "must be the name of a Secret"


def on_connection(entries: Any) -> Object:
    return a_connection({"receivers": entries})


def on_policy(entries: Any) -> Object:
    return a_policy({"alert": {"receivers": entries}})


def understood(candidate: Object) -> None:
    """What the program makes of it, which never met an API server. Raises SpecError."""
    (parse_policy if candidate["kind"] == "GroupPolicy" else parse_connection)(candidate)


KINDS = [pytest.param(on_connection, id="connection"), pytest.param(on_policy, id="policy")]


@pytest.mark.parametrize("place", KINDS)
@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([], id="none"),
        pytest.param([ALERTMANAGER], id="alertmanager-by-address"),
        pytest.param([{"name": "a", "alertmanager": {"url": SECRET, "token": SECRET, "ca": SECRET}}], id="by-secret"),
        pytest.param([SLACK], id="slack"),
        pytest.param([{"name": "w", "webhook": AT}], id="webhook"),
        pytest.param([{"name": "w", "webhook": {**AT, "token": SECRET, "hmac": SECRET, "ca": SECRET}}], id="all-of-it"),
        pytest.param([{"name": "w", "webhook": {"address": "https://[2001:db8::1]:8443/a/b-c"}}], id="ipv6"),
        pytest.param([{**ALERTMANAGER, "name": f"a-{i}"} for i in range(8)], id="eight"),
        pytest.param([{**ALERTMANAGER, "name": "a" * 63}], id="name-longest"),
    ],
)
def test_receivers_are_accepted(api: CustomObjectsApi, place: Any, entries: list[Object]) -> None:
    """By the API server, and by the program."""
    assert complaints(api, place(entries)) == []
    understood(place(entries))


def where(kind: str, **fields: Any) -> list[Object]:
    return [{"name": "a", kind: fields}]


@pytest.mark.parametrize("place", KINDS)
@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        pytest.param(
            [{**ALERTMANAGER, "slack": {"url": SECRET}}], "must hold (exactly|at most) one of", id="two-kinds"
        ),
        pytest.param([{"slack": {"url": SECRET}}], "name: Required value", id="nameless"),
        pytest.param([{**SLACK, "name": ""}], NAME_RULE, id="name-empty"),
        pytest.param([{**SLACK, "name": "Team Chat"}], NAME_RULE, id="name-in-words"),
        pytest.param([{**SLACK, "name": "a" * 64}], "Too long", id="name-too-long"),
        pytest.param([SLACK, SLACK], "Duplicate value", id="name-twice"),
        pytest.param([{**SLACK, "name": f"s-{i}"} for i in range(9)], "Too many", id="nine"),
        pytest.param(where("alertmanager"), "must hold exactly one of address and url", id="alertmanager-nowhere"),
        pytest.param(where("webhook"), "must hold exactly one of address and url", id="webhook-nowhere"),
        pytest.param(
            where("alertmanager", **AT, url=SECRET), "exactly one of address and url", id="alertmanager-twice"
        ),
        pytest.param(
            where("webhook", **AT, url=SECRET), "must hold exactly one of address and url", id="webhook-twice"
        ),
        pytest.param(where("slack"), "slack.url: Required value", id="slack-nowhere"),
        pytest.param(where("slack", **AT, url=SECRET), "unknown field", id="slack-by-address"),
        pytest.param(where("alertmanager", **AT, hmac=SECRET), "unknown field", id="alertmanager-signed"),
        pytest.param(where("webhook", address=""), URL_RULE, id="address-empty"),
        pytest.param(where("webhook", address="alerts.example.com"), URL_RULE, id="address-without-scheme"),
        pytest.param(where("webhook", address="ftp://a/b"), URL_RULE, id="address-by-ftp"),
        pytest.param(where("webhook", address="https://user:pw@a/b"), URL_RULE, id="address-with-credentials"),
        pytest.param(where("webhook", address="https://a/b?token=x"), URL_RULE, id="address-with-a-query"),
        pytest.param(where("webhook", address="https://a/b#c"), URL_RULE, id="address-with-a-fragment"),
        pytest.param(where("alertmanager", address="https://a/b c"), URL_RULE, id="address-with-space"),
        pytest.param(where("alertmanager", address="http://" + "a" * 1018), "Too long", id="address-too-long"),
        pytest.param(where("webhook", url={"name": "a"}), "url.key: Required value", id="secret-without-key"),
        pytest.param(where("webhook", url={"key": "a"}), "url.name: Required value", id="secret-without-name"),
    ],
)
def test_receivers_are_refused(api: CustomObjectsApi, place: Any, entries: list[Object], complaint: str) -> None:
    """With one sentence that says what must be; and the program refuses the same."""
    said = complaints(api, place(entries))
    assert len(said) == 1, said
    assert re.search(complaint, said[0])
    with pytest.raises(SpecError):
        understood(place(entries))


@pytest.mark.parametrize(
    ("ref", "complaint"),
    [
        pytest.param({"name": "A b", "key": "url"}, SECRET_RULE, id="name"),
        pytest.param({"name": "a", "key": "u r l"}, "must be a key of a Secret", id="key"),
    ],
)
@pytest.mark.parametrize("place", KINDS)
@pytest.mark.parametrize("field", ["url", "token", "hmac", "ca"])
def test_secrets_are_named_as_kubernetes_names_them(
    api: CustomObjectsApi, place: Any, field: str, ref: Object, complaint: str
) -> None:
    """Each of a receiver's references to a Secret."""
    at = {} if field == "url" else AT
    said = complaints(api, place(where("webhook", **at, **{field: ref})))
    assert len(said) == 1, said
    assert complaint in said[0]


def test_only_a_policy_names_receivers_by_name_alone(api: CustomObjectsApi) -> None:
    """In a policy it means the connection's; a connection's own entry must say where it is."""
    assert complaints(api, on_policy([{"name": "team-chat"}])) == []
    understood(on_policy([{"name": "team-chat"}, ALERTMANAGER]))
    said = complaints(api, on_connection([{"name": "team-chat"}]))
    assert [text.partition(": ")[2].partition(": ")[2] for text in said] == [
        "must hold exactly one of alertmanager, slack and webhook"
    ]
    with pytest.raises(SpecError):
        understood(on_connection([{"name": "team-chat"}]))


@pytest.mark.parametrize(
    ("number", "complaint"),
    [
        pytest.param(1, None, id="lowest"),
        pytest.param(1_000_000, None, id="highest"),
        pytest.param(0, "should be greater than or equal to 1", id="none"),
        pytest.param(1_000_001, "should be less than or equal to 1000000", id="too-many"),
        pytest.param("5", "must be of type integer", id="text"),
    ],
)
def test_groups_at_least_is_bounded(api: CustomObjectsApi, number: Any, complaint: str | None) -> None:
    """From one group to a million."""
    candidate = a_policy({"alert": {"groupsAtLeast": number}})
    said = complaints(api, candidate)
    assert len(said) == (0 if complaint is None else 1), said
    if complaint is None:
        assert parse_policy(candidate).alert.groups_at_least == number
        return
    assert complaint in said[0]
    with pytest.raises(SpecError):
        understood(candidate)


def test_defaults_of_alert(api: CustomObjectsApi) -> None:
    """What is stored where alert is empty, and where it is left out."""
    assert accepted(api, a_policy({"alert": {}}))["spec"]["alert"] == {"groupsAtLeast": 1}
    assert "alert" not in accepted(api, a_policy({}))["spec"]
    assert parse_policy(a_policy({})).alert.receivers is None
    assert parse_policy(a_policy({"alert": {"receivers": []}})).alert.receivers == ()


def test_every_secret_reference_of_a_policy_is_whole(api_server: ApiServer) -> None:
    """A name and a key, none of them optional."""
    named = fields(schema_of(api_server, "grouppolicies"))
    references = {
        path: field
        for path, field in named
        if ".receivers." in path and set(field.get("properties", {})) == {"name", "key"}
    }
    assert len(references) == 8
    assert [path for path, field in references.items() if field.get("required") != ["name", "key"]] == []
