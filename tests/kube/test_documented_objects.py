"""The objects that README and docs/ show, on a real API server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import CustomObjectsApi

from tests.kube.test_crds import Object, complaints

ROOT = Path(__file__).parents[2]


def _documented() -> Iterator[Any]:
    """Each whole object of ours in a block of YAML, by its page and name."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            for candidate in yaml.safe_load_all(block):
                if isinstance(candidate, dict) and str(candidate.get("apiVersion")).startswith("grouphygiene.io/"):
                    yield pytest.param(candidate, id=f"{page.stem}-{candidate['metadata']['name']}")


@pytest.mark.parametrize("candidate", list(_documented()))
def test_documented_object_is_accepted(api: CustomObjectsApi, candidate: Object) -> None:
    """Without an unknown field, in whichever namespace."""
    moved = {**candidate, "metadata": {**candidate["metadata"], "namespace": "kafka"}}
    assert complaints(api, moved) == []
