"""``nb.inspect``: what a notebook shows of a classifier."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbdist as nb
from nbdist.errors import InvalidArgumentError


@pytest.fixture(scope="module")
def model() -> Any:
    """A model that takes 8 for 9 and finds all other digits of its one-hot inputs."""
    nb.set_random_seed(1)
    made = nb.nn.Sequential([nb.nn.Dense(16, "relu"), nb.nn.Dense(10, "softmax")])
    made.compile("adam", "sparse_categorical_crossentropy")
    made.build((16,))
    first, second = np.eye(16, dtype="f4"), 9 * np.eye(16, 10, dtype="f4")
    second[8] = 9 * np.eye(10, dtype="f4")[9]
    made.set_weights([first, np.zeros(16, "f4"), second, np.zeros(10, "f4")])
    return made


def data(rows: int = 600) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(rows) % 10
    return np.eye(10, 16, dtype="f4")[labels], labels


def test_a_notebook_shows_matrix_table_examples_and_layers(model: Any, tmp_path: Path) -> None:
    seen = nb.inspect(model, *data(), examples=4)
    assert (seen.confusion[8, 9], np.trace(seen.confusion), seen.report.classes[8].recall) == (60, 540, 0.0)
    assert seen.wrong == [8, 18, 28, 38]
    assert np.array_equal(seen.inputs[18], data()[0][18])
    text = repr(seen)
    assert "90.00% of 600 examples found. Most confused: 8 taken for 9 (60)" in text
    assert list(seen.table()["examples"]) == [60] * 10
    bundle = seen._repr_mimebundle_()
    assert bundle.keys() == {"text/plain", "image/png", "text/html"}
    assert bundle["text/html"].count("<tr>") == 11 + 5
    assert len(bundle["image/png"]) < 60_000
    assert seen.save(tmp_path / "seen.svg").read_text().startswith("<?xml")
    rows = list(csv.reader(seen.save(tmp_path / "seen.csv").read_text().splitlines()))
    assert rows[9] == ["8", *["0"] * 9, "60"]
    with pytest.raises(InvalidArgumentError, match=r"not 'seen\.gif'"):
        seen.save("seen.gif")


def test_the_histograms_are_those_of_the_layers(model: Any) -> None:
    x, y = data()
    first, given, second, outputs = nb.inspect(model, x, y).layers
    assert [one.name for one in (first, given, second, outputs)] == [
        "1 dense",
        "1 dense",
        "2 dense",
        "2 dense",
    ]
    assert int(first.counts.sum()) == 16 * 16 + 16
    assert first.zeros == pytest.approx(1 - 16 / 272)
    assert int(given.counts.sum()) == 256 * 16  # of the first 256 examples
    assert given.mean == pytest.approx(float(x[:256].mean()))
    assert outputs.mean == pytest.approx(0.1)


def test_other_models_and_datasets(model: Any) -> None:
    x, y = data(50)
    batches = nb.data.Dataset.from_arrays(x, y).batch(7)
    whole = nb.inspect(model, batches)
    assert np.array_equal(whole.confusion, nb.inspect(model, x, y).confusion)
    by_function = nb.inspect(lambda x: model.predict(x), x, y, classes=[f"digit {at}" for at in range(10)])
    assert np.array_equal(by_function.confusion, whole.confusion)
    assert by_function.layers == []
    assert "digit 8 taken for digit 9 (5)" in repr(by_function)


def test_logits_are_known_from_the_loss() -> None:
    made = nb.nn.Sequential([nb.nn.Dense(1, kernel_initializer="zeros")])
    made.compile("sgd", nb.nn.losses.BinaryCrossentropy(from_logits=True))
    made.build((2,))
    made.set_weights([np.array([[4.0], [0.0]], "f4"), np.array([-2.0], "f4")])
    seen = nb.inspect(made, np.array([[1.0, 0], [0, 0]], "f4"), np.array([1, 0]))
    assert seen.confusion.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"examples": 101}, "examples=101: expected a whole number from 0 to 100"),
        ({"classes": ["a"]}, "classes has 1 names, and the model has 10 classes"),
        ({"x": np.empty((0, 16), "f4"), "y": np.empty(0, int)}, "no examples"),
        ({"model": 3}, "not int"),
    ],
)
def test_what_cannot_be_inspected_is_a_sentence(model: Any, given: dict[str, Any], said: str) -> None:
    x, y = data(20)
    with pytest.raises(InvalidArgumentError, match=said):
        nb.inspect(**{"model": model, "x": x, "y": y, **given})
