"""The threads that serve connections. Each namespace has a share, so that one that hangs does not take all threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# A thread is created when it is needed. A namespace whose endpoints all hang occupies only its share; 32 such
# namespaces occupy all threads. More threads would exhaust the memory and the process ids of the pod instead.
_SHARE, _ALL = 64, 2_048


class Workers:
    """Runs work in `threads`, at most `share` of them at the same time for one namespace. For one event loop only."""

    def __init__(self, share: int = _SHARE, threads: int = _ALL) -> None:
        self._share = share
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="reconcile")
        self._shares: dict[str, asyncio.Semaphore] = {}

    async def run(self, namespace: str, work: Callable[[], T]) -> T:
        """Run `work` as soon as the namespace's share allows it; returns its result, or raises its error."""
        # One semaphore for each namespace that has a connection.
        share = self._shares.setdefault(namespace, asyncio.Semaphore(self._share))
        async with share:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def stop(self) -> None:
        """Start no more work; do not wait for running work."""
        self._executor.shutdown(wait=False, cancel_futures=True)
