"""Splits a batch among replicas. Pure."""

from __future__ import annotations


def share_of(size: int, shares: int, index: int) -> slice:
    """Return the part of a batch of ``size`` that is share ``index`` of ``shares``.

    Shares differ by at most one and add up to the whole; the first is never a smaller one.

    >>> share_of(5, 2, 0), share_of(5, 2, 1)
    (slice(0, 3, None), slice(3, 5, None))
    """
    return slice(-(-size * index // shares), -(-size * (index + 1) // shares))
