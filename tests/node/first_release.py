"""Release 0.1.0, as its users have it: its chart, and an image with its program.

Its Dockerfile begins with an image of Python that only a registry has, so the program of that time is put on the base
of today's image. Its packages have the versions of today. That program needs a name for its user in the environment.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox.node import Node
from sandbox.node.requirements import program
from tests.node import release
from tests.node.enforcing import CONNECTION as CONNECTION_NOW

# The last commit of 0.1.0, which has no tag.
_COMMIT = "1ff60e59fa02a5fc80e13998a7c10f4902946999"
_TAG = "first-release"
_RECIPE = f"""\
FROM {release.IMAGE}
COPY operator /opt/first-release
ENV PYTHONPATH=/opt/first-release
"""
# How 0.1.0 names what tests/node/enforcing.py has in CONNECTION.
CONNECTION: Mapping[str, Any] = {
    "tls": {"ca": CONNECTION_NOW["tls"]["caSecretRef"]},
    "sasl": {
        "mechanism": "SCRAM-SHA-512",
        "username": CONNECTION_NOW["sasl"]["username"],
        "password": CONNECTION_NOW["sasl"]["passwordSecretRef"],
    },
}
# As whoever installs it sets them, with the image and the user's name.
VALUES = (f"image.tag={_TAG}", "operator.env[0].name=USER", "operator.env[0].value=group-hygiene")


def prepare(node: Node, directory: Path) -> Path:
    """Load the image into the node, and return the chart; directory: an empty one for its files."""
    archive = ["git", "-C", str(release.ROOT), "archive", _COMMIT, "operator", "crds", "deploy"]
    files = subprocess.run(archive, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(files)) as tar:
        tar.extractall(directory / "source", filter="data")
    context = directory / "context"
    # Without its links, of which some lead out of what an image is built from.
    shutil.copytree(directory / "source" / "operator", context / "operator")
    (context / "Containerfile").write_text(_RECIPE)
    image = f"{release.REPOSITORY}:{_TAG}"
    options = ["--quiet", f"--tag={image}", f"--file={context / 'Containerfile'}"]
    subprocess.run([program("podman"), "build", *options, str(context)], capture_output=True, check=True)
    node.load_image(image)
    subprocess.run([program("podman"), "rmi", image], capture_output=True, check=True)
    return directory / "source" / "deploy" / "helm" / "group-hygiene"
