"""SIGINT on an engine ends the body that runs, and nothing around it: no tidying up is cut off.

    with bodies_only():         # an engine's main thread
        ...                     # a signal here is kept
        with interruptible():   # for this body: KeyboardInterrupt
            body()
        ...                     # a signal here has come too late: nothing happens
        forget()                # what was kept was for a body that is over

A client sends one a while after its command to stop, when the body may be about to end by itself.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class _Gate:
    """Whether a signal comes through at present, and whether one is kept."""

    open = kept = False


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


def forget() -> None:
    """Drop a signal that is kept: another body begins."""
    _gate.open = _gate.kept = False


def _heard(number: int, frame: FrameType | None) -> None:
    if _gate.open:
        raise KeyboardInterrupt
    _gate.kept = True
