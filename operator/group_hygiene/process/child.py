"""Runs a function in a child process, with limits of memory and time, and with a given environment.

A library that reads tables of tenants may need any amount of memory, and can't be interrupted. For a process, the
kernel enforces a limit (setrlimit(2), RLIMIT_DATA), and it can be killed.
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

from group_hygiene.process import memory

# Two of them fit into 512 MiB beside the operator, unless it reads a large answer at the same time.
MEMORY_MIB = 112
# Of an answer: with 512 Mi, 64 MiB.
_ANSWER_MAX = min(memory.LIMIT // 8, 128 << 20)
# Bytes of an answer between two checks of the memory that is left, and the memory of a decoded answer per byte.
_STEP, _OBJECTS = 1 << 20, 3
# Bytes of a request per write.
_FEED = 1 << 16


class ChildFailed(Exception):
    """The process ended early, by lack of memory or a crash of the library, or it returned too much."""


async def run(function: str, request: bytes, environment: Mapping[str, str], seconds: float) -> bytearray:
    """The joined output of `function` ("module:name") for a request, from a process with this environment.

    Raises TimeoutError, ChildFailed, and memory.TooMuch if the answer does not fit into memory; then the process has
    ended.
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
            # asyncio also waits for its pipes to close, and pauses reading while much of a pipe's data is unread.
            while process.stdout is not None and await process.stdout.read(1 << 16):
                pass
            await process.wait()
    if status != 0:
        raise ChildFailed(f"exit status {status}")
    return answer


def serve(work: Callable[[bytes], Iterable[bytes]], seconds: int) -> None:
    """The child's side of `run`: sets the limits of this process, and answers the request on stdin."""
    # Ends the process even if the operator is gone.
    signal.alarm(seconds + 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MIB << 20,) * 2)
    if sys.platform == "linux":
        # Libraries start a thread, with memory of its own, for each processor that they may use.
        os.sched_setaffinity(0, {random.choice(sorted(os.sched_getaffinity(0)))})
    for part in work(sys.stdin.buffer.read()):
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
    # Not a regular exit: threads of libraries sometimes abort the process then.
    os._exit(0)


async def _feed(pipe: asyncio.StreamWriter | None, request: bytes) -> None:
    if pipe is None:
        return
    # If the process has ended, its exit status says why.
    with suppress(BrokenPipeError, ConnectionResetError):
        for at in range(0, len(request), _FEED):
            pipe.write(request[at : at + _FEED])
            await pipe.drain()
        pipe.close()
        await pipe.wait_closed()


async def _answer(pipe: asyncio.StreamReader | None) -> bytearray:
    answer, next_check = bytearray(), 0
    while data := await pipe.read(1 << 16) if pipe is not None else b"":
        answer += data
        if len(answer) > _ANSWER_MAX:
            raise ChildFailed("its answer is too long")
        if len(answer) >= next_check:
            next_check = len(answer) + _STEP
            memory.require(_OBJECTS * next_check, "an answer of the process that reads the tables")
    return answer
