"""Actions on clusters, runs and sweeps that a page has requested: one at a time per item.

A request is answered at once with 202. The state then shows the action's progress in its item (`status`), and
after a failure the error, until the next action on the item.

An action that may take long or fail hard (start a cluster, attach to a run) runs in a child process,
`python -m nbdist.lab.actions`: the Jupyter server imports no launcher, and an error cannot affect it. A
command to a sweep is one small file, so a thread of the server writes it (`Actions.begin_call`).

Three events end a child process: its own result; a cancellation or timeout (SIGTERM, which it handles like an
interrupt and undoes what it has begun, then SIGKILL to its process group after UNDO_SECONDS); and the end of
the server, however it died, because the system then closes the child's stdin.
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
from functools import partial
from typing import Any

from nbdist.errors import DeadlineExceededError, FailedPreconditionError, NbdistError
from nbdist.lab.actions.status import PendingAction

SECONDS: dict[str, float | None] = {
    "start": 120.0, "stop": 45.0, "grow": 120.0, "shrink": 60.0, "restart": 120.0, "pause": 45.0,
    "resume": 150.0, "set": 45.0, "queue": None,
}  # fmt: skip
"""The limit of each action: more than twice what it takes. A start that may wait in a queue has none."""


MAX_FAILED = 100  # failed actions that are remembered
MAX_SHOWN = 40  # lines of its progress, the last ones, in an action's item


Perform = Callable[..., Awaitable[None]]
"""Performs a request; the arguments are those of `perform`, which does it in a child process."""
Key = tuple[str, str]
log = logging.getLogger(__name__)

# One child process: its messages, its result, and its end.

# -P: import no module of the working directory.
COMMAND = (sys.executable, "-P", "-m", "nbdist.lab.actions")
MAX_LINE = 64 << 10  # bytes
MAX_LINES = 2_000
TAIL = 4_000  # characters of its error output
EXIT_SECONDS = 1.0  # for the exit of a process that has closed its output
UNDO_SECONDS = 8.0  # for a cancelled action to undo what it has begun


async def perform(
    request: Mapping[str, Any],
    report: Callable[[str], object],
    seconds: float | None,
    folder: str | None = None,
) -> None:
    """Perform an action in a child process; ``report`` receives the lines of its progress.

    It runs in ``folder``, with this process's environment. On cancellation or timeout it undoes what it has
    begun, and ends.
    Raises `FailedPreconditionError` with the action's error, `DeadlineExceededError` after ``seconds``.
    """
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        cwd=folder,
        limit=MAX_LINE,
        start_new_session=True,  # Ctrl+C in the server's terminal must not reach it
    )
    printed = asyncio.create_task(tail(process))
    error: str | None = ""
    try:
        async with asyncio.timeout(seconds):
            error = await exchange(process, request, report)
            if error is not None:
                await process.wait()
    except TimeoutError:
        raise DeadlineExceededError(f"it took more than {seconds:g} s and was cancelled; try again") from None
    finally:
        rest = await asyncio.shield(end(process, printed, EXIT_SECONDS if error is None else 0.0))
    if error is None:
        last = rest.strip().splitlines()[-1:] or ["it printed nothing"]
        error = f"its process ended (exit code {process.returncode}): {last[0]}"
    if error:
        raise FailedPreconditionError(error)


async def exchange(
    process: Process, request: Mapping[str, Any], report: Callable[[str], object]
) -> str | None:
    """Return the action's error, "" after success, None if the process ended without a result."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):  # it has ended already: its output tells why
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
    for _ in range(MAX_LINES):
        try:
            message = json.loads(await process.stdout.readline() or "null")
        except ValueError:  # no JSON, or a line that is too long
            return None
        if not isinstance(message, dict):
            return None
        if "line" in message:
            report(str(message["line"]))
        else:
            return str(message.get("error", ""))
    return None


async def tail(process: Process) -> str:
    """Return the end of its error output; all of it is read, so that the process never blocks on the pipe."""
    assert process.stderr is not None
    text = ""
    while part := await process.stderr.read(1 << 16):
        text = (text + part.decode(errors="replace"))[-TAIL:]
    return text


async def end(process: Process, printed: asyncio.Task[str], patience: float) -> str:
    """Terminate a process unless it ends within ``patience`` seconds; kill it if that takes too long.

    Returns the end of its error output.
    """
    assert process.stdin is not None
    rest = asyncio.gather(printed, drain(process))  # a process that blocks on a full pipe does not end
    if not await has_ended(process, patience):
        with suppress(ProcessLookupError):
            process.terminate()
        if not await has_ended(process, UNDO_SECONDS):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    process.stdin.close()
    with suppress(TimeoutError):  # a process that it started may hold its pipes
        return (await asyncio.wait_for(rest, EXIT_SECONDS))[0]
    return ""


