from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from nbdist.errors import InvalidArgumentError, OutOfRangeError
from nbdist.sweep.parameters import Choice, Fixed, Integer, Parameter, Real
from nbdist.sweep.parse import read_space, words
from nbdist.sweep.samplers import Grid
from nbdist.sweep.space import Space, choice, fixed, integer, log, uniform, when

plain_values = (
    some.booleans()
    | some.integers(-(2**53), 2**53)
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(max_size=8)
    | some.none()
)
values = plain_values | some.lists(plain_values, max_size=3).map(tuple)
points = some.none() | some.integers(2, 12)


@some.composite
def ranges(draw: some.DrawFn) -> Parameter:
    kind = draw(some.sampled_from(["uniform", "log", "int", "log int", "choice", "fixed"]))
    if kind in ("uniform", "log"):
        finite = some.floats(1e-300 if kind == "log" else -1e300, 1e300)
        low, high = sorted((draw(finite), draw(finite)))
        return Real(low, high, kind == "log", draw(points))
    if kind in ("int", "log int"):
        low = draw(some.integers(1 if kind == "log int" else -1000, 1000))
        high = low + draw(some.integers(0, 500))
        step = 1 if kind == "log int" else draw(some.integers(1, 7))
        return Integer(low, high, kind == "log int", step, draw(points))
    if kind == "fixed":
        return Fixed(draw(values))
    return Choice(tuple(draw(some.lists(values, min_size=1, max_size=5, unique_by=repr))))


@some.composite
def spaces(draw: some.DrawFn) -> Space:
    made: dict[str, Parameter] = {}
    for index in range(draw(some.integers(1, 5))):
        parameter = draw(ranges())
        deciding = [name for name, one in made.items() if not isinstance(one.kind, Real)]
        if deciding and draw(some.booleans()):
            on = draw(some.sampled_from(deciding))
            allowed = made[on].kind
            value = allowed.draw(draw(some.floats(0, 1, exclude_max=True)))
            parameter = when(parameter, {on: [value]})
        made[f"p{index}"] = parameter
    try:
        return Space(made)
    except InvalidArgumentError as error:
        if "never exist" not in str(error):
            raise
        return Space({"p": made["p0"]})


@given(ranges(), some.floats(0, 1, exclude_max=True))
def test_drawn_values_are_in_the_space(parameter: Parameter, fraction: float) -> None:
    assert parameter.contains(parameter.draw(fraction))


@given(ranges())
def test_grid_points_are_unique_and_in_the_space(parameter: Parameter) -> None:
    if isinstance(parameter, Real) and parameter.points is None and parameter.low != parameter.high:
        with pytest.raises(InvalidArgumentError, match="points"):
            parameter.grid()
        return
    grid = parameter.grid()
    assert grid
    assert all(parameter.contains(value) for value in grid)
    if not isinstance(parameter, Real):  # two ends may be neighbours among floats
        assert len({repr(value) for value in grid}) == len(grid)


@given(spaces())
def test_a_space_is_the_same_through_json_and_through_text(space: Space) -> None:
    assert Space.from_json(json.loads(json.dumps(space.to_json()))) == space
    assert read_space(str(space)) == space


@given(spaces(), some.randoms(use_true_random=False))
def test_filled_parameters_are_contained_and_no_others(space: Space, random: Any) -> None:
    parameters = space.fill(lambda name, parameter: parameter.draw(random.random()))
    assert space.why_not(parameters) is None
    assert not space.contains({**parameters, "other": 1})
    for name in parameters:
        assert not space.contains({key: one for key, one in parameters.items() if key != name})


def test_every_fraction_of_a_range_is_as_likely() -> None:
    drawn = [integer(1, 4).draw(k / 1000) for k in range(1000)]
    assert [drawn.count(value) for value in (1, 2, 3, 4)] == [250] * 4
    assert [choice("a", "b").draw(k / 10) for k in range(10)].count("a") == 5
    assert uniform(-1, 1).draw(0.75) == 0.5
    assert math.isclose(log(1e-4, 1).draw(0.5), 1e-2)
    assert [integer(1, 1000, log=True).draw(one) for one in (0, 0.1, 0.99999)] == [1, 1, 1000]


@pytest.mark.parametrize("low", [1e-3, 1e-4, 3e-5, 0.1])
def test_a_logarithmic_grid_has_both_of_its_ends(low: float) -> None:
    values = log(low, 100 * low, points=5).grid()
    assert (values[0], values[-1], len(values)) == (low, 100 * low, 5)


def test_numpy_scalars_are_plain_values() -> None:
    space = Space({"width": list(np.array([32, 64])), "rate": np.float32(0.5), "flag": np.True_})
    assert str(space) == "width=[32, 64] rate=0.5 flag=True"


