"""The bytes that go to the page: ``sequence`` and then records of twelve bytes, little-endian.

sequence u32, then [replica u16, series u16, step u32, value f32]*
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

RECORD = np.dtype([("replica", "<u2"), ("series", "<u2"), ("step", "<u4"), ("value", "<f4")])
MEAN = 0xFFFF  # stands where a replica does: the aggregate of all of them
CLOCK = 0xFFFF  # stands where a series does: the value is the seconds since the run began
TREND = 0x8000  # added to a series: not its points, but the means of neighbouring points

Records = NDArray[np.void]


def records(replica: ArrayLike, series: ArrayLike, steps: ArrayLike, values: ArrayLike) -> Records:
    """Return the records of points; replica and series may be one for all."""
    steps, values = np.asarray(steps), np.asarray(values, dtype=np.float64)
    made = np.empty(len(steps), dtype=RECORD)
    made["replica"], made["series"], made["step"] = replica, series, steps
    with np.errstate(over="ignore", invalid="ignore"):
        made["value"] = values  # beyond single precision is inf, and drawn as such
    return made


def frame(sequence: int, parts: list[Records]) -> bytes:
    """Return one frame's bytes.

    >>> frame(7, [records(0, 1, [10], [0.5])]).hex(" ", 4)
    '07000000 00000100 0a000000 0000003f'
    """
    return b"".join([np.uint32(sequence).astype("<u4").tobytes(), *(part.tobytes() for part in parts)])
