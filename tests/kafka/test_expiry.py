"""When brokers drop offsets by themselves: what the log predicts, and what happens, for each kind of group.

Real brokers that keep offsets for a minute, as short as they can, and look every two seconds. All kinds of groups wait
for that side by side, so that a minute and a half is enough for all of them.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.kafka.client import Client, connect
from group_hygiene.kafka.offsets import committed_offsets
from group_hygiene.kafka.offsets_log import Commit, decode
from group_hygiene.model.evidence import Activity, Commits, Evidence, Protections, Verdict
from group_hygiene.model.groups import Fault, Group, Partition
from group_hygiene.pipeline.backtest.replay import COMMIT
from group_hygiene.spec.client_settings import Settings
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.conftest import QUICK
from tests.kafka.makers import Maker, at, seen, soon
from tests.kafka.members import ShareMember, StreamsMember, part
from tests.kafka.offsets_topic import read_rows
from tests.replayed import replayed

pytestmark = pytest.mark.slow  # real brokers, until offsets have expired

log = logging.getLogger(__name__)

RETENTION = timedelta(minutes=1)
CHECK = timedelta(seconds=2)
# For a broker whose timer has to wait for a processor.
LATE = timedelta(seconds=5)
NEWEST = "4.4.0"
VERSIONS = (NEWEST, "2.8.2")
CLASSIC = ("classic", "classic-reused", "classic-in-use", "simple")
NEW = ("consumer", "consumer-in-use", "consumer-late", "streams")
_CONFIG = {
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "2000",
    "offsets.topic.num.partitions": "3",
}
_LONGEST_S = 300.0
_Record = dict[str, Any]


class Loss(NamedTuple):
    """Of one committed offset: when it was there last, and when it was seen that it is not."""

    there: datetime
    gone: datetime


@dataclass
class Watch:
    """One broker, its groups, and what became of them.

    names: what a group is here -> its id. predicted: when it loses the first of its offsets, and the last one.
    there: when each of its offsets was there last. lost: those that are not any more. committed: when a group that is
    told of committed last. read: the topic that members read. listed: the groups that are there in the end.
    """

    version: str
    names: dict[str, str] = field(default_factory=dict)
    predicted: dict[str, tuple[datetime, datetime]] = field(default_factory=dict)
    there: dict[str, dict[Partition, datetime]] = field(default_factory=dict)
    lost: dict[str, dict[Partition, Loss]] = field(default_factory=dict)
    committed: dict[str, datetime] = field(default_factory=dict)
    read: str = ""
    listed: frozenset[str] = frozenset()

    def look(self, client: Client) -> None:
        """Ask the broker which offsets are there now."""
        asked = datetime.now(UTC)
        found = committed_offsets(client, dict.fromkeys(self.names.values()), soon())
        deleted_at = datetime.now(UTC)
        for what, name in self.names.items():
            offsets = found[name]
            assert not isinstance(offsets, Fault), offsets
            there, lost = self.there.setdefault(what, {}), self.lost.setdefault(what, {})
            for place in there.keys() - lost.keys() - offsets.keys():
                lost[place] = Loss(there[place], deleted_at)
            there |= dict.fromkeys(offsets.keys() - lost.keys(), asked)

    @property
    def over(self) -> bool:
        """Whether nothing is left but what members read."""
        return all(self.kept(what) == ({self.read} if what.endswith("in-use") else set()) for what in self.names)

    def kept(self, what: str) -> set[str]:
        """The topics of which it has an offset in the end."""
        return {place.topic for place in self.there[what].keys() - self.lost[what].keys()}


def _moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _records(kafka: KafkaCluster) -> dict[str, list[_Record]]:
    """Every group's records, as a backtest would have them."""
    records: dict[str, list[_Record]] = {}
    for number, row in enumerate(read_rows(kafka)):
        decoded = decode(row.key, row.value)
        same = {"slice": number, "first_ms": row.timestamp, "record_time": _moment(row.timestamp)}
        same |= {"used": not decoded.gone}
        if isinstance(decoded, Commit):
            same |= {"kind": COMMIT, "committed_offset": decoded.offset, "aborted": False}
            names = ["topic", "partition", "commit_ms"]
        else:
            names = ["kind", "protocol_type", "members", "member_id", "state_ms", "gone"]
        records.setdefault(decoded.group, []).append(same | {name: getattr(decoded, name) for name in names})
    return records


