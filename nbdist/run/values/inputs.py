"""What a body is and what it was given, as plain values that a run's record keeps: for comparing runs later.

describe_inputs(train, Given(args=(0.1,)))       # {"rate": 0.1}
describe_body(train)                             # ("def train(rate): ...", "__main__.train")
"""

from __future__ import annotations

import hashlib
import inspect
import reprlib
import textwrap
from collections.abc import Callable
from itertools import islice
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


def describe_inputs(body: str | Callable[..., Any], given: Given) -> dict[str, Plain]:
    """Return the values of a body by name: arguments (defaults, too), pushed values, and what it encloses.

    Numbers are themselves, and short texts stand for all others.

    >>> describe_inputs(lambda lr, batch=50: None, Given({"x": np.arange(3)}, args=(0.1,)))
    {'x': 'int64 (3,) 7d9771', 'lr': 0.1, 'batch': 50}
    """
    every = {**given.closure, **given.names, **_arguments(body, given)}
    return {
        str(name): value if _is_plain(value) else describe_value(value)
        for name, value in islice(every.items(), MOST)
    }


def _arguments(body: str | Callable[..., Any], given: Given) -> dict[str, Any]:
    if not isinstance(body, str):
        try:
            bound = inspect.signature(body).bind_partial(*given.args, **given.kwargs)
        except (TypeError, ValueError):  # the body will say what is wrong, or it has no signature
            pass
        else:
            bound.apply_defaults()
            return dict(bound.arguments)
    return {**{f"args[{at}]": one for at, one in enumerate(given.args)}, **given.kwargs}


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
    text = value if isinstance(value, str) else _SHORT.repr(value)
    if not isinstance(value, str) and (
        " at 0x" in text or text.startswith("<")
    ):  # it differs in each process
        text = type(value).__name__
    return clip(text, LONGEST)


def mark(data: bytes) -> str:
    """Return a short text that differs where the bytes do.

    >>> mark(b"a") == mark(b"a"), mark(b"a") == mark(b"b")
    (True, False)
    """
    return hashlib.blake2b(data, digest_size=3).hexdigest()


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = LONGEST
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 12
