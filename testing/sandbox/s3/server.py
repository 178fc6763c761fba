"""An S3 store on this machine: versitygw, which stores each object as a file and each bucket as a folder.

Among the servers that are Go modules, only this one is maintained, checks signatures, and supports the conditions that
delta-rs uses for commits: `If-None-Match: *` and `If-Match` of PutObject and CompleteMultipartUpload. In November 2026
`rclone serve s3` ignored both for writes, gofakes3 checked no signature, MinIO's repository was archived, and
SeaweedFS had no versions that Go's module proxy knows.

versitygw checks a condition before it writes. It runs with `--concurrency 1`, one action at a time: otherwise several
writers could pass the check for one object.
"""

import http.client
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from testing.sandbox import golang
from testing.sandbox.cache import cached
from testing.sandbox.place import HERE, Place
from testing.sandbox.process import Command, wait_until
from testing.sandbox.service import Service

START_SECONDS = 120.0
REGION = "us-east-1"
_SOURCE = Path(__file__).parent
_MODULE = "github.com/versity/versitygw"
# The path of its health check; a bucket can't have this name.
_HEALTH = "health"


def program() -> Path:
    """The program, from our cache or built from Go modules."""
    return cached(golang.cache_name("versitygw", _SOURCE, _MODULE), _build) / "versitygw"


@dataclass(frozen=True)
class Bucket:
    """A bucket, and the keys of a user with all permissions in it."""

    name: str
    endpoint: str
    access_key: str
    secret_key: str

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables with AWS' names, for delta-rs and the Secret of a KafkaConnection."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }


class S3Store(Service):
    """One store without TLS, with these buckets."""

    _what = "S3 store"

    def __init__(self, buckets: Iterable[str], place: Place = HERE) -> None:
        super().__init__(place)
        self._buckets = tuple(buckets)
        self._access_key, self._secret_key = f"AK{secrets.token_hex(9).upper()}", secrets.token_urlsafe(30)

    def prepare(self) -> None:
        self._program = program()

    @property
    def endpoint(self) -> str:
        """http://address:port."""
        return f"http://{self._place.address}:{self._port}"

    def bucket(self, name: str) -> Bucket:
        """One of the store's buckets."""
        return Bucket(name, self.endpoint, self._access_key, self._secret_key)

    def folder(self, bucket: str) -> Path:
        """The folder with the bucket's objects as files, each at the path of its key."""
        return self._scratch / "buckets" / bucket

    def _start(self) -> None:
        (self._port,) = self._ports.take(1)
        for bucket in self._buckets:
            self.folder(bucket).mkdir(parents=True)
        argv: list[str | Path] = [
            self._program,
            f"--port={self._place.address}:{self._port}",
            f"--region={REGION}",
            f"--health=/{_HEALTH}",
            "--quiet",
            "posix",
            "--concurrency=1",
            self._scratch / "buckets",
        ]
        keys = {"ROOT_ACCESS_KEY_ID": self._access_key, "ROOT_SECRET_ACCESS_KEY": self._secret_key}
        server = self._running.start("versitygw", Command(argv, self._scratch / "versitygw.log", keys))
        wait_until(self._ready, [server], START_SECONDS)

    def _ready(self) -> bool:
        # Ignores proxies of the environment.
        connection = http.client.HTTPConnection(self._place.address, self._port, timeout=10)
        try:
            connection.request("GET", f"/{_HEALTH}")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


def _build(into: Path) -> None:
    version = golang.version(_SOURCE, _MODULE)
    what = f"building versitygw {version} from Go modules (about 2 minutes, once)"
    golang.build(_SOURCE, f"{_MODULE}/cmd/versitygw", into / "versitygw", what, f"-s -w -X main.Version=v{version}")
