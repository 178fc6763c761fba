"""The threads in which connections are served: a share for each namespace, so that those that hang leave some."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# A thread is made when it is needed. A namespace whose endpoints all hang keeps its share busy, and no more; 32
# of them keep all threads busy. More threads would take the memory and the process ids of the pod instead.
_SHARE, _ALL = 64, 2_048


class Workers:
    """Runs work in `threads`, at most `share` of them at the same time for one namespace. For one event loop."""

    def __init__(self, share: int = _SHARE, threads: int = _ALL) -> None:
        self._share = share
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="reconcile")
        self._shares: dict[str, asyncio.Semaphore] = {}

    async def run(self, namespace: str, work: Callable[[], T]) -> T:
        """What `work` returns, once it is this namespace's turn; raises what it raises."""
        # As many as there are namespaces with a connection.
        share = self._shares.setdefault(namespace, asyncio.Semaphore(self._share))
        async with share:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def stop(self) -> None:
        """Begin nothing more; wait for nothing."""
        self._executor.shutdown(wait=False, cancel_futures=True)
