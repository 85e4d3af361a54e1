"""Runs `nbdist.lab.act` for one action: its words on the way, its end, and how it is ended itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from nbdist.errors import DeadlineExceededError, FailedPreconditionError

COMMAND = (sys.executable, "-P", "-m", "nbdist.lab.act")  # -P: no module of the folder that it runs in
LONGEST_LINE = 64 << 10  # bytes
MOST_LINES = 2_000
TAIL = 4_000  # characters of what it prints beside
WORD_SECONDS = 1.0  # for one that has closed its mouth to end
UNDO_SECONDS = 8.0  # to undo what it has begun, when it is given up


async def perform(
    request: Mapping[str, Any], told: Callable[[str], object], seconds: float, folder: str | None = None
) -> None:
    """Have one thing done; ``told`` hears how it goes. Raises `FailedPreconditionError` with what went wrong.

    It runs in ``folder``, with this process's environment. When this is cancelled, or the time is over, it
    is ended after it has undone what it had begun.
    """
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=folder,
        limit=LONGEST_LINE,
        start_new_session=True,  # an interrupt of the server's terminal is not meant for it
    )
    printed = asyncio.create_task(tail(process))
    error: str | None = ""
    try:
        async with asyncio.timeout(seconds):
            error = await converse(process, request, told)
            if error is not None:
                await process.wait()
    except TimeoutError:
        raise DeadlineExceededError(f"it has taken more than {seconds:g} s, and was given up") from None
    finally:
        rest = await asyncio.shield(end(process, printed, WORD_SECONDS if error is None else 0.0))
    if error is None:
        last = rest.strip().splitlines()[-1:] or ["it printed nothing"]
        error = f"the process that did it has ended (exit code {process.returncode}): {last[0]}"
    if error:
        raise FailedPreconditionError(error)


async def converse(process: Process, request: Mapping[str, Any], told: Callable[[str], object]) -> str | None:
    """Return what went wrong: "" if nothing did, None if it has ended without a word."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):  # it has failed already; how is told by its end
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
    for _ in range(MOST_LINES):
        try:
            word = json.loads(await process.stdout.readline() or "null")
        except ValueError:  # no word of ours, or a line without an end
            return None
        if not isinstance(word, dict):
            return None
        if "line" in word:
            told(str(word["line"]))
        else:
            return str(word.get("error", ""))
    return None


async def tail(process: Process) -> str:
    """Return the end of what it prints beside its words; all of it is read, so that it never waits."""
    assert process.stderr is not None
    text = ""
    while part := await process.stderr.read(1 << 16):
        text = (text + part.decode(errors="replace"))[-TAIL:]
    return text


async def end(process: Process, printed: asyncio.Task[str], patience: float) -> str:
    """Have it undo what it has begun, unless it ends soon by itself; kill it if that takes too long.

    Returns what it has printed beside its words.
    """
    assert process.stdin is not None
    rest = asyncio.gather(printed, drain(process))  # who waits to say something does not end
    if not await has_ended(process, patience):
        with suppress(ProcessLookupError):
            process.terminate()
        if not await has_ended(process, UNDO_SECONDS):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    process.stdin.close()
    with suppress(TimeoutError):  # a process that it has left behind may have its pipes
        return (await asyncio.wait_for(rest, WORD_SECONDS))[0]
    return ""


async def drain(process: Process) -> None:
    """Read what nobody listens to any more."""
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass


async def has_ended(process: Process, patience: float) -> bool:
    """Wait a while for its end; whether it has."""
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), patience)
    return process.returncode is not None
