"""The image of the pause container, written without a builder: one layer with one program."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


def write_pause(program: Path, name: str, machine: str, archive: Path) -> Path:
    """Write an archive as of `docker save`. machine: as `platform.machine()` names it."""
    layer = _tar({"pause": program.read_bytes()}, mode=0o755)
    configuration = {
        "architecture": _ARCHITECTURE.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {
        "config.json": json.dumps(configuration).encode(),
        "layer.tar": layer,
        "manifest.json": json.dumps(manifest).encode(),
    }
    archive.write_bytes(_tar(files, mode=0o644))
    return archive


def _tar(files: dict[str, bytes], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
