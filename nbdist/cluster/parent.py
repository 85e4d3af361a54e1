"""Processes that end with the one that has started them."""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent(number: int = signal.SIGTERM) -> bool:
    """Have the kernel send this process, a fresh child, a signal when its parent ends.

    Returns False where the system cannot do it (all but Linux).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "prctl"):
        return False
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    return True
