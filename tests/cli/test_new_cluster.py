"""Commands that only read, on a cluster in which no client ever used a group: they leave it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.sandbox.kafka import KafkaCluster
from tests.cli.conftest import Run
from tests.kafka.makers import Maker

ROOT = Path(__file__).parents[2]
POLICY = ("-f", ROOT / "examples" / "policy-random-ids.yaml")


@pytest.fixture(scope="module")
def fresh() -> Iterator[KafkaCluster]:
    """A broker without `__consumer_offsets`, which it creates when a client looks for a coordinator."""
    with KafkaCluster() as cluster:
        yield cluster


_NONE = "Error: there is no group billing: group-hygiene list shows all\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(("list",), "", id="list"),
        pytest.param(
            ("describe", "billing", "--offsets"), "Error: group billing: there is no such group\n", id="describe"
        ),
        pytest.param(("offsets", "billing"), "Error: group billing: there is no such group\n", id="offsets"),
        pytest.param(("explain", "billing", *POLICY), _NONE, id="explain"),
        pytest.param(("plan", *POLICY), "", id="plan"),
        pytest.param(("history",), "this cluster has no ledger", id="history"),
        pytest.param(("keep", "billing", "--for", "1d", "--why", "x", "--by", "me"), "no ledger", id="keep"),
        pytest.param(("restore", "billing", "--preview"), "this cluster has no ledger", id="restore"),
        pytest.param(("delete", "billing", "--preview", "--create-ledger"), "Error: 1 group failed", id="delete"),
        pytest.param(("doctor",), "", id="doctor"),
    ],
)
def test_reading_creates_no_topic(run: Run, fresh: KafkaCluster, arguments: tuple[str, ...], says: str) -> None:
    """Neither the offsets topic nor a ledger, nor the log of transactions."""
    answer = run(*arguments, "--bootstrap-server", fresh.bootstrap_servers)
    assert says in answer.err
    make = Maker(fresh.bootstrap_servers)
    assert set(make.admin.list_topics().topics) == set()
    make.close()
