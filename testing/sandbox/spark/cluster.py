"""A Spark standalone cluster on this machine: a master and some workers, of the Spark in PySpark."""

import importlib.util
import json
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testing.sandbox.prerequisites import JAVA, find
from testing.sandbox.process import Command, Server, wait_until
from testing.sandbox.service import Service

START_SECONDS = 120.0
_HOST = "127.0.0.1"


class SparkCluster(Service):
    """Workers of one core and 1 GiB each. variables: environment of their executors."""

    _what = "Spark cluster"

    def __init__(self, workers: int = 2, variables: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._workers, self._variables = workers, dict(variables or {})

    def prepare(self) -> None:
        find(JAVA)
        found = importlib.util.find_spec("pyspark")
        if found is None or found.origin is None:
            raise ModuleNotFoundError("pyspark")
        self._home = Path(found.origin).parent

    @property
    def url(self) -> str:
        """spark://127.0.0.1:port, for `--master`."""
        return f"spark://{_HOST}:{self._port}"

    @property
    def client(self) -> dict[str, str]:
        """Environment variables of a driver on this machine, by which workers reach it."""
        return {"SPARK_LOCAL_IP": _HOST, "SPARK_LOCAL_HOSTNAME": _HOST}

    def _start(self) -> None:
        self._port, self._web_port, *others = self._ports.take(2 + 2 * self._workers)
        servers = [self._launch("master", "master.Master", f"--port={self._port}", f"--webui-port={self._web_port}")]
        for number in range(self._workers):
            port, web_port = others[2 * number : 2 * number + 2]
            options = ("--cores=1", "--memory=1g", f"--work-dir={self._scratch / f'work-{number}'}")
            ports = (f"--port={port}", f"--webui-port={web_port}")
            servers.append(self._launch(f"worker-{number}", "worker.Worker", *options, *ports, self.url))
        wait_until(lambda: self._alive() == self._workers, servers, START_SECONDS)

    def _launch(self, name: str, role: str, *arguments: str) -> Server:
        argv = [self._home / "bin" / "spark-class", f"org.apache.spark.deploy.{role}", f"--host={_HOST}", *arguments]
        words = [word for argument in argv for word in str(argument).split("=", 1)]
        environment = self.client | self._variables | {"SPARK_HOME": str(self._home), "PYSPARK_PYTHON": sys.executable}
        return self._running.start(name, Command(words, self._scratch / f"{name}.log", environment))

    def _alive(self) -> int:
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://{_HOST}:{self._web_port}/json/", timeout=10) as answer:
                state: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            # As it starts, it answers any path with its page.
            return 0
        return int(state["aliveworkers"])
