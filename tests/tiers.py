"""The two tiers of the suite: `make test` shows each behaviour once, `make test-all` over its whole matrix.

    @pytest.mark.parametrize("options", matrix([{"strategy": "ps"}], rest=[{"strategy": "central"}]), ids=str)

What is marked ``exhaustive`` repeats a behaviour that a test of the first tier shows: with another strategy,
transport, fault or page of the same kind, for longer, or with more examples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

exhaustive = pytest.mark.exhaustive


def matrix(first: Iterable[Any], rest: Iterable[Any]) -> list[Any]:
    """Return the values of a parametrization: ``first`` for both tiers, and ``rest`` for the second one.

    A value is what `pytest.mark.parametrize` takes: the argument, a tuple of several arguments, or a
    `pytest.param`. A tuple that is one argument is written as ``pytest.param((1, 3))``.
    """
    return [*first, *(in_second_tier(value) for value in rest)]


def in_second_tier(value: Any) -> ParameterSet:
    """Return a value of a parametrization with the mark ``exhaustive``."""
    if isinstance(value, ParameterSet):
        return pytest.param(*value.values, marks=[*value.marks, exhaustive], id=value.id)
    return pytest.param(*value if isinstance(value, tuple) else (value,), marks=exhaustive)
