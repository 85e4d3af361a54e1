"""What a user sees of an error's traceback: the own lines, and not nbdist's way from them to the message.

The message of an nbdist error gives the cause and the remedy, and a MemoryError is not a bug in a line of
nbdist: the frames below the user's last line are left out. Any other error keeps them, because it may be a
bug of nbdist. Frames of nbdist between two frames of the user, as where a loop calls a step function, are
always left out.
"""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from types import TracebackType

from nbdist.errors import NbdistError

OWN = str(Path(__file__).parents[1]) + "/"


def shown(error: BaseException, first: TracebackType | None) -> str:
    """Return an error as Python prints it, from the frame ``first`` on, without what tells a user nothing."""
    told = traceback.TracebackException(type(error), error, first)
    _trim(told, error)
    return "".join(told.format())


def _trim(told: traceback.TracebackException, error: BaseException) -> None:
    """Remove uninformative nbdist frames from an error and its causes."""
    last = max((n for n, frame in enumerate(told.stack) if _is_users(frame)), default=0)
    told.stack[:last] = [frame for frame in told.stack[:last] if not _is_own(frame)]
    if isinstance(error, (NbdistError, MemoryError)):
        while told.stack and _is_own(told.stack[-1]):
            told.stack.pop()
        # What nbdist met with on its way to the message; a cause that is named is part of what it says.
        if told.__context__ is not None and all(map(_is_own, told.__context__.stack)):
            told.__context__ = None
    for part, origin in ((told.__cause__, error.__cause__), (told.__context__, error.__context__)):
        if part is not None and origin is not None:
            _trim(part, origin)


def _is_users(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(("<distribute ", "<ipython-input")) or "/ipykernel_" in frame.filename


def _is_own(frame: traceback.FrameSummary) -> bool:
    # contextlib has a frame between two of nbdist's where a context manager adds to the message.
    return frame.filename.startswith((OWN, "<nbdist ")) or frame.filename == contextlib.__file__
