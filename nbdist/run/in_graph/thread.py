"""A body on a thread of this process, with the interface of calls to engines: outcomes, or none yet.

A signal would reach the main thread alone, which is the notebook's. This thread is interrupted by an
exception that is raised in it, as soon as it runs Python code.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Any

from nbdist.errors import FailedPreconditionError
from nbdist.run.task.reporting import Output


class Gate:
    """Lets one KeyboardInterrupt into the thread that is inside the ``with``, and none afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._sent = False

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the thread, at most once; whether that was done."""
        with self._lock:
            if self._thread is None or self._sent:
                return False
            self._sent = True
            # CPython raises it in that thread at its next call or turn of a loop.
            raised = ctypes.py_object(KeyboardInterrupt)
            return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), raised))

    def __enter__(self) -> None:
        self._thread = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        # What was sent and has not arrived yet may do so in here, once: that is as good as any time before.
        # It is never taken back: CPython would look for it for ever, and its profiler at nothing else.
        with self._lock:
            self._thread = None
        if self._sent:
            with suppress(KeyboardInterrupt):
                _arrive()


class BodyThread:
    """Runs ``body`` on a thread and keeps its outcome under ``rank``; ``after`` is called on it at the end.

    The thread has a copy of the caller's context variables, so that what it displays belongs to the cell.
    """

    def __init__(self, rank: int, body: Callable[[], Any], after: Callable[[], object], name: str) -> None:
        self.ranks = [rank]
        self._body, self._after = body, after
        self._outcome: Any = None
        self._ended = threading.Event()
        context = copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def begun(self) -> bool:
        """Whether it was started."""
        return self._thread.ident is not None

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end; whether it has come."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def done(self) -> bool:
        """Whether the body has ended."""
        return self._ended.is_set()

    def ready_ranks(self) -> list[int]:
        """Return the rank, once there is an outcome."""
        return self.ranks if self.done() else []

    def outcome(self, rank: int) -> Any:
        """Return what the body returned, or the exception that it raised."""
        if not self.done():
            raise FailedPreconditionError("there is no outcome yet: the body is still running")
        return self._outcome

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the body has ended; whether it has."""
        return self._ended.wait(timeout)

    def _run(self) -> None:
        try:
            self._outcome = self._body()
        except BaseException as error:  # the client that follows the run raises it
            self._outcome = error
        self._ended.set()
        self._after()


def _arrive() -> None:
    """Do nothing, at whose begin CPython raises what was sent to this thread."""


# Output of one thread of this process, separated from that of other threads.
#
#     with printing_here(output):
#         print("to the run")         # other threads still print to the notebook
#
# A thread that the body starts prints to the notebook as well, unless it runs in a copy of the body's
# context.

_here: ContextVar[Output | None] = ContextVar("where this thread prints", default=None)


class Routed:
    """Stands in for sys.stdout or sys.stderr while any thread prints to a run; ``usual`` is what it replaces.

    Code that keeps a reference prints to ``usual`` afterwards.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.usual: Any = None

    def write(self, text: str) -> int:
        """Hand the text to the thread's run, or on."""
        output = _here.get()
        return (
            output.write(text, self.name == "stderr")
            if output is not None
            else int(self.usual.write(text) or 0)
        )

    def writelines(self, lines: Iterator[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush what is replaced; a run's output is taken ten times a second anyway."""
        if _here.get() is None and self.usual is not None:
            self.usual.flush()

    def isatty(self) -> bool:
        """Whether a person looks at it: not at a run's output."""
        return _here.get() is None and bool(self.usual.isatty())

    def __getattr__(self, name: str) -> Any:
        if name == "usual":  # not made yet
            raise AttributeError(name)
        return getattr(self.usual, name)


_streams = (Routed("stdout"), Routed("stderr"))
_lock = threading.Lock()
_users = 0


@contextmanager
def printing_here(output: Output) -> Iterator[None]:
    """Have what this thread prints go to ``output``, inside a ``with``."""
    _stand_in()
    token = _here.set(output)
    try:
        yield
    finally:
        _here.reset(token)
        _step_aside()


def _stand_in() -> None:
    global _users
    with _lock:
        _users += 1
        for stream in _streams:
            found = getattr(sys, stream.name)
            if found is not stream:
                stream.usual = found
                setattr(sys, stream.name, stream)


def _step_aside() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users:
            return
        for stream in _streams:
            # Other code may have replaced the stream and may restore this one later; it then only forwards.
            if getattr(sys, stream.name) is stream:
                setattr(sys, stream.name, stream.usual)
