"""docs/safety-preconditions.md: the list of `reconcile.preconditions`, with the texts of docsite/preconditions.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from docsite.markdown import table
from group_hygiene.reconcile.preconditions import PRECONDITIONS, Moment

_INTRO = """<!-- Made by `make docs` of docsite/preconditions.yaml and reconcile/preconditions.py: edit these. -->

# Safety: preconditions

What must hold before anything in Kafka is changed. The operator's runs, `delete`, `delete-offsets`, `restore`, `keep`
and `doctor` use this one list: a command can't do what the operator would refuse, and `doctor` fails where a change
would be refused
(`tests/kafka/test_preconditions.py::test_a_setting_of_the_ledger_that_is_changed_later`,
`tests/unit/test_preconditions.py::test_every_precondition_is_asked`). [Safety](safety.md) has the overview.

Only `reconcile/executor.py` sends requests that change Kafka, and writes backups, intents, outcomes, marks and requests
to keep groups into the ledger; `make imports` checks that. Each precondition is proved again for every run. What
evidence a single group needs is on [the page on deletions](safety-before-deletion.md). Two writes to the ledger ask a
part of this list only: the operator's daily removal of expired entries, and `--create-ledger`, which creates and claims
the topic before the preconditions of requests are proved, so also for a KafkaConnection that is being deleted.
"""
_DEFAULTS = {"lasts": "one run", "unknown": "nothing is deleted", "right": "none"}


@cache
def texts() -> dict[str, dict[str, Any]]:
    """Name of a precondition -> its texts, as described in the file."""
    found = yaml.safe_load((Path(__file__).parent / "preconditions.yaml").read_text())
    return {name: _DEFAULTS | each for name, each in found.items()}


def page() -> str:
    parts = [_INTRO]
    for moment in Moment:
        rows = [_row(each.name) for each in PRECONDITIONS if moment in each.moments]
        head = ("precondition", "protects from", "proof", "holds for", "if unknown", "reasons", "right in Kafka")
        parts.append(f"\n## Proved {moment.value}\n\n{table(head, rows)}")
    return "".join(parts)


def _row(name: str) -> tuple[str, ...]:
    each = texts()[name]
    reasons = ", ".join(f"`{reason}`" for reason in each["reasons"])
    return name, each["protects"], each["proof"], each["lasts"], each["unknown"], reasons, each["right"]
