"""Changes to a running cluster that several families of worlds use. Each is undone when its context ends."""

from __future__ import annotations

import hashlib
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource

from testing.sandbox.cache import cached
from testing.sandbox.kafka.cluster import Alteration
from testing.worlds.life import Life
from testing.worlds.world import Change

OFFSETS = "__consumer_offsets"
LEDGER = "(the ledger)"


def configured(topic: str, **settings: str) -> Change:
    """Settings of a topic, with _ for the dots. topic: LEDGER, or a name."""
    named = {name.replace("_", "."): value for name, value in settings.items()}

    @contextmanager
    def change(life: Life) -> Iterator[None]:
        name = life.run.ledger_topic if topic == LEDGER else topic
        before = _own_settings(life, name)
        alter(life, ConfigResource.Type.TOPIC, name, named)
        yield
        alter(life, ConfigResource.Type.TOPIC, name, {setting: before.get(setting) for setting in named})

    return change


def _own_settings(life: Life, topic: str) -> dict[str, str]:
    """The settings that a topic has of its own; the others are its brokers'."""
    (answer,) = life.admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entry.value for name, entry in answer.result().items() if entry.source == own}


def brokers_configured(**settings: str) -> Change:
    """Dynamic settings of all brokers, with _ for the dots."""
    named = {name.replace("_", "."): value for name, value in settings.items()}

    @contextmanager
    def change(life: Life) -> Iterator[None]:
        for broker in life.kafka.broker_ids:
            alter(life, ConfigResource.Type.BROKER, str(broker), named)
        yield
        for broker in life.kafka.broker_ids:
            alter(life, ConfigResource.Type.BROKER, str(broker), dict.fromkeys(named))

    return change


def alter(life: Life, kind: ConfigResource.Type, name: str, settings: Mapping[str, str | None]) -> None:
    """Set these settings, or unset those that are None."""
    entries = [
        ConfigEntry(
            setting,
            value if value is not None else "",
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for setting, value in settings.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for altered in life.admin.incremental_alter_configs([resource]).values():
        altered.result()


def preloaded(source: str, **environment: str) -> dict[str, str]:
    """The environment of a process in which this C source, beside this module, replaces functions of the C library."""
    file = Path(__file__).with_name(source)

    def build(into: Path) -> None:
        command = ["cc", "-shared", "-fPIC", "-o", str(into / "library.so"), str(file), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)

    folder = cached(f"{file.stem}-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}", build)
    return {"LD_PRELOAD": str(folder / "library.so"), **environment}


def without_broker(broker: int, *, kill: bool = False) -> Change:
    """A broker is stopped, and started again when the context ends."""

    @contextmanager
    def change(life: Life) -> Iterator[None]:
        life.kafka.kill_broker(broker) if kill else life.kafka.stop_broker(broker)
        life.kafka.wait_forgotten(broker)
        yield
        life.kafka.start_broker(broker)

    return change


def restarted(life: Life, broker: int, alteration: Alteration | None = None) -> None:
    """Restart a broker, with an alteration if given, and wait until all brokers list groups."""
    life.kafka.stop_broker(broker)
    if alteration is not None:
        life.kafka.alter_broker(broker, alteration)
    life.kafka.start_broker(broker)
    # It answers before it has loaded its groups.
    life.groups.listed()


@contextmanager
def rolling_restart(life: Life) -> Iterator[None]:
    """All brokers are restarted one by one."""
    for broker in life.kafka.broker_ids:
        restarted(life, broker)
    yield


@contextmanager
def repeatedly(do: Callable[[], None], pause: float) -> Iterator[None]:
    """Do it again and again in another thread, with pauses in seconds. The first error is raised at the end."""
    stop, errors = threading.Event(), list[Exception]()

    def work() -> None:
        while not stop.wait(pause):
            try:
                do()
            except Exception as error:
                errors.append(error)
                return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]
