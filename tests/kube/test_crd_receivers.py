"""Receivers of connections, and their names in policies, on a real API server: accepted or refused, as by the program.

One defect per bad case, and exactly one complaint about it.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from kubernetes.client import CustomObjectsApi

from group_hygiene.errors import SpecError
from group_hygiene.spec.connection import parse_connection
from group_hygiene.spec.policy import parse_policy
from testing.sandbox.kubernetes import ApiServer
from tests.kube.test_crds import Object, a_connection, a_policy, accepted, complaints, fields, schema_of

SECRET = {"name": "alerts", "key": "url"}
AT = {"address": "http://alertmanager.monitoring:9093"}
ALERTMANAGER: Object = {"name": "a", "type": "Alertmanager", "alertmanager": AT}
SLACK: Object = {"name": "s", "type": "Slack", "slack": {"urlSecretRef": SECRET}}
URL_RULE = "must be a plain http or https URL, without credentials and without a query"
TYPE_RULE = "must hold the field of its type, and no other"
NAME_RULE = "must be lower-case letters, digits and '-'"


def on_connection(entries: Any) -> Object:
    return a_connection({"receivers": entries})


def on_policy(entries: Any) -> Object:
    return a_policy({"notify": {"receiverNames": entries}})


def understood(candidate: Object) -> None:
    """What the program makes of it, which never met an API server. Raises SpecError."""
    (parse_policy if candidate["kind"] == "GroupPolicy" else parse_connection)(candidate)


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([], id="none"),
        pytest.param([ALERTMANAGER], id="alertmanager-by-address"),
        pytest.param(
            [
                {
                    "name": "a",
                    "type": "Alertmanager",
                    "alertmanager": {"urlSecretRef": SECRET, "tokenSecretRef": SECRET, "caSecretRef": SECRET},
                }
            ],
            id="by-secret",
        ),
        pytest.param([SLACK], id="slack"),
        pytest.param([{"name": "w", "type": "Webhook", "webhook": AT}], id="webhook"),
        pytest.param(
            [
                {
                    "name": "w",
                    "type": "Webhook",
                    "webhook": {
                        "address": "https://alertmanager.monitoring:9093",
                        "tokenSecretRef": SECRET,
                        "hmacSecretRef": SECRET,
                        "caSecretRef": SECRET,
                    },
                }
            ],
            id="all-of-it",
        ),
        pytest.param(
            [{"name": "w", "type": "Webhook", "webhook": {"address": "https://[2001:db8::1]:8443/a/b-c"}}], id="ipv6"
        ),
        pytest.param([{**ALERTMANAGER, "name": f"a-{i}"} for i in range(8)], id="eight"),
        pytest.param([{**ALERTMANAGER, "name": "a" * 63}], id="name-longest"),
    ],
)
def test_receivers_are_accepted(api: CustomObjectsApi, entries: list[Object]) -> None:
    """By the API server, and by the program."""
    assert complaints(api, on_connection(entries)) == []
    understood(on_connection(entries))


def where(kind: str, **fields: Any) -> list[Object]:
    return [{"name": "a", "type": kind.capitalize(), kind: fields}]


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        pytest.param([{**ALERTMANAGER, "slack": {"urlSecretRef": SECRET}}], TYPE_RULE, id="two-fields"),
        pytest.param([{"name": "a", "type": "Slack"}], TYPE_RULE, id="type-alone"),
        pytest.param([{**ALERTMANAGER, "type": "Webhook"}], TYPE_RULE, id="field-of-another-type"),
        pytest.param([{"name": "a", "alertmanager": AT}], "type: Required value", id="typeless"),
        pytest.param([{**ALERTMANAGER, "type": "Email"}], "type: Unsupported value", id="type-unknown"),
        pytest.param([{"type": "Slack", "slack": {"urlSecretRef": SECRET}}], "name: Required value", id="nameless"),
        pytest.param([{**SLACK, "name": ""}], NAME_RULE, id="name-empty"),
        pytest.param([{**SLACK, "name": "Team Chat"}], NAME_RULE, id="name-in-words"),
        pytest.param([{**SLACK, "name": "a" * 64}], "Too long", id="name-too-long"),
        pytest.param([SLACK, SLACK], "Duplicate value", id="name-twice"),
        pytest.param([{**SLACK, "name": f"s-{i}"} for i in range(9)], "Too many", id="nine"),
        pytest.param(
            where("alertmanager"), "must hold exactly one of address and urlSecretRef", id="alertmanager-nowhere"
        ),
        pytest.param(where("webhook"), "must hold exactly one of address and urlSecretRef", id="webhook-nowhere"),
        pytest.param(
            where("alertmanager", **AT, urlSecretRef=SECRET),
            "exactly one of address and urlSecretRef",
            id="alertmanager-twice",
        ),
        pytest.param(
            where("webhook", **AT, urlSecretRef=SECRET),
            "must hold exactly one of address and urlSecretRef",
            id="webhook-twice",
        ),
        pytest.param(where("slack"), "slack.urlSecretRef: Required value", id="slack-nowhere"),
        pytest.param(where("slack", **AT, urlSecretRef=SECRET), "unknown field", id="slack-by-address"),
        pytest.param(where("alertmanager", **AT, hmacSecretRef=SECRET), "unknown field", id="alertmanager-signed"),
        pytest.param(where("webhook", address=""), URL_RULE, id="address-empty"),
        pytest.param(where("webhook", address="alerts.example.com"), URL_RULE, id="address-without-scheme"),
        pytest.param(where("webhook", address="ftp://a/b"), URL_RULE, id="address-by-ftp"),
        pytest.param(where("webhook", address="https://user:pw@a/b"), URL_RULE, id="address-with-credentials"),
        pytest.param(where("webhook", address="https://a/b?token=x"), URL_RULE, id="address-with-a-query"),
        pytest.param(where("webhook", address="https://a/b#c"), URL_RULE, id="address-with-a-fragment"),
        pytest.param(where("alertmanager", address="https://a/b c"), URL_RULE, id="address-with-space"),
        pytest.param(where("alertmanager", address="http://" + "a" * 1018), "Too long", id="address-too-long"),
        pytest.param(
            where("webhook", urlSecretRef={"name": "a"}), "urlSecretRef.key: Required value", id="secret-without-key"
        ),
        pytest.param(
            where("webhook", urlSecretRef={"key": "a"}), "urlSecretRef.name: Required value", id="secret-without-name"
        ),
    ],
)
def test_receivers_are_refused(api: CustomObjectsApi, entries: list[Object], complaint: str) -> None:
    """With one sentence that says what must be; and the program refuses the same."""
    said = complaints(api, on_connection(entries))
    assert len(said) == 1, said
    assert re.search(complaint, said[0])
    with pytest.raises(SpecError):
        understood(on_connection(entries))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([], id="none"),
        pytest.param(["team-chat", "a" * 63], id="two"),
        pytest.param([f"a-{i}" for i in range(8)], id="eight"),
    ],
)
def test_policies_name_receivers(api: CustomObjectsApi, names: list[str]) -> None:
    """By name alone: they are the connection's."""
    assert complaints(api, on_policy(names)) == []
    assert parse_policy(on_policy(names)).alert.receiver_names == tuple(names)


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        pytest.param([SLACK], "unknown field", id="defined-in-a-policy"),
        pytest.param([""], NAME_RULE, id="name-empty"),
        pytest.param(["Team Chat"], NAME_RULE, id="name-in-words"),
        pytest.param(["a" * 64], "Too long", id="name-too-long"),
        pytest.param(["a", "a"], "Duplicate value", id="name-twice"),
        pytest.param([f"a-{i}" for i in range(9)], "Too many", id="nine"),
    ],
)
def test_names_of_receivers_are_refused(api: CustomObjectsApi, names: list[Any], complaint: str) -> None:
    """With one sentence that says what must be; and the program refuses the same."""
    said = complaints(api, on_policy(names))
    assert len(said) == 1, said
    assert complaint in said[0]
    with pytest.raises(SpecError):
        understood(on_policy(names))


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
    candidate = a_policy({"notify": {"groupsAtLeast": number}})
    said = complaints(api, candidate)
    assert len(said) == (0 if complaint is None else 1), said
    if complaint is None:
        assert parse_policy(candidate).alert.groups_at_least == number
        return
    assert complaint in said[0]
    with pytest.raises(SpecError):
        understood(candidate)


def test_defaults_of_notify(api: CustomObjectsApi) -> None:
    """What is stored where notify is empty, and where it is left out."""
    assert accepted(api, a_policy({"notify": {}}))["spec"]["notify"] == {"groupsAtLeast": 1}
    assert "notify" not in accepted(api, a_policy({}))["spec"]
    assert parse_policy(a_policy({})).alert.receiver_names is None
    assert parse_policy(a_policy({"notify": {"receiverNames": []}})).alert.receiver_names == ()


def test_every_secret_reference_of_a_receiver_is_whole(api_server: ApiServer) -> None:
    """A name and a key, none of them optional; a policy refers to no Secret."""
    named = fields(schema_of(api_server, "kafkaconnections"))
    references = {
        path: field
        for path, field in named
        if ".receivers" in path and set(field.get("properties", {})) == {"name", "key"}
    }
    assert len(references) == 8
    assert [path for path, field in references.items() if field.get("required") != ["name", "key"]] == []
    assert not [path for path, _ in fields(schema_of(api_server, "grouppolicies")) if path.endswith("SecretRef")]