async def drain(process: Process) -> None:
    """Read and discard the rest of its output."""
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass


async def has_ended(process: Process, patience: float) -> bool:
    """Wait for its end; return whether it has ended."""
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), patience)
    return process.returncode is not None


class Actions:
    """Begins actions and keeps their progress and errors; call all methods on the server's event loop.

    ``changed`` is called after each change of `pending`. Child processes run in ``folder``.
    """

    def __init__(
        self, changed: Callable[[], object], folder: str | None = None, perform: Perform = perform
    ) -> None:
        self._changed, self._folder, self._perform = changed, folder, perform
        self._pending: dict[Key, PendingAction] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._undo: dict[Key, Mapping[str, Any]] = {}

    @property
    def pending(self) -> tuple[PendingAction, ...]:
        """The running and the failed actions. May be read from any thread."""
        return tuple(self._pending.copy().values())

    def find(self, about: str, id: str) -> PendingAction | None:
        """Return the running or failed action on an item; None if there is none."""
        return self._pending.get((about, id))

    def begin(
        self,
        about: str,
        id: str,
        doing: str,
        request: Mapping[str, Any],
        asked: Mapping[str, Any] | None = None,
        limit: str | None = None,
    ) -> None:
        """Begin an action in a child process; raises FailedPreconditionError while another one runs.

        ``asked`` has the options of a cluster that starts, for its item. ``limit`` is a key of `SECONDS`,
        without it ``doing``.
        """
        perform = partial(self._perform, request, seconds=SECONDS[limit or doing], folder=self._folder)
        self._begin(
            (about, id), doing, lambda key: perform(report=lambda line: self._report(key, line)), asked
        )

    def begin_call(self, about: str, id: str, doing: str, call: Callable[[], Awaitable[object]]) -> None:
        """Begin an action that this process performs: ``call``; raises as `begin` does."""

        async def work(key: Key) -> None:
            seconds = SECONDS[doing]
            try:
                await asyncio.wait_for(call(), seconds)
            except TimeoutError:
                raise DeadlineExceededError(f"it took more than {seconds:g} s; try again") from None

        self._begin((about, id), doing, work)

    def _begin(
        self,
        key: Key,
        doing: str,
        work: Callable[[Key], Awaitable[object]],
        asked: Mapping[str, Any] | None = None,
    ) -> None:
        about, id = key
        now = self._pending.get(key)
        if now is not None and now.error is None:
            raise FailedPreconditionError(f"{id}: {now.why}; wait until that is done")
        self._pending.pop(key, None)  # a dict keeps the order of insertion: the newest last
        self._pending[key] = PendingAction(about, id, doing, time.time(), dict(asked or {}))
        self._tasks[key] = asyncio.get_running_loop().create_task(self._act(key, work))
        self._changed()

    def cancel(self, about: str, id: str, undo: Mapping[str, Any]) -> None:
        """Cancel the action on an item, which undoes what it has begun; forget one that has failed.

        ``undo`` is the request of the action "stop" that follows: the cancelled one may have been complete.
        """
        key = about, id
        if (task := self._tasks.get(key)) is None:
            self._pending.pop(key, None)
        else:
            self._pending[key] = replace(self._pending[key], doing="stop")
            self._undo[key] = undo
            task.cancel()
        self._changed()

    async def close(self) -> None:
        """Cancel all actions, and wait for their ends."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _act(self, key: Key, work: Callable[[Key], Awaitable[object]]) -> None:
        doing = self._pending[key].doing
        error: str | None = None
        try:
            await work(key)
        except asyncio.CancelledError:
            pass  # what it had begun is undone
        except NbdistError as failed:
            error = str(failed)
        except Exception as failed:
            log.exception("nbdist: the action %r on %s in %s failed", doing, key[1], key[0])
            error = f"{type(failed).__name__}: {failed}"
        finally:
            del self._tasks[key]
        undo = self._undo.pop(key, None)
        if error is None:
            del self._pending[key]
        else:
            self._pending[key] = self._pending[key].failed(error)
            failures = [key for key, one in self._pending.items() if one.error is not None]
            for oldest in failures[:-MAX_FAILED]:
                del self._pending[oldest]
        if undo is not None and error is None:
            self.begin(*key, "stop", undo)
        else:
            self._changed()

    def _report(self, key: Key, line: str) -> None:
        one = self._pending[key]
        self._pending[key] = replace(one, lines=(*one.lines, line)[-MAX_SHOWN:])
        self._changed()
