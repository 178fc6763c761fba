"""Finds the process at the other end of a connection on this machine, by /proc (Linux only)."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Protocol

_LOOPBACK = "0100007F"
_TRIES, _PAUSE_SECONDS = 10, 0.01


class Senders(Protocol):
    """Finds the name of the client of a connection by its address and port."""

    def of(self, peer: tuple[str, int], listener: int) -> str:
        """A name; empty = another client. listener: the port to which it connected."""


class Owners:
    """Processes with names; all others have the empty name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}

    def add(self, pid: int, name: str) -> None:
        with self._lock:
            self._names[pid] = name

    def of(self, peer: tuple[str, int], listener: int) -> str:
        """The name of the process whose end of a connection to the port `listener` is `peer`."""
        # The kernel's table is read in chunks: while it changes, an entry may be missed.
        for _ in range(_TRIES):
            socket = _inode(peer[1], listener)
            with self._lock:
                names = dict(self._names)
            found = next((name for pid, name in names.items() if socket and _has(pid, socket)), "")
            if found:
                return found
            time.sleep(_PAUSE_SECONDS)
        return ""


def _inode(port: int, listener: int) -> str:
    # Both ends: earlier connections from the same port stay in the table for a minute.
    wanted = [f"{_LOOPBACK}:{port:04X}", f"{_LOOPBACK}:{listener:04X}"]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            return f"socket:[{fields[9]}]"
    return ""


def _has(pid: int, socket: str) -> bool:
    directory = f"/proc/{pid}/fd"
    try:
        return any(_link(f"{directory}/{name}") == socket for name in os.listdir(directory))
    except OSError:
        return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
