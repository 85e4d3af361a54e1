"""Which free engines a trial is given. Pure."""

from __future__ import annotations

from collections.abc import Collection


def place(free: Collection[int], need: int, avoid: Collection[int] = ()) -> tuple[int, ...] | None:
    """Return ``need`` of the free ranks, or None if there are too few.

    Ranks in ``avoid`` only if there is no other way; neighbours if there are any, since engines of one host
    have neighbouring ranks.

    >>> place({0, 2, 3, 5}, 2), place({0, 1}, 1, avoid=[0]), place({0}, 1, avoid=[0]), place({0}, 2)
    ((2, 3), (1,), (0,), None)
    """
    liked = sorted(set(free) - set(avoid))
    if len(liked) < need:
        rest = sorted(set(free) & set(avoid))
        return tuple(sorted([*liked, *rest[: need - len(liked)]])) if len(free) >= need else None
    for start in range(len(liked) - need + 1):
        if liked[start + need - 1] - liked[start] == need - 1:
            return tuple(liked[start : start + need])
    return tuple(liked[:need])
