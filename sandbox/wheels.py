"""The Python packages of the images, kept in the cache: what installs them there needs no index of packages."""

import hashlib
import sys
from pathlib import Path

from sandbox.cache import cached, run_long
from sandbox.process import Command

_LOCKS = Path(__file__).parents[1] / "deploy" / "images"


def wheels(image: str) -> Path:
    """The folder with the packages of deploy/images/<image>.lock; downloads them when they are not cached."""
    locks = [_LOCKS / "build.lock", _LOCKS / f"{image}.lock"]

    def download(into: Path) -> None:
        named = (word for lock in locks for word in ("-r", lock))
        argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", *named, "-d", into]
        what = f"downloading the packages of deploy/images/{image}.lock (about a minute, once)"
        run_long(what, Command(argv, Path("pip.log")))

    # Wheels are of one Python; the locks are part of the name: others must not find the old packages.
    digest = hashlib.sha256(sys.version.encode() + b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:8]
    return cached(f"wheels-{image}-{digest}", download)
