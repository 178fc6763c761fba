"""Runs a function in a process of its own: within so much memory, within so many seconds, without our environment.

A library that reads what tenants wrote may need any amount of memory before it can be asked to stop. A process has a
limit that holds (setrlimit(2), RLIMIT_DATA), an end that can be forced, and an environment that can be chosen.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from group_hygiene import memory

# Two of them, and the operator where it reads no large answer meanwhile, fit into 512 MiB.
MEMORY_MIB = 112
# Of what one returns: with 512 Mi 64 MiB.
_ANSWER_MAX = min(memory.LIMIT // 8, 128 << 20)
# Bytes of an answer between two looks at how much memory is left, and how many times its bytes an answer takes, read.
_STEP, _OBJECTS = 1 << 20, 3
# Of a request that are on their way at a time.
_FEED = 1 << 16


class TooMuch(Exception):
    """The process ended by itself: out of memory, or by a fault of the library; or it returned too much."""


async def run(function: str, request: bytes, environment: Mapping[str, str], seconds: float) -> bytearray:
    """What `function` ("module:name") yields for a request, joined, in a process with this environment.

    Raises TimeoutError, TooMuch, and memory.TooMuch where what it returns does not fit; the process is gone then.
    """
    module, name = function.split(":")
    code = f"from {module} import {name} as work; from {__name__} import serve; serve(work, {math.ceil(seconds)})"
    environment = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MALLOC_ARENA_MAX": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    try:
        async with asyncio.timeout(seconds):
            _, answer = await asyncio.gather(_feed(process.stdin, request), _answer(process.stdout))
            status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            # asyncio waits until its pipes are closed, too, and reads no more from one while much of it is unread.
            while process.stdout is not None and await process.stdout.read(1 << 16):
                pass
            await process.wait()
    if status != 0:
        raise TooMuch(f"exit status {status}")
    return answer


def serve(work: Callable[[bytes], Iterable[bytes]], seconds: int) -> None:
    """The other side of `run`: limits this process, and answers what comes on stdin."""
    # By itself, also when nobody is left to end it.
    signal.alarm(seconds + 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MIB << 20,) * 2)
    if sys.platform == "linux":
        # Libraries start a thread, with memory of its own, for each processor that they may use.
        os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
    for part in work(sys.stdin.buffer.read()):
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
    # The threads of libraries were seen to abort a process that ends in order.
    os._exit(0)


async def _feed(pipe: asyncio.StreamWriter | None, request: bytes) -> None:
    if pipe is None:
        return
    # Where it ended before, its status says why.
    with suppress(BrokenPipeError, ConnectionResetError):
        for at in range(0, len(request), _FEED):
            pipe.write(request[at : at + _FEED])
            await pipe.drain()
        pipe.close()
        await pipe.wait_closed()


async def _answer(pipe: asyncio.StreamReader | None) -> bytearray:
    answer, next_look = bytearray(), 0
    while data := await pipe.read(1 << 16) if pipe is not None else b"":
        answer += data
        if len(answer) > _ANSWER_MAX:
            raise TooMuch("its answer is too long")
        if len(answer) >= next_look:
            next_look = len(answer) + _STEP
            memory.require(_OBJECTS * next_look, "an answer of the process that reads the tables")
    return answer
