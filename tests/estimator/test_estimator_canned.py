"""Estimators with feature columns, and the columns themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import matrix

import nbdist as nb
from nbdist.errors import InvalidArgumentError
from nbdist.estimator import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
    RunConfig,
    bucketized_column,
    categorical_column_with_hash_bucket,
    categorical_column_with_vocabulary_list,
    crossed_column,
    embedding_column,
    indicator_column,
    numeric_column,
)
from nbdist.estimator import columns as columns_of

RNG = np.random.default_rng(1)
AGE = RNG.integers(10, 80, 200)
COLOUR = RNG.choice(["red", "green", "blue"], 200)
FEATURES = {"age": AGE, "colour": COLOUR}
RICH = ((AGE > 40) ^ (COLOUR == "red")).astype(int)  # what no linear model of the two can tell
QUIET = RunConfig(log_step_count_steps=None, save_summary_steps=None)

age = numeric_column("age", normalizer_fn=lambda x: (x - 45) / 20)
decades = bucketized_column(numeric_column("age"), [20, 30, 40, 50, 60])
colour = categorical_column_with_vocabulary_list("colour", ["red", "green", "blue"])
hashed = categorical_column_with_hash_bucket("colour", 10)
older = bucketized_column(numeric_column("age"), [40.5])


def data(labels: Any, epochs: int | None = None) -> Any:
    found = nb.data.Dataset.from_arrays(FEATURES, labels).batch(50)
    return lambda: found if epochs is None else found.repeat(epochs)


def test_a_cross_lets_a_linear_model_tell(tmp_path: Path) -> None:
    plain = LinearClassifier([age, colour], tmp_path / "plain", optimizer="adam", config=QUIET)
    crossed = LinearClassifier([crossed_column([older, "colour"], 100)], tmp_path / "crossed", config=QUIET)
    for estimator in (plain, crossed):
        estimator.train(data(RICH, epochs=40))
    assert plain.evaluate(data(RICH))["accuracy"] < 0.8
    found = crossed.evaluate(data(RICH))
    assert found["accuracy"] == found["precision"] == found["recall"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("replicas", matrix([2], rest=[1]))
def test_wide_and_deep(tmp_path: Path, replicas: int) -> None:
    strategy = nb.distribute.MirroredStrategy(["CPU:0"] * replicas)
    labels = np.where(RICH, "rich", "poor")
    estimator = DNNLinearCombinedClassifier(
        tmp_path,
        linear_feature_columns=[colour, decades],
        linear_optimizer=nb.optim.SGD(0.05),
        dnn_feature_columns=[age, embedding_column(hashed, 4), indicator_column(colour)],
        dnn_hidden_units=[16, 8],
        dnn_dropout=0.05,
        dnn_optimizer=nb.optim.Adam(0.02),
        label_vocabulary=["poor", "rich"],
        config=QUIET.replace(train_distribute=strategy),
        batch_norm=True,
    )
    estimator.train(data(labels, epochs=50))
    metrics = estimator.evaluate(data(labels))
    accuracy = metrics["accuracy"]
    assert accuracy > 0.85
    assert metrics["accuracy_baseline"] == pytest.approx(max(RICH.mean(), 1 - RICH.mean()))
    found = list(estimator.predict(data(labels), predict_keys=["class_ids", "classes", "probabilities"]))
    classes = np.array([one["class_ids"] for one in found]).ravel()
    np.testing.assert_allclose((classes == RICH).mean(), accuracy, rtol=1e-6)
    assert [one["classes"] for one in found] == np.where(classes, "rich", "poor").tolist()
    np.testing.assert_allclose([one["probabilities"].sum() for one in found], 1.0, rtol=1e-6)
    assert {"linear/colour/weights", "dnn/dense/kernel", "dnn/colour_embedding/embedding_weights"} <= set(
        estimator.get_variable_names()
    )


def test_regressors_and_classes(tmp_path: Path) -> None:
    target = np.stack([AGE / 20 + (COLOUR == "blue"), AGE * 0.0 - 1], axis=1)
    common: Any = {"label_dimension": 2, "optimizer": nb.optim.Adam(0.05), "config": QUIET}
    linear = LinearRegressor([age, colour], tmp_path / "linear", **common)
    deep = DNNRegressor([8], [age, indicator_column(colour)], tmp_path / "deep", **common)
    for estimator in (linear, deep):
        estimator.train(data(target, epochs=60))
        assert estimator.evaluate(data(target))["average_loss"] < 0.05, estimator
    classes = (AGE // 27).clip(0, 2)
    many = DNNClassifier(
        [16], [age], tmp_path / "many", n_classes=3, optimizer=nb.optim.Adam(0.05), config=QUIET
    )
    assert many.train(data(classes, epochs=40)).evaluate(data(classes))["accuracy"] > 0.85


def test_a_whole_number_of_minus_one_pads() -> None:
    values = {"x": np.array([[3, -1], [-1, -1]]), "y": np.array([[1, 2], [1, 2]])}
    vocabulary = categorical_column_with_vocabulary_list("x", [3, 4], num_oov_buckets=2)
    assert vocabulary.transform(values).tolist() == [[0, -1], [-1, -1]]
    assert categorical_column_with_vocabulary_list("x", [-1, 3]).transform(values).tolist() == [
        [1, 0],
        [0, 0],
    ]
    hashed_numbers = categorical_column_with_hash_bucket("x", 7).transform(values)
    assert (hashed_numbers == -1).tolist() == [[False, True], [True, True]]
    crossed = crossed_column(["x", "y"], 7).transform(values)
    assert (crossed == -1).tolist() == [[False, False, True, True], [True] * 4]


@given(
    st.lists(
        st.text(st.characters(min_codepoint=1, max_codepoint=0xFFF), max_size=6), min_size=1, max_size=20
    )
)
def test_hashes_follow_from_the_text_alone(texts: list[str]) -> None:
    whole = columns_of.hash_texts(np.array(texts, np.str_))
    assert whole.tolist() == [int(columns_of.hash_texts(np.array([text], "U9"))[0]) for text in texts]
    column = categorical_column_with_hash_bucket("x", 7)
    kinds = [
        np.array(texts, np.str_),
        np.array(texts, object),
        np.char.encode(np.array(texts, np.str_), "utf-8"),
    ]
    found = [column.transform({"x": kind}) for kind in kinds]
    assert all(np.array_equal(one, found[0]) for one in found)
    assert ((found[0] == -1).ravel() == np.array([text == "" for text in texts])).all()


def test_columns_of_values_that_are_missing_or_unknown() -> None:
    values = {"x": np.array([["a", "c"], ["", "b"]])}
    vocabulary = ["a", "b"]
    plain = categorical_column_with_vocabulary_list("x", vocabulary)
    other = categorical_column_with_vocabulary_list("x", vocabulary, default_value=1)
    hashed_too = categorical_column_with_vocabulary_list("x", vocabulary, num_oov_buckets=3)
    assert plain.transform(values).tolist() == [[0, -1], [-1, 1]]
    assert other.transform(values).tolist() == [[0, 1], [-1, 1]]
    found = hashed_too.transform(values)
    assert found[0, 0] == 0
    assert 2 <= found[0, 1] < 5
    assert found[1].tolist() == [-1, 1]
    numbers = numeric_column("n", shape=2, default_value=0.5).transform({"n": np.array([[1, np.nan]])})
    assert numbers.tolist() == [[1.0, 0.5]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: numeric_column(""), "has the name of a feature"),
        (lambda: numeric_column("x", shape=0), "whole numbers from 1"),
        (lambda: numeric_column("x").transform({"y": np.ones(2)}), "have no 'x'"),
        (lambda: numeric_column("x").transform({"x": np.array(["a"])}), "use a categorical column"),
        (lambda: numeric_column("x").transform({"x": np.ones((2, 3))}), "give numeric_column"),
        (lambda: bucketized_column(age, [3, 2]), "boundaries ascend"),
        (lambda: categorical_column_with_vocabulary_list("x", ["a", "a"]), "distinct values"),
        (lambda: categorical_column_with_hash_bucket("x", 1), "whole number from 2"),
        (lambda: crossed_column(["x"], 10), "two features or more"),
        (lambda: crossed_column(["x", hashed], 10), "crossed_column takes names"),
        (lambda: embedding_column(colour, 4, combiner="max"), "no combiner 'max'"),
        (lambda: embedding_column(age, 4), "takes a categorical column"),
        (lambda: DNNClassifier([], [age], "x"), "hidden_units are whole numbers"),
        (lambda: DNNClassifier([4], [age, age], "x"), "two feature columns are called 'age'"),
        (lambda: LinearClassifier([age], "x", n_classes=3, label_vocabulary=["a"]), "a label for each of 3"),
    ],
)
def test_columns_that_do_not_fit(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("labels", "message"),
    [(COLOUR, "give label_vocabulary="), (RICH + 1, "one is 2"), (RICH + 0.5, "are class numbers")],
)
def test_labels_that_are_no_class(tmp_path: Path, labels: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        LinearClassifier([age], tmp_path, config=QUIET).train(data(labels))


def test_a_feature_with_columns_of_several_kinds() -> None:
    number, ids = numeric_column("x"), categorical_column_with_vocabulary_list("x", [3, 5])
    hashed = categorical_column_with_hash_bucket("x", 10)
    columns = [number, indicator_column(hashed), embedding_column(ids, 2)]
    found = columns_of.transform_features(columns)({"x": np.array([5, 3])})
    with nb.Graph().as_default():
        tensors = {name: nb.constant(value) for name, value in found.items()}
        kinds = [columns_of.transformed_of(tensors, one) for one in (number, ids, hashed)]
        with nb.Session() as session:
            values = session.run(kinds)
    assert values[0].ravel().tolist() == [5, 3]
    assert values[1].ravel().tolist() == [1, 0]
    np.testing.assert_array_equal(values[2], hashed.transform({"x": np.array([5, 3])}))
    other = indicator_column(categorical_column_with_hash_bucket("x", 11))
    with pytest.raises(InvalidArgumentError, match="two columns that differ take the feature 'x'"):
        columns_of.transform_features([embedding_column(hashed, 2), other])