def test_one_and_true_and_one_point_zero_are_three_values() -> None:
    kinds = choice(1, 1.0, True)
    assert kinds.values == (1, 1.0, True)
    assert not choice(1, 2).contains(True)
    assert not fixed(1).contains(1.0)


def test_a_grid_counts_the_last_parameter_fastest() -> None:
    grid = Grid(Space({"a": [1, 2], "b": uniform(0, 1, points=3), "c": 9}))
    assert [grid.point(k) for k in range(grid.size)] == [
        {"a": a, "b": b, "c": 9} for a in (1, 2) for b in (0.0, 0.5, 1.0)
    ]
    with pytest.raises(OutOfRangeError, match="6 points, and no number 6"):
        grid.point(6)


@given(spaces())
def test_the_points_of_a_grid_are_all_different_and_all_in_the_space(space: Space) -> None:
    try:
        grid = Grid(space)
    except InvalidArgumentError:
        return
    seen = [grid.point(k) for k in range(min(grid.size, 60))]
    assert all(space.contains(one) for one in seen)
    if not any(isinstance(one.kind, Real) for one in space.values()):
        assert len({repr(one) for one in seen}) == len(seen)


def test_a_grid_of_very_many_points_is_counted_not_built() -> None:
    grid = Grid(Space({f"p{k}": list(range(100)) for k in range(7)}))
    assert grid.size == 10**14
    assert grid.point(10**14 - 1) == {f"p{k}": 99 for k in range(7)}


bad_spaces: list[tuple[Any, str]] = [
    ({}, "empty; name what may vary"),
    ({"lr": []}, "lr: a choice needs at least one value"),
    ({"lr": [1, 1]}, "lr: 1 stands twice"),
    ({"learning-rate": 1}, "'learning-rate' cannot name a parameter"),
    ({"lambda": 1}, "'lambda' is a word of Python's own"),
    ({1: 1}, "1 cannot name a parameter"),
    ({"lr": float("nan")}, "lr: nan cannot be"),
    ({"lr": object}, "lr: <class 'object'> is a type"),
    ({"lr": {"low": 1}}, "lr: .* is a dict"),
    ({"n": 2**60}, "too large"),
    ([("a", 1), ("a", 2)], "a stands twice in the space"),
    ({"m": when([1], opt="sgd")}, "m depends on opt, which is not in the space; there are m"),
    ({"m": when([1], m=1)}, "circle: m -> m"),
    ({"a": when([1], b=1), "b": when([1], a=1)}, "circle: "),
    ({"o": ["x", "y"], "m": when([1], o="z")}, r"m depends on o='z', but o may only be \['x', 'y'\]"),
    ({"o": uniform(0, 1), "m": when([1], o=0.5)}, "hits no value exactly"),
    (
        {"o": ["x", "y"], "m": when([1, 2], o="x"), "n": when([1], m=1, o="y")},
        r"n can never exist: o would have to be one of .*'y'.*'x'|n can never exist: o .*'x'.*'y'",
    ),
    ({f"p{k}": 1 for k in range(201)}, "at most 200"),
]


