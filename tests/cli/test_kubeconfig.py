"""Which namespace is meant where none is given: what kubectl would take."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest
import yaml

from group_hygiene.cli.kubeconfig import current_namespace
from group_hygiene.controller.api import load_config
from group_hygiene.errors import HygieneError


def config(current: str | None, **namespaces: str | None) -> dict[str, Any]:
    """A kubeconfig with these contexts."""
    contexts = [
        {"name": name, "context": {"cluster": "c"} | ({"namespace": value} if value else {})}
        for name, value in namespaces.items()
    ]
    return {"contexts": contexts} | ({"current-context": current} if current else {})


@pytest.mark.parametrize(
    ("files", "namespace"),
    [
        pytest.param([config("b", a="one", b="two")], "two", id="current-context"),
        pytest.param([config("a", a=None)], "default", id="context-without"),
        pytest.param([config(None, a="one")], "default", id="no-current-context"),
        pytest.param([config("b", a="one")], "default", id="no-such-context"),
        pytest.param([config(None, a="one"), config("a", a="two")], "one", id="first-context-of-the-name"),
        pytest.param([config("a"), config("b", a="one", b="two")], "one", id="first-current-context"),
        pytest.param([{"contexts": None}, "a: [", ["x"], config("a", a="one")], "one", id="others-are-broken"),
        pytest.param([], "default", id="no-file"),
    ],
)
def test_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[Any], namespace: str) -> None:
    """That of the current context, over all files that $KUBECONFIG names."""
    names = [str(tmp_path / f"{number}.yaml") for number in range(len(files))]
    for name, content in zip(names, files, strict=True):
        Path(name).write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    monkeypatch.setitem(os.environ, "KUBECONFIG", os.pathsep.join([str(tmp_path / "absent"), *names]))
    assert current_namespace() == namespace


@pytest.mark.parametrize(
    ("context", "namespace"),
    [
        pytest.param("a", "one", id="another-than-the-current"),
        pytest.param("c", "default", id="no-such-context"),
    ],
)
def test_namespace_of_a_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: str, namespace: str) -> None:
    """That of the named context, whatever is the current one."""
    (tmp_path / "config").write_text(yaml.safe_dump(config("b", a="one", b="two")))
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(tmp_path / "config"))
    assert current_namespace(context) == namespace
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(tmp_path / "absent"))
    assert current_namespace(context, tmp_path / "config") == namespace


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has no entry in /etc/passwd."""

    def missing(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", missing)
    for name in ("HOME", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError):
        Path("~").expanduser()
    assert current_namespace() == "default"


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    """Its path, and of one without content what the library says."""
    absent, empty = tmp_path / "absent", tmp_path / "empty"
    empty.write_text("{}")
    with pytest.raises(HygieneError, match=f"there is no file {absent}$"):
        load_config(file=absent)
    with pytest.raises(HygieneError) as raised:
        load_config(file=empty)
    assert "there is no file" not in str(raised.value)
