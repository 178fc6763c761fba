"""The bill of materials of an image's folder, as CycloneDX 1.6 in JSON: its Python packages and its jars.

Run by the Python of that folder: `sbom.py FOLDER`. The same folder gives the same text: no time, no number of its own.
What the base image holds is not in it; the attestation that buildx adds (`--sbom=true`) has all of the image.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

_OURS = "kafka-group-hygiene"
_METADATA = re.compile(r"META-INF/maven/([^/]+)/([^/]+)/pom\.properties")


def main() -> None:
    """Writes to stdout."""
    folder = Path(sys.argv[1])
    every = {
        component["purl"]: component for component in (*_jars_of_spark(folder), *_jars(folder / "jars"), *_packages())
    }
    components = [every[purl] for purl in sorted(every)]
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
    """coordinates.txt has the path of each in Maven's repository."""
    coordinates = folder / "coordinates.txt"
    for line in coordinates.read_text().splitlines() if coordinates.exists() else ():
        *places, name, version, file = PurePosixPath(line).parts
        group, digest = ".".join(places), hashlib.sha256((folder / file).read_bytes()).hexdigest()
        component = _component(name, version, f"pkg:maven/{group}/{name}@{quote(version)}")
        yield component | {"group": group, "hashes": [{"alg": "SHA-256", "content": digest}]}


def _jars_of_spark(folder: Path) -> Iterator[dict[str, Any]]:
    """The jars inside the package PySpark, by Maven's metadata in each; one without has a name and a version only."""
    for file in sorted(folder.glob("lib/python3*/site-packages/pyspark/jars/*.jar")):
        group, name, version = _coordinates(file)
        package = f"maven/{group}/{name}" if group else f"generic/{name}"
        component = _component(name, version, f"pkg:{package}@{quote(version)}")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        yield component | ({"group": group} if group else {}) | {"hashes": [{"alg": "SHA-256", "content": digest}]}


def _coordinates(file: Path) -> tuple[str, str, str]:
    """Group (empty: unknown), name and version. A jar may hold the metadata of others that were packed into it."""
    with zipfile.ZipFile(file) as jar:
        found = [_METADATA.fullmatch(name) for name in jar.namelist()]
    held = {match[2]: match[1] for match in found if match}
    names = [name for name in held if re.match(rf"{re.escape(name)}-\d", file.stem)]
    if names:
        name = max(names, key=len)
        return held[name], name, file.stem.removeprefix(f"{name}-")
    name, _, version = re.sub(r"-(?=\d)", " ", file.stem, count=1).partition(" ")
    return "", name, version


def _component(name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    main()
