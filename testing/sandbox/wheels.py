"""The Python packages of the images, in the cache: their installation needs no package index."""

import hashlib
import sys
from pathlib import Path

from testing.sandbox.cache import cached, run_long
from testing.sandbox.process import Command

_LOCKS = Path(__file__).parents[2] / "deploy" / "images"


def wheels(image: str) -> Path:
    """The folder with the packages of deploy/images/<image>.lock; downloads them when they are not cached."""
    locks = [_LOCKS / "build.lock", _LOCKS / f"{image}.lock"]

    def download(into: Path) -> None:
        named = (word for lock in locks for word in ("-r", lock))
        argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", *named, "-d", into]
        what = f"downloading the packages of deploy/images/{image}.lock (about a minute, once)"
        run_long(what, Command(argv, Path("pip.log")))

    # Wheels depend on the Python version, and the name includes a hash of the locks, so that none is outdated.
    digest = hashlib.sha256(sys.version.encode() + b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:8]
    return cached(f"wheels-{image}-{digest}", download)
