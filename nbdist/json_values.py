"""Values of JSON that another version, another program or a crash may have written. Pure; nothing raises."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from nbdist.numbers import is_whole

MOST_LISTED = 10_000


def text(value: object, most: int | None = None) -> str:
    """Return a text, cut to ``most`` characters; "" for anything else."""
    return value[:most] if isinstance(value, str) else ""


def number(value: object) -> float | None:
    """Return a finite number, None for anything else.

    >>> number(2), number(float("inf")), number(True), number(10**400)
    (2.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def whole(value: object, below: int = 1 << 64) -> int | None:
    """Return a whole number from 0 to below ``below``, None for anything else."""
    return value if is_whole(value, 0, below - 1) else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, {} for anything else."""
    return value if isinstance(value, dict) else {}


def object_in(content: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a file's content, {} for anything else.

    >>> object_in(b'{"step": 3}'), object_in(b"[3]"), object_in(b"")
    ({'step': 3}, {}, {})
    """
    try:
        return mapping(json.loads(content))
    except (ValueError, RecursionError):
        return {}


def listed(value: object) -> list[Any]:
    """Return a JSON list, shortened to `MOST_LISTED`; [] for anything else."""
    return value[:MOST_LISTED] if isinstance(value, list) else []
