"""ONNX files compute what graphs compute: each op that has a form, models of all layers, and Estimators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from op_inputs import Example, examples_of

import nbdist as nb
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.graph.compile.program import compile_program
from nbdist.graph.op import OPS
from nbdist.graph.serialize.onnx import FORMS, PLAIN, write_onnx
from nbdist.graph.tensor import Graph, placeholder, record
from nbdist.nn import layers

pytest.importorskip("ndonnx")
runtime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(3)
MORE = {  # beside the examples of ops, which are those of gradients
    "one_hot": [Example((np.array([[2, 0], [7, -1]]),), {"depth": 3, "dtype": np.dtype(np.float32)})],
    "argmax": [
        Example((RNG.normal(size=(3, 4)),), {"axis": axis, "keepdims": keep})
        for axis, keep in ((-1, False), (0, True), (None, False), (None, True))
    ],
    "argmin": [Example((RNG.normal(size=(3, 4)),), {"axis": 1, "keepdims": False})],
    "argsort": [Example((RNG.permutation(np.arange(12.0)).reshape(3, 4),), {"axis": -1, "kind": None})],
    "size_ratio": [Example((np.ones((4, 3)), np.ones(3)), {"dtype": np.dtype(np.float32)})],
    "floor_divide": [Example((np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])), {})],
    "remainder": [Example((np.array([7, -7, 7, -7]), np.array([2, 2, -2, -2])), {})],
    "add": [Example((np.arange(3), RNG.normal(size=(2, 3))), {})],  # types that NumPy promotes
    "sum": [Example((np.array([[True, False], [True, True]]),), {"axis": 0, "keepdims": False})],
    "bitwise_and": [Example((np.array([True, False]), np.array([True, True])), {})],
    "equal": [Example((np.array([True, False]), np.array([True, True])), {})],
}
PARTLY = ("pad", "index", "take_along_axis")  # ONNX has some of their cases
LACKING = (  # elementwise ops that ndonnx does not have
    "arctan2", "cbrt", "deg2rad", "degrees", "fabs", "fmax", "fmin", "hypot", "logaddexp2", "rad2deg",
    "radians", "signbit",
)  # fmt: skip


def run(path: Path, **inputs: Any) -> list[Any]:
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    results: list[Any] = session.run(None, inputs)
    return results


@pytest.mark.parametrize(
    "name", [name for name, op in OPS.items() if op.elementwise or name in (*FORMS, *PLAIN)]
)
def test_an_op_and_its_form_compute_the_same(tmp_path: Path, name: str) -> None:
    examples = [*examples_of(name), *MORE.get(name, ())]
    assert examples
    if name not in (*PARTLY, *LACKING):  # one file, with an output for each example
        examples_in_a_file(tmp_path / "m.onnx", name, examples)
        return
    tried = 0
    for example in examples:
        try:
            examples_in_a_file(tmp_path / "m.onnx", name, [example])
        except InvalidArgumentError as error:
            assert "has no ONNX form" in str(error), error  # noqa: PT017
            continue
        tried += 1
    assert bool(tried) == (name in PARTLY)


def examples_in_a_file(path: Path, name: str, examples: Sequence[Example]) -> None:
    inputs, outputs, arrays = {}, {}, {}
    with Graph().as_default():
        for number, example in enumerate(examples):
            given = [a.astype(np.float32) if a.dtype == np.float64 else a for a in example.inputs]
            xs = [placeholder(a.dtype, a.shape, name=f"x{number}_{i}") for i, a in enumerate(given)]
            inputs |= {f"i{number}_{i}": x for i, x in enumerate(xs)}
            arrays |= {f"i{number}_{i}": a for i, a in enumerate(given)}
            outputs[f"y{number}"] = record(name, *xs, **example.attrs)
    found = run(write_onnx(path, inputs, outputs, {}), **arrays)
    shapes, fetches = [a.shape for a in arrays.values()], list(outputs.values())
    program = compile_program(fetches, feeds=list(inputs.values()), shapes=shapes, values={})
    for example, value, expected in zip(examples, found, program(*arrays.values()), strict=True):
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape), example
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5, err_msg=str(example))


IMAGES: list[Any] = [
    nb.nn.Conv2D(4, 3, padding="same", activation="relu"), nb.nn.BatchNorm(), nb.nn.MaxPool2D(2),
    nb.nn.Conv2D(3, 2, strides=2, padding="same"), nb.nn.AveragePool2D(2, padding="same"), nb.nn.Flatten(),
    nb.nn.Dropout(0.5), nb.nn.Dense(10, "softmax"),
]  # fmt: skip
MODELS: dict[str, tuple[list[Any], Any]] = {
    "images": (IMAGES, RNG.normal(size=(3, 9, 8, 3)).astype(np.float32)),
    "texts": (
        [nb.nn.Embedding(10, 4), nb.nn.LayerNorm(), nb.nn.Reshape((20,)), nb.nn.Dense(2)],
        RNG.integers(0, 10, (4, 5)),
    ),
    "activations": (
        [nb.nn.Dense(6, name) for name in layers.ACTIVATIONS] + [nb.nn.Activation("tanh")],
        RNG.normal(size=(5, 6)).astype(np.float32),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_predict_the_same(tmp_path: Path, name: str) -> None:
    made, x = MODELS[name]
    model = nb.nn.Sequential(made)
    with pytest.raises(FailedPreconditionError, match="no weights yet"):
        model.to_onnx(tmp_path / "m.onnx")
    model.build(x.shape[1:])
    path = model.to_onnx(tmp_path / "m.onnx")
    for part in (x, x[:1]):  # any number of examples
        (found,) = run(path, x=part)
        np.testing.assert_allclose(found, model.predict(part), rtol=1e-5, atol=1e-5)
    with pytest.raises(NotFoundError, match="no folder"):
        model.to_onnx(tmp_path / "none" / "m.onnx")


def test_all_layers_are_in_a_model_here() -> None:
    tried = {type(layer) for made, _ in MODELS.values() for layer in made}
    assert {kind.__name__ for kind in tried} == set(layers.LAYERS)


def test_an_estimator_of_columns(tmp_path: Path) -> None:
    e = nb.estimator
    town = e.categorical_column_with_vocabulary_list("town", ["Ulm", "Graz"])
    age = e.numeric_column("age", default_value=3, normalizer_fn=lambda x: np.log1p(x) / 2)
    years = e.numeric_column("age")
    features = {"age": np.array([np.nan, *range(19)]), "town": np.array(["Ulm", "Graz"] * 10)}
    estimator = e.DNNLinearCombinedClassifier(
        tmp_path / "m",
        linear_feature_columns=[e.crossed_column([e.bucketized_column(years, [5, 9]), "town"], 20)],
        dnn_feature_columns=[age, e.embedding_column(town, 2), e.indicator_column(town)],
        dnn_hidden_units=[4],
        dnn_dropout=0.1,
        batch_norm=True,
        config=e.RunConfig(log_step_count_steps=None, save_summary_steps=None),
    )
    data = nb.data.Dataset.from_arrays(features, np.arange(20) % 2).batch(10)
    estimator.train(lambda: data, max_steps=2)
    model = e.ExportedModel(estimator.export(tmp_path / "e", features))
    path = model.to_onnx(tmp_path / "m.onnx")
    given = model.inputs_of(features)
    found = run(path, **given)
    expected = model(given)
    assert len(found) == len(expected) == 4
    for name, value in zip(expected, found, strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_what_has_no_onnx_form(tmp_path: Path) -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (3, 3), name="x")
        inverse, y = np.linalg.inv(x), x + placeholder(np.float32, (3, 3), name="other")
    message = (
        r"op 'inv' \('inv', made at .*test_graph_onnx\.py:\d+\) has no ONNX form\. Compute it from other"
    )
    with pytest.raises(InvalidArgumentError, match=message):
        write_onnx(tmp_path / "m.onnx", {"x": x}, {"y": inverse}, {})
    with pytest.raises(InvalidArgumentError, match=r"need the placeholder 'other', which is not among .* x"):
        write_onnx(tmp_path / "m.onnx", {"x": x}, {"y": y}, {})
    assert not list(tmp_path.iterdir())
