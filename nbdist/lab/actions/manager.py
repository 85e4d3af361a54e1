"""What pages have begun: one action on an item at a time, each in a process of its own.

It is answered at once. How it goes is told by the item that it is about, and what went wrong stays there
until the next action on it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nbdist.errors import DeadlineExceededError, FailedPreconditionError, NbdistError
from nbdist.lab.actions.status import Underway

SECONDS = {
    "start": 120.0, "stop": 45.0, "grow": 120.0, "shrink": 60.0, "restart": 120.0, "pause": 45.0,
    "resume": 45.0, "set": 45.0,
}  # fmt: skip
"""How long each may take; nothing of ours takes half of it."""


MOST_FAILED = 100  # that are remembered
Perform = Callable[[Mapping[str, Any], Callable[[str], object], float, str | None], Awaitable[None]]
Key = tuple[str, str]
log = logging.getLogger(__name__)

# Runs `nbdist.lab.actions` for one action: its words on the way, its end, and how it is ended itself.

COMMAND = (
    sys.executable,
    "-P",
    "-m",
    "nbdist.lab.actions",
)  # -P: no module of the folder that it runs in
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


class Actions:
    """Begins actions and remembers how they went; all methods are called on the server's event loop.

    ``changed`` is called when there is something new to be seen. What is done runs in ``folder``.
    """

    def __init__(
        self, changed: Callable[[], object], folder: str | None = None, do: Perform = perform
    ) -> None:
        self._changed, self._folder, self._do = changed, folder, do
        self._underway: dict[Key, Underway] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    @property
    def underway(self) -> tuple[Underway, ...]:
        """What goes on, and what has failed. Any thread may ask."""
        return tuple(self._underway.copy().values())

    def find(self, about: str, id: str) -> Underway | None:
        """Return what is under way on an item, or has failed; None if nothing has."""
        return self._underway.get((about, id))

    def begin(
        self,
        about: str,
        id: str,
        doing: str,
        request: Mapping[str, Any],
        asked: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin an action on an item; raises FailedPreconditionError while another one goes on."""
        key = about, id
        now = self._underway.get(key)
        if now is not None and now.error is None:
            raise FailedPreconditionError(f"{id}: {now.why}; wait until that is done")
        self._underway.pop(key, None)  # so that it is the newest
        self._underway[key] = Underway(about, id, doing, time.time(), dict(asked or {}))
        self._tasks[key] = asyncio.get_running_loop().create_task(self._act(key, request))
        self._changed()

    def give_up(self, about: str, id: str) -> None:
        """Begin to end what goes on on an item, which undoes what it has begun; forget what has failed."""
        key = about, id
        if (task := self._tasks.get(key)) is None:
            self._underway.pop(key, None)
        else:
            self._underway[key] = replace(self._underway[key], doing="stop")
            task.cancel()
        self._changed()

    async def close(self) -> None:
        """End everything that goes on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _act(self, key: Key, request: Mapping[str, Any]) -> None:
        doing = self._underway[key].doing
        error: str | None = None
        try:
            await self._do(request, lambda line: self._tell(key, line), SECONDS[doing], self._folder)
        except asyncio.CancelledError:
            pass  # it was given up, and all of it is undone
        except NbdistError as failed:
            error = str(failed)
        except Exception as failed:
            log.exception("nbdist: %s %s of %s has failed", doing, *key[::-1])
            error = f"{type(failed).__name__}: {failed}"
        finally:
            del self._tasks[key]
        if error is None:
            del self._underway[key]
        else:
            self._underway[key] = self._underway[key].failed(error)
            self._forget_oldest()
        self._changed()

    def _tell(self, key: Key, line: str) -> None:
        self._underway[key] = self._underway[key].told(line)
        self._changed()

    def _forget_oldest(self) -> None:
        failed = [key for key, one in self._underway.items() if one.error is not None]
        for key in failed[:-MOST_FAILED]:
            del self._underway[key]
