"""The work of the rows push.*: one process sends 1 GiB of arrays to four workers, which read them."""

from __future__ import annotations

import numpy as np

WORKERS = 4
PARTS = 4
ROWS = (1 << 30) // PARTS // 4096  # 4,096 bytes each: 512 float64


def arrays() -> dict[str, np.ndarray]:
    """Return four arrays of 256 MiB each, by name."""
    one = np.arange(ROWS * 512, dtype=np.float64).reshape(ROWS, 512)
    return {f"x{i}": one + i for i in range(PARTS)}


def looked_at(parts: list[np.ndarray]) -> float:
    """Return a number that a page of every 4 KiB goes into, so that each page was there."""
    return float(sum(part[:, 0].sum() for part in parts))