def _known(name: str, records: Iterable[_Record]) -> tuple[Group, Activity]:
    """What the tables say of a group, before it loses anything."""
    before = list(itertools.takewhile(lambda it: it["kind"] != COMMIT or it["committed_offset"] is not None, records))
    now = replayed(name, before, _moment(0)).stretches[-1]
    assert now.group is not None
    last = {(it["topic"], it["partition"]): it["commit_ms"] for it in before if it.get("commit_ms") is not None}
    times: dict[str, list[datetime]] = {}
    for (topic, _), commit_ms in last.items():
        times.setdefault(topic, []).append(_moment(commit_ms))
    by_topic = {topic: Commits(min(of_topic), max(of_topic)) for topic, of_topic in times.items()}
    return structs.replace(now.group, coordinator=-1), replace(
        now.activity, read_at=datetime.now(UTC), by_topic=by_topic
    )


def _predict(kafka: KafkaCluster, client: Client, names: Mapping[str, str]) -> dict[str, tuple[datetime, datetime]]:
    """When each group loses the first of its offsets, and the last: by the log, and by what its members read."""
    records, predicted = _records(kafka), {}
    for what, name in names.items():
        group, activity = _known(name, records[name])
        subscribed = None
        if group.in_use:
            described = kafka_groups.describe_groups(client, {name: group.type}, {name: None}, soon())[name]
            subscribed = kafka_groups.subscribed_topics(described)
        known = Evidence(Protections(), activity=activity, retention=RETENTION, subscribed=subscribed)
        first = Verdict(group, known, None).expires
        last = first if group.in_use else activity.last_expiry(RETENTION)
        if first is not None and last is not None:
            predicted[what] = first, last
    return predicted


def _watched(version: str) -> Watch:
    """Make a group of each kind, predict, and look on until all that was predicted is over."""
    watch = Watch(version)
    with KafkaCluster(version, config=_CONFIG | (QUICK if version == NEWEST else {})) as kafka:
        make, client = Maker(kafka.plaintext_bootstrap), connect(Settings(tuple(kafka.bootstrap_servers.split(","))))
        try:
            _live_and_expire(watch, kafka, make, client)
        finally:
            make.close()
            client.close()
    return watch


def _listed(client: Client) -> frozenset[str]:
    cluster = seen(client)
    return frozenset(kafka_groups.list_groups(client, cluster, soon()).groups)


def _live_and_expire(watch: Watch, kafka: KafkaCluster, make: Maker, client: Client) -> None:
    read, newest = make.topic(partitions=2), watch.version == NEWEST
    if newest:
        topic = make.topic()
        with ShareMember(kafka, make, make.name("share"), topic):
            wait_for(lambda: any("share" in name for name in _listed(client)))
    _make_groups(watch, make, client, read)
    watch.look(client)
    watch.predicted = _predict(kafka, client, watch.names)
    reuses = [datetime.now(UTC) + timedelta(seconds=after) for after in (15, 30)]
    leaves = [watch.committed["consumer-late"] + RETENTION + 3 * CHECK] if newest else []
    end = time.monotonic() + _LONGEST_S
    while not watch.over and time.monotonic() < end:
        time.sleep(0.2)
        watch.look(client)
        if reuses and datetime.now(UTC) > reuses[0]:
            reuses.pop(0)
            make.simple(watch.names["classic-reused"], at(read, 1))
            watch.committed["classic-reused"] = datetime.now(UTC)
            # What was committed now is known to the prediction, and is no reason to change it.
            watch.predicted |= _predict(kafka, client, {"classic-reused": watch.names["classic-reused"]})
        if leaves and datetime.now(UTC) > leaves[0]:
            leaves.pop(0)
            make.leave(watch.names["consumer-late"])
            late = {"consumer-late": watch.names["consumer-late"]}
            watch.predicted |= _predict(kafka, client, late)
    watch.listed = _listed(client)


