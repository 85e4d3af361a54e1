"""Checks of arguments of datasets: the value in its plain form, or an InvalidArgumentError that names it.

    size = whole_number("batch: batch_size", batch_size, 1)
    kept = named_values("csv: defaults", defaults, "{'age': 0}")

They run when a dataset is described, so that a wrong value fails there and not in a pass on a worker.
"""

from __future__ import annotations

import codecs
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, choices


def whole_number(what: str, value: Any, least: int | None = None) -> int:
    """Return ``value`` as an int of at least ``least``."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{what} is {value!r:.80}; expected a whole number") from None
    if isinstance(value, bool):
        raise InvalidArgumentError(f"{what} is {value}; expected a whole number, not a truth value")
    if least is not None and number < least:
        raise InvalidArgumentError(f"{what} is {number}; expected at least {least}")
    return number


def one_of(what: str, value: Any, valid: Sequence[str]) -> str:
    """Return a text that is one of ``valid``.

    >>> one_of("on_error", "skip", ("raise", "skip"))
    'skip'
    """
    if not isinstance(value, str) or value not in valid:
        raise InvalidArgumentError(f"{what} is {value!r:.80}; {choices(value, valid)}")
    return value


def members(what: str, value: Any, of: str) -> list[Any]:
    """Return the members of a list or of another iterable, which text is not; ``of`` says what they are.

    >>> members("bucket_by_length: boundaries", (1, 2), "whole numbers")
    [1, 2]
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidArgumentError(f"{what} is {value!r:.80}; expected a list of {of}")
    return list(value)


def names(what: str, value: Any) -> list[str]:
    """Return a list of one or more names.

    >>> names("csv: columns", ["age", "town"])
    ['age', 'town']
    """
    example = f"[{value!r}]" if isinstance(value, str) else "['age', 'town']"
    found = members(what, value, f"names, such as {example:.80}")
    if not found or not all(isinstance(name, str) for name in found):
        raise InvalidArgumentError(f"{what} is {value!r:.80}; expected a list of names, such as {example}")
    return found


def named_values(what: str, value: Any, example: str) -> dict[str, Any]:
    """Return a mapping from names as a dict; ``example`` shows one."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidArgumentError(f"{what} is {value!r:.80}; expected a dict by name, such as {example}")
    return dict(value)


def dtype_of(what: str, value: Any) -> np.dtype[Any]:
    """Return a dtype.

    >>> dtype_of("csv: column 'age'", "f4")
    dtype('float32')
    """
    try:
        found: np.dtype[Any] = np.dtype(value)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"{what} has the dtype {value!r:.80}, which NumPy does not know; expected one such as 'i8', 'f4' "
            "or str"
        ) from None
    return found


def local_path(what: str, value: Any, remedy: str) -> str:
    """Return a path as text; ``remedy`` says what to do with a URL."""
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes):
        raise InvalidArgumentError(f"{what} is {value!r:.80}; expected a path as text or a Path")
    name = os.fspath(value).removeprefix("file://")
    if "://" in name:
        raise InvalidArgumentError(f"{what} is the URL {name!r}; {remedy}")
    return str(name)


def any_path(what: str, value: Any) -> str:
    """Return a path or URL as text."""
    if not isinstance(value, (str, os.PathLike)) or isinstance(os.fspath(value), bytes):
        raise InvalidArgumentError(f"{what} is {value!r:.80}; expected a path or URL as text, or a Path")
    if not os.fspath(value):
        raise InvalidArgumentError(f"{what} is empty; write '.' for the current folder")
    return os.fspath(value)


def encoding_of(what: str, value: Any) -> str:
    """Return the name of an encoding that Python knows."""
    try:
        codecs.lookup(value)
    except (LookupError, TypeError):
        raise InvalidArgumentError(
            f"{what} is {value!r:.80}; expected the name of an encoding, such as 'utf-8' or 'latin-1'"
        ) from None
    return str(value)


def delimiter_of(what: str, value: Any) -> str:
    r"""Return a character that separates fields.

    >>> delimiter_of("csv: delimiter", "\t")
    '\t'
    """
    if not isinstance(value, str) or len(value) != 1 or value in '\r\n"':
        raise InvalidArgumentError(
            f"{what} is {value!r:.80}; expected one character, neither a quote nor an end of a line, such as "
            "',', ';' or '\\t'. Where fields have several between them, read text_lines and split() in map()"
        )
    return value
