"""What a body is and what it was given, as plain values that a run's record keeps: for comparing runs later.

describe_inputs(Given(kwargs={"rate": 0.1}))     # {"rate": 0.1}
describe_body(train)                             # ("def train(rate): ...", "__main__.train")
"""

from __future__ import annotations

import hashlib
import inspect
import reprlib
import textwrap
from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from nbdist.run.values.delivery import Given
from nbdist.text import clip

LONGEST = 120  # characters of a value
MARKED = 1 << 20  # bytes of an array that its mark is made of
MOST = 200  # values
EXACT = 2**53  # whole numbers below it are exact in every reader of JSON
Plain: TypeAlias = str | int | float | bool


def describe_body(body: str | Callable[..., Any]) -> tuple[str, str]:
    """Return the code of a body, and the name of the function; "" for a text.

    The code of a function is its source, or its name where there is none.

    >>> describe_body("x = 1")
    ('x = 1', '')
    """
    if isinstance(body, str):
        return body, ""
    name = f"{body.__module__}.{getattr(body, '__qualname__', body)}"
    try:
        return textwrap.dedent(inspect.getsource(body)), name
    except (OSError, TypeError, SyntaxError):
        return name, name


def line_of(function: Callable[..., Any]) -> int:
    """Return the number of the first line of a function in its cell or file; 1 if it is unknown."""
    return int(getattr(getattr(inspect.unwrap(function), "__code__", None), "co_firstlineno", 1))


def describe_inputs(given: Given) -> dict[str, Plain]:
    """Return the values of a body by name: arguments, pushed values, and what it encloses.

    Numbers are themselves, and short texts stand for all others.

    >>> describe_inputs(Given({"x": np.arange(3)}, args=(1,), kwargs={"rate": 0.1}))
    {'x': 'int64 (3,) 7d9771', 'args[0]': 1, 'rate': 0.1}
    """
    every = {**given.closure, **given.names}
    every |= {**{f"args[{at}]": one for at, one in enumerate(given.args)}, **given.kwargs}
    return {
        str(name): value if _is_plain(value) else describe_value(value)
        for name, value in list(every.items())[:MOST]
    }


def _is_plain(value: object) -> TypeGuard[Plain]:
    """Whether JSON keeps a number as it is."""
    return isinstance(value, bool) or (isinstance(value, int | float) and abs(value) < EXACT)


def describe_value(value: object) -> str:
    """Return a value as a short text: dtype, shape and a mark of its bytes stand for an array.

    >>> describe_value(range(3)), describe_value("adam")
    ('range(0, 3)', 'adam')
    """
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8) if value.dtype != object else b""
        half = MARKED // 2  # of a large one its ends
        ends = bytes(data if len(data) <= MARKED else np.concatenate([data[:half], data[-half:]]))
        return f"{value.dtype} {value.shape} {mark(ends)}"
    return clip(value if isinstance(value, str) else _SHORT.repr(value), LONGEST)


def mark(data: bytes) -> str:
    """Return a short text that differs where the bytes do.

    >>> mark(b"a") == mark(b"a"), mark(b"a") == mark(b"b")
    (True, False)
    """
    return hashlib.blake2b(data, digest_size=3).hexdigest()


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = LONGEST
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 12
