"""The parameters of nb.launch follow from the table of options. Without a cluster."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from nbdist.errors import InvalidArgumentError
from nbdist.run.options import LaunchOptions, Options
from nbdist.train.options import RunOption, rows
from nbdist.ui.api import LaunchArguments, launch
from nbdist.ui.flags import DISTRIBUTE_FLAGS, flags_of, usage

each = pytest.mark.parametrize("row", rows(Options).values(), ids=lambda row: row.name)


@each
def test_an_option_is_a_flag_that_is_explained(row: RunOption) -> None:
    found = flags_of(row)
    assert found
    for name, flag in found.items():
        assert DISTRIBUTE_FLAGS[name] == flag
        assert flag.option == row.name
        assert flag.help
        assert f"    {name}" in usage(DISTRIBUTE_FLAGS)


@each
def test_an_option_is_a_parameter_that_is_explained(row: RunOption) -> None:
    parameters, renamed = inspect.signature(launch).parameters, {"synchronous": "sync", "show": "live"}
    found = parameters[renamed.get(row.name, row.name)]
    assert found.kind is found.KEYWORD_ONLY
    assert f"``{found.name}``" in str(launch.__doc__)
    if row.name in rows(LaunchOptions):
        assert (found.default, found.annotation) == (row.default, row.type)


def test_the_body_is_the_first_parameter() -> None:
    first = next(iter(inspect.signature(launch).parameters.values()))
    assert (first.name, first.kind) == ("body", first.POSITIONAL_OR_KEYWORD)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"body": "x = 1", "stratgy": "ps"}, r"launch\(\) got an unexpected keyword argument 'stratgy'"),
        ({}, r"launch\(\) missing 1 required positional argument: 'body'"),
    ],
)
def test_other_parameters_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        launch(**given)


def test_an_invalid_value_is_refused_before_a_cluster_starts() -> None:
    with pytest.raises(InvalidArgumentError, match="no --strategy 'pss'"):
        launch("x = 1", strategy="pss")


def test_arguments_become_options() -> None:
    given = LaunchArguments(
        body="# Digits", strategy="ps", sync=True, backups=1, fetch=["a"], push={"x": 1}, live=False
    )
    expected = Options(
        name="Digits ps sync",
        strategy="ps",
        synchronous=True,
        backups=1,
        fetch=("a",),
        push=("x",),
        show=False,
    )
    assert given.options() == expected
    assert LaunchArguments(body="1", live=("loss",)).options().live == ("loss",)
    assert LaunchArguments(body="1", name="mine").options().name == "mine"
