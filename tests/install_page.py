"""What docs/install.md says of kustomize: the kustomization that users write, and the commands that they run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

_ROOT = Path(__file__).parents[1]
# The folder of the documented kustomization.
FOLDER = "mine"


def kustomization() -> dict[str, Any]:
    """The kustomization of one's own, with its image."""
    content: dict[str, Any] = yaml.safe_load(_block("yaml"))
    return content


def commands() -> list[list[str]]:
    """The commands after it, as words."""
    return [shlex.split(line) for line in _block("sh").replace("\\\n", " ").splitlines()]


def _block(language: str) -> str:
    section = (_ROOT / "docs" / "install.md").read_text().partition("\n## With kustomize\n")[2].partition("\n## ")[0]
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(block)
