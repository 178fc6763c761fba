"""`python -m testing.bench.other_client`: an ordinary client, and how long it waits while others work.

At a fixed rate it produces a record (acks=all), consumes it, and commits that. One line on stdout for each of these
rounds: the wall time at which it was due, and the seconds that it took. It ends with its parent, or by a signal.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from testing.bench.errors import BenchError

GROUP = "other-client"
TOPIC = "other-client"
# Its connections and caches are cold at first.
_WARM_ROUNDS = 50
_ROUND_SECONDS = 30.0


@dataclass(frozen=True)
class Round:
    """at: wall time in seconds. took: seconds."""

    at: float
    took: float


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m testing.bench.other_client", description=__doc__)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("--rate", type=float, required=True, help="rounds a second")
    options = parser.parse_args()
    config = {"bootstrap.servers": options.bootstrap_servers, "log_level": 0}
    producer = Producer(config | {"linger.ms": 0})
    consumer = Consumer(config | {"group.id": GROUP, "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_END)])
    # The end is looked up at the first poll; a record from before that would never come.
    consumer.poll(2.0)
    for _ in range(_WARM_ROUNDS):
        _round(producer, consumer)
    due = time.monotonic()
    while True:
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
            # How late the machine wakes us says nothing of the broker; a round before that took too long does.
            began = time.monotonic()
        else:
            began = due
        _round(producer, consumer)
        took = time.monotonic() - began
        print(f"{time.time() - took:.4f} {took:.6f}", flush=True)
        due += 1 / options.rate


def _round(producer: Any, consumer: Any) -> None:
    mark = str(time.monotonic_ns()).encode()
    producer.produce(TOPIC, mark, partition=0)
    if producer.flush(_ROUND_SECONDS):
        raise BenchError("the other client's record was not taken")
    end = time.monotonic() + _ROUND_SECONDS
    while True:
        message = consumer.poll(_ROUND_SECONDS)
        if message is not None and message.error() is None and message.value() == mark:
            break
        if time.monotonic() > end:
            raise BenchError("the other client's record did not come back")
    consumer.commit(message=message, asynchronous=False)


def rounds(log: Path) -> list[Round]:
    """All that were told so far. Raises BenchError where the client told of something else."""
    found = []
    for line in log.read_text().splitlines(keepends=True):
        at, _, took = line.strip().partition(" ")
        # The last line may still be in the making.
        if line.endswith("\n"):
            try:
                found.append(Round(float(at), float(took)))
            except ValueError as error:
                raise BenchError(f"the other client failed:\n{log.read_text()[-2000:]}") from error
    return found


def p99(waits: Sequence[Round]) -> float:
    """The 99th percentile of their times, in seconds."""
    return statistics.quantiles((each.took for each in waits), n=100)[98]


if __name__ == "__main__":
    sys.exit(main())
