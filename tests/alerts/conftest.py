"""Receivers that really receive: an HTTP server of our own, and a real Alertmanager that tells it in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.receiving import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running
