"""Whether this kernel is on its way out, so that its runs go on without it."""

from __future__ import annotations

from IPython.core.getipython import get_ipython


def leaving() -> bool:
    """Return whether the kernel was told to end or restart; False where there is none."""
    return bool(getattr(get_ipython(), "exit_now", False))
