"""`AUTOTUNE`: how far ahead a prefetch works, and how many calls of a map run at once, found while they run.

    dataset.map(decode, num_parallel_calls=nb.data.AUTOTUNE).batch(32).prefetch(nb.data.AUTOTUNE)

Pure: a tuner is shown what was measured, and says what to use next. Orders never depend on it.

Design. A buffer helps against elements that come in bursts, not against a producer that is too slow on
average. So `BufferTuner` doubles a buffer only if a consumer finds it empty after it has been full, as
TensorFlow's PrefetchAutotuner does. Its memory is bounded.

`CallsTuner` climbs: where the consumer waits for the map, it doubles the number of calls, and keeps that if
elements come at least 5% faster; otherwise it takes the step back and stays. The processor bounds it: calls
that compute all the time are at most as many as there are cores, calls that wait for files or the network may
be more, for they leave their core to others. How much a call computes is measured while it runs alone:
several in Python wait for each other's lock, which would look like waiting for a file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

from nbdist.data.structure import leaves_of
from nbdist.machine import available_memory

AUTOTUNE: Final = "auto"
"""In place of a number: ``prefetch`` and ``num_parallel_calls`` find and change it while they run."""

Auto: TypeAlias = Literal["auto"]
FIRST_BUFFER = 2
AHEAD = 2  # batches that fit has made ahead
LARGEST_BUFFER = 64
MEMORY_SHARE = 8  # one part in so many of the memory that is free
MOST_PER_CORE = 8  # calls for each core, if they hardly compute
BETTER = 1.05  # times the rate before, from which more calls are kept
WAITS = 0.05  # share of the time for which a consumer waits, from which more calls are tried
WINDOW_SECONDS = 0.05  # of a measurement, at least
WINDOW_CALLS = 4  # for each call at once, at least


class BufferTuner:
    """The size of one prefetch's buffer.

    >>> tuner = BufferTuner(most=64)
    >>> [tuner.take(ready) for ready in (0, 0, 2, 1, 0, 0)]     # full, then empty: it was too small
    [2, 2, 2, 2, 4, 4]
    """

    def __init__(self, most: int = LARGEST_BUFFER) -> None:
        self.most = most
        self.size = min(FIRST_BUFFER, most)
        self._was_full = False

    def bound(self, element: int, memory: int) -> None:
        """Bound it by ``memory`` bytes for elements of ``element`` bytes, but to 1 at least."""
        self.most = max(1, min(LARGEST_BUFFER, memory // max(element, 1)))
        self.size = min(self.size, self.most)

    def take(self, ready: int) -> int:
        """Return the size to use, for a buffer with ``ready`` elements when one is taken."""
        if not self._was_full:
            self._was_full = ready >= self.size
        elif ready == 0 and self.size < self.most:
            self.size, self._was_full = min(2 * self.size, self.most), False
        return self.size


class CallsTuner:
    """The number of calls of one map that run at once, on ``cores`` cores."""

    def __init__(self, cores: int) -> None:
        self.cores = max(1, cores)
        self.calls = 1
        self.most = MOST_PER_CORE * self.cores
        self._before: tuple[int, float] | None = None  # the calls, and the rate, before the last step up
        self._alone = 0.0  # seconds of a call that runs alone

    def due(self, made: int, seconds: float) -> bool:
        """Return whether a measurement of so many elements in so many seconds is long enough."""
        return seconds >= WINDOW_SECONDS and made >= WINDOW_CALLS * self.calls

    def bound(self, element: int, memory: int) -> None:
        """Bound it by ``memory`` bytes: of each call there are two elements of ``element`` bytes."""
        self.most = max(1, min(self.most, memory // max(2 * element, 1)))
        self.calls = min(self.calls, self.most)

    def measured(self, made: int, seconds: float, waited: float, busy: float, computed: float) -> int:
        """Return the number of calls to run at once from now on.

        - ``made``: elements since the last measurement, and ``seconds`` since then
        - ``waited``: seconds of these for which the consumer waited for the map
        - ``busy``, ``computed``: seconds of the calls together, and of these on a processor
        """
        if made <= 0 or seconds <= 0:
            return self.calls
        rate = made / seconds
        if self.calls == 1:
            self._alone = busy / made
        computing = min(1.0, max(1 / MOST_PER_CORE, computed / made / self._alone)) if self._alone else 1.0
        limit = min(self.most, max(1, round(self.cores / computing)))
        if self._before is not None:
            calls, rate_before = self._before
            self._before = None
            if rate < BETTER * rate_before:
                self.calls = self.most = calls
                return calls
        if waited / seconds > WAITS and self.calls < limit:
            self._before = self.calls, rate
            self.calls = min(2 * self.calls, limit)
        return self.calls


CHEAP = (
    "from_arrays", "list_files", "shuffle", "batch", "repeat", "shard", "shard_hint", "auto_shard", "take",
    "skip",
)  # fmt: skip
"""Stages that move row numbers, or copy rows of arrays: a thread for them costs more than they do."""


def pays_ahead(kinds: Sequence[str], cores: int) -> bool:
    """Return whether a training is to have its next batches made by a thread, for a dataset of these stages.

    Where there is a core for it, a stage that may do work, and no prefetch at the end already.

    >>> pays_ahead(["from_arrays", "map", "batch"], 2), pays_ahead(["from_arrays", "shuffle", "batch"], 2)
    (True, False)
    >>> pays_ahead(["csv", "batch", "prefetch"], 2), pays_ahead(["csv", "batch"], 1)
    (False, False)
    """
    ahead = bool(kinds) and kinds[-1] in ("prefetch", "data tasks")
    return cores > 1 and not ahead and any(kind not in CHEAP for kind in kinds)


def memory_budget() -> int:
    """Return how many bytes the buffers of one stage may take: an eighth of what is free."""
    return available_memory() // MEMORY_SHARE


def size_of(element: Any) -> int:
    """Return about how many bytes an element takes.

    >>> import numpy as np
    >>> size_of((np.zeros(100), {"label": np.zeros((), "i8")}))
    808
    """
    return sum(int(getattr(leaf, "nbytes", 0)) or sys.getsizeof(leaf) for leaf in leaves_of(element))
