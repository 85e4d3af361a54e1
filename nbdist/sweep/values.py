"""Values that a parameter can have, and how they are compared, spelled and kept."""

from __future__ import annotations

import math
from typing import Any, TypeAlias, TypeGuard

from nbdist.errors import InvalidArgumentError

Value: TypeAlias = "bool | int | float | str | tuple[Value, ...] | None"
"""What a trial gets for a parameter: a plain value, or a tuple of such."""

LARGEST_INTEGER = 2**53  # beyond it a float, and so JavaScript, no longer tells neighbours apart


def plain(value: object) -> Value:
    """Return a value as a trial gets it; raises `InvalidArgumentError` for what the log could not keep."""
    if hasattr(value, "dtype") and hasattr(value, "item") and not getattr(value, "shape", (0,)):
        value = value.item()  # a NumPy scalar
    if isinstance(value, (list, tuple)):
        return tuple(plain(one) for one in value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgumentError(f"{value!r} cannot be a parameter's value: it must be finite")
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise InvalidArgumentError(f"{value!r} is too large for a parameter: at most 2**53")
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[return-value]  # type() tells mypy less than isinstance would
    raise InvalidArgumentError(
        f"{value!r:.80} is a {type(value).__name__}; a parameter's value is a number, a text, True, False, "
        "None, or a list of these"
    )


def jsonable(value: Value) -> Any:
    """Return a value with lists for tuples."""
    return [jsonable(one) for one in value] if isinstance(value, tuple) else value


def same_key(value: object) -> tuple[object, ...]:
    """Return a key under which two values are the same parameter value: 1, 1.0 and True are three."""
    if isinstance(value, (list, tuple)):
        return ("tuple", *(same_key(one) for one in value))
    return (type(value).__name__, value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether it is an int or a float; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number(value: object, what: str) -> float:
    """Return it as a float; ``what`` names it in the error."""
    value = plain(value)
    if not is_number(value):
        raise InvalidArgumentError(f"the {what} must be a number, got {value!r}")
    return float(value)


def whole(value: object, what: str) -> int:
    """Return it as an int, also if it is a float without a fraction."""
    value = plain(value)
    if not is_number(value) or value != int(value):
        raise InvalidArgumentError(f"the {what} must be a whole number, got {value!r}")
    return int(value)


def literal(value: Value) -> str:
    """Return it as it is written in a cell, with brackets for tuples."""
    return f"[{', '.join(map(literal, value))}]" if isinstance(value, tuple) else repr(value)
