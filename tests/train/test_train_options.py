"""The table of a run's options: what follows from a row. Without a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from nbdist.errors import InvalidArgumentError
from nbdist.train.options import RunOption, TrainingOptions, option, rows, whole

LIMIT = 3


@dataclass(frozen=True, kw_only=True)
class Example(TrainingOptions):
    below: int | None = option(None, "", "N", is_valid=lambda value: value < LIMIT, expected=f"below {LIMIT}")
    kind: str = option("a", "", choices=("a", "b"))
    parts: tuple[str, ...] | None = option(None, "", "x,y")
    some: tuple[str, ...] = option((), "", "x,y")
    rate: float | None = option(None, "", "R")
    every: str | int | None = option(None, "", "30s|500")
    is_on: bool = option(False, "")
    internal: int = 0


TABLE = rows(Example)


def test_a_class_has_the_rows_of_its_bases_and_its_own() -> None:
    assert list(TABLE)[: len(rows(TrainingOptions))] == list(rows(TrainingOptions))
    assert "internal" not in TABLE
    assert (TABLE["kind"].name, TABLE["kind"].type, TABLE["kind"].default) == ("kind", str, "a")
    assert (TABLE["is_on"].flag, TABLE["kind"].shown, TABLE["below"].shown) == ("--is-on", "a|b", "N")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("below", "2", 2),
        ("kind", "b", "b"),
        ("parts", "x, y", ("x", "y")),
        ("some", "x", ("x",)),
        ("rate", "0.5", 0.5),
        ("every", "500", "500"),
    ],
)
def test_the_type_says_how_text_is_read(name: str, text: str, value: Any) -> None:
    read = TABLE[name].read
    assert read is not None
    assert read(text) == value


def test_a_switch_reads_no_text() -> None:
    assert TABLE["is_on"].read is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("below", 3, "--below is below 3, got 3"),
        ("kind", "c", "no --kind 'c'; choose from a, b"),
        ("kind", None, "no --kind None"),
        ("epochs", 0, "--epochs is a whole number of 1 or more, got 0"),
    ],
)
def test_a_value_is_checked(name: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        TABLE[name].check(value)
    TABLE[name].check(TABLE[name].default)


def test_whole_numbers_have_limits() -> None:
    row = RunOption("", **whole(1, 4), name="parts", type=int, default=1)
    for value in (0, 5, 2.0, True):
        with pytest.raises(InvalidArgumentError, match="--parts is a whole number, 1 to 4"):
            row.check(value)
    row.check(4)
