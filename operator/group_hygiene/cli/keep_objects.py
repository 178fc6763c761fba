"""`keep` of a user without rights to the KafkaConnection: a GroupKeep in the user's namespace."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from group_hygiene.cli.keep_requests import KEEP_COLUMNS, KeepTerms
from group_hygiene.cli.kubeconfig import current_namespace
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Report, Table, note, working
from group_hygiene.cli.target import open_api
from group_hygiene.controller.objects import KEEPS
from group_hygiene.errors import Forbidden, NotAllowed, Refused, UsageError
from group_hygiene.kafka.client import Deadline
from group_hygiene.model import reasons
from group_hygiene.spec.crds import API_VERSION
from group_hygiene.spec.durations import format_duration, timestamp
from group_hygiene.spec.keep import GROUPS_MAX

# An operator that runs serves a GroupKeep within seconds.
_WAIT_S, _POLL_S = 60.0, 0.5


def keep(target: ChosenCluster, groups: Sequence[str], terms: KeepTerms, denied: NotAllowed) -> Report:
    """Create a GroupKeep in the namespace of the kubeconfig's context, and wait until the operator has served it.

    denied: why the ledger can't be used; the error if the user may create no GroupKeep either, or too many groups are
    given. Without an answer of the operator, nothing is protected yet, which is an error.
    """
    namespace, api = current_namespace(target.context, target.kubeconfig), open_api(target.context, target.kubeconfig)
    if len(groups) > GROUPS_MAX:
        raise UsageError(f"{denied}. A GroupKeep may name {GROUPS_MAX} groups: name fewer")
    until = datetime.now(UTC).replace(microsecond=0) + terms.period
    body = {
        "apiVersion": API_VERSION,
        "kind": "GroupKeep",
        "metadata": {"generateName": "keep-", "namespace": namespace},
        "spec": {
            "connectionRef": {"name": target.connection, "namespace": target.namespace},
            "groups": list(groups),
            "reason": terms.why,
            "until": timestamp(until),
        },
    }
    with working("creating a GroupKeep"):
        try:
            found = api.create(KEEPS, body)
        except Forbidden:
            raise NotAllowed(f"{denied}. You may create no GroupKeep in namespace {namespace} either") from None
        except Refused as error:
            raise UsageError(f"{denied}. The GroupKeep in namespace {namespace} was refused: {error}") from None
    name = f"{namespace}/{found['metadata']['name']}"
    note(f"you have no right to the KafkaConnection: GroupKeep {name} was created instead")
    left = Deadline(_WAIT_S)
    with working("waiting for the operator"):
        while (served := _served(found)) is None and left.left > 0:
            time.sleep(_POLL_S)
            found = api.get(KEEPS, namespace, found["metadata"]["name"])
    notes, errors = list[str](), list[str]()
    protected = groups if served is not None and served["status"] == "True" else ()
    if served is None:
        errors.append(
            f"GroupKeep {name} is not served yet, so nothing is protected: kubectl describe kgk -n {namespace}"
        )
    elif not protected or served["reason"] == reasons.GROUP_UNKNOWN:
        absent = protected and terms.ignore_not_found
        (notes if absent else errors).append(f"GroupKeep {name}: {served['reason']}: {served['message']}")
    end, length = timestamp(until), format_duration(terms.period)
    fields = ("group", "until", "for", "by", "why")
    rows = [(group, end, length, terms.by, terms.why) for group in protected]
    document = {
        "protected": [dict(zip(fields, row, strict=True)) | {"exists": None} for row in rows],
        "notes": notes,
        "errors": errors,
    }
    return Report(document, protected, [Table(KEEP_COLUMNS, [(*row, None) for row in rows])], notes, errors)


def _served(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The condition Kept; None = the operator has not decided yet."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    found = next((each for each in conditions if each["type"] == "Kept"), None)
    return None if found is None or found["reason"] == reasons.BEING_DELETED else found
