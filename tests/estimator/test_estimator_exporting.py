"""Exports, evaluations on the way, and models of nb.nn as Estimators."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbdist as nb
from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StorageError,
)
from nbdist.estimator import (
    BestExporter,
    DNNClassifier,
    EvalSpec,
    ExportedModel,
    LatestExporter,
    LinearClassifier,
    RunConfig,
    TrainSpec,
    categorical_column_with_hash_bucket,
    categorical_column_with_vocabulary_list,
    indicator_column,
    model_to_estimator,
    numeric_column,
    train_and_evaluate,
)
from nbdist.estimator.predict import main

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = (X @ RNG.normal(size=(4, 3))).argmax(axis=1)
QUIET = RunConfig(log_step_count_steps=None, save_summary_steps=None, save_checkpoints_steps=4)


def data(epochs: int | None = 1) -> Any:
    return lambda: nb.data.Dataset.from_arrays(X, Y).batch(20).repeat(epochs)


def model() -> Any:
    made = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dense(3, "softmax")]).build((4,))
    made.compile(nb.optim.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made


def test_a_model_is_an_estimator(tmp_path: Path) -> None:
    net = model()
    estimator = model_to_estimator(net, tmp_path, QUIET).train(data(40))
    found = estimator.evaluate(data())
    assert found["accuracy"] > 0.9
    predicted = np.array([one["predictions"] for one in estimator.predict(data())])
    assert np.mean(predicted.argmax(axis=1) == Y) == pytest.approx(found["accuracy"])
    again = model_to_estimator(model(), tmp_path, QUIET)  # from the checkpoint, not from its weights
    assert again.evaluate(data())["loss"] == pytest.approx(found["loss"])
    with pytest.raises(FailedPreconditionError, match=r"model\.compile"):
        model_to_estimator(nb.nn.Sequential([nb.nn.Dense(2)]).build((4,)))


@pytest.mark.slow
def test_an_export_predicts_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    estimator = model_to_estimator(model(), tmp_path / "model", QUIET).train(data(3))
    folder = estimator.export(tmp_path / "exports", X[:1])
    assert Path(folder).name == "9"
    predict = ExportedModel(folder)
    expected = np.array([one["predictions"] for one in estimator.predict(data())])
    np.testing.assert_allclose(predict(X)["predictions"], expected, rtol=1e-6)
    np.testing.assert_allclose(predict({"features": X[:7]})["predictions"], expected[:7], rtol=1e-6)
    with pytest.raises(InvalidArgumentError, match="has the shape"):
        predict(X[:, :3])
    with pytest.raises(InvalidArgumentError, match="exists already"):
        estimator.export(tmp_path / "exports", X[:1])
    lines = "".join(json.dumps(row.tolist()) + "\n" for row in X[:3])
    output = io.StringIO()
    assert main([folder], io.StringIO(lines), output) == 0
    rows = [json.loads(line)["predictions"] for line in output.getvalue().splitlines()]
    np.testing.assert_allclose(rows, expected[:3], rtol=1e-5)
    assert main([folder], io.StringIO(lines + "[1, 2]\n" + lines), rest := io.StringIO()) == 2
    assert rest.getvalue() == output.getvalue()  # those before the wrong one
    assert "line 4: 'features' has the shape [2]" in capsys.readouterr().err
    assert main([folder], io.StringIO("{\n"), output) == 2
    assert "line 1 is not JSON" in capsys.readouterr().err
    command = [sys.executable, "-m", "nbdist.estimator.predict", folder, "--signature"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(shown)["inputs"]["features"]["shape"] == [None, 4]


def test_a_damaged_export(tmp_path: Path) -> None:
    folder = Path(
        model_to_estimator(model(), tmp_path / "m", QUIET).train(data()).export(tmp_path / "e", X[:1])
    )
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataLossError, match="checksum"):
        ExportedModel(folder)
    for text in ("{}", "[" * 100_000):
        (folder / "signature.json").write_text(text)
        with pytest.raises(DataLossError, match=r"signature\.json is damaged"):
            ExportedModel(folder)
    for name in ("model.safetensors", "signature.json"):
        (folder / "signature.json").write_text('{"inputs": {}, "outputs": {}}')
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(DataLossError, match="not a regular file"):
            ExportedModel(folder)
    with pytest.raises(NotFoundError, match=r"has no signature\.json, which an exported model has"):
        ExportedModel(tmp_path)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (
            OSError(28, "No space left on device"),
            (StorageError, r"the export .*export.* cannot be written: .*No space left"),
        ),
        (
            InvalidArgumentError("'w' is complex64, which a checkpoint cannot hold"),
            (InvalidArgumentError, "complex64"),
        ),
        (KeyboardInterrupt(), (KeyboardInterrupt, None)),
    ],
    ids=["a full disk", "a value that no file holds", "an interrupt"],
)
def test_an_export_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: tuple[Any, Any]
) -> None:
    def refuses(*given: Any) -> None:
        raise error

    model = nb.nn.Sequential([nb.nn.Dense(3, activation="softmax")]).build((4,))
    model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
    estimator = model_to_estimator(model, str(tmp_path / "model"), config=QUIET)
    estimator.train(lambda: nb.data.Dataset.from_arrays(X, Y).batch(10), steps=1)
    monkeypatch.setattr("nbdist.estimator.exporting.write_tensors", refuses)
    with pytest.raises(raised[0], match=raised[1]):
        estimator.export(str(tmp_path / "export"), X[:1])
    assert not any((tmp_path / "export").iterdir())


def test_an_export_of_feature_columns(tmp_path: Path) -> None:
    features = {"x": X, "town": np.array(["a", "b", "c"] * 20)}
    town = indicator_column(categorical_column_with_hash_bucket("town", 5))
    estimator = DNNClassifier([4], [numeric_column("x", 4), town], tmp_path / "m", n_classes=3, config=QUIET)
    rows = lambda: nb.data.Dataset.from_arrays(features, Y).batch(20)
    estimator.train(rows)
    predict = ExportedModel(estimator.export(tmp_path / "e", {name: a[:1] for name, a in features.items()}))
    assert set(predict.signature["inputs"]) == {"x", "town_ids"}
    ids = nb.estimator.transform_features([town])(features)["town"]
    expected = [one["class_ids"] for one in estimator.predict(rows)]
    assert predict({"x": X, "town_ids": ids})["class_ids"].tolist() == expected
    assert predict(features)["class_ids"].tolist() == expected


def test_an_export_takes_raw_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e = nb.estimator
    age = e.numeric_column("age", default_value=45, normalizer_fn=lambda x: np.log(x) / 10)
    years = e.bucketized_column(e.numeric_column("age", default_value=np.float32(3)), [20, 41])
    town = categorical_column_with_vocabulary_list("town", [b"Ulm", "Wien"], num_oov_buckets=2)
    kind = categorical_column_with_hash_bucket("town_ids", 5)  # a feature with the name of an input
    crossed = indicator_column(e.crossed_column([years, "town", town], 30))
    hashed = nb.estimator.embedding_column(categorical_column_with_hash_bucket("town", 7), 2)
    columns = [age, years, indicator_column(town), indicator_column(kind), hashed, crossed]
    features = {
        "age": np.array([np.nan, 18, 30.5, 70] * 15),
        "town": np.array(["Ulm", "Wien", "Bern", "Graz", ""] * 12),
        "town_ids": np.arange(60) % 7,
    }
    rows = lambda: nb.data.Dataset.from_arrays(features, Y).batch(20)
    estimator = DNNClassifier([4], columns, tmp_path / "m", n_classes=3, config=QUIET).train(rows)
    folder = estimator.export(tmp_path / "e", features)
    predict = ExportedModel(folder)
    assert list(predict.signature["inputs"]) == [
        "age",
        "age_bucketized_ids",
        "town_ids_",
        "town_ids_ids",
        "town_ids__",
        "age_bucketized_X_town_X_town_ids",
    ]
    expected = np.array([one["probabilities"] for one in estimator.predict(rows)])
    np.testing.assert_allclose(predict(features)["probabilities"], expected, rtol=1e-5)
    np.testing.assert_allclose(predict(predict.inputs_of(features))["probabilities"], expected, rtol=1e-5)
    lines = [json.dumps({name: a[i].item() for name, a in features.items()}) for i in range(6)]
    output = io.StringIO()
    assert main([folder], io.StringIO("\n".join(lines)), output) == 0
    found = [json.loads(line)["probabilities"] for line in output.getvalue().splitlines()]
    np.testing.assert_allclose(found, expected[:6], rtol=1e-5)
    assert main([folder], io.StringIO('{"age": "old", "town": "Ulm"}'), output) == 2
    assert "line 1: numeric_column 'age' takes numbers" in capsys.readouterr().err
    with pytest.raises(InvalidArgumentError, match="the features have no 'town'; choose from age"):
        predict({"age": features["age"]})


@pytest.mark.parametrize("kind", ["two of one feature", "one without a name"])
def test_columns_take_a_feature_as_it_is(tmp_path: Path, kind: str) -> None:
    e, age = nb.estimator, np.arange(60) * 7919 - 1
    if kind == "one without a name":
        columns: list[Any] = [e.bucketized_column(numeric_column("age"), [9e4, 2e5])]
    else:
        columns = [numeric_column("age", normalizer_fn=lambda x: x / 1e6)]
        columns += [indicator_column(categorical_column_with_hash_bucket("age", 50))]
    rows = lambda: nb.data.Dataset.from_arrays({"age": age}, Y == 1).batch(20)
    estimator = DNNClassifier([4], columns, tmp_path / "m", config=QUIET).train(rows)
    predict = ExportedModel(estimator.export(tmp_path / "e", {"age": age}))
    expected = np.array([one["logistic"] for one in estimator.predict(rows)])
    for given in ({"age": age}, *([age] if kind == "one without a name" else [])):
        np.testing.assert_allclose(predict(given)["logistic"], expected, rtol=1e-5)
    assert predict({"age": age[:0]})["logistic"].shape == (0, 1)


def test_a_normalizer_that_does_not_record(tmp_path: Path) -> None:
    def root(x: Any) -> Any:
        return np.vectorize(math.sqrt)(x)

    age = numeric_column("age", normalizer_fn=root)
    columns = [age, nb.estimator.bucketized_column(age, [3, 5])]
    features = {"age": np.arange(60.0)}
    rows = lambda: nb.data.Dataset.from_arrays(features, Y == 1).batch(20)
    estimator = LinearClassifier(columns, tmp_path / "m", config=QUIET).train(rows)
    predict = ExportedModel(estimator.export(tmp_path / "e", features))
    with pytest.raises(
        InvalidArgumentError, match=r"takes 'age_normalized' \(what the normalizer_fn of .*'age'"
    ):
        predict(features)
    made = nb.estimator.transform_features(columns)(features)
    given = {"age_normalized": made["age"], "age_bucketized_ids": made["age_bucketized"]}
    expected = np.array([one["logistic"] for one in estimator.predict(rows)])
    np.testing.assert_allclose(predict(given)["logistic"], expected, rtol=1e-5)
    del given["age_bucketized_ids"]
    with pytest.raises(InvalidArgumentError, match=r"'age_bucketized_ids' \(.*whose normalizer_fn is not in"):
        predict(given)


def test_damaged_columns(tmp_path: Path) -> None:
    rows = lambda: nb.data.Dataset.from_arrays({"x": X}, Y == 1).batch(20)
    estimator = LinearClassifier([numeric_column("x", 4)], tmp_path / "m", config=QUIET).train(rows)
    folder = Path(estimator.export(tmp_path / "e", {"x": X}))
    text = (folder / "signature.json").read_text()
    for old, new in [
        ('"NumericColumn"', '"Other"'),
        ('"key"', '"clef"'),
        ('"columns": {', '"columns": [], "b": {'),
        ('"columns": {', '"columns": {"x": [1]}, "b": {'),
    ]:
        assert old in text
        (folder / "signature.json").write_text(text.replace(old, new))
        with pytest.raises(DataLossError, match=r"signature\.json is damaged"):
            ExportedModel(folder)


def test_evaluations_on_the_way(tmp_path: Path) -> None:
    estimator = model_to_estimator(model(), tmp_path, QUIET)
    exporters = [
        LatestExporter("latest", X[:1], exports_to_keep=2),
        BestExporter("best", X[:1], metric="accuracy", larger_is_better=True),
    ]
    spec = EvalSpec(data(), exporters=exporters, throttle_secs=0)
    metrics, exports = train_and_evaluate(estimator, TrainSpec(data(None), max_steps=18), spec)
    assert metrics is not None
    assert metrics["global_step"] == 18
    latest = sorted(int(one.name) for one in (tmp_path / "export/latest").iterdir())
    assert latest == [16, 18]
    best = sorted(int(one.name) for one in (tmp_path / "export/best").iterdir())
    assert best
    assert len(exports) == 5 + len(best)
    assert ExportedModel(exports[-1])(X)["predictions"].shape == (60, 3)


def test_an_evaluator_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"worker": ["here:1"], "evaluator": ["here:2"]}
    spec = EvalSpec(data(), throttle_secs=0)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    estimator = model_to_estimator(model(), tmp_path, QUIET)
    trained: list[Any] = []
    trainer = threading.Thread(
        target=lambda: trained.append(train_and_evaluate(estimator, TrainSpec(data(None), max_steps=8), spec))
    )
    trainer.start()
    trainer.join(60)
    assert trained == [(None, [])]
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "evaluator", "index": 0}})
    )
    metrics, _ = train_and_evaluate(
        model_to_estimator(model(), tmp_path, QUIET), TrainSpec(data(None), max_steps=8), spec
    )
    assert metrics is not None
    assert metrics["global_step"] == 8
    with pytest.raises(InvalidArgumentError, match="needs TrainSpec"):
        train_and_evaluate(estimator, TrainSpec(data()), spec)
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(InvalidArgumentError, match="TF_CONFIG is JSON"):
        train_and_evaluate(estimator, TrainSpec(data()), spec)


def test_specs_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="input_fn is a function"):
        TrainSpec(X)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="steps is a whole number from 1"):
        EvalSpec(data(), steps=0)
    with pytest.raises(InvalidArgumentError, match="throttle_secs"):
        EvalSpec(data(), throttle_secs=-1)
    with pytest.raises(InvalidArgumentError, match=r"estimator is .*expected an instance of Estimator"):
        train_and_evaluate(model(), TrainSpec(data()), EvalSpec(data()))
