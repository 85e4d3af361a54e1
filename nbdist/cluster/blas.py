"""How many threads the BLAS of this process computes on, once it is loaded."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

# NumPy's wheels, builds with 64-bit integers, distributions.
SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
GETTERS = tuple(name.replace("_set_", "_get_") for name in SETTERS)


def set_blas_threads(threads: int) -> bool:
    """Have an OpenBLAS that is loaded compute on so many threads; whether there is one that does so.

    Its environment variables are read but once, when it is loaded: a process that was forked later with
    others, and is to have another share of the cores, has to say so.
    """
    told = [_call(library, SETTERS, threads) for library in _loaded()]  # each of them, not the first alone
    return any(answer is not None for answer in told)


def blas_threads() -> int | None:
    """Return on how many threads the OpenBLAS of this process computes; None where there is none."""
    return next((found for library in _loaded() if (found := _call(library, GETTERS)) is not None), None)


def _loaded() -> list[ctypes.CDLL]:
    """Return the OpenBLAS libraries of this process (Linux)."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines if "openblas" in line)
    found = []
    for path in paths:
        with suppress(OSError):
            found.append(ctypes.CDLL(path))
    return found


def _call(library: ctypes.CDLL, names: tuple[str, ...], *arguments: int) -> int | None:
    for name in names:
        if hasattr(library, name):
            return int(getattr(library, name)(*arguments))
    return None
