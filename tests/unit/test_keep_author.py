"""Who asked for a group to be kept, if --by is not given."""

from __future__ import annotations

import pwd

import pytest
from click.testing import CliRunner

from group_hygiene.cli import main

_KEEP = ("keep", "billing", "--for", "1d", "--why", "needed", "--bootstrap-server", "127.0.0.1:1", "--timeout", "1s")


@pytest.mark.parametrize("error", [KeyError("uid not found: 65532"), OSError("No username set in the environment")])
def test_a_user_without_a_name_must_give_one(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A container's user often has no entry in /etc/passwd: before Python 3.13 that is a KeyError, later an OSError."""

    def unknown(_number: int) -> None:
        raise error

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    refused = CliRunner().invoke(main, _KEEP)
    assert refused.exit_code != 0
    assert isinstance(refused.exception, SystemExit)
    assert "--by must be given: the user of this computer has no name" in refused.output
    named = CliRunner().invoke(main, [*_KEEP, "--by", "anna"])
    assert "--by" not in named.output
