"""A run: one body on the tasks, from the cell to its results.

The facade's ``nbdist.runs()`` lists runs, and importing this package makes ``nbdist.runs`` mean the package:
so the package can be called, and does what the function of that name does.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbdist.runs.history import RunList


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> RunList:
        """Return the runs of this user, the newest first; see :func:`nbdist.runs.history.runs`."""
        from nbdist.runs.history import runs

        return runs(*arguments, **named)


sys.modules[__name__].__class__ = _Callable
