"""The default namespace of commands, by the kubeconfig. Sends no requests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT = "default"


def current_namespace(context: str | None = None, file: Path | None = None) -> str:
    """As kubectl: the namespace of the kubeconfig's context; else, in a pod, the pod's; else `default`.

    context: its name; None = the current one. file: the kubeconfig; None = $KUBECONFIG, else that of the user.

    Of several files, the first with a current context decides, and the first with a context of that name. Files that
    can't be read are skipped here: the client reports them when it connects.
    """
    names = (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep) if file is None else [str(file)]
    files = list(_files(filter(None, names)))
    if not files:
        return _text(_POD_NAMESPACE).strip() or _DEFAULT
    current = context or next((each["current-context"] for each in files if each.get("current-context")), None)
    for config in files:
        for entry in config.get("contexts") or ():
            if isinstance(entry, Mapping) and entry.get("name") == current:
                found = entry.get("context")
                return str((isinstance(found, Mapping) and found.get("namespace")) or _DEFAULT)
    return _DEFAULT


def _files(names: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    for name in names:
        try:
            config = yaml.safe_load(_text(Path(name).expanduser()))
        # RuntimeError: in a container without HOME, whose user has no entry in /etc/passwd.
        except (yaml.YAMLError, RuntimeError):
            continue
        if isinstance(config, Mapping):
            yield config


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""
