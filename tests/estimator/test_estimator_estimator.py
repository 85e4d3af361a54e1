"""Estimators: from checkpoint to checkpoint, hooks, evaluation, prediction, replicas of one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiers import matrix

import nbdist as nb
from nbdist.checkpoint.folder import LocalFolder
from nbdist.errors import (
    DataLossError,
    InvalidArgumentError,
    NanLossError,
    NotFoundError,
    ResourceExhaustedError,
    StorageError,
)
from nbdist.estimator import Estimator, EstimatorSpec, RunConfig

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 6)).astype(np.float32)
Y = (X @ RNG.normal(size=(6, 3))).argmax(axis=1)


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
    x = features["x"]
    with nb.name_scope("hidden"):
        x = np.tanh(x @ nb.get_variable("w", (6, 8)) + nb.get_variable("b", (8,), initializer="zeros"))
    with nb.name_scope("hidden"):
        w = nb.get_variable("w", (8, 3))
        logits = x @ w
    if mode == "predict":
        return EstimatorSpec(mode, predictions={"class": np.argmax(logits, axis=-1), "logits": logits})
    loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(labels, logits))
    right = (np.argmax(logits, axis=-1) == labels).astype(np.float32)
    if mode == "eval":
        return EstimatorSpec(
            mode, loss=loss, eval_metric_ops={"accuracy": right, "same": (right.sum(), right.sum())}
        )
    nb.summary.scalar("accuracy", right.mean())
    nb.summary.histogram("logits", logits)
    nb.summary.histogram("weights", w)
    optimizer = getattr(nb.optim, params.get("optimizer", "Adam"))(params.get("rate", 0.05))
    train_op = optimizer.minimize(loss, global_step=nb.train.get_or_create_global_step())
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def batches(size: int = 20, epochs: int = 2) -> Any:
    return lambda: nb.data.Dataset.from_arrays({"x": X}, Y).batch(size).repeat(epochs)


def quiet(**settings: Any) -> RunConfig:
    return RunConfig(log_step_count_steps=None, **settings)


def made(folder: Path, *, params: Any = None, function: Any = model_fn, **settings: Any) -> Estimator:
    return Estimator(function, folder, quiet(**settings), params or {})


def weights(estimator: Estimator) -> dict[str, Any]:
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def test_it_learns_evaluates_and_predicts(tmp_path: Path) -> None:
    estimator = made(tmp_path)
    before = estimator.train(batches(), steps=1).evaluate(batches(epochs=1))
    after = estimator.train(batches(epochs=50)).evaluate(batches(size=7, epochs=1))
    assert after["loss"] < 0.3 < before["loss"]
    assert after["accuracy"] > 0.9
    assert after["same"] == 1.0
    assert after["global_step"] == 151
    predicted = list(estimator.predict(batches(epochs=1), predict_keys="class"))
    assert np.mean([one["class"] for one in predicted] == Y) == pytest.approx(after["accuracy"])
    assert estimator.get_variable_names() == ["global_step", "hidden/b", "hidden/w", "hidden_1/w"]


def test_training_in_parts_is_training_at_once(tmp_path: Path) -> None:
    whole, parts = made(tmp_path / "whole"), made(tmp_path / "parts")
    whole.train(batches(epochs=4), max_steps=9)
    parts.train(batches(), max_steps=6).train(batches(), max_steps=9)
    for name, value in weights(whole).items():
        np.testing.assert_array_equal(weights(parts)[name], value, err_msg=name)
    parts.train(batches(), max_steps=9)  # has nothing to do
    assert parts.get_variable_value("global_step") == 9


@pytest.mark.parametrize("optimizer", matrix(["Adam"], rest=["SGD"]))
def test_replicas_of_one_process_are_one_device(tmp_path: Path, optimizer: str) -> None:
    params = {"optimizer": optimizer, "rate": 0.1 if optimizer == "SGD" else 0.01}
    strategy = nb.distribute.MirroredStrategy(["CPU:0"] * 3)
    one, three = (
        made(tmp_path / "1", params=params),
        made(tmp_path / "3", params=params, train_distribute=strategy),
    )
    # Batches of 7: shares differ, and of the last batch, of one example, two replicas have none.
    for estimator in (one, three):
        estimator.train(batches(size=7), max_steps=16)
    for name, value in weights(one).items():
        np.testing.assert_allclose(weights(three)[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("replicas", "whose"), [(1, ""), (2, " of this replica's share")])
def test_the_printed_loss_is_that_of_a_share_where_there_are_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], replicas: int, whose: str
) -> None:
    strategy = nb.distribute.MirroredStrategy(["CPU:0"] * replicas)
    config = RunConfig(log_step_count_steps=1, train_distribute=strategy)
    estimator = Estimator(model_fn, tmp_path, config, {})
    estimator.train(batches(), steps=1)
    assert re.search(rf"^step 1: loss \d+\.\d+{whose}$", capsys.readouterr().out, re.MULTILINE)


def test_two_estimators_of_one_strategy(tmp_path: Path) -> None:
    strategy = nb.distribute.MirroredStrategy(["CPU:0"] * 2)
    first = made(tmp_path / "1", train_distribute=strategy).train(batches(), max_steps=3)
    second = made(tmp_path / "2", train_distribute=strategy).train(batches(), max_steps=3)
    first.train(batches(), max_steps=6)
    second.train(batches(), max_steps=6)
    assert weights(first).keys() == weights(second).keys()
    assert all(
        np.array_equal(a, b) for a, b in zip(weights(first).values(), weights(second).values(), strict=True)
    )


class Recorder(nb.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, stop_at: int | None = None) -> None:
        self.seen: list[Any] = []
        self.calls: list[str] = []
        self.stop_at = stop_at

    def begin(self) -> None:
        self.calls.append("begin")

    def after_create_session(self, session: Any, coord: Any = None) -> None:
        self.calls.append(f"create {session.run('global_step')}")

    def before_run(self, run_context: Any) -> Any:
        return nb.train.SessionRunArgs({"step": "global_step", "b": "hidden/b", "loss": "mean:0"})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seen.append((int(run_values.results["step"]), run_values.results["b"].copy()))
        if len(self.seen) == self.stop_at:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        self.calls.append(f"end {session.run('global_step')}")


def test_hooks_fetch_and_stop(tmp_path: Path) -> None:
    strategy = nb.distribute.MirroredStrategy(["CPU:0"] * 2)
    recorder = Recorder(stop_at=4)
    estimator = made(tmp_path, train_distribute=strategy, save_checkpoints_steps=2)
    estimator.train(batches(epochs=50), hooks=[recorder, nb.train.StopAtStepHook(last_step=20)])
    assert recorder.calls == ["begin", "create 0", "end 4"]
    assert [step for step, _ in recorder.seen] == [1, 2, 3, 4]
    np.testing.assert_array_equal(recorder.seen[-1][1], estimator.get_variable_value("hidden/b"))
    state = nb.train.checkpoint_state(tmp_path)
    assert state is not None
    assert [path.rsplit("-")[-1] for path in state.all_model_checkpoint_paths] == ["0", "2", "4"]


class Requests(nb.train.SessionRunHook):
    """Asks for the end after a number of steps."""

    def __init__(self, after: int) -> None:
        self.left = after

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.left -= 1
        if self.left == 0:
            run_context.request_stop()


class Ends(nb.train.CheckpointSaverListener):
    def after_save(self, session: Any, global_step_value: int) -> bool:
        return global_step_value == 3


@pytest.mark.parametrize("strategy", [None, nb.distribute.MirroredStrategy])
@pytest.mark.parametrize(
    "ends",
    [
        lambda: {"hooks": [nb.train.StopAtStepHook(last_step=3)]},
        lambda: {"hooks": [Requests(after=3)]},
        lambda: {"saving_listeners": [Ends()]},
    ],
    ids=["stop_at_step", "request", "listener"],
)
def test_a_hook_ends_a_training_on_endless_data(tmp_path: Path, strategy: Any, ends: Any) -> None:
    taken = 0

    def rows() -> Any:
        nonlocal taken
        while True:
            taken += 1
            assert taken < 10
            yield {"x": X[:20]}, Y[:20]

    replicas = None if strategy is None else strategy(["CPU:0"] * 2)
    estimator = made(tmp_path, train_distribute=replicas, save_checkpoints_steps=1)
    estimator.train(lambda: nb.data.Dataset.from_generator(rows), **ends())
    assert estimator.get_variable_value("global_step") == 3
    assert taken <= 5  # some are made ahead


def test_models_made_in_the_function(tmp_path: Path) -> None:
    def with_layers(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        layers = nb.nn
        model = layers.Sequential([layers.Dense(8, "tanh"), layers.BatchNorm(), layers.Dense(3)])
        logits = model(features["x"], training=mode == "train")
        if mode == "predict":
            return EstimatorSpec(mode, predictions=logits)
        loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(labels, logits))
        step = nb.train.get_or_create_global_step()
        train_op = nb.optim.Adam(0.05).minimize(loss, global_step=step) if mode == "train" else None
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = made(tmp_path, function=with_layers)
    estimator.train(batches(size=15, epochs=30))
    names = estimator.get_variable_names()
    assert {"dense/kernel", "dense_1/bias", "batchnorm/moving_mean"} <= set(names), names
    assert estimator.evaluate(batches(epochs=1))["loss"] < 0.4
    classes = np.array(list(estimator.predict(batches(epochs=1)))).argmax(axis=1)
    assert np.mean(classes == Y) > 0.85


def test_a_training_that_fails_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    def failing() -> Any:
        def rows() -> Any:
            yield from batches()()
            raise OSError("the disk is gone")

        return nb.data.Dataset.from_generator(rows)

    with pytest.raises(OSError, match="the disk is gone"):
        made(tmp_path).train(failing)
    assert made(tmp_path).latest_checkpoint() == str(tmp_path / "model.ckpt-0")
    made(tmp_path).train(batches(), max_steps=3)
    assert made(tmp_path).latest_checkpoint() == str(tmp_path / "model.ckpt-3")


def test_summaries_that_are_not_written_cost_no_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    close = nb.summary.FileWriter.close

    def failing(self: nb.summary.FileWriter) -> None:
        close(self)
        raise StorageError("summaries are not written")

    monkeypatch.setattr(nb.summary.FileWriter, "close", failing)
    made(tmp_path).train(batches(), max_steps=2)
    assert "summaries are not written" in capsys.readouterr().out
    assert made(tmp_path).latest_checkpoint() == str(tmp_path / "model.ckpt-2")


def test_a_checkpoint_that_is_not_written_ends_no_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, failing = LocalFolder.replace, {"model.ckpt-2.index", "model.ckpt-4.index"}

    def full(folder: LocalFolder, file: str, text: str) -> None:
        if file in failing:
            raise ResourceExhaustedError(f"cannot write {file}: No space left on device")
        replace(folder, file, text)

    monkeypatch.setattr(LocalFolder, "replace", full)
    estimator = made(tmp_path, save_checkpoints_steps=2)
    estimator.train(batches(), steps=3)
    assert "training continues: cannot write model.ckpt-2.index" in capsys.readouterr().out
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-3")
    with pytest.raises(ResourceExhaustedError, match=r"model\.ckpt-4\.index"):  # the last one
        estimator.train(batches(), steps=1)
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-3")
    failing.clear()
    assert estimator.train(batches(), steps=1).get_variable_value("global_step") == 4


def test_a_damaged_state_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path).train(batches(), max_steps=2)
    (tmp_path / "checkpoint").write_text("{")
    made(tmp_path).train(batches(), max_steps=4)
    assert "the next checkpoint replaces it" in capsys.readouterr().out
    found = nb.train.checkpoint_state(tmp_path)
    assert found is not None
    assert [path.rpartition("-")[2] for path in found.all_model_checkpoint_paths] == ["0", "2", "4"]


def test_summaries(tmp_path: Path) -> None:
    estimator = made(tmp_path, save_summary_steps=2)
    estimator.train(batches(epochs=4))
    estimator.evaluate(batches(epochs=1), name="test")
    found = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    steps = [e.step for e in found.Scalars("accuracy")]
    assert len(steps) > 1
    assert [e.step for e in found.Histograms("logits")] == steps
    assert {e.histogram_value.num for e in found.Histograms("logits")} == {60, 30}  # batches of 20 and 10
    assert {e.histogram_value.num for e in found.Histograms("weights")} == {24}  # a variable's
    assert list((tmp_path / "eval_test").glob("events.*"))


def test_a_checkpoint_begins_another_training(tmp_path: Path) -> None:
    first = made(tmp_path / "first").train(batches())
    warm = Estimator(model_fn, tmp_path / "warm", quiet(), {"rate": 1e-9}, warm_start_from=tmp_path / "first")
    warm.train(batches(), steps=1)
    assert warm.get_variable_value("global_step") == 1
    np.testing.assert_allclose(
        warm.get_variable_value("hidden/w"), first.get_variable_value("hidden/w"), atol=1e-6
    )


def renamed(name: str) -> Any:
    """A model function whose hidden layer has another name, or one of another program."""

    def function(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        with nb.name_scope(name):
            hidden = np.tanh(features["x"] @ nb.get_variable("w", (6, 8)) + nb.get_variable("b", (8,)))
        logits = hidden @ nb.get_variable("out", (8, 3))
        loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(labels, logits))
        step = nb.train.get_or_create_global_step()
        return EstimatorSpec(mode, loss=loss, train_op=nb.optim.SGD(0.1).minimize(loss, step))

    return function


def test_a_checkpoint_that_lacks_a_variable_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "one", function=renamed("first")).train(batches(), steps=1)
    other = made(tmp_path / "one", function=renamed("second"))
    with pytest.raises(
        NotFoundError, match=r"function has a variable 'second/w', which .*model\.ckpt-1 lacks"
    ):
        other.train(batches(), steps=1)
    with pytest.raises(NotFoundError, match="'second/w'"):
        other.evaluate(batches())
    assert other.get_variable_value("global_step") == 1
    warm = Estimator(renamed("second"), tmp_path / "warm", quiet(), warm_start_from=tmp_path / "one")
    warm.train(batches(), steps=1)
    assert "model.ckpt-1 has no second/w, second/b: they begin" in capsys.readouterr().out
    with nb.Graph().as_default():
        alone = nb.Variable(np.zeros(2), name="alone")
        with nb.Session() as session:
            session.run(alone.initializer)
            path = nb.train.Saver().save(session, tmp_path / "foreign" / "model.ckpt")
    with pytest.raises(NotFoundError, match="choose another model_dir"):
        made(tmp_path / "foreign", function=renamed("first")).train(batches())
    with pytest.raises(NotFoundError, match="warm_start_from"):
        Estimator(renamed("first"), tmp_path / "new", quiet(), warm_start_from=path).train(batches())


def test_a_global_step_that_is_none_is_named(tmp_path: Path) -> None:
    with nb.Graph().as_default():
        step = nb.Variable(np.array([1, 2]), name="value")
        with nb.Session() as session:
            session.run(step.initializer)
            nb.train.Saver({"global_step": step}).save(session, tmp_path / "model.ckpt")
    with pytest.raises(DataLossError, match=r"model\.ckpt.* global_step is int64 \(2,\)"):
        made(tmp_path).train(batches())


def test_the_seed_decides_what_layers_begin_with(tmp_path: Path) -> None:
    def function(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        towers = [nb.nn.Sequential([nb.nn.Dense(3), nb.nn.Dropout(0.5)]) for _ in range(2)]
        logits = sum(tower(features["x"], training=True) for tower in towers)
        loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(labels, logits))
        step = nb.train.get_or_create_global_step()
        return EstimatorSpec(mode, loss=loss, train_op=nb.optim.SGD(0.1).minimize(loss, step))

    found = [
        weights(made(tmp_path / name, function=function, tf_random_seed=seed).train(batches(), steps=3))
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    one, same, other = (each["dense/kernel"] for each in found)
    np.testing.assert_array_equal(one, same)
    assert not np.allclose(one, other)
    assert not np.allclose(one, found[0]["dense_1/kernel"])  # of one seed, each model has its own values


def broken(**changes: Any) -> Any:
    def function(features: Any, labels: Any, mode: str) -> Any:
        x = features["x"]
        loss = np.mean((x @ nb.get_variable("w", (6, 3))) ** 2)
        step = None if "no_step" in changes else nb.train.get_or_create_global_step()
        scale = np.float32(np.inf) if "nan" in changes else 1.0
        train_op = nb.optim.SGD(0.1).minimize(loss * scale, global_step=step)
        return (
            None
            if "none" in changes
            else EstimatorSpec("eval" if "mode" in changes else mode, loss=loss, train_op=train_op)
        )

    return function


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (broken(no_step=1), InvalidArgumentError, "train_op counts no step"),
        (broken(none=1), InvalidArgumentError, "returns an EstimatorSpec"),
        (broken(mode=1), InvalidArgumentError, "was called with mode 'train'"),
        (broken(nan=1), NanLossError, "step 1"),
    ],
)
def test_model_functions_that_do_not_fit(tmp_path: Path, function: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        made(tmp_path, function=function).train(batches())


def test_bad_arguments(tmp_path: Path) -> None:
    estimator = made(tmp_path)
    with pytest.raises(NotFoundError, match="has no checkpoint"):
        estimator.evaluate(batches())
    with pytest.raises(InvalidArgumentError, match="not both"):
        estimator.train(batches(), steps=1, max_steps=1)
    with pytest.raises(InvalidArgumentError, match="steps is a whole number from 1"):
        estimator.train(batches(), steps=0)
    with pytest.raises(InvalidArgumentError, match=r"Dataset\.from_arrays"):
        estimator.train(lambda: (X, Y))  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidArgumentError, match="has no batch"):
        estimator.train(batches(epochs=0))
    with pytest.raises(InvalidArgumentError, match="saves its checkpoints itself"):
        estimator.train(batches(), hooks=[nb.train.CheckpointSaverHook(tmp_path, save_steps=1)])
    with pytest.raises(InvalidArgumentError, match="hooks are instances of SessionRunHook"):
        estimator.train(batches(), hooks=[nb.train.SessionRunHook])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="saving_listeners are instances of Checkpoint"):
        estimator.train(batches(), saving_listeners=[3])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="keep_checkpoint_max is a whole number from 0"):
        RunConfig(keep_checkpoint_max=-1)
    with pytest.raises(InvalidArgumentError, match="did you mean labels"):
        Estimator(lambda features, label: None, tmp_path)  # type: ignore[arg-type,return-value]
    estimator.train(batches(), steps=1)
    with pytest.raises(InvalidArgumentError, match="did you mean class"):
        list(estimator.predict(batches(), predict_keys=["clas"]))
