"""The work of P6: all ranks repeatedly sum a float32 array in place. NumPy only."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

SIZES = {"4KB": 4_096, "0.3MB": 300_000, "1MB": 1_000_000, "4MB": 4_000_000, "40MB": 40_000_000}
SECONDS = 2.0  # long enough for the scheduler to give each rank a core of its own


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument(
        "--symmetric", action="store_true", help="in a symmetric buffer of the group, if it has one"
    )
    return parser.parse_args()


def measure(
    all_reduce: Callable[[Array], object], barrier: Callable[[], None], rank: int, size: int, x: Array
) -> dict[str, object]:
    """Return the time of one all-reduce in µs (the best of several batches) and a checksum for random values.

    `all_reduce` sums in place, in x. The timed calls reduce zeros, because repeated sums do not change zeros.
    """
    np.random.default_rng(rank).random(dtype=np.float32, out=x)
    all_reduce(x)
    check = {"first": float(x[0]), "last": float(x[-1]), "mean": float(x.mean(dtype=np.float64))}
    x[:] = 0
    calls = max(3, min(200, 4_000_000 // x.nbytes))
    best, spent, started = float("inf"), np.zeros(1, np.float32), time.perf_counter()
    while spent[0] < SECONDS:
        barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            all_reduce(x)
        best = min(best, (time.perf_counter() - begin) / calls)
        spent[0] = (time.perf_counter() - started) / size
        all_reduce(spent)  # so that all ranks end together
    return {"value": best * 1e6, "check": check}
