"""`sasl.jaas.config` as Kafka reads it: by a table that Kafka's own parser made, and back from what we write."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from group_hygiene.errors import UsageError
from group_hygiene.spec.client_settings import LOGIN_MODULES, Mechanism, parse_jaas
from testing.sandbox.kafka.security import format_jaas

MODULE = LOGIN_MODULES[Mechanism.PLAIN]
# [text, options], the answer of JaasContext.loadClientContext of Kafka 4.4.0 on Java 17: null = it is refused, or of
# another module. Options without a name, which Java keeps under null, are left out.
BY_KAFKA = json.loads(Path(__file__).with_name("jaas_by_kafka.json").read_text())


@pytest.mark.parametrize(
    ("text", "options"), [pytest.param(*case, id=f"{number}") for number, case in enumerate(BY_KAFKA)]
)
def test_read_as_kafka_reads_it(text: str, options: dict[str, str] | None) -> None:
    """The same options, or refused as there: another reading would be another password, without a word."""
    with nullcontext() if options is not None else pytest.raises(UsageError, match=r"^sasl\.jaas\.config must "):
        assert parse_jaas(text.replace("MODULE", MODULE), Mechanism.PLAIN) == options


@given(
    st.dictionaries(st.from_regex(r"[A-Za-z_$][-A-Za-z0-9_.$]*", fullmatch=True), st.text(st.characters(codec="utf-8")))
)
def test_what_is_written_is_read(options: dict[str, str]) -> None:
    """Any values, also with quotes, backslashes and line breaks."""
    assert parse_jaas(format_jaas(Mechanism.PLAIN, options), Mechanism.PLAIN) == options
