"""What a user sees of an error's traceback: the own lines, and not nbdist's way from them to the message.

An error of nbdist says in its message what is wrong and what to do, and missing memory is no mistake in a
line of nbdist: the frames below the user's last line are left out. Any other error keeps them: it may be
nbdist's own mistake. Frames that lead from the user's code to the user's code, as where a loop calls a step
function, are always left out.
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
    """Leave nbdist's frames out that tell nothing, of an error and its causes."""
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
    # contextlib stands between two of nbdist's frames where a context manager adds to the message.
    return frame.filename.startswith((OWN, "<nbdist ")) or frame.filename == contextlib.__file__
