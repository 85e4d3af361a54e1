"""Serializes datasets: arrays and the names of their transforms, never code.

    steps, arrays = describe(digits.shuffle(1000, seed=1).batch(32))     # plain values, and arrays
    rebuild(steps, arrays)          # elsewhere: the same elements in the same order

What is in a description is looked up in a table and checked before anything is done with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nbdist.data.autotune import AUTOTUNE, BufferTuner, CallsTuner
from nbdist.data.blocks import Shuffle
from nbdist.data.cached import FileCache, MemoryCache
from nbdist.data.dataset import Dataset
from nbdist.data.elements import Generated
from nbdist.data.meter import Measured
from nbdist.data.policy import AutoShardPolicy
from nbdist.data.rows import ArrayRows
from nbdist.data.steps import Step
from nbdist.data.text import CsvRows
from nbdist.errors import InvalidArgumentError, choices

Array: TypeAlias = NDArray[Any]

MAX_STEPS = 256
MAX_DEPTH = 16  # of tuples and dicts in each other
MAX_BITS = 256  # of a number: a seed may be large
WITH_FUNCTION = ("from_generator", "map", "filter", "scan", "interleave", "bucket_by_length")
NUMBERS = "biufc"  # the kinds of dtypes that travel


def describe(dataset: Dataset) -> tuple[tuple[Step, ...], list[Array]]:
    """Return what a dataset is made of, for :func:`rebuild`: nested tuples of plain values, and arrays.

    A shuffle without a seed brings along what its orders follow from, so that they are the same everywhere.
    Raises InvalidArgumentError for what cannot travel: a function, a generator, arrays of no numbers.
    """
    for name, *_ in dataset.steps:
        if name not in ("from_arrays", *_TRANSFORMS):
            what = "holds a function of" if name in WITH_FUNCTION else "combines or reads what is in"
            raise InvalidArgumentError(
                f"{name}() in a dataset {what} this process, which does not travel to other tasks: make the "
                "dataset in the cell that uses it, feed from the client instead (data='client'), or do it "
                "to the arrays beforehand"
            )
    rows = dataset.source
    assert rows is not None, "what begins with from_arrays has arrays"
    form, _ = _form_of(rows.structure, 0)
    arrays = [_native(array, index) for index, array in enumerate(rows.arrays)]
    return (("from_arrays", form), *dataset.steps[1:]), arrays


def rebuild(steps: Sequence[Any], arrays: Sequence[Array]) -> Dataset:
    """Return the dataset that :func:`describe` described; it reads ``arrays`` where they are.

    Raises InvalidArgumentError, with the step, for anything that ``describe`` does not return.
    """
    if not isinstance(steps, (tuple, list)) or not 1 <= len(steps) <= MAX_STEPS:
        raise InvalidArgumentError(f"a dataset is described by 1 to {MAX_STEPS} steps, not by {steps!r:.80}")
    first, *transforms = (_checked(step) for step in steps)
    if first[0] != "from_arrays" or len(first) != 2:
        raise InvalidArgumentError(
            f"a dataset's first step is from_arrays with a structure, not {first!r:.80}"
        )
    used: list[int] = []
    structure = _structure(first[1], arrays, used, MAX_DEPTH)
    if used != list(range(len(arrays))):
        raise InvalidArgumentError(f"{len(arrays)} arrays came with a dataset, and it uses {used!r:.80}")
    dataset = Dataset.from_arrays(structure)
    for name, *values in transforms:
        if name not in _TRANSFORMS:
            raise InvalidArgumentError(f"cannot send transform {name!r:.40}; {choices(name, _TRANSFORMS)}")
        kinds, apply = _TRANSFORMS[name]
        _check_values(name, values, kinds)
        dataset = apply(dataset, *values)
    return dataset


def without_data(dataset: Dataset) -> Dataset:
    """Return the same dataset over one array of nothing, for a process that needs only the sizes of batches.

    Its elements are arrays of one byte per row, all from the same byte, in passes of the same lengths.

    >>> [len(batch) for batch in without_data(Dataset.from_arrays(np.eye(5), np.arange(5)).batch(2))]
    [2, 2, 1]
    """
    steps, arrays = describe(dataset)
    nothing = np.broadcast_to(np.zeros((), np.uint8), (len(arrays[0]),))
    # Ahead of what is asked for there is nothing to do.
    return rebuild([("from_arrays", 0), *(step for step in steps[1:] if step[0] != "prefetch")], [nothing])


_TRANSFORMS: dict[str, tuple[tuple[str, ...], Callable[..., Dataset]]] = {
    "shuffle": (
        ("number", "number or None", "truth", "number"),
        lambda dataset, *values: dataset._shuffled(Shuffle(*values)),
    ),
    "batch": (("number", "truth"), Dataset.batch),
    "repeat": (("number or None",), Dataset.repeat),
    "shard": (("number", "number"), Dataset.shard),
    "take": (("number",), Dataset.take),
    "skip": (("number",), Dataset.skip),
    "prefetch": (("number or auto",), Dataset.prefetch),
    "with_seed": (("numbers",), Dataset.with_seed),
    "with_auto_shard": (("policy",), Dataset.with_auto_shard),
}
"""By name: what values a transform comes with, and what does it."""

_KINDS: dict[str, Callable[[Any], bool]] = {
    "number": lambda value: type(value) is int and 0 <= value < 1 << MAX_BITS,
    "number or None": lambda value: value is None or _KINDS["number"](value),
    "number or auto": lambda value: value == AUTOTUNE or _KINDS["number"](value),
    "truth": lambda value: type(value) is bool,
    "policy": lambda value: value in [policy.value for policy in AutoShardPolicy],
}


def _form_of(structure: Any, number: int, depth: int = MAX_DEPTH) -> tuple[Any, int]:
    """Return a structure with its leaves numbered from ``number`` on, and the next number."""
    if not isinstance(structure, (tuple, dict)):
        return number, number + 1
    if depth == 0:
        raise InvalidArgumentError(f"arrays lie more than {MAX_DEPTH} deep in tuples and dicts")
    parts: list[Any] = []
    for key, part in structure.items() if isinstance(structure, dict) else enumerate(structure):
        form, number = _form_of(part, number, depth - 1)
        if isinstance(structure, dict) and type(key) is not str:
            raise InvalidArgumentError(f"the key {key!r} of a dataset's dict is not a text; use text as keys")
        parts.append((key, form) if isinstance(structure, dict) else form)
    return ("dict" if isinstance(structure, dict) else "tuple", *parts), number


def _structure(form: Any, arrays: Sequence[Array], used: list[int], depth: int) -> Any:
    """Return the arrays in the structure that ``form`` says; undoes :func:`_form_of`."""
    if type(form) is int and 0 <= form < len(arrays):
        used.append(form)
        return arrays[form]
    good = isinstance(form, (tuple, list)) and form and form[0] in ("tuple", "dict") and depth
    if not good:
        raise InvalidArgumentError(f"a dataset has a structure that is none: {form!r:.80}")
    kind, *parts = form
    if kind == "tuple":
        return tuple(_structure(part, arrays, used, depth - 1) for part in parts)
    if any(not isinstance(p, (tuple, list)) or len(p) != 2 or type(p[0]) is not str for p in parts):
        raise InvalidArgumentError(f"a dataset's dict has a key that is not a text: {form!r:.80}")
    return {key: _structure(part, arrays, used, depth - 1) for key, part in parts}


def _native(array: Array, index: int) -> Array:
    """Return an array of numbers in this machine's byte order; others do not travel."""
    if array.dtype.kind not in NUMBERS or array.dtype.char in "gG":
        raise InvalidArgumentError(
            f"array {index} of the dataset holds {array.dtype}, and only numbers travel to other tasks; "
            "convert it with .astype(...), or feed from the client instead (data='client')"
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _checked(step: Any) -> Step:
    if not isinstance(step, (tuple, list)) or not step or type(step[0]) is not str:
        raise InvalidArgumentError(f"a step of a dataset is a name with values, not {step!r:.80}")
    return tuple(step)


def _check_values(name: str, values: list[Any], kinds: tuple[str, ...]) -> None:
    if kinds == ("numbers",):
        kinds = ("number",) * len(values)
    good = len(values) == len(kinds) <= MAX_STEPS
    if not good or not all(_KINDS[kind](value) for kind, value in zip(kinds, values, strict=True)):
        raise InvalidArgumentError(f"{name} takes ({', '.join(kinds)}), not {tuple(values)!r:.80}")


# Whole pipelines, with their functions: what a dataset consists of in this process. They travel only where
# code does (`nbdist.run.values.push`), and are put together again as they were, with the same shuffles.

PARTS = (ArrayRows, CsvRows, Generated, MemoryCache, FileCache, Measured, BufferTuner, CallsTuner)
"""Classes of what a pipeline has in it, beside functions of nbdist and of the user: plain attributes."""


def pipeline_of(dataset: Dataset) -> tuple[Any, tuple[int, ...]]:
    """Return what a dataset consists of, for :func:`from_pipeline`."""
    return dataset._stage, dataset._salt


def from_pipeline(stage: Any, salt: tuple[int, ...]) -> Dataset:
    """Return the dataset of which :func:`pipeline_of` returned the parts."""
    return Dataset(stage, salt)


def state_of(part: Any) -> dict[str, Any]:
    """Return the attributes of an instance of :data:`PARTS`, without what it has read or kept so far."""
    found = part.__getstate__()
    return dict(found) if found else {}
