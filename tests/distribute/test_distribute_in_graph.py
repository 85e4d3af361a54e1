"""In-graph replication on the Servers of this process: every placement computes what one device does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import matrix
from waiting import until

from nbdist.data import Dataset
from nbdist.distribute.in_graph.graph import split_batch
from nbdist.distribute.in_graph.strategy import InGraphStrategy
from nbdist.errors import InvalidArgumentError, NanLossError, NbdistError, ResourceExhaustedError
from nbdist.nn import BatchNorm, Dense, Dropout, Sequential, load
from nbdist.optim import SGD, Adam
from nbdist.runtime.server import Server
from nbdist.runtime.session import session
from nbdist.train.callbacks import Callback, History
from nbdist.train.context import Checkpoints, Context, current, use
from nbdist.train.loop import train
from nbdist.train.one_device import OneDeviceStrategy
from nbdist.train.strategy import Strategy
from nbdist.train.trainable import Trainable

Array = np.ndarray[Any, Any]
Town = Callable[..., InGraphStrategy]


def points(count: int = 45) -> tuple[Array, Array]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(count, 6)).astype(np.float32), rng.integers(0, 3, count)


def plain() -> list[Any]:
    return [Dense(16, "tanh"), Dense(12, "relu"), Dense(3, "softmax")]


def fit(
    strategy: Strategy,
    layers: Callable[[], list[Any]] = plain,
    optimizer: Any = None,
    epochs: int = 3,
    batch: int = 10,
    callbacks: tuple[Callback, ...] = (),
    data: tuple[Array, Array] | None = None,
    **model_options: Any,
) -> tuple[list[Array], History, Context]:
    """Train under a strategy with one seed; return the weights, the history and the context."""
    context = Context(strategy=strategy, seed=7, quiet=True)
    x, y = points() if data is None else data
    with use(context):
        model = Sequential(layers(), **model_options)
        model.compile(optimizer or SGD(0.1), metrics=["accuracy"])
        rows = Dataset.from_arrays(x, y).shuffle(100).batch(batch)
        history = model.fit(rows, epochs=epochs, validation_data=points(9), callbacks=callbacks)
    return model.get_weights(), history, context


def assert_alike(ours: list[Array], theirs: list[Array], tolerance: float = 2e-6) -> None:
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


PLAIN, MOMENTUM, ADAM = SGD(0.1), SGD(0.05, momentum=0.9), Adam(0.01)


@pytest.mark.parametrize(
    ("workers", "ps", "optimizer"),
    matrix(
        [(1, 1, PLAIN), (2, 0, MOMENTUM), (3, 2, ADAM)],
        rest=[
            (1, 1, MOMENTUM), (1, 1, ADAM), (2, 0, PLAIN), (2, 0, ADAM), (3, 2, PLAIN), (3, 2, MOMENTUM),
        ],
    ),
    ids=repr,
)  # fmt: skip
def test_synchronous_towers_compute_what_one_device_does(
    town: Town, workers: int, ps: int, optimizer: Any
) -> None:
    ours, history, context = fit(town(workers, ps), optimizer=optimizer)
    theirs, expected, _ = fit(OneDeviceStrategy(), optimizer=optimizer)
    assert_alike(ours, theirs)
    assert history.global_step == expected.global_step == 15
    for name in ("loss", "accuracy", "val_loss"):
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-4)
    assert context.progress.global_step == 15


def test_batches_smaller_than_the_towers(town: Town) -> None:
    ours, *_ = fit(town(3, 1), batch=44)  # the last batch of 45 is one example
    theirs, *_ = fit(OneDeviceStrategy(), batch=44)
    assert_alike(ours, theirs)


def test_dropout_drops_the_same_and_states_come_home(town: Town) -> None:
    def layers() -> list[Any]:
        return [Dense(16), Dropout(0.4), Dense(3, "softmax")]

    ours, *_ = fit(town(3, 1), layers)
    theirs, *_ = fit(OneDeviceStrategy(), layers)
    assert_alike(ours, theirs)


def test_batch_norm_moves_its_averages_on_the_tower(town: Town) -> None:
    def layers() -> list[Any]:
        return [Dense(16), BatchNorm(), Dense(3, "softmax")]

    ours, *_ = fit(town(1, 1), layers)
    theirs, *_ = fit(OneDeviceStrategy(), layers)
    assert_alike(ours, theirs)


def test_asynchronous_towers_each_go_through_all_the_data(town: Town) -> None:
    weights, history, context = fit(town(3, 1, synchronous=False))
    assert history.global_step == 3 * 3 * 5
    assert context.progress.step == 15
    assert all(np.isfinite(w).all() for w in weights)
    assert not [t for t in threading.enumerate() if t.name.startswith("nbdist replica")]


def test_towers_are_reported_and_steps_are_traced(town: Town) -> None:
    steps: list[tuple[int, int, int]] = []
    traces: list[Any] = []
    strategy = town(
        2, 1, on_tower=lambda i, step, loss, metrics, n, s: steps.append((i, step, n)), on_trace=traces.append
    )
    fit(strategy, epochs=40)
    assert steps[:4] == [(0, 1, 5), (1, 1, 5), (0, 2, 5), (1, 2, 5)]
    assert traces
    found = {span.task for span in traces[-1]}
    assert found == {"/job:worker/task:0", "/job:worker/task:1", "/job:ps/task:0"}
    assert {"compute", "send", "receive", "apply"} <= {span.kind for span in traces[-1]}


@pytest.mark.parametrize(
    "pipeline",
    matrix(
        [
            {"stages": 3, "micro_batches": 4, "schedule": "1f1b"},
            {"stages": [2, 1], "micro_batches": 1},
            {"stages": 1, "micro_batches": 3},
        ],
        rest=[{"stages": 3}],
    ),
    ids=repr,
)
def test_stages_compute_what_one_device_does(town: Town, pipeline: dict[str, Any]) -> None:
    ours, history, _ = fit(town(3, 0), optimizer=Adam(0.01), **pipeline)
    theirs, expected, _ = fit(OneDeviceStrategy(), optimizer=Adam(0.01))
    assert_alike(ours, theirs, 5e-6)
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)


def test_two_replicas_of_two_stages(town: Town) -> None:
    ours, *_ = fit(town(4, 0), stages=2)
    theirs, *_ = fit(OneDeviceStrategy())
    assert_alike(ours, theirs, 5e-6)


def test_variables_of_a_stage_are_on_its_device(servers: Callable[[int, int], list[Server]]) -> None:
    """After the training they are freed, with all buffers."""
    made = servers(3, 1)
    devices = [f"{one.name}/device:CPU:0" for one in made]
    strategy = InGraphStrategy(made[0].target, devices[:3], devices[3:])
    seen: list[list[str]] = []

    class Look(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            names = [one.sessions.store.names() for one in made]
            seen.append([",".join(sorted(name.partition("_rate")[0] for name in own)) for own in names])

    fit(strategy, stages=3, epochs=1, callbacks=(Look(),))
    weights = ["dense/bias,dense/kernel", "dense_1/bias,dense_1/kernel", "dense_2/bias,dense_2/kernel"]
    assert seen == [[*(f"{own},learning" for own in weights), ""]]  # each with the rate at which it learns
    until(
        lambda: [one.sessions.store.used() for one in made[1:]] == [0, 0, 0]
    )  # the executors end without a call


class NewRate(Callback):
    """Sets another learning rate after the first epoch, like a run's command."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        if epoch == 0:
            current().control.set_rate(0.1 / 3)


