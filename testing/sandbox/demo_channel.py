"""The receiver of the demo's alerts: a webhook, like that of a chat or a pager, and its messages."""

import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from testing.sandbox.demo_checks import Story, same
from testing.sandbox.demo_kubernetes import IDLE, POLICY
from testing.sandbox.demo_screen import Check, in_columns

Alert = Mapping[str, Any]
# Names of groups in one line.
_NAMES = 3


class Channel:
    """A webhook on this machine, from `start` to `stop`; it stores all messages."""

    def __init__(self) -> None:
        self._server: ThreadingHTTPServer | None = None
        self.messages: list[Mapping[str, Any]] = []

    @property
    def address(self) -> str:
        """Its URL."""
        port = 0 if self._server is None else self._server.server_address[1]
        return f"http://127.0.0.1:{port}/hygiene"

    def start(self) -> None:
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                messages.append(json.loads(body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing: stderr is the demo's screen."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, name="channel", daemon=True).start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def has_all_deletions(self, story: Story) -> bool:
        """Whether its messages include every deletion of a group."""
        return _deleted(self.messages) >= len(story.gone)

    def lines(self) -> list[str]:
        """A line for each alert, with the number of its message."""
        rows = []
        for number, message in enumerate(self.messages, 1):
            for alert in message["alerts"]:
                new = f"{alert['new']} new: " if alert["status"] == "firing" and alert["new"] else ""
                rows.append((f"{number}", alert["status"], alert["kind"], alert["policy"], f"{new}{_names(alert)}"))
        return in_columns(rows)

    def check(self, story: Story) -> list[Check]:
        """Compare the messages with Kafka's groups; no alert may arrive twice."""
        alerts = [alert for message in self.messages for alert in message["alerts"]]
        kinds = [alert["kind"] for alert in alerts if alert["policy"] == POLICY and alert["status"] != "resolved"]
        warned = [kind for kind in kinds if kind in ("GroupsMarked", "GroupsDeleted")][:2]
        idle = [alert for alert in alerts if alert["status"] == "firing" and not alert["new"]]
        return [
            same("the webhook received the marks of groups, and then their deletions", warned, _ORDER),
            same(
                f"its messages GroupsDeleted add up to {len(story.gone)} groups",
                _deleted(self.messages),
                len(story.gone),
            ),
            Check(
                f"{len(self.messages)} messages for all runs of all policies, each with a change",
                f"{len(idle)} alerts had none" if idle else "",
            ),
        ]


_ORDER = ["GroupsMarked", "GroupsDeleted"]


def _deleted(messages: Sequence[Mapping[str, Any]]) -> int:
    return sum(
        alert["total"]
        for message in messages
        for alert in message["alerts"]
        if alert["kind"] == "GroupsDeleted" and alert["policy"] in (POLICY, IDLE)
    )


def _names(alert: Alert) -> str:
    groups, total = alert["groups"], alert["total"]
    return ", ".join(groups[:_NAMES]) + (f" and {total - _NAMES} more" if total > _NAMES else "")