@pytest.mark.parametrize(
    ("parameters", "message"), bad_spaces, ids=[message[:30] for _, message in bad_spaces]
)
def test_invalid_spaces_are_refused_with_a_reason(parameters: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Space(parameters)


def test_invalid_ranges_are_refused_with_a_reason() -> None:
    for make, message in (
        (lambda: uniform(2, 1), "is empty: 2.0 is more than 1.0; swap them"),
        (lambda: log(0, 1), "starts above 0, not at 0.0"),
        (lambda: log(-1, 1), "starts above 0"),
        (lambda: integer(0, 8, log=True), "starts above 0, not at 0"),
        (lambda: integer(1.5, 8), "low of int must be a whole number, got 1.5"),  # type: ignore[arg-type]
        (lambda: integer(1, 8, step=0), "step of .* must be 1 or more"),
        (lambda: integer(1, 8, log=True, step=2), "log and step"),
        (lambda: uniform("a", 1), "must be a number, got 'a'"),  # type: ignore[arg-type]
        (lambda: uniform(0, math.inf), "inf cannot be"),
        (lambda: uniform(0, 1, points=1), "points must be 2"),
        (lambda: uniform(True, 2), "must be a number, got True"),
        (lambda: integer(0, 10**6).grid(), "a grid at most"),
        (lambda: when(uniform(0, 1)), "no condition"),
        (lambda: when(when([1], a=1), b=1), "all conditions in one"),
        (lambda: when([1], {"a": 1}, a=2), "two conditions on a"),
        (lambda: when([1], 5), "names and values"),  # type: ignore[arg-type]
        (lambda: when([1], a=[]), "would never exist"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            make()  # type: ignore[no-untyped-call]


def test_a_condition_on_a_conditional_parameter_needs_both() -> None:
    space = Space(
        {"n": when([1, 2], m=2), "m": when([1, 2], o="x"), "o": ["x", "y"]}  # in any order
    )
    assert space.order == ("o", "m", "n")
    assert space.contains({"o": "y"})
    assert space.contains({"o": "x", "m": 1})
    assert space.contains({"o": "x", "m": 2, "n": 1})
    assert space.why_not({"o": "y", "m": 1}) == "m has no place here: it is when([1, 2], o=['x'])"
    assert Grid(space).size == 1 + 1 + 2


def test_json_that_is_not_a_space_is_refused() -> None:
    good = Space({"lr": log(1e-4, 1), "m": [1]}).to_json()
    for bad, message in (
        (None, "no space"),
        ({"version": 2, "parameters": []}, "version 2; this nbdist reads version 1"),
        ({"version": 1, "parameters": [["lr"]]}, "no space"),
        ({"version": 1, "parameters": [["lr", 3]]}, "an object with a kind"),
        ({"version": 1, "parameters": [["lr", {"kind": "gauss"}]]}, "no kind of parameter 'gauss'"),
        ({"version": 1, "parameters": [["lr", {"kind": "float", "lo": 1}]]}, "is not a parameter"),
        ({"version": 1, "parameters": [["lr", {"kind": "choice"}]]}, "is not a parameter"),
        ({**good, "parameters": [*good["parameters"], good["parameters"][0]]}, "twice"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            Space.from_json(bad)


def test_words_keep_brackets_and_quotes_together() -> None:
    line = r"""lr = log(1e-4, 1e-1)  opt=['a "b', 'it\'s ]'] --trials 24 --metric=val --max"""
    assert words(line) == [
        "lr=log(1e-4, 1e-1)", r"""opt=['a "b', 'it\'s ]']""", "--trials", "24", "--metric=val", "--max",
    ]  # fmt: skip
    assert words("  ") == []


def test_a_space_may_have_commas_between_its_parameters() -> None:
    assert (
        str(read_space("lr=0.1, width=[32, 64] , opt=('a', 'b')")) == "lr=0.1 width=[32, 64] opt=['a', 'b']"
    )


bad_texts = [
    ("", "the space is empty"),
    ("0.1", "'0.1' is not a parameter: write name=value"),
    ("lr=", "'lr=' is not a parameter"),
    ("lr=log(1e-4", r"'\)' is missing at the end"),
    ("lr=log]1e-4", "closes nothing"),
    ("opt='sgd", '"\'" is missing'),
    ("lr=log(1e-4, 1e-1", "missing at the end"),
    ("lr=log", "log needs its values in brackets"),
    ("opt=[sgd, adam]", "sgd is a name, .* write 'sgd' in quotes"),
    ("lr=normal(0, 1)", r"no normal\(...\) here; there are uniform, loguniform, log, int"),
    ("lr=log(1e-4)", r"log\(low, high, points=None\) is what it takes: missing a required argument: 'high'"),
    ("lr=log(1, 2, base=3)", "unexpected keyword argument 'base'"),
    ("lr=log(*[1, 2])", r"without \*"),
    ("lr=[1 for _ in 'ab']", "is not worked out here"),
    ("lr=__import__('os').system('true')", "is not worked out here"),
    ("lr=2**3", r"2 \*\* 3 is not worked out here"),
    ("lr=0x", "cannot be read"),
    ("lr=1e999", "lr=1e999: inf cannot be"),
    ("lr=1 lr=2", "lr stands twice"),
    ("learning-rate=1", "'learning-rate' cannot name a parameter"),
    ("lr=log(2, 1)", r"lr=log\(2, 1\): log\(2.0, 1.0\) is empty"),
    ("lr=" + "[" * 3000 + "]" * 3000, "cannot be read|is not worked out"),
    ("lr=" + "1" * 30_000, "a space of 30,003 characters"),
]


@pytest.mark.parametrize(("text", "message"), bad_texts, ids=[text[:20] for text, _ in bad_texts])
def test_invalid_text_is_refused_with_place_and_reason(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        read_space(text)


@given(some.text(max_size=60) | some.text("lr=o1[](){}'\",. -log", max_size=40))
def test_any_text_is_a_space_or_a_clear_error(text: str) -> None:
    with suppress(InvalidArgumentError):
        assert isinstance(read_space(text), Space)
