"""The bill of materials of an image's folder, as CycloneDX 1.6 in JSON: its Python packages and its jars.

Run by the Python of that folder: `sbom.py FOLDER`. The same folder gives the same text: no time, no number of its own.
What the base image holds is not in it; the attestation that buildx adds (`--sbom=true`) has all of the image.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

_OURS = "kafka-group-hygiene"


def main() -> None:
    """Writes to stdout."""
    folder = Path(sys.argv[1])
    components = sorted([*_packages(), *_jars(folder / "jars")], key=lambda component: str(component["purl"]))
    ours = next(component for component in components if component["name"] == _OURS)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**ours, "type": "application"}},
        "components": [component for component in components if component is not ours],
    }
    sys.stdout.write(json.dumps(bill, indent=1) + "\n")


def _packages() -> Iterator[dict[str, Any]]:
    for package in distributions():
        name = re.sub(r"[-_.]+", "-", package.name).lower()
        component = _component(name, package.version, f"pkg:pypi/{name}@{quote(package.version)}")
        told: Any = package.metadata
        text = told.get("License-Expression")
        yield component | ({"licenses": [{"expression": text}]} if text else {})


def _jars(folder: Path) -> Iterator[dict[str, Any]]:
    """As coordinates.txt tells where each lay in Maven's repository."""
    told = folder / "coordinates.txt"
    for line in told.read_text().splitlines() if told.exists() else ():
        *places, name, version, file = PurePosixPath(line).parts
        group, digest = ".".join(places), hashlib.sha256((folder / file).read_bytes()).hexdigest()
        component = _component(name, version, f"pkg:maven/{group}/{name}@{quote(version)}")
        yield component | {"group": group, "hashes": [{"alg": "SHA-256", "content": digest}]}


def _component(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    main()
