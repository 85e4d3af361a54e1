"""The kinds of parameters that the space editor offers, and what it calls their values."""

from __future__ import annotations

from typing import Literal, TypeAlias

from nbdist.sweep.parameters import Value

Kind: TypeAlias = Literal["uniform", "log", "int", "log int", "choice", "fixed"]

NUMBERS: dict[Kind, str] = {
    "uniform": "uniform", "log": "log-uniform", "int": "integer", "log int": "log-integer",
}  # fmt: skip
"""Ranges of numbers, and the page's names of their distributions."""

KINDS: dict[Kind, str] = {**NUMBERS, "choice": "choice", "fixed": "fixed"}

FIRST: dict[Kind, tuple[str, str]] = {
    "uniform": ("0", "1"), "log": ("0.0001", "0.1"), "int": ("1", "10"), "log int": ("1", "1024"),
}  # fmt: skip
"""The range of a parameter that has just become one of these."""


def reading(value: Value) -> str:
    """Return what a value is, in a word.

    >>> reading(1), reading(True), reading("1"), reading((1, 2))
    ('number', 'truth value', 'text', 'list')
    """
    match value:
        case None:
            return "none"
        case bool():
            return "truth value"
        case str():
            return "text"
        case tuple():
            return "list"
    return "number"