def sgd() -> SGD:
    return SGD(0.3, momentum=0.5)


def adam() -> Adam:
    return Adam(0.01)


@pytest.mark.parametrize(
    ("workers", "ps", "options", "optimizer"),
    matrix(
        [(2, 2, {}, adam), (2, 0, {"data": "workers"}, sgd), (3, 0, {"stages": 3}, adam)],
        rest=[
            (1, 1, {}, sgd), (2, 2, {}, sgd), (2, 0, {"data": "workers"}, adam),
            (3, 0, {"stages": 3}, sgd), (1, 1, {}, adam),
        ],
    ),
    ids=lambda value: getattr(value, "__name__", str(value)),
)  # fmt: skip
def test_a_rate_changes_between_the_same_two_steps(
    town: Town, workers: int, ps: int, options: dict[str, Any], optimizer: Callable[[], Any]
) -> None:
    data = {key: options[key] for key in options if key == "data"}
    stages = {key: options[key] for key in options if key == "stages"}
    own = optimizer()
    ours, _, context = fit(town(workers, ps, **data), optimizer=own, callbacks=(NewRate(),), **stages)
    theirs, *_ = fit(OneDeviceStrategy(), optimizer=optimizer(), callbacks=(NewRate(),))
    other, *_ = fit(OneDeviceStrategy(), optimizer=optimizer())
    assert_alike(ours, theirs, 1e-5)
    assert not np.allclose(ours[0], other[0], rtol=1e-4, atol=1e-4)
    assert context.progress.learning_rate == own.learning_rate == 0.1 / 3


