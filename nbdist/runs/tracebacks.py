"""What a user sees of an error's traceback: the own lines, and not nbdist's way from them to the message.

An error of nbdist says in its message what is wrong and what to do, so that the frames below the user's last
line tell nothing. Any other error keeps all of them: it may be nbdist's own mistake.
"""

from __future__ import annotations

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
    """Cut an error of nbdist off below the last line that is not nbdist's, and its causes likewise."""
    if isinstance(error, NbdistError):
        while told.stack and _is_own(told.stack[-1]):
            told.stack.pop()
        # What nbdist met with on its way to the message; a cause that is named is part of what it says.
        if told.__context__ is not None and all(map(_is_own, told.__context__.stack)):
            told.__context__ = None
    for part, origin in ((told.__cause__, error.__cause__), (told.__context__, error.__context__)):
        if part is not None and origin is not None:
            _trim(part, origin)


def _is_own(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith((OWN, "<nbdist "))
