"""Converts values to plain JSON and cuts texts to fit into a notebook file; a note marks each cut."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from nbdist.text import cut_middle


@dataclass(frozen=True)
class Room:
    """Bytes of a notebook file that the parts of a frozen output may take, in HTML and in plain text."""

    error: int
    metrics: int
    rows: int
    outputs: int


K = TypeVar("K")
V = TypeVar("V")


def well_formed(value: Any) -> Any:
    """Return plain values with lone surrogates in texts replaced, because UTF-8 cannot encode them.

    >>> well_formed({"text": ["caf\\udce9", 3]})
    {'text': ['caf?', 3]}
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {well_formed(key): well_formed(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [well_formed(one) for one in value]
    return value


def first_of(mapping: Mapping[K, V], count: int) -> list[tuple[K, V]]:
    """Return the first items of a mapping."""
    return list(islice(mapping.items(), count))


def fitting(pieces: Iterable[str], room: int) -> list[str]:
    """Return the first pieces that together take at most ``room`` bytes of a file.

    >>> fitting(["a", "bb", "cc"], 8)
    ['a', 'bb']
    """
    taken = []
    for piece in pieces:
        room -= len(json.dumps(piece))
        if room < 0:
            break
        taken.append(piece)
    return taken


def shorten(text: str, limit: int, written: Callable[[str], str] = str) -> str:
    """Return ``text`` with its middle left out, so that ``written(...)`` takes ``limit`` bytes of a file.

    >>> print(shorten("first." + "x" * 500 + ".last", 60))
    first.xxxxxxxx
    ... 483 characters cut ...
    xxxxxxxxx.last
    """
    return longest(partial(cut_middle, text), len(text), limit, written)


def longest(cut: Callable[[int], str], length: int, limit: int, written: Callable[[str], str] = str) -> str:
    """Return the longest ``cut(keep)`` that takes ``limit`` bytes of a file when ``written``."""
    # A very long text is cut to the limit first, so that the cost does not depend on its length.
    keep = min(length, limit)
    while True:
        short = cut(keep)
        size = len(json.dumps(written(short)))
        if keep <= 0 or size <= limit:
            return short
        keep = min(keep - 1, keep * limit // max(1, size))


# Conversion to JSON: non-finite numbers become None, NumPy scalars become numbers.

PLAIN = (str, int, bool, type(None))


def jsonable(value: Any) -> Any:
    """Return ``value`` converted to dicts, lists, texts, finite numbers, booleans and None.

    >>> jsonable({1: float("nan"), "n": np.int64(3), "odd": (object, "x")})
    {'1': None, 'n': 3, 'odd': ["<class 'object'>", 'x']}
    """
    kind = type(value)
    if kind in PLAIN:  # the fast path: most values of a live view's updates
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)