def test_asynchronous_towers_use_the_new_learning_rate(town: Town, tmp_path: Path) -> None:
    """At a rate of 0 the weights stay constant: the checkpoint equals the final model."""
    tmp_path.chmod(0o700)

    class Ask(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            here = current()
            here.checkpoints = here.checkpoints or Checkpoints(tmp_path / "checkpoints")
            if epoch == 1:
                here.control.set_rate(0)
            if epoch == 2:
                here.control.ask_checkpoint(1)

    weights, _, context = fit(town(3, 1, synchronous=False), epochs=6, callbacks=(Ask(),))
    found = context.progress.checkpoint
    assert found is not None
    for a, b in zip(load(found["path"]).get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shards", [2, 3])
def test_split_layers_compute_what_one_device_does(town: Town, shards: int) -> None:
    def layers() -> list[Any]:
        return [
            Dense(16, "tanh", split="columns", shards=shards),
            Dense(12, "relu", split="rows", shards=shards),
            Dense(3, "softmax"),
        ]

    ours, *_ = fit(town(3, 1), layers)
    theirs, *_ = fit(OneDeviceStrategy(), layers)
    assert_alike(ours, theirs)


def test_a_model_that_does_not_fit_one_task_trains_on_three(
    servers: Callable[[int, int], list[Server]],
) -> None:
    made = servers(3, 0)
    for one in made:
        one.sessions.store.limit = 200_000
    devices = [f"{one.name}/device:CPU:0" for one in made]

    def layers() -> list[Any]:
        return [Dense(120, "relu"), Dense(120, "relu"), Dense(120, "relu"), Dense(3, "softmax")]

    with pytest.raises(ResourceExhaustedError, match=r"of this task's limit of 200,000 bytes .* stages="):
        fit(InGraphStrategy(made[0].target, devices[:1]), layers, data=points(40))
    ours, *_ = fit(InGraphStrategy(made[0].target, devices), layers, stages=3, data=points(40))
    theirs, *_ = fit(OneDeviceStrategy(), layers, data=points(40))
    assert_alike(ours, theirs, 5e-6)


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_loss_that_is_no_number_is_not_applied(town: Town, synchronous: bool) -> None:
    x, y = points()
    x[17] = np.nan
    context = Context(strategy=town(2, 1, synchronous=synchronous), seed=7, quiet=True)
    with use(context):
        model = Sequential(plain())
        model.compile(SGD(0.1))
        with pytest.raises(NanLossError, match=r"the loss is NaN.* at step \d.*was not applied"):
            model.fit(Dataset.from_arrays(x, y).batch(10), epochs=2)
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_an_error_in_one_tower_ends_all(town: Town) -> None:
    """A tower other than the first fails; its error is raised, and no thread is left."""
    strategy = town(3, 1, synchronous=False)
    made = strategy.companions

    def failing(context: Context, model: Trainable, optimizer: Any) -> list[Context]:
        found = made(context, model, optimizer)
        second = found[1].strategy

        def fail(size: int) -> int:
            raise RuntimeError("tower 2 has lost its way")

        second.first_example = fail  # type: ignore[method-assign]  # a fault
        return found

    strategy.companions = failing  # type: ignore[method-assign]  # a fault
    with pytest.raises(RuntimeError, match="tower 2 has lost its way"):
        fit(strategy, lambda: [Dense(4), Dropout(0.1), Dense(3, "softmax")], epochs=10_000)
    assert not [t for t in threading.enumerate() if t.name.startswith("nbdist replica")]


def test_a_stop_keeps_the_weights(town: Town) -> None:
    strategy = town(2, 1)
    context = Context(strategy=strategy, seed=7, quiet=True)

    class Stop(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            context.control.stop_requested = epoch == 1

    x, y = points()
    with use(context):
        model = Sequential(plain())
        model.compile(SGD(0.1))
        before = [w.copy() for w in model.build((6,)).get_weights()]
        history = model.fit(Dataset.from_arrays(x, y).batch(10), epochs=1000, callbacks=[Stop()])
    assert history.global_step == 10
    assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))


def test_too_few_workers_for_the_stages(town: Town) -> None:
    with pytest.raises(InvalidArgumentError, match="cut into 3 parts and there are 2 workers"):
        fit(town(2, 1), stages=3)


def test_other_strategies_refuse_a_spread_model() -> None:
    class Two(OneDeviceStrategy):
        num_replicas_in_sync = 2

    with pytest.raises(InvalidArgumentError, match="use %%distribute --replication in-graph"):
        fit(Two(), stages=2)


def test_a_model_without_a_graph_is_refused(town: Town) -> None:
    class Plain(Trainable):
        variables: list[tuple[str, Array]] = [("w", np.zeros(2, np.float32))]
        metric_names: list[str] = []

        def training_program(self, spec: Any) -> Any:
            raise AssertionError

        def prepare(self, batch: tuple[Array, ...]) -> tuple[Array, ...]:
            return batch

    with (
        use(Context(strategy=town(1, 1), quiet=True)),
        pytest.raises(NotImplementedError, match="Plain has no graph"),
    ):
        train(Plain(), Dataset.from_arrays(*points()).batch(5), SGD(0.1), epochs=1)
    with pytest.raises(InvalidArgumentError, match="needs a worker"):
        InGraphStrategy("nbdist://nowhere", [])


@pytest.mark.parametrize("size", [1, 2, 5, 9, 10])
@pytest.mark.parametrize("towers", [1, 2, 3])
@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_shares_differ_by_one_at_most_and_add_up(size: int, towers: int, micro_batches: int) -> None:
    found = split_batch(size, towers, micro_batches)
    rows = [i for cut in found for piece in cut for i in range(piece.start, piece.stop)]
    assert rows == list(range(size))
    shares = [sum(piece.stop - piece.start for piece in cut) for cut in found]
    assert max(shares) - min(shares) <= 1
    assert all(piece.stop > piece.start for cut in found for piece in cut)


def test_a_task_that_has_ended_is_named(
    town: Town, servers: Callable[[int, int], list[Server]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "TIMEOUT", 1.0)
    strategy = town(2, 1)
    servers(0, 0)[1].close()
    with pytest.raises(NbdistError, match="/job:worker/task:1"):
        fit(strategy)
