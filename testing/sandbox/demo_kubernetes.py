"""The Kubernetes side of the demo: install CRDs and operator, apply the examples, run the operator, read objects."""

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

from testing.sandbox.demo_screen import in_columns
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.manifests import install, operators_account
from testing.sandbox.process import Command, Keeper, Server, check_running, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "demo"
NAMESPACE = "kafka"
POLICY, IDLE, STALE = "everything-unused", "idle", "stale-offsets"
# The policies that the demo switches to Enforce.
ENFORCED = (POLICY, IDLE, STALE)
OPERATOR = f"{shlex.quote(sys.executable)} -m group_hygiene.cli"

_ADDRESS, _TABLES = "my-cluster-kafka-bootstrap.kafka:9092", "s3://kafka-hygiene/my-cluster"
_CHANNEL = "https://chat.example.com/hygiene"
# A lease long enough for a busy machine.
_OPTIONS = ("operator", "--health-port", "0", "--lease-duration", "180", "--allow-receiver", "127.0.0.1/32")
_STOP_SECONDS = 20.0
_SKIPPED = r'^group_hygiene_groups_skipped{{[^}}]*policy="{policy}",reason="{reason}"}} (\S+)'


class Kubernetes:
    """The API server as the demo uses it. `install`, then `run_operator`, then `apply_examples`."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._keeper: Keeper | None = None
        self._operator: Server | None = None

    def install(self) -> None:
        """Install the CRDs and the operator, and make a namespace for Kafka's objects, as a user does."""
        install(self._api)
        self._api.kubectl("create", "namespace", NAMESPACE)

    def run_operator(self, command: str, tables: Path) -> None:
        """Run the operator as a process, with the rights of the ServiceAccount of deploy/ and no others.

        tables: the folder of this machine in which it may read.
        """
        kubeconfig = operators_account(self._api)
        self._keeper = Keeper()
        environment = {"KUBECONFIG": str(kubeconfig), "NO_PROXY": f"127.0.0.1,{os.environ.get('NO_PROXY', '')}"}
        argv = [*shlex.split(command), *_OPTIONS, "--allow-local-activity", str(tables)]
        program = Command(argv, self._keeper.scratch / "operator.log", environment)
        self._operator = self._keeper.start("operator", program)
        wait_until(lambda: "watching" in self.operator_log(), [self._operator], 120)

    def stop(self) -> None:
        """Stop the operator, as Kubernetes would."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            try:
                if self._operator is not None:
                    self._operator.stop(_STOP_SECONDS)
            finally:
                keeper.close()

    def check(self) -> None:
        """Raise StartFailed with the end of its log if the operator has ended by itself."""
        if self._operator is not None:
            check_running([self._operator])

    def apply_examples(self, bootstrap: str, tables: Path, channel: str) -> None:
        """Apply examples/demo/, with only the addresses replaced. channel: URL of a webhook."""
        texts = [file.read_text() for file in sorted(EXAMPLES.glob("*.yaml"))]
        text = "\n---\n".join(texts).replace(_ADDRESS, bootstrap).replace(_TABLES, str(tables))
        text = text.replace(_CHANNEL, channel)
        self._api.kubectl("apply", "-f", "-", input=text)

    def enforce(self) -> str:
        """Switch the deleting policies from DryRun to Enforce. Returns the command."""
        patch = '{"spec": {"mode": "Enforce"}}'
        arguments = ("patch", "kgp", *ENFORCED, "-n", NAMESPACE, "--type=merge", "-p", patch)
        self._api.kubectl(*arguments)
        return shlex.join(["kubectl", *arguments])

    def get(self, kinds: str) -> tuple[str, list[str]]:
        """`kubectl get`: the command and its output."""
        return f"kubectl get {kinds} -n {NAMESPACE}", self._lines("get", kinds)

    def describe(self, policy: str = POLICY) -> tuple[str, list[str]]:
        """The conditions and events of a policy from `kubectl describe`, one line each."""
        conditions = self.status(policy).get("conditions") or []
        rows = [(c["type"], f"{c['status']}, {c['reason']}", c["message"]) for c in conditions if c["message"]]
        described = self._lines("describe", "kgp", policy)
        start = next((i for i, line in enumerate(described) if line.startswith("Events:")), len(described))
        # Below two lines of titles: type, reason, age, from, message.
        for line in described[start + 3 :]:
            _, reason, age, _, message = re.split(r" {2,}", line.strip(), maxsplit=4)
            rows.append((reason, age, message))
        return f"kubectl describe kgp {policy} -n {NAMESPACE}  # its conditions and events", in_columns(rows)

    def objects(self) -> dict[str, Mapping[str, Any]]:
        """Name -> object, of the connection and the policies."""
        found = self._api.kubectl("get", "kconn,kgp", "-n", NAMESPACE, "-o", "json")
        return {item["metadata"]["name"]: item for item in json.loads(found.stdout)["items"]}

    def status(self, name: str = POLICY) -> Mapping[str, Any]:
        status: Mapping[str, Any] = self.objects()[name].get("status") or {}
        return status

    def events(self, reason: str) -> list[Mapping[str, Any]]:
        """The events of that reason."""
        found = self._api.kubectl("get", "events", "-n", NAMESPACE, "-o", "json", f"--field-selector=reason={reason}")
        items: list[Mapping[str, Any]] = json.loads(found.stdout)["items"]
        return items

    def operator_log(self) -> str:
        if self._operator is None or not self._operator.log.exists():
            return ""
        return self._operator.log.read_text(errors="replace")

    def metrics_url(self) -> str | None:
        """The URL of the operator's metrics, from its log."""
        port = re.search(r"on port (\d+)", self.operator_log())
        return f"http://127.0.0.1:{port[1]}/metrics" if port else None

    def skipped(self, reason: str) -> int:
        """How many groups the policy skips for that reason, by the metrics: a status may have it minutes later."""
        url = self.metrics_url()
        if url is None:
            return 0
        # Ignores proxies of the environment.
        with build_opener(ProxyHandler({})).open(url, timeout=60) as answer:
            text = answer.read().decode()
        found = re.search(_SKIPPED.format(policy=POLICY, reason=reason), text, re.MULTILINE)
        return int(float(found[1])) if found else 0

    def _lines(self, *arguments: str) -> list[str]:
        return self._api.kubectl(*arguments, "-n", NAMESPACE).stdout.splitlines()
