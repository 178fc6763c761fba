"""Kubernetes Events: one object per reason and message; when it happens again, its count increases."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from group_hygiene.controller.api import KINDS, Api
from group_hygiene.errors import ApiError, Conflict
from group_hygiene.model.naming import message_shown
from group_hygiene.process import runs
from group_hygiene.spec.crds import API_VERSION, GROUP
from group_hygiene.spec.fields import timestamp

log = logging.getLogger(__name__)

COMPONENT = "group-hygiene"
# The run that recorded it last. Not in the message, as each run would then create another Event.
RUN_ANNOTATION = f"{GROUP}/run-id"
_BURST, _REFILL_S = 25.0, 10.0


class Recorder:
    """Writes Events for objects: at most 25 at once per object, then one every 10 s. Thread-safe; never raises."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._tokens: dict[str, tuple[float, float]] = {}

    def event(self, plural: str, obj: Mapping[str, Any], reason: str, message: str, warning: bool = False) -> bool:
        """Record `reason` on `obj`. The same reason and message again only increases the count of the first Event.

        Returns whether the API server has it.
        """
        metadata = obj["metadata"]
        if not self._take_token(metadata["uid"]):
            return False
        message = message_shown(message)
        digest = hashlib.sha256(f"{metadata['uid']}/{reason}/{message}".encode()).hexdigest()[:16]
        name, namespace = f"{metadata['name'][:200].rstrip('.-')}.{digest}", metadata["namespace"]
        now = timestamp(datetime.now(UTC))
        run = runs.current().get("run")
        annotations = {RUN_ANNOTATION: run} if run else {}
        body = {
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KINDS[plural],
                "namespace": namespace,
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "source": {"component": COMPONENT},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            try:
                self._api.create_event(namespace, body)
            except Conflict:
                count = self._api.get_event_count(namespace, name) + 1
                again = {"count": count, "lastTimestamp": now, "metadata": {"annotations": annotations}}
                self._api.patch_event(namespace, name, again)
        except ApiError as error:
            log.warning("an Event for %s/%s was not recorded: %s", namespace, metadata["name"], error)
            return False
        return True

    def forget(self, uid: str) -> None:
        with self._lock:
            self._tokens.pop(uid, None)

    def _take_token(self, uid: str) -> bool:
        now = time.monotonic()
        with self._lock:
            tokens, since = self._tokens.get(uid, (_BURST, now))
            tokens = min(_BURST, tokens + (now - since) / _REFILL_S)
            if tokens < 1:
                self._tokens[uid] = (tokens, now)
                return False
            self._tokens[uid] = (tokens - 1, now)
            return True
