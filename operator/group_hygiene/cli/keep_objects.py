"""`keep` of a user without rights to the KafkaConnection: a GroupKeep in the namespace of the kubeconfig's context."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from group_hygiene.cli.keep_requests import KeepTerms, report
from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Report, note, printable, working
from group_hygiene.cli.target import current_namespace, open_api
from group_hygiene.controller.objects import KEEPS
from group_hygiene.errors import Forbidden, NotAllowed, NotFound, Refused, UsageError
from group_hygiene.kafka.client import Deadline
from group_hygiene.ledger.journal import SKEW_MAX
from group_hygiene.model import reasons
from group_hygiene.spec.crds import API_VERSION
from group_hygiene.spec.fields import format_duration, timestamp, whole_seconds
from group_hygiene.spec.policy import GROUPS_MAX

# An operator that runs serves a GroupKeep within seconds.
_WAIT_S, _POLL_S = 60.0, 0.5
# With these, groups may be protected although Kept is False.
_PROTECTED = frozenset({reasons.GROUP_UNKNOWN, reasons.GROUP_UNREADABLE})


def keep(target: ChosenCluster, groups: Sequence[str], terms: KeepTerms, denied: NotAllowed) -> Report:
    """Apply a GroupKeep, and wait until the operator has served it. The same groups are the same object.

    denied: why the ledger can't be used. Raises UsageError if no GroupKeep can be applied either.
    """
    namespace, api = current_namespace(target.context, target.kubeconfig), open_api(target.context, target.kubeconfig)
    reference = {"name": target.connection, "namespace": target.namespace}
    name = f"keep-{hashlib.sha256(json.dumps([reference, *sorted(groups)]).encode()).hexdigest()[:12]}"
    shown, it = f"GroupKeep {namespace}/{name}", f"kgk {name} -n {namespace}"
    if len(groups) > GROUPS_MAX:
        raise UsageError(f"{denied}. A GroupKeep may name {GROUPS_MAX} groups: name fewer")
    now = datetime.now(UTC).replace(microsecond=0)
    end = now + terms.period
    spec = {
        "connectionRef": reference,
        "groups": list(groups),
        "reason": terms.why,
        "until": timestamp(end),
        "ignoreNotFound": terms.ignore_not_found,
    }
    metadata = {"name": name, "namespace": namespace}
    with working("applying a GroupKeep"):
        before = None
        try:
            # One that can't be read may last longer.
            with suppress(NotFound):
                before = api.get(KEEPS, namespace, name)
            if before is not None and not terms.replace:
                _refuse_to_shorten(shown, (before.get("spec") or {}).get("until"), end)
            api.apply_object(
                KEEPS, {"apiVersion": API_VERSION, "kind": "GroupKeep", "metadata": metadata, "spec": spec}
            )
        except (NotFound, Refused) as error:
            advice = f". Ask for get, create and patch on {KEEPS} there" if isinstance(error, Forbidden) else ""
            raise UsageError(
                f"{denied}. No GroupKeep could be applied in namespace {namespace} either, which the context of the "
                f"kubeconfig names: {error}{advice}"
            ) from None
        found = api.get(KEEPS, namespace, name)
    note(f"you have no right to the KafkaConnection: {shown} was applied instead")
    left = Deadline(_WAIT_S)
    with working("waiting for the operator"):
        while (served := _served(found)) is None and left.left > 0:
            time.sleep(_POLL_S)
            found = api.get(KEEPS, namespace, name)
    counts = (found.get("status") or {}).get("counts") or {}
    # Requests also protect groups that do not exist yet, and those for which that could not be read.
    whole = served is not None and (
        served["status"] == "True" or (served["reason"] in _PROTECTED and counts.get("protected") == len(groups))
    )
    protected = groups if whole else ()
    notes, errors = list[str](), list[str]()
    if protected:
        notes.append(
            f"it holds for KafkaConnection {target.namespace}/{target.connection}, and no other to that cluster"
        )
    if served is None:
        errors.append(f"no operator has served {shown} yet: kubectl describe {it}")
    else:
        text = f"{shown}: {served['reason']}: {served['message']}"
        if served["status"] != "True" and not (whole and served["reason"] == reasons.GROUP_UNREADABLE):
            errors.append(f"{text}. What helps: kubectl describe {it}. It stays: kubectl delete {it}")
        elif served["reason"] in _PROTECTED:
            notes.append(text)
    if before is None and served is not None:
        # By the clock of the operator, which agrees with the broker's.
        behind = datetime.fromisoformat(served["lastTransitionTime"]) - now - timedelta(seconds=_WAIT_S)
        if behind > SKEW_MAX:
            text = f"the clock of this computer is {format_duration(whole_seconds(behind))} behind the operator's: "
            errors.append(f"{text}the request ends too early. Correct it, and repeat this")
    return report(dict.fromkeys(protected, (end, shown, None)), terms, notes, errors)


def _refuse_to_shorten(shown: str, until: str | None, end: datetime) -> None:
    """until: of the object that there is; None = it has no end."""
    if until is None:
        raise UsageError(f"{shown} keeps them without an end; --replace gives it one")
    if (later := datetime.fromisoformat(until)) > end:
        raise UsageError(f"{shown} keeps them until {timestamp(later)}, which is later; --replace shortens that")


def refuse_removal(target: ChosenCluster, groups: Sequence[str], denied: NotAllowed) -> UsageError:
    """What a user without rights to the KafkaConnection can delete instead: the GroupKeeps that name these groups."""
    namespace = current_namespace(target.context, target.kubeconfig)
    api, wanted = open_api(target.context, target.kubeconfig, [namespace]), set(groups)
    try:
        found = [each for each in api.list_all(KEEPS) if wanted & set((each.get("spec") or {}).get("groups") or ())]
    except Refused:
        return denied
    names = " ".join(printable(each["metadata"]["name"]) for each in found)
    what = f"delete the GroupKeeps that name them: kubectl delete kgk {names}" if found else "no GroupKeep names them"
    return UsageError(f"you have no right to the KafkaConnection. In namespace {namespace}, {what}")


def _served(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The condition Kept of this generation; None = the operator has not decided yet."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    found = next((each for each in conditions if each["type"] == "Kept"), None)
    current = found is not None and found.get("observedGeneration") == obj["metadata"]["generation"]
    return found if found is not None and current and found["reason"] != reasons.BEING_DELETED else None
