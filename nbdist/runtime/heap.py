"""Freed memory of a task: kept for the next allocations while a run lasts, returned to the system after it.

    keep_freed_memory()         # once, in a task's process
    ...                         # a run
    return_freed_memory()

A training step allocates activations and gradients of the same sizes again and again. By default the C
library returns large ones to the system when they are freed, and the kernel clears each page anew when it is
touched next: 8 to 20 % of a step's processor time with a small CNN in PyTorch (bench/NOTES.md). Frameworks'
allocators for GPUs, TCMalloc and jemalloc keep freed memory, too.

Larger blocks than MAPPED are returned at once all the same. Both functions do nothing where the C library is
not glibc.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

MAPPED = 32 << 20  # bytes; glibc's own largest value for it
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
NEVER = 2**31 - 1  # bytes at the end of the heap


@cache
def glibc() -> ctypes.CDLL | None:
    """Return the C library of this process if it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def keep_freed_memory() -> bool:
    """Keep freed blocks of up to ``MAPPED`` bytes in this process; return whether the C library does so.

    >>> keep_freed_memory() == (glibc() is not None)
    True
    """
    library = glibc()
    return library is not None and all(
        library.mallopt(*setting) for setting in ((M_MMAP_THRESHOLD, MAPPED), (M_TRIM_THRESHOLD, NEVER))
    )


def return_freed_memory() -> None:
    """Return all pages of freed blocks to the system."""
    if (library := glibc()) is not None:
        library.malloc_trim(ctypes.c_size_t(0))
