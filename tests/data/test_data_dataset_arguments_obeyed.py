"""What users of tf.data and Hugging Face set on a source is obeyed, or refused by a sentence: one table.

A row is a call that a user would write, with the argument or the attribute by the name that it has there. Its
right-hand side is the value of the first element that shows it was obeyed, or the words that refuse it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset, FixedLenFeature, make_example, write_tfrecords
from nbdist.data.structure import stack_column
from nbdist.errors import InvalidArgumentError


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "a.csv").write_text("n;t\n1;a\n;b\n")
    (tmp_path / "latin.txt").write_bytes("ü\n".encode("latin-1"))
    write_tfrecords(tmp_path / "a.rec", [make_example({"n": 3})], compression="gzip")
    return tmp_path


def ten() -> Dataset:
    return Dataset.range(10)


OBEYED: dict[str, tuple[Callable[[Path], Dataset], Any]] = {
    "csv(columns=)": (lambda p: Dataset.csv(p / "a.csv", ["t"], delimiter=";"), {"t": "a"}),
    "csv(columns=) with dtypes": (
        lambda p: Dataset.csv(p / "a.csv", {"n": "f4"}, delimiter=";"),
        {"n": np.float32(1)},
    ),
    "csv(label=)": (
        lambda p: Dataset.csv(p / "a.csv", label="t", delimiter=";").map(lambda x, y: (float(x[0]), y)),
        (1.0, "a"),
    ),
    "csv(header=)": (
        lambda p: Dataset.csv(p / "a.csv", header=["x", "y"], delimiter=";"),
        {"x": "n", "y": "t"},
    ),
    "csv(defaults=)": (
        lambda p: Dataset.csv(p / "a.csv", delimiter=";", defaults={"n": 7}).skip(1),
        {"n": 7, "t": "b"},
    ),
    "csv(on_error=)": (
        lambda p: Dataset.csv(p / "a.csv", {"n": "i8"}, delimiter=";", on_error="skip").skip(0),
        {"n": 1},
    ),
    "text_lines(encoding=)": (lambda p: Dataset.text_lines(p / "latin.txt", encoding="latin-1"), "ü"),
    "tfrecords(compression=, features=)": (
        lambda p: Dataset.tfrecords(p / "a.rec", {"n": FixedLenFeature((), "i8")}, compression="gzip"),
        {"n": 3},
    ),
    "shuffle(reshuffle_each_iteration=)": (
        lambda _: (
            ten()
            .shuffle(10, 1, reshuffle_each_iteration=False)
            .repeat(2)
            .batch(10)
            .window(2)
            .map(lambda pair: bool((pair[0] == pair[1]).all()))
        ),
        True,
    ),
    "batch(drop_remainder=)": (lambda _: ten().batch(4, drop_remainder=True).batch(2).map(len), 2),
    "padded_batch(padding_values=)": (
        lambda _: (
            Dataset.range(1, 3)
            .map(lambda n: np.ones(n))
            .padded_batch(2, padding_values=-1)
            .map(lambda b: float(b[0, 1]))
        ),
        -1.0,
    ),
    "interleave(cycle_length=, block_length=)": (
        lambda _: (
            Dataset.range(2)
            .interleave(lambda n: Dataset.range(10 * n, 10 * n + 4), cycle_length=2, block_length=2)
            .batch(4)
            .map(lambda b: b.tolist() == [0, 1, 10, 11])
        ),
        True,
    ),
    "sample_from(weights=)": (
        lambda _: Dataset.sample_from([ten(), ten().map(lambda n: -n)], [0, 1]).skip(1),
        -1,
    ),
    "window(shift=, stride=)": (lambda _: ten().window(2, 3, 4).map(lambda w: w.tolist() == [0, 4]), True),
    "enumerate(start=)": (lambda _: ten().enumerate(5), (5, 0)),
}


@pytest.mark.parametrize("what", OBEYED)
def test_it_is_obeyed(files: Path, what: str) -> None:
    make, expected = OBEYED[what]
    assert next(iter(make(files))) == expected


class Carrier:
    """As much of a dataset of Hugging Face as says what it carries."""

    features = None

    def __init__(self, kind: str) -> None:
        self.format = {"type": kind, "format_kwargs": {}, "columns": ["x"], "output_all_columns": False}

    def with_format(self, kind: str) -> Carrier:
        return self

    def __len__(self) -> int:
        return 1

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": [1, 2]}


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "set_format('pandas')": (lambda _: Dataset.from_huggingface(Carrier("pandas")), "whose rows are frames"),
    "a mask of NumPy": (
        lambda _: Dataset.from_arrays(np.ma.masked_array([1.0, 2.0], mask=[0, 1])),
        "array 0 has a mask, .*filled",
    ),
    "a mask of an element": (
        lambda _: list(Dataset.from_generator(lambda: [np.ma.masked_array([1.0], mask=[1])]).batch(1)),
        "element of a batch has a mask",
    ),
    "masks of rows": (
        lambda _: Dataset.from_arrays([np.ma.masked_array([1.0], mask=[1])] * 2),
        "array 0 has a mask",
    ),
    "a mask of a later element": (
        lambda _: stack_column((np.zeros(2), np.ma.masked_array([1, 2], mask=[0, 1]))),
        "element of a batch has a mask",
    ),
    "a mask of an element to pad": (
        lambda _: list(Dataset.from_generator(lambda: [np.ma.masked_array([1.0], mask=[1])]).padded_batch(1)),
        "element of a batch has a mask",
    ),
    "a masked value": (lambda _: stack_column((1.0, np.ma.masked)), "element of a batch has a mask"),
    "a DatasetDict": (lambda _: Dataset.from_huggingface({"train": 1}), r"ds\['train'\]"),
    "map(num_parallel_calls=, workers=)": (lambda _: ten().map(abs, 2, workers=2), "threads"),
    "csv(columns=) of another file": (
        lambda p: list(Dataset.csv(p / "a.csv", ["m"], delimiter=";")),
        "no column 'm'",
    ),
    "csv(defaults=) of another column": (
        lambda p: list(Dataset.csv(p / "a.csv", delimiter=";", defaults={"m": 1})),
        "defaults has a value for 'm'",
    ),
    "compression of TensorFlow's name": (
        lambda p: Dataset.tfrecords(p / "a.rec", compression="GZIP"),
        "did you mean gzip",
    ),
    "images(mode=)": (lambda p: Dataset.images(p, mode="rgb"), "mode is 'rgb'"),
    "a generator that was called": (lambda _: Dataset.from_generator(iter([1])), "without calling it"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_by_a_sentence(files: Path, what: str) -> None:
    make, message = REFUSED[what]
    with pytest.raises(InvalidArgumentError, match=message):
        make(files)


def test_a_masked_array_without_a_masked_value_is_an_array() -> None:
    rows = np.ma.masked_invalid(np.ones((4, 2)))
    [batch] = Dataset.from_arrays(rows).batch(4)
    for whole in (batch, stack_column(tuple(rows))):
        assert type(whole) is np.ndarray
        assert whole.tolist() == np.ones((4, 2)).tolist()


TRANSFORMED = Carrier("custom")


def test_a_transform_is_obeyed() -> None:
    assert next(iter(Dataset.from_huggingface(TRANSFORMED))) == {"x": (1, 2)}


SOURCES = ("list_files", "text_lines", "csv", "tfrecords", "parquet", "images", "from_frame")


def test_no_parameter_of_a_source_is_taken_without_a_name() -> None:
    """``**options`` would take what is misspelt, and drop it."""
    for name, method in inspect.getmembers(Dataset, callable):
        if not name.startswith("_"):
            kinds = [one.kind for one in inspect.signature(method).parameters.values()]
            assert inspect.Parameter.VAR_KEYWORD not in kinds, name
    for name in SOURCES:
        with pytest.raises(TypeError, match="unexpected keyword argument 'num_paralel_calls'"):
            getattr(Dataset, name)("a", num_paralel_calls=2)
