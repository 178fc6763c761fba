"""Programs built from Go modules: a folder with a go.mod, a go.sum and a tools.go pins them and their dependencies."""

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

from testing.sandbox.cache import run_long
from testing.sandbox.prerequisites import GO, find
from testing.sandbox.process import Command


def build(source: Path, package: str, program: Path, what: str, flags: str = "-s -w", *, tags: str = "") -> None:
    """Build `package` of the modules in the folder `source` into the file `program`. what: shown meanwhile."""
    # Without cgo no C compiler is needed.
    environment = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    argv = (find(GO), "build", "-mod=readonly", "-trimpath", "-tags", tags, "-ldflags", flags, "-o", program, package)
    run_long(what, Command(argv, Path("go.log"), environment, source))


def ask(program: Path, question: Any) -> Any:
    """Run a program of ours with JSON as input and output. Raises ValueError with its error text."""
    asked = json.dumps(question)
    done = subprocess.run([program], input=asked, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return json.loads(done.stdout)


def version(source: Path, module: str) -> str:
    """The version of a module that the go.mod in `source` requires, without its v."""
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} v(\S+)", (source / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{source / 'go.mod'} does not require {module}")
    return found[1]


def content_name(name: str, source: Path) -> str:
    """name-hash: for a program without dependencies."""
    return f"{name}-{_content_hash(source)}"


def cache_name(name: str, source: Path, module: str) -> str:
    """name-version-hash: changes with modules and code, so that no outdated program is used."""
    return f"{name}-{version(source, module)}-{_content_hash(source)}"


def _content_hash(source: Path) -> str:
    files = [source / "go.mod", source / "go.sum", *sorted(source.rglob("main.go"))]
    content = b"".join(file.read_bytes() for file in files if file.exists())
    return hashlib.sha256(content).hexdigest()[:8]
