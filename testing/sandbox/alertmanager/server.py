"""Alertmanager on this machine: start and stop, with the caller's configuration."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testing.sandbox import golang
from testing.sandbox.cache import cached
from testing.sandbox.errors import SandboxError
from testing.sandbox.files import write_private
from testing.sandbox.process import Command, wait_until
from testing.sandbox.service import Service

START_SECONDS = 120.0
_SOURCE = Path(__file__).parent
_MODULE = "github.com/prometheus/alertmanager"


def program() -> Path:
    """The program, from our cache or built from Go modules."""
    return cached(golang.cache_name("alertmanager", _SOURCE, _MODULE), _build) / "alertmanager"


def _build(into: Path) -> None:
    version = golang.version(_SOURCE, _MODULE)
    what = f"building Alertmanager {version} from Go modules (about a minute, once)"
    # The module of this version includes the built user interface; later ones lack it.
    golang.build(_SOURCE, f"{_MODULE}/cmd/alertmanager", into / "alertmanager", what)


class Alertmanager(Service):
    """One Alertmanager without peers."""

    _what = "Alertmanager"

    def __init__(self, config: Mapping[str, Any]) -> None:
        """config: the content of its configuration file."""
        super().__init__()
        self._config = config

    def prepare(self) -> None:
        self._program = program()

    @property
    def url(self) -> str:
        """http://127.0.0.1:port."""
        return f"http://127.0.0.1:{self._port}"

    def alerts(self) -> list[dict[str, Any]]:
        """The firing alerts, from its API v2."""
        return list(json.loads(self._get("/api/v2/alerts")))

    def _start(self) -> None:
        (self._port,) = self._ports.take(1)
        scratch = self._scratch
        # JSON is YAML.
        config = write_private(scratch / "alertmanager.yml", json.dumps(self._config))
        argv: list[str | Path] = [
            self._program,
            f"--config.file={config}",
            f"--storage.path={scratch / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            # No peers.
            "--cluster.listen-address=",
        ]
        server = self._running.start("alertmanager", Command(argv, log=scratch / "alertmanager.log"))
        wait_until(self._ready, [server], START_SECONDS)

    def _ready(self) -> bool:
        try:
            self._get("/-/ready")
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _get(self, path: str) -> str:
        if self._keeper is None:
            raise SandboxError("this Alertmanager is not running")
        # Ignores proxies of the environment.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.url + path, timeout=10) as answer:
            return str(answer.read().decode())
