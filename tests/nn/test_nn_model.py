"""Models: compile, fit, evaluate, predict, summary, save and load."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from nbdist import nn
from nbdist.data import Dataset, digits
from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NanLossError,
    NotFoundError,
)
from nbdist.nn import (
    Activation,
    BatchNorm,
    Dense,
    Embedding,
    Flatten,
    Layer,
    LayerNorm,
    Model,
    Sequential,
)
from nbdist.optim import SGD, Adam
from nbdist.train import Callback, EarlyStopping

Array = np.ndarray[Any, Any]
SPARSE = "sparse_categorical_crossentropy"


def blobs(rows: int = 60, classes: int = 3, seed: int = 0) -> tuple[Array, Array]:
    """Return points around one centre per class."""
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    return (rng.normal(size=(rows, 4)) * 0.3 + np.eye(classes, 4)[y] * 2).astype(np.float32), y


def classifier(seed: int = 1, **compiled: Any) -> Sequential:
    model = Sequential([Dense(8, activation="tanh"), Dense(3, activation="softmax")], seed=seed)
    model.compile(**{"optimizer": SGD(0.5), "loss": SPARSE, "metrics": ["accuracy"], **compiled})
    return model


def batches(rows: int = 60, size: int = 20) -> Dataset:
    return Dataset.from_arrays(*blobs(rows)).shuffle(rows, seed=7).batch(size)


def test_digits_are_learned(capsys: pytest.CaptureFixture[str]) -> None:
    x, y, x_test, y_test = digits()
    model = Sequential([Dense(100, activation="sigmoid"), Dense(10, activation="softmax")], seed=0)
    model.compile(SGD(0.5), SPARSE, metrics=["accuracy"])
    data = Dataset.from_arrays(x, y).shuffle(len(x), seed=0).batch(50)
    history = model.fit(data, epochs=25, validation_data=(x_test, y_test))
    assert history["val_accuracy"][-1] > 0.9
    assert history["loss"][-1] < history["loss"][0] / 3
    assert history.epoch == list(range(25))
    assert len(history["val_loss"]) == len(history.history["accuracy"]) == 25
    assert history.global_step == 25 * -(-len(x) // 50)
    scores = model.evaluate(x_test, y_test)
    assert scores["accuracy"] == pytest.approx(history["val_accuracy"][-1])
    assert scores["loss"] == pytest.approx(history["val_loss"][-1])
    predicted = model.predict(x_test)
    assert predicted.shape == (len(x_test), 10)
    np.testing.assert_allclose(predicted.sum(axis=1), 1, rtol=1e-5)
    assert np.mean(predicted.argmax(axis=1) == y_test) == pytest.approx(scores["accuracy"])
    assert "epoch 25: loss" in capsys.readouterr().out


def test_one_step_is_the_formula() -> None:
    x, y = blobs(6)
    model = Sequential([Dense(3, activation="softmax")], seed=3).build((4,))
    model.compile(SGD(0.5), SPARSE)
    kernel, bias = model.get_weights()
    model.fit(Dataset.from_arrays(x, y).batch(6))
    z = x @ kernel + bias
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    g = (p - np.eye(3)[y]) / 6
    np.testing.assert_allclose(model.weights[0], kernel - 0.5 * x.T @ g, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.weights[1], bias - 0.5 * g.sum(0), rtol=1e-4, atol=1e-6)


def test_equal_seeds_give_equal_trainings() -> None:
    runs = []
    for seed in (1, 1, 2):
        model = classifier(seed)
        history = model.fit(batches(), epochs=3)
        runs.append((history.history, model.get_weights()))
    assert runs[0][0] == runs[1][0]
    for a, b in zip(runs[0][1], runs[1][1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert runs[0][0] != runs[2][0]


def test_training_continues_where_it_stopped() -> None:
    model = classifier()
    first = model.fit(batches(), epochs=3)["loss"][-1]
    assert model.fit(batches(), epochs=3)["loss"][-1] < first


@pytest.mark.parametrize("size", [7, 59, 60, 100])
def test_a_ragged_last_batch_weighs_what_it_holds(size: int) -> None:
    """With a rate of 0 every batch sees the same weights; evaluate must not depend on the batch size."""
    model = classifier(optimizer=SGD(0.0))
    data = Dataset.from_arrays(*blobs(60))
    history = model.fit(data.batch(size), epochs=1)
    scores = model.evaluate(data.batch(size))
    expected = model.evaluate(data.batch(60))
    assert scores["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert scores["accuracy"] == pytest.approx(expected["accuracy"])
    assert history.global_step == -(-60 // size)


@pytest.mark.parametrize(
    ("loss", "labels", "last"),
    [
        (SPARSE, lambda y: y.astype(np.uint8), "softmax"),
        ("categorical_crossentropy", lambda y: np.eye(3)[y], "softmax"),
        ("mse", lambda y: np.eye(3)[y], "linear"),
        ("mean_squared_error", lambda y: np.eye(3, dtype=np.float32)[y], "sigmoid"),
    ],
)
@pytest.mark.parametrize("optimizer", [SGD(0.5), SGD(0.1, 0.9, True), Adam(0.02), "adam"], ids=str)
def test_every_loss_with_every_optimizer(
    loss: str, labels: Callable[[Array], Array], last: str, optimizer: Any
) -> None:
    x, y = blobs()
    model = Sequential([Dense(8, activation="relu"), Dense(3), Activation(last)], seed=1)
    model.compile(optimizer, loss, metrics=["accuracy"])
    history = model.fit(Dataset.from_arrays(x, labels(y)).shuffle(60, seed=1).batch(10), epochs=8)
    assert history["loss"][-1] < history["loss"][0]
    if optimizer != "adam":
        assert history["accuracy"][-1] > 0.9


def test_probabilities_without_a_softmax_train_as_well() -> None:
    x, y = blobs()
    model = Sequential([Dense(3, activation="sigmoid")], seed=1)
    model.compile(SGD(0.5), SPARSE)
    history = model.fit(Dataset.from_arrays(x, y).batch(20), epochs=10)
    assert history["loss"][-1] < history["loss"][0]


def test_arrays_are_shuffled_and_batched() -> None:
    x, y = blobs(70)
    model = classifier()
    assert model.fit(x, y).global_step == 3  # 70 rows in batches of 32
    assert model.fit((x, y), batch_size=10, epochs=2).global_step == 14
    assert model.fit([x, y], batch_size=100).global_step == 1
    with pytest.raises(InvalidArgumentError, match="batch_size=10 is for data without batches: a Dataset"):
        model.fit(batches(), batch_size=10)
    with pytest.raises(InvalidArgumentError, match="the labels are the dataset's own"):
        model.fit(batches(), y)
    with pytest.raises(InvalidArgumentError, match=r"expected a Dataset of \(x, y\) batches or two arrays"):
        model.fit(x)


def test_pictures_are_flattened() -> None:
    x, y = blobs(20)
    model = Sequential([Flatten(), Dense(3, activation="softmax")], seed=0)
    model.compile("sgd", SPARSE)
    model.fit(x.reshape(20, 2, 2), y)
    assert model.predict(x.reshape(20, 2, 2)).shape == (20, 3)


def test_an_endless_dataset_needs_a_number_of_steps() -> None:
    model = classifier()
    endless = batches().repeat()
    with pytest.raises(InvalidArgumentError, match=r"repeats for ever.*fit\(steps_per_epoch="):
        model.fit(endless)
    history = model.fit(endless, epochs=4, steps_per_epoch=5)
    assert history.global_step == 20
    assert len(history["loss"]) == 4


def test_an_endless_dataset_is_not_begun_again_each_epoch() -> None:
    seen: list[int] = []

    def note(x: Array, y: Array) -> tuple[Array, Array]:
        seen.append(int(x[0, 0]))
        return x / 1000, y * 0

    x = np.repeat(np.arange(6, dtype=np.float32)[:, None], 4, axis=1)
    data = Dataset.from_arrays(x, np.zeros(6, int)).batch(1).map(note).repeat()
    classifier().fit(data, epochs=3, steps_per_epoch=3)
    assert [i for i in seen if i != seen[0]][:2] == [1, 2]
    assert {3, 4, 5} <= set(seen)


@pytest.mark.parametrize(("epochs", "steps"), [(3, 4), (4, 3), (2, 6), (1, 12)])
def test_epochs_of_a_number_of_steps_go_on_through_the_data(epochs: int, steps: int) -> None:
    model, cut = classifier(), classifier()
    model.fit(batches(60, 10), epochs=2)
    assert cut.fit(batches(60, 10), epochs=epochs, steps_per_epoch=steps).global_step == 12
    for one, other in zip(model.get_weights(), cut.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_generator_is_gone_through_once_an_epoch() -> None:
    def make() -> Iterator[tuple[Array, Array]]:
        x, y = blobs(30)
        for start in range(0, 30, 10):
            yield x[start : start + 10], y[start : start + 10]

    history = classifier().fit(Dataset.from_generator(make), epochs=2)
    assert history.global_step == 6


def test_nothing_to_train_on() -> None:
    x, y = blobs(0)
    with pytest.raises(InvalidArgumentError, match="the dataset is empty: there is nothing to train on"):
        classifier().fit(Dataset.from_arrays(x, y).batch(10))
    with pytest.raises(InvalidArgumentError, match=r"empty|ended before this epoch"):
        classifier().build((4,)).fit(Dataset.from_generator(lambda: iter(())))
    with pytest.raises(InvalidArgumentError, match="nothing to evaluate"):
        classifier().build((4,)).evaluate(Dataset.from_arrays(x, y).batch(10))
    assert classifier().build((4,)).predict(x).shape == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epochs": 0}, "fit: epochs is a whole number above 0, got 0"),
        ({"epochs": 2.5}, "got 2.5"),
        ({"epochs": True}, "epochs is a whole number above 0, got True"),
        ({"steps_per_epoch": -1}, "fit: steps_per_epoch is a whole number above 0, got -1"),
        ({"callbacks": Callback()}, "callbacks is a list"),
        ({"callbacks": [3]}, r"callbacks is a list of nb.train.Callback, got \[3\]"),
    ],
)
def test_bad_arguments_of_fit(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        classifier().fit(batches(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"optimizer": "adamm"}, "no optimizer 'adamm'"),
        ({"loss": "nothing"}, "no loss 'nothing'"),
        ({"metrics": "accuracy"}, r"metrics is a list of names, got 'accuracy'; write \['accuracy'\]"),
        ({"metrics": ["f1"]}, "no metric 'f1'"),
    ],
)
def test_bad_arguments_of_compile(arguments: dict[str, Any], words: str) -> None:
    model = Sequential([Dense(3)])
    with pytest.raises(InvalidArgumentError, match=words):
        model.compile(**arguments)


def test_what_has_to_come_first() -> None:
    model = Sequential([Dense(3, activation="softmax")])
    with pytest.raises(FailedPreconditionError, match="not compiled: call compile"):
        model.fit(batches())
    with pytest.raises(FailedPreconditionError, match="not compiled"):
        model.evaluate(batches())
    with pytest.raises(FailedPreconditionError, match=r"call build\(input_shape\) before summary"):
        model.summary()
    with pytest.raises(FailedPreconditionError, match="no weights yet"):
        model.save("nowhere")
    model.build((2,))
    for name in ("m.h5", "m.keras", "m.PT", "m.onnx"):
        with pytest.raises(
            InvalidArgumentError, match=rf"'{name}' would be .* call it 'm\.safetensors' \(to_onnx"
        ):
            model.save(name)
    weightless = Sequential([Flatten()])
    weightless.compile("sgd", "mse")
    with pytest.raises(InvalidArgumentError, match="the model has no weights: there is nothing to train"):
        weightless.fit(np.ones((4, 2)), np.ones((4, 2)))


@pytest.mark.parametrize(
    ("loss", "data", "words"),
    [
        (SPARSE, (np.ones((6, 4)), np.arange(6)), r"labels go from 0 to 5, the model has 3 outputs"),
        (SPARSE, (np.ones((6, 4)), np.full(6, -1)), r"labels go from -1 to -1"),
        (SPARSE, (np.ones((6, 4)), np.ones(6)), r"takes class numbers \(integers\), got labels of dtype"),
        (SPARSE, (np.ones((6, 4)), np.ones((6, 3), int)), r"\(\?,\) and is fed|do not fit"),
        ("mse", (np.ones((6, 4)), np.ones(6)), r"labels of shape \(6,\) do not fit predictions \(\?, 3\)"),
        ("mse", (np.ones((6, 4)), np.ones((6, 2))), r"\(\?, 3\) and is fed \(6, 2\)|do not fit"),
        (SPARSE, (np.ones((6, 5)), np.zeros(6, int)), r"examples of shape \(4,\), got \(5,\)"),
    ],
)
def test_data_that_do_not_fit_the_model(loss: str, data: tuple[Array, Array], words: str) -> None:
    model = classifier(loss=loss).build((4,))
    with pytest.raises(InvalidArgumentError, match=words):
        model.fit(Dataset.from_arrays(*data).batch(6))


def test_data_that_are_no_pairs() -> None:
    model = classifier()
    with pytest.raises(InvalidArgumentError, match=r"batches of \(x, y\), got 1 array;"):
        model.fit(Dataset.from_arrays(np.ones((6, 4))).batch(3))
    with pytest.raises(InvalidArgumentError, match=r"single examples.*call \.batch"):
        classifier().fit(Dataset.range(5))
    with pytest.raises(InvalidArgumentError, match="rows"):
        model.fit(np.ones((4, 4)), np.zeros(3, int))


def test_labels_are_looked_at_again_in_another_training() -> None:
    x, y = blobs(6)
    model = classifier()
    model.fit(x, y)
    with pytest.raises(InvalidArgumentError, match="labels go from 3 to 5"):
        model.fit(x, y + 3)
    with pytest.raises(InvalidArgumentError, match="labels go from 3 to 5"):
        model.evaluate(x, y + 3)


def test_nan_ends_the_training_and_is_not_applied() -> None:
    x, y = blobs(40)
    x[25] = np.nan
    model = classifier(optimizer=Adam(0.01)).build((4,))
    with pytest.raises(NanLossError, match="the loss is NaN at step 3; that gradient was not applied"):
        model.fit(Dataset.from_arrays(x, y).batch(10))
    for weight in model.weights:
        assert np.isfinite(weight).all()
    expected = classifier(optimizer=Adam(0.01)).build((4,))
    expected.fit(Dataset.from_arrays(x[:20], y[:20]).batch(10))
    for ours, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_error_in_the_data_keeps_what_was_trained() -> None:
    x, y = blobs(20)

    def make() -> Iterator[tuple[Array, Array]]:
        yield x, y
        raise OSError("the disk is detached")

    model = classifier().build((4,))
    before = model.get_weights()
    with pytest.raises(OSError, match="the disk is detached"):
        model.fit(Dataset.from_generator(make))
    assert not np.array_equal(model.weights[0], before[0])


class Notes(Callback):
    def __init__(self, stop_after: int | None = None) -> None:
        self.calls: list[Any] = []
        self.stop_after = stop_after

    def on_train_begin(self) -> None:
        self.calls.append("begin")

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self.calls.append((epoch, sorted(logs)))
        self.stop_training = epoch == self.stop_after

    def on_train_end(self) -> None:
        self.calls.append("end")


def test_callbacks_are_called_in_order() -> None:
    notes, data = Notes(), batches()
    classifier().fit(data, epochs=2, validation_data=data, callbacks=[notes])
    logs = ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert notes.calls == ["begin", (0, logs), (1, logs), "end"]


def test_a_callback_can_end_the_training() -> None:
    history = classifier().fit(batches(), epochs=9, callbacks=[Notes(), Notes(stop_after=2)])
    assert history.epoch == [0, 1, 2]


def test_early_stopping_ends_a_training() -> None:
    model = classifier(optimizer=SGD(0.0))
    stop = EarlyStopping("loss", patience=2, min_delta=1e-4)
    data = Dataset.from_arrays(*blobs()).batch(20)
    assert model.fit(data, epochs=9, callbacks=[stop]).epoch == [0, 1, 2]
    assert model.fit(data, epochs=9, callbacks=[stop]).epoch == [0, 1, 2]  # it starts afresh
    with pytest.raises(InvalidArgumentError, match="watches 'val_loss'; this training has loss, accuracy"):
        model.fit(data, callbacks=[EarlyStopping()])


def test_evaluate_leaves_the_weights_alone() -> None:
    model = classifier().build((4,))
    before = model.get_weights()
    model.evaluate(*blobs())
    model.predict(blobs()[0])
    for a, b in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 600])
def test_predictions_do_not_depend_on_how_many_are_asked_for(rows: int) -> None:
    x, _ = blobs(600)
    model = classifier().build((4,))
    whole = model.predict(x)
    np.testing.assert_allclose(model.predict(x[:rows]), whole[:rows], rtol=1e-6)
    kept = model.predict(x[:1])
    model.predict(x[1:2])
    np.testing.assert_allclose(kept, whole[:1], rtol=1e-6)  # a result is the caller's own


def test_predict_sees_new_weights() -> None:
    model = classifier()
    x, y = blobs()
    before = model.predict(x)
    model.fit(x, y)
    assert not np.allclose(before, model.predict(x))
    with pytest.raises(InvalidArgumentError, match=r"takes examples of shape \(4,\), got an array of"):
        model.predict(np.ones((2, 5)))
    with pytest.raises(InvalidArgumentError, match="takes examples"):
        model.predict(np.ones(4))


def test_weights_go_in_and_out() -> None:
    model = classifier().build((4,))
    assert model.count_params() == 4 * 8 + 8 + 8 * 3 + 3
    ones = [np.ones_like(w) for w in model.get_weights()]
    model.set_weights(ones)
    ones[0][:] = 5
    assert (model.weights[0] == 1).all()
    model.get_weights()[0][:] = 7
    assert (model.weights[0] == 1).all()
    with pytest.raises(InvalidArgumentError, match=r"weights of shapes \[\(4, 8\)"):
        model.set_weights(ones[:1])


def test_the_summary_is_a_table() -> None:
    lines = Sequential([Flatten(), Dense(3)]).build((2, 2)).summary().splitlines()
    assert [line.split()[0] for line in lines] == ["layer", "Flatten()", "Dense(units=3,", "total"]
    assert lines[2].split()[-1] == lines[3].split()[-1] == "15"
    assert "(?, 3)" in lines[2]


def test_how_models_look() -> None:
    assert repr(Sequential([Dense(3)])) == "<Sequential: 1 layers>"
    assert repr(Sequential([Dense(3)]).build((2,))) == "<Sequential: 1 layers, 9 weights>"


# Files.


def test_a_model_comes_back_from_its_file(tmp_path: Path) -> None:
    model = Model([Dense(8, "relu"), Dense(3, "softmax")], seed=5)
    model.compile(Adam(0.01, amsgrad=True), SPARSE, ["accuracy"])
    x, y = blobs()
    model.fit(x, y)
    path = model.save(tmp_path / "model.safetensors")
    again = nn.load(path)
    assert again.optimizer == model.optimizer
    assert (again.loss, again.metrics, again.seed) == (SPARSE, ["accuracy"], 5)
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    assert again.evaluate(x, y) == model.evaluate(x, y)
    again.fit(x, y)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_an_uncompiled_model_comes_back_too(tmp_path: Path) -> None:
    model = Sequential([Dense(2)]).build((3,))
    again = nn.load(str(model.save(tmp_path / "m")))
    assert again.optimizer is None
    np.testing.assert_array_equal(again.weights[0], model.weights[0])


def test_saving_replaces_a_file_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    first = Sequential([Dense(2)], seed=1).build((3,))
    first.save(path)

    def no_room(*args: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", no_room)
    with pytest.raises(OSError, match="no space"):
        Sequential([Dense(2)], seed=2).build((3,)).save(path)
    np.testing.assert_array_equal(nn.load(path).weights[0], first.weights[0])
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no model file at"):
        nn.load(tmp_path / "nothing")
    with pytest.raises(NotFoundError):
        nn.load(tmp_path)
    path = Sequential([Dense(2)]).build((3,)).save(tmp_path / "m")
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    with pytest.raises(DataLossError, match="is damaged"):
        nn.load(path)
    path.write_bytes(b"not a model")
    with pytest.raises(DataLossError):
        nn.load(path)
    w = {"0000": np.zeros((3, 2), np.float32)}
    for header in (
        None,
        {"nbdist": "{"},
        {"nbdist": "{}"},
        {"nbdist": "[]"},
        {"nbdist": json.dumps({"layers": [{"layer": "Dense", "size": 3}], "seed": 0})},
    ):
        save_file(w, str(path), header)
        with pytest.raises(DataLossError, match="not a model saved by nbdist, or is damaged"):
            nn.load(path)


@pytest.mark.parametrize("wrong", [-1, 9])
def test_a_wrong_label_is_found_wherever_it_is(wrong: int) -> None:
    x, y = blobs(40)
    y = np.where(np.arange(40) == 33, wrong, y)
    with pytest.raises(InvalidArgumentError, match="the model has 3 outputs"):
        classifier().fit(Dataset.from_arrays(x, y).batch(10))
    with pytest.raises(InvalidArgumentError, match="the model has 3 outputs"):
        classifier().fit(Dataset.from_arrays(x, y).shuffle(40).batch(10), validation_data=blobs(10), epochs=3)
    model = classifier()
    model.fit(*blobs(20))
    with pytest.raises(InvalidArgumentError, match="the model has 3 outputs"):
        model.evaluate(Dataset.from_arrays(x, y).batch(10))


def test_a_dataset_that_is_not_batched_is_said_to_be_so() -> None:
    with pytest.raises(InvalidArgumentError, match=r"single examples, not batches; call \.batch"):
        classifier().fit(Dataset.from_arrays(*blobs(10)))


def test_no_rows_and_no_batch_size() -> None:
    with pytest.raises(InvalidArgumentError, match="the dataset is empty"):
        classifier().fit(*blobs(0))
    with pytest.raises(InvalidArgumentError, match="batch_size is 0"):
        classifier().fit(*blobs(10), batch_size=0)


def test_a_flipped_byte_is_found_and_named(tmp_path: Path) -> None:
    model = Sequential([Dense(8, "relu"), Dense(3)], seed=1).build((4,))
    path = model.save(tmp_path / "m")
    whole = path.read_bytes()
    begin = int.from_bytes(whole[:8], "little") + 8
    names = []
    for place in range(begin, len(whole), 4):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(
            DataLossError, match=r"tensor '000\d' \(dense(_1)?/(kernel|bias)\) has a wrong checksum"
        ) as e:
            nn.load(path)
        assert str(path) in str(e.value)
        names.append(str(e.value).split("'")[3])
    assert sorted(set(names)) == ["0000", "0001", "0002", "0003"]
    seed = whole.index(b"seed")
    path.write_bytes(whole[:seed] + whole[seed:].replace(b": 1", b": 2", 1))
    with pytest.raises(DataLossError, match="the checksum of its header entry 'nbdist' is wrong"):
        nn.load(path)


def test_a_file_without_checksums_loads(tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    model = Sequential([Dense(3)]).build((4,))
    arrays = {f"{i:04d}": w for i, w in enumerate(model.weights)}
    save_file(arrays, str(tmp_path / "m"), {"nbdist": json.dumps(model.to_config())})
    np.testing.assert_array_equal(nn.load(tmp_path / "m").weights[0], model.weights[0])


def test_a_file_that_claims_more_than_it_has_takes_no_memory(tmp_path: Path) -> None:
    path, there = tmp_path / "m", {"0000": np.zeros((3, 2), np.float32), "0001": np.zeros(2, np.float32)}
    huge = 10**7
    layers: list[list[Layer]] = [
        [Dense(huge)],
        [Embedding(huge, huge)],
        [Dense(huge, split="columns", shards=3)],
        [BatchNorm(), LayerNorm()],
    ]
    for made in layers:
        config = Sequential(made).to_config() | {"input_shape": [10**10]}
        save_file(there, str(path), {"nbdist": json.dumps(config)})
        tracemalloc.start()
        with pytest.raises(DataLossError, match=r"its layers have weights of shapes .*, and the file has"):
            nn.load(path)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 10_000_000
    for text in ("[" * 100_000, json.dumps({**config, "loss": None})[:-1] + ', "x": ' + "[" * 100_000):
        save_file(there, str(path), {"nbdist": text})
        with pytest.raises(DataLossError, match="is not a model saved by nbdist, or is damaged"):
            nn.load(path)


def test_where_a_model_cannot_be_saved(tmp_path: Path) -> None:
    model = Sequential([Dense(3)]).build((4,))
    with pytest.raises(NotFoundError, match=r"there is no folder .*nowhere' to save 'm' into; make it first"):
        model.save(tmp_path / "nowhere" / "m")
    with pytest.raises(
        InvalidArgumentError, match="is a folder, a device or a pipe; give the path of a file"
    ):
        model.save(tmp_path)


def test_a_dataset_is_predicted_batch_by_batch() -> None:
    model = Sequential([Dense(3)]).build((4,))
    batches = Dataset.from_arrays(np.ones((4, 4), np.float32)).batch(2)
    with pytest.raises(InvalidArgumentError, match=r"not a Dataset: predict each of its batches, np\.concat"):
        model.predict(batches)
    assert np.concatenate([model.predict(x) for x in batches]).shape == (4, 3)


def test_text_is_refused() -> None:
    x, y = blobs(8)
    words = np.array(["a", "b"] * 4)
    for use in (classifier().fit, classifier().evaluate):
        with pytest.raises(
            InvalidArgumentError, match=r"takes numbers, and y is text of dtype <U1; encode it"
        ):
            use(x, words)
        with pytest.raises(InvalidArgumentError, match="takes numbers, and x is text"):
            use(np.array([["a", "b"]] * 8), y)
    with pytest.raises(InvalidArgumentError, match="predict takes numbers, and x is text"):
        classifier().predict(np.array([["a", "b"]]))


@pytest.mark.parametrize("as_dataset", [False, True])
def test_validation_data_that_does_not_fit_is_found_before_the_first_epoch(as_dataset: bool) -> None:
    x, y = blobs(8)
    wide = np.concatenate((x, x), axis=1)
    seen: list[int] = []
    held_out: Any = Dataset.from_arrays(wide, y).batch(4) if as_dataset else (wide, y)
    with pytest.raises(InvalidArgumentError, match=r"validation data: the model takes examples of shape"):
        classifier().fit(x, y, validation_data=held_out, callbacks=[Noting(seen)])
    assert seen == []


class Noting(Callback):
    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def on_train_begin(self) -> None:
        self.seen.append(0)


def test_building_takes_the_memory_of_the_weights_once() -> None:
    tracemalloc.start()
    model = Sequential([Dense(1000)]).build((4000,))
    held, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = sum(w.nbytes for w in model.weights)
    assert size <= held < 1.1 * size
    assert most < 1.4 * size  # the values, and a chunk of drawn values
