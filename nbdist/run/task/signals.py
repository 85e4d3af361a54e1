"""SIGINT on an engine ends the body that runs, and nothing around it: no tidying up is cut off.

    with bodies_only():         # an engine's main thread
        ...                     # a signal here is kept
        with interruptible():   # for this body: KeyboardInterrupt
            body()
        ...                     # a signal here has come too late: nothing happens
        forget()                # what was kept was for a body that is over

A client sends one a while after its command to stop, when the body may be about to end by itself.

A signal does not interrupt the import of an installed package either, such as the one of torch._dynamo that
the first optimizer of a process makes: Python forgets a package whose import has failed, but not its parts
that were imported, and extension modules cannot be imported twice. So the signal comes again after it.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from nbdist.cluster.code_origin import INSTALLED

LOOK_SECONDS = 0.05  # between two looks whether an import has ended


class _Gate:
    """Whether a signal comes through at present, whether one is kept, and one waits for an import."""

    open = kept = waits = False
    lock = threading.Lock()


_gate = _Gate()


@contextmanager
def bodies_only() -> Iterator[None]:
    """Have SIGINT interrupt what is inside `interruptible`, and nothing else; on the main thread."""
    forget()
    before = signal.signal(signal.SIGINT, _heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGINT in, also one that came before; without `bodies_only` around nothing changes."""
    _gate.open = True
    try:
        if _gate.kept:
            raise KeyboardInterrupt
        yield
    finally:
        _gate.open = False
        with _gate.lock:
            _gate.waits = False


def forget() -> None:
    """Drop a signal that is kept: another body begins."""
    _gate.open = _gate.kept = False


def _heard(number: int, frame: FrameType | None) -> None:
    if not _gate.open:
        _gate.kept = True
    elif imports_a_package(frame):
        _gate.waits = True
        _thread.start_new_thread(_send_again, ())  # without the locks of a threading.Thread
    else:
        raise KeyboardInterrupt


def _send_again() -> None:
    time.sleep(LOOK_SECONDS)
    with _gate.lock:
        if _gate.waits:
            _gate.waits = False
            # A real one, which also ends a wait that the main thread has begun since.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def imports_a_package(frame: FrameType | None) -> bool:
    """Return whether a thread that is at ``frame`` imports a module of an installed package."""
    while frame is not None:
        code, caller = frame.f_code, frame.f_back
        if (
            code.co_name == "<module>"
            and code.co_filename.startswith(INSTALLED)
            and caller is not None
            and caller.f_code.co_filename.startswith("<frozen importlib")
        ):
            return True
        frame = caller
    return False
