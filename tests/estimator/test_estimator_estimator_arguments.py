"""Arguments of Estimators that are wrong: the error names the value, what is expected, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbdist as nb
from nbdist import estimator as e
from nbdist.checkpoint.tensor_file import write_tensors
from nbdist.errors import DataLossError, InvalidArgumentError, NotFoundError

QUIET = e.RunConfig(log_step_count_steps=None, save_summary_steps=None)
X = np.ones((4, 2), np.float32)
AGES = {"age": np.arange(4.0)}
age = e.numeric_column("age")
town = e.categorical_column_with_vocabulary_list("town", ["a", "b"])


def model_fn(features: Any, labels: Any, mode: str) -> e.EstimatorSpec:
    logits = features @ nb.get_variable("w", (2, 2))
    if mode == "predict":
        return e.EstimatorSpec(mode, predictions={"c": logits})
    loss = ((logits - labels) ** 2).mean()
    step = nb.train.get_or_create_global_step()
    return e.EstimatorSpec(mode, loss=loss, train_op=nb.optim.SGD(0.1).minimize(loss, step))


def data(labels: Any = X, features: Any = X) -> Callable[[], nb.data.Dataset]:
    given = (features,) if labels is None else (features, np.asarray(labels))
    return lambda: nb.data.Dataset.from_arrays(*given).batch(2)


def plain(folder: Path | str) -> e.Estimator:
    return e.Estimator(model_fn, folder, QUIET)


def classifier(folder: Path, **settings: Any) -> e.Estimator:
    return e.LinearClassifier([age], folder, config=QUIET, **settings)


def regressor(folder: Path) -> e.Estimator:
    return e.LinearRegressor([age], folder, config=QUIET)


def network(folder: Path, units: Any = (4,), **settings: Any) -> e.Estimator:
    return e.DNNClassifier(units, [age], folder, config=QUIET, **settings)


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no labels": (
        lambda p: classifier(p).train(data(None, AGES)),
        r"LinearClassifier needs labels to train: .*from_arrays\(features, labels\)",
    ),
    "no numbers": (lambda p: regressor(p).train(data(None, AGES)), "LinearRegressor needs labels"),
    "labels of two numbers": (lambda p: regressor(p).train(data(X, AGES)), r"\(2, 2\); expected \(2, 1\)"),
    "labels of two classes": (lambda p: classifier(p).train(data(X, AGES)), r"\(2, 2\); .*one class for"),
    "texts": (lambda p: regressor(p).train(data(list("abcd"), AGES)), "labels are real numbers, and these"),
    "columns": (lambda p: e.LinearClassifier(age, p), "feature_columns is .*expected a list"),
    "vocabulary": (lambda p: classifier(p, label_vocabulary=3), "label_vocabulary is 3; expected a list"),
    "units": (lambda p: network(p, 3), r"hidden_units is 3; expected a list of .*\[64, 32\]"),
    "activation": (lambda p: network(p, activation_fn="relo"), "no activation 'relo'; .*did you mean relu"),
    "dropout": (lambda p: network(p, dropout=2), "dropout rate .* got 2"),
    "model_dir": (lambda p: plain(3), "model_dir is 3; expected a path"),
    "no model_dir": (lambda p: plain(""), r"model_dir is empty; write '\.' for the current folder"),
    "warm start": (lambda p: e.Estimator(model_fn, p, warm_start_from=3), "warm_start_from is 3"),
    "hooks": (lambda p: plain(p).train(data(), hooks=3), "hooks is 3; expected a list"),
    "an evaluation": (lambda p: plain(p).evaluate(data(), name="a/b"), "name is 'a/b'; expected the name"),
    "checkpoint": (lambda p: plain(p).evaluate(data(), checkpoint_path=3), "checkpoint_path is 3"),
    "export": (lambda p: plain(p).export("s3://b", X), "URL 's3://b'; an export is written to a local"),
    "seconds": (lambda _: e.RunConfig(save_checkpoints_secs=-1), "save_checkpoints_secs is -1; expected"),
    "strategy": (lambda _: e.RunConfig(train_distribute="mirrored"), "is 'mirrored'; expected a strategy"),
    "metrics": (lambda _: e.EstimatorSpec("predict", 3, eval_metric_ops=[1]), "eval_metric_ops is .1."),
    "train_op": (
        lambda _: e.EstimatorSpec("train", loss=nb.constant(1.0), train_op=3),
        "train_op is 3; expected what optimizer",
    ),
    "exporters": (lambda _: e.EvalSpec(data(), exporters=[3]), "an exporter is 3; expected"),
    "exporter": (lambda _: e.LatestExporter(3, X), "name is 3; expected the name of a folder"),
    "best": (lambda _: e.BestExporter("a", X, metric=3), "metric is 3; expected the name"),
    "shape": (lambda _: e.numeric_column("a", None), "shape has whole numbers from 1, not None"),
    "default": (lambda _: e.numeric_column("a", default_value="x"), "default_value is 'x'"),
    "normalizer": (lambda _: e.numeric_column("a", normalizer_fn=3), "normalizer_fn is 3"),
    "normalized": (
        lambda _: e.numeric_column("a", normalizer_fn=lambda v: v[:1]).transform({"a": np.ones(3)}),
        r"normalizer_fn has made \(1, 1\) of \(3, 1\)",
    ),
    "boundaries": (lambda _: e.bucketized_column(age, ["x"]), "expected numbers in ascending"),
    "values": (lambda _: e.categorical_column_with_vocabulary_list("a", "abc"), "vocabulary_list is 'abc'"),
    "mixed": (lambda _: e.categorical_column_with_vocabulary_list("a", ["a", 1]), "texts, or whole numbers"),
    "keys": (lambda _: e.crossed_column(3, 10), "keys is 3; expected a list"),
    "initializer": (
        lambda _: e.embedding_column(town, 3, initializer="zeroes"),
        "no initializer 'zeroes'; .*did you mean zeros",
    ),
    "raw features": (lambda _: e.linear_model({}, [age]), "'age': map the dataset with transform_features"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named(tmp_path: Path, name: str) -> None:
    make, message = WRONG[name]
    with nb.Graph().as_default(), pytest.raises(InvalidArgumentError, match=message):
        make(tmp_path)


def test_an_evaluation_without_labels(tmp_path: Path) -> None:
    trained = classifier(tmp_path).train(data([0, 1, 0, 1], AGES))
    with pytest.raises(InvalidArgumentError, match="needs labels to evaluate"):
        trained.evaluate(data(None, AGES))


def test_a_model_function_without_labels_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        plain(tmp_path).train(data(None))
    assert "model_fn got labels=None" in raised.value.__notes__[0]


def test_an_export_without_its_files(tmp_path: Path) -> None:
    folder = Path(plain(tmp_path / "m").train(data()).export(tmp_path / "e", X))
    write_tensors(folder / "model.safetensors", {"w": X}, {})
    with pytest.raises(DataLossError, match="values and no graph"):
        e.ExportedModel(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(NotFoundError, match=r"has no model\.safetensors, .*a folder that Estimator\.export"):
        e.ExportedModel(folder)
    with pytest.raises(InvalidArgumentError, match="folder is 3; expected a path"):
        e.ExportedModel(3)
