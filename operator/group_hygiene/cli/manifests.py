"""Documents -> Policies and Connections, or everything that is wrong with them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from group_hygiene.cli.documents import read_documents
from group_hygiene.cli.validation import API_VERSION, PLURALS, Complaint, complaints, without_nulls
from group_hygiene.errors import SpecError, UsageError
from group_hygiene.spec.connection import Connection, parse_connection
from group_hygiene.spec.policy import Policy, parse_policy


@dataclass
class Manifests:
    """What the files hold. connections: (namespace, name) -> Connection. skipped: kinds that are not ours."""

    policies: list[Policy] = field(default_factory=list)
    connections: dict[tuple[str, str], Connection] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)


def read_manifests(names: Sequence[str], namespace: str = "default") -> Manifests:
    """The policies and connections of all files; `namespace` is that of objects which name none, as for kubectl.

    Raises UsageError with one line for each mistake in any of them.
    """
    manifests = Manifests()
    mistakes: list[str] = []
    seen = set[tuple[str, str, str]]()
    for document in read_documents(names):
        kind, version = document.content.get("kind"), document.content.get("apiVersion")
        if not isinstance(kind, str) or not isinstance(version, str):
            mistakes.append(f"{document.at()}: must have apiVersion and kind")
            continue
        if version.partition("/")[0] != API_VERSION.partition("/")[0]:
            manifests.skipped.add(kind)
            continue
        if version != API_VERSION or kind not in PLURALS:
            mistakes.append(
                f"{document.at(['kind'])}: {version} {kind} is not known: {API_VERSION} {', '.join(PLURALS)}"
            )
            continue
        obj = _placed(without_nulls(document.content), namespace)
        wrong = complaints(obj) or list(_parse(kind, obj, manifests))
        key = (kind, *_key(obj))
        wrong.sort(key=lambda complaint: document.line(complaint.path))
        mistakes += [f"{document.at(c.path)}: {_called(key)}: {_said(c)}" for c in wrong]
        if key in seen:
            mistakes.append(f"{document.at()}: {_called(key)} is given twice")
        seen.add(key)
    if mistakes:
        raise UsageError("\n".join(["the files are not valid:", *mistakes]))
    if not manifests.policies:
        raise UsageError(f"there is no GroupPolicy in {', '.join('stdin' if name == '-' else name for name in names)}")
    return manifests


def _parse(kind: str, obj: Mapping[str, Any], manifests: Manifests) -> Iterator[Complaint]:
    """Parse into `manifests`; yields what the schema alone could not find."""
    try:
        if kind == "GroupPolicy":
            _parse_policy(obj, manifests)
        elif kind == "GroupRestore":
            manifests.skipped.add(kind)
        else:
            _parse_connection(obj, manifests)
    except SpecError as error:
        yield Complaint((), str(error))


def _parse_policy(obj: Mapping[str, Any], manifests: Manifests) -> None:
    spec = obj["spec"]
    if spec["action"] == "Alert" and "delete" in spec:
        raise SpecError("spec.delete must only be given with action Delete or DeleteOffsets")
    if spec["action"] == "Alert" and spec.get("when") == {}:
        raise SpecError("spec.when must name at least one condition, or be left out")
    policy = parse_policy(obj)
    # What is seen of a policy is filed under its uid, which an unapplied one has none of.
    manifests.policies.append(replace(policy, uid=policy.uid or policy.key))


def _parse_connection(obj: Mapping[str, Any], manifests: Manifests) -> None:
    sasl = obj["spec"].get("sasl", {})
    if sasl.get("mechanism") == "OAUTHBEARER" and sasl.keys() & {"username", "passwordSecretRef"}:
        raise SpecError("spec.sasl.username and passwordSecretRef must not be given with mechanism OAUTHBEARER")
    connection = parse_connection(obj)
    # Whether its parts fit together shows when it is read with Secrets, here with empty ones.
    connection.settings(lambda ref: "")
    manifests.connections[connection.namespace, connection.name] = connection


def _placed(obj: dict[str, Any], namespace: str) -> dict[str, Any]:
    metadata = obj.get("metadata")
    if not isinstance(metadata, Mapping) or metadata.get("namespace"):
        return obj
    return obj | {"metadata": {**metadata, "namespace": namespace}}


def _key(obj: Mapping[str, Any]) -> tuple[str, str]:
    metadata = obj.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    return str(metadata.get("namespace") or "default"), str(metadata.get("name") or "")


def _called(key: tuple[str, str, str]) -> str:
    kind, namespace, name = key
    return f"{kind} {namespace}/{name}"


def _said(complaint: Complaint) -> str:
    return f"{complaint.field}: {complaint.message}" if complaint.path else complaint.message
