"""Requests whose answers are read from their bytes: only in versions of which every byte is known."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.broker_version_data import BrokerVersionData

from group_hygiene.kafka.library import RawListGroupsRequest, RawOffsetFetchRequest


class LaterListGroups(RawListGroupsRequest, init=False):  # type: ignore[call-arg]
    """As if the library had learnt of versions that are not known today."""

    max_version = 99


class LaterOffsetFetch(RawOffsetFetchRequest, init=False):  # type: ignore[call-arg]
    """The same."""

    max_version = 99


@pytest.mark.parametrize(
    ("request_", "newest"),
    [
        pytest.param(LaterListGroups(), 5, id="list"),
        pytest.param(LaterListGroups(states_filter=["Empty"], min_version=4), 5, id="list-by-state"),
        pytest.param(LaterOffsetFetch(groups=[]), 8, id="offsets"),
    ],
)
def test_no_version_is_asked_for_that_we_can_not_read(request_: Any, newest: int) -> None:
    """A newer broker and a newer library change nothing."""
    brokers = BrokerVersionData(api_versions={request_.API_KEY: (0, 99)})
    assert brokers.api_version(request_) == newest


@pytest.mark.parametrize(
    ("request_", "oldest"),
    [
        pytest.param(RawListGroupsRequest(), 3, id="list"),
        pytest.param(RawOffsetFetchRequest(groups=[]), 8, id="offsets"),
    ],
)
def test_no_version_is_asked_for_that_is_laid_out_in_another_way(request_: Any, oldest: int) -> None:
    """An older broker is not asked by these at all; the library's own requests are for it."""
    brokers = BrokerVersionData(api_versions={request_.API_KEY: (0, oldest - 1)})
    with pytest.raises(Exception, match="version"):
        brokers.api_version(request_)
