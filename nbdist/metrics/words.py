"""How times are written for people."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """Return seconds as people read them.

    >>> duration(3.21), duration(75), duration(7500)
    ('3.2 s', '1 min 15 s', '2 h 05 min')
    """
    if 0 < seconds < 0.095:
        return f"{seconds * 1000:.0f} ms"
    if not seconds >= 60 or seconds == math.inf:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
