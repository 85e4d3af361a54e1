"""The line of %%sweep, read."""

from __future__ import annotations

from typing import Any

import pytest

from nbdist.errors import InvalidArgumentError
from nbdist.sweep.parse import read_space
from nbdist.ui.flags import read_line
from nbdist.ui.magics import awaited

DOCUMENTED = "lr=log(1e-4,1e-1) hidden=[32,64,128] --trials 24 --metric val_accuracy --max"


def test_the_documented_line() -> None:
    text, options = read_line(DOCUMENTED)
    assert str(read_space(text)) == "lr=log(0.0001, 0.1) hidden=[32, 64, 128]"
    assert options == {"trials": 24, "metric": "val_accuracy", "direction": "max"}


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("--sampler tpe x=[1]", {"sampler": "tpe", "sampler_settings": {}}),
        ("--sampler=tpe-univariate x=[1]", {"sampler": "tpe-univariate", "sampler_settings": {}}),
        (
            "x=[1] --pruner asha(eta=3, first=2)",
            {"pruner": "asha", "pruner_settings": {"eta": 3, "first": 2}},
        ),
        ("x=[1] --pruner 'asha(eta=3)'", {"pruner": "asha", "pruner_settings": {"eta": 3}}),
        ("x = [1] --name 'my sweep' --wait", {"name": "my sweep", "wait": True}),
        (
            "--no-live x=[1] --per-trial 2 --seed=7 --min",
            {"live": False, "per_trial": 2, "seed": 7, "direction": "min"},
        ),
    ],
)
def test_flags_stand_anywhere(line: str, options: dict[str, Any]) -> None:
    text, found = read_line(line)
    assert found == options
    assert str(read_space(text)) == "x=[1]"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("x=[1] --trails 3", r"no flag '--trails'; did you mean --trials\?"),
        ("x=[1] --trials many", "a whole number"),
        ("x=[1] --pruner asha(3)", r"asha\(eta=3\)"),
        ("x=[1", "'\\]' is missing"),
        ("x=[1] --metric", "--metric needs a value"),
    ],
)
def test_what_cannot_be_read_is_said(line: str, wanted: str) -> None:
    with pytest.raises(InvalidArgumentError, match=wanted):
        read_line(line)


def test_the_cell_becomes_an_awaited_call() -> None:
    (line,) = awaited(["%%sweep x=[1, 2] --metric m\n", "m = x\n"])
    assert line.startswith("await ")
    assert "await_sweep('x=[1, 2] --metric m', 'm = x\\n', 1)" in line
    assert awaited(["%%sweep?\n"]) == ["%%sweep?\n"]
