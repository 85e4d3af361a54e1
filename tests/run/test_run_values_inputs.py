"""What a run's record says of its body and of what that was given."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from nbdist.run.values.delivery import Given
from nbdist.run.values.inputs import LONGEST, MARKED, MOST, describe_body, describe_inputs, describe_value


def train(rate: float) -> float:
    return rate


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_a_function_is_its_source_and_another_callable_its_name() -> None:
    source, name = describe_body(train)
    assert source.startswith("def train(rate: float)")
    assert name == f"{__name__}.train"
    made: dict[str, Any] = {"__name__": "__main__"}
    exec("def made(): return 1", made)
    assert describe_body(made["made"]) == ("__main__.made", "__main__.made")
    assert "partial" in describe_body(partial(train, 1))[1]


def test_inputs_of_all_kinds_have_a_name() -> None:
    given = Given({"x": 1}, args=(2, "a"), kwargs={"rate": 0.1}, closure={"width": 3})
    assert describe_inputs("", given) == {"width": 3, "x": 1, "args[0]": 2, "args[1]": "a", "rate": 0.1}
    odd = {"a": float("nan"), "b": 2**80, "c": True, "d": None, "e": np.float32(1)}
    texts = {"a": "nan", "b": str(2**80), "c": True, "d": "None", "e": "np.float32(1.0)"}
    assert describe_inputs("", Given(odd)) == texts
    assert len(describe_inputs("", Given(dict.fromkeys(map(str, range(1000)))))) == MOST


def test_arguments_have_the_names_of_parameters_and_defaults_count() -> None:
    def body(rate: float, /, *more: int, width: int = 8, **others: int) -> None: ...

    found = describe_inputs(body, Given(args=(0.1, 2), kwargs={"depth": 3}))
    assert found == {"rate": 0.1, "more": "(2,)", "width": 8, "others": "{'depth': 3}"}
    assert describe_inputs(lambda x: x, Given(args=(1, 2))) == {"args[0]": 1, "args[1]": 2}


def test_arrays_that_differ_have_other_marks() -> None:
    zeros = np.zeros((3, MARKED), np.uint8)
    first, last = zeros.copy(), zeros.copy()
    first[0, 0], last[-1, -1] = 1, 1
    texts = {
        describe_value(one) for one in (zeros, first, last, zeros.astype(bool), zeros[:2], zeros[:, ::2])
    }
    assert len(texts) == 6
    assert describe_value(zeros) == describe_value(zeros.copy())


@pytest.mark.parametrize(
    "value", ["x" * 5000, [*range(10**6)], {"a": ["y" * 999] * 99}, Broken(), np.array([{}])]
)
def test_every_value_is_a_short_text(value: object) -> None:
    assert 0 < len(describe_value(value)) <= LONGEST
