"""Files with secrets."""

import os
from pathlib import Path


def write_private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read, from its first byte on."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    return path