def _make_groups(watch: Watch, make: Maker, client: Client, read: str) -> None:
    """One of each kind, within a few seconds; two partitions of a group are committed at different times."""
    other = make.topic()
    watch.read, newest = read, watch.version == NEWEST
    kinds = ["classic", "classic-reused", "classic-in-use", "simple"]
    if newest:
        kinds += ["consumer", "consumer-in-use", "consumer-late", "streams"]
    watch.names |= {what: make.name(what) for what in kinds}
    names = watch.names
    make.join(names["classic-in-use"], read, "classic", at(read) | at(other))
    make.join(names["classic"], read, "classic", at(read))
    make.abandoned(names["classic-reused"], read, "classic", at(read) | at(read, 0, 1))
    make.simple(names["simple"], at(read))
    if newest:
        make.join(names["consumer-in-use"], read, "consumer", at(read) | at(other))
        make.join(names["consumer-late"], read, "consumer", at(read))
        watch.committed["consumer-late"] = datetime.now(UTC)
        make.abandoned(names["consumer"], read, "consumer", at(read))
        with StreamsMember(client, names["streams"], [part("one", [read])]):
            pass
        make.simple(names["streams"], at(read))
    # Longer than LATE, so that no clock passes for another.
    time.sleep(6 * CHECK.total_seconds())
    make.leave(names["classic"])
    make.simple(names["simple"], at(read, 0, 1))
    if newest:
        make.simple(names["consumer"], at(read, 0, 1))


@pytest.fixture(scope="module")
def watches() -> dict[str, Watch]:
    """What brokers of two versions did, side by side."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(VERSIONS, pool.map(_watched, VERSIONS), strict=True))


_EVERYWHERE = [pytest.param(version, what, id=f"{version}-{what}") for version in VERSIONS for what in CLASSIC]
_KINDS = [*_EVERYWHERE, *(pytest.param(NEWEST, what, id=f"{NEWEST}-{what}") for what in NEW)]


@pytest.mark.parametrize(("version", "what"), _KINDS)
def test_offsets_are_lost_when_the_log_says(watches: dict[str, Watch], version: str, what: str) -> None:
    """The first of a group's offsets, and the last: not before the prediction, and by the broker's next check."""
    watch = watches[version]
    losses = sorted(watch.lost[what].values(), key=lambda loss: loss.gone)
    assert len(losses) == len(watch.there[what]) - len(watch.kept(what)) > 0
    for predicted, loss in zip(watch.predicted[what], (losses[0], losses[-1]), strict=True):
        after = (loss.there - predicted).total_seconds(), (loss.gone - predicted).total_seconds()
        log.info("%s %s: there at %+.2f s after the prediction, gone at %+.2f s", version, what, *after)
        assert predicted <= loss.gone
        assert loss.there <= predicted + CHECK + LATE


@pytest.mark.parametrize("version", VERSIONS)
def test_later_commits_do_not_help_a_group_that_was_joined_once(watches: dict[str, Watch], version: str) -> None:
    """An assign-style consumer commits to such an id, and loses what it committed long before a minute is over."""
    watch = watches[version]
    assert watch.predicted["classic-reused"][0] < watch.committed["classic-reused"] + RETENTION - LATE
    assert all(
        loss.gone < watch.committed["classic-reused"] + RETENTION for loss in watch.lost["classic-reused"].values()
    )


@pytest.mark.parametrize(
    ("version", "what"), [(version, "classic-in-use") for version in VERSIONS] + [(NEWEST, "consumer-in-use")]
)
def test_what_members_read_stays(watches: dict[str, Watch], version: str, what: str) -> None:
    """However old the commit is; of a topic that no member reads, the offset is gone."""
    watch = watches[version]
    assert watch.kept(what) == {watch.read}
    assert watch.names[what] in watch.listed


def test_what_was_old_when_the_last_member_left_goes_then(watches: dict[str, Watch]) -> None:
    """A KIP-848 group has no time left after that: only what is asked of it while it has members can warn."""
    watch = watches[NEWEST]
    assert watch.predicted["consumer-late"][0] > watch.committed["consumer-late"] + RETENTION


def test_share_groups_stay(watches: dict[str, Watch]) -> None:
    """They have no committed offsets, and no time after which they end."""
    assert any("share" in name for name in watches[NEWEST].listed)
