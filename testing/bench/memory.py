"""Do answers pile up while all offsets are read? Counts those that are alive, with more and with fewer requests."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from group_hygiene.kafka import offsets as kafka_offsets
from group_hygiene.kafka.client import _IN_FLIGHT_PER_BROKER, Call, Client, Deadline, connect
from group_hygiene.kafka.cluster import read_cluster
from group_hygiene.kafka.groups import list_groups
from group_hygiene.kafka.library import RawAnswer
from group_hygiene.model.groups import Fault
from group_hygiene.spec.client_settings import Settings
from testing.bench.errors import BenchError, WrongCount

# Each of a broker's places for requests holds its last answer until the next one is read.
ALIVE_PER_BROKER = 2 * _IN_FLIGHT_PER_BROKER
_SECONDS = 300.0
# Looking for what is alive takes as long as a scan does: a few looks tell.
_LOOKS = 20


@dataclass(frozen=True)
class Held:
    """The most that was seen alive at once: raw answers, and their bytes, of so many."""

    requests: int
    alive: int
    alive_mb: float


class Watched:
    """A client that looks, when an answer comes, how many answers there are that nobody has let go of."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.requests = self.alive = self.alive_bytes = 0

    def supports(self, request_class: Any, version: int = 0) -> bool:
        return self._client.supports(request_class, version)

    def send_each(
        self, calls: Mapping[Any, Call], deadline: Deadline, reduce: Callable[[Any, Any], Any] | None = None
    ) -> dict[Any, Any]:
        every = max(1, len(calls) // _LOOKS)

        def seen(key: Any, answer: Any) -> Any:
            self.requests += 1
            if self.requests % every == 0:
                self._look()
            return answer if reduce is None else reduce(key, answer)

        results = self._client.send_each(calls, deadline, seen)
        self._look()
        return results

    def _look(self) -> None:
        sizes = [len(found.body) for found in gc.get_objects() if type(found) is RawAnswer]
        self.alive, self.alive_bytes = max(self.alive, len(sizes)), max(self.alive_bytes, sum(sizes))


def held(servers: str, chunk: int, groups: int) -> Held:
    """Read the offsets of all groups at once, `chunk` groups a request. Raises WrongCount where groups are missing."""
    client = connect(Settings(tuple(servers.split(","))))
    usual, kafka_offsets._FETCH_CHUNK = kafka_offsets._FETCH_CHUNK, chunk
    try:
        deadline, watched = Deadline(_SECONDS), Watched(client)
        cluster = read_cluster(client, deadline)
        if isinstance(cluster, Fault):
            raise BenchError(f"the cluster can't be read: {cluster}")
        listed = list_groups(client, cluster, deadline).groups
        coordinators = {name: group.coordinator for name, group in listed.items()}
        read = kafka_offsets.committed_offsets(cast(Client, watched), coordinators, deadline)
        if sum(not isinstance(answer, Fault) for answer in read.values()) != groups:
            raise WrongCount(f"the offsets of some of {groups} groups were not read")
        return Held(watched.requests, watched.alive, watched.alive_bytes / 1024**2)
    finally:
        kafka_offsets._FETCH_CHUNK = usual
        client.close()
