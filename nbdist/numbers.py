"""Checks of numbers that users and files give. Pure."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_whole(value: Any, least: float = float("-inf"), most: float = float("inf")) -> TypeGuard[int]:
    """Return whether a value is an int, not a bool, from ``least`` to ``most``.

    >>> is_whole(3, 1), is_whole(0, 1), is_whole(True), is_whole(2.0)
    (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
