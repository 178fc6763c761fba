"""The base class of the sandbox's servers: programs of one keeper on reserved ports; retries if a port was taken."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from testing.sandbox.errors import PortTaken, SandboxError
from testing.sandbox.place import HERE, Place
from testing.sandbox.ports import Ports
from testing.sandbox.process import Keeper

START_ATTEMPTS = 3


class Service(ABC):
    """Programs that start and stop together. Use it as a context manager, or call `start` and `stop`."""

    # Its name in errors.
    _what: ClassVar[str]

    def __init__(self, place: Place = HERE) -> None:
        self._place = place
        self._ports = Ports()
        self._keeper: Keeper | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @abstractmethod
    def prepare(self) -> None:
        """Download, build and record the needs of `start`, unless they are cached. `start` does it, too."""

    def start(self) -> None:
        """Start all processes and wait until they are ready to be used."""
        self.prepare()
        for attempt in range(START_ATTEMPTS):
            self._keeper = self._new_keeper()
            try:
                self._start()
                return
            except PortTaken:
                self.stop()
                if attempt == START_ATTEMPTS - 1:
                    raise
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Kill all processes and remove their data."""
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        self._ports.release()

    @abstractmethod
    def _start(self) -> None:
        """Take ports, start everything and wait; raises PortTaken if another program took a port before."""

    def _new_keeper(self) -> Keeper:
        return Keeper(self._place.enter)

    @property
    def _running(self) -> Keeper:
        if self._keeper is None:
            raise SandboxError(f"this {self._what} is not running")
        return self._keeper

    @property
    def _scratch(self) -> Path:
        return self._running.scratch
