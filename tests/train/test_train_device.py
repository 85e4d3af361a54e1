"""Training on a device, with a fake CuPy that refuses to mix device and host arrays."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cupy import DeviceArray, Event, FakeCupy, Stream, counts, current_device
from fake_nccl import FakeNccl
from waiting import until

from nbdist.data import Dataset
from nbdist.distribute import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    TPUStrategy,
    central,
    get_replica_context,
)
from nbdist.distribute.all_reduce import AllReduceReplica
from nbdist.errors import InvalidArgumentError, UnavailableError
from nbdist.graph import backend
from nbdist.graph.tensor import Variable
from nbdist.nn import (
    BatchNorm,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    MaxPool2D,
    Sequential,
    compute_average_loss,
    load,
    losses,
)
from nbdist.nn.layers import layer_from_config
from nbdist.optim import SGD, Adam, LossScaleOptimizer
from nbdist.train import Callback
from nbdist.train import context as contexts
from nbdist.train.context import Checkpoints
from nbdist.train.custom.api import local_results
from nbdist.train.custom.replicas import LocalReplica
from nbdist.train.device import on_device
from nbdist.train.one_device import OneDeviceReplica
from nbdist.train.step_timing import StepEvents, StepLog


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNccl]:
    module, nccl = FakeCupy(), FakeNccl()
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", nccl)
    yield nccl
    assert nccl.clashes == [], "replicas made different calls"


@pytest.mark.parametrize("optimizer", [SGD(0.5), Adam(0.01)], ids=["sgd", "adam"])
def test_training_on_a_device_equals_training_on_the_host(fake_gpu: None, optimizer: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((50, 6), np.float32), rng.integers(0, 3, 50)
    results = []
    for device in ("CPU:0", "GPU:0"):
        model = Sequential([Dense(5, "sigmoid"), Dense(4, "relu"), Dense(3, "softmax")], seed=1)
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        with contexts.use(contexts.Context(device=device, quiet=True)) as context:
            history = model.fit(Dataset.from_arrays(x, y).batch(16), epochs=3, validation_data=(x, y))
        assert context.devices == [device]
        results.append((model.get_weights(), history.history))
    (host, host_history), (device_weights, device_history) = results
    for a, b in zip(host, device_weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for name, values in host_history.items():
        np.testing.assert_allclose(values, device_history[name], rtol=1e-4)


@pytest.mark.parametrize("devices", [["GPU:0"], ["GPU:0", "GPU:1"], ["CPU:0", "GPU:0"]], ids=str)
def test_embeddings_on_devices_equal_those_on_the_host(fake_gpu: None, devices: list[str]) -> None:
    """Only the host updates single rows; with SGD the result is the same."""
    rng = np.random.default_rng(0)
    x, y, weights = np.tile(np.arange(10), 5)[:, None], rng.integers(0, 3, 50), []
    for strategy in (OneDeviceStrategy(), MirroredStrategy(devices)):
        for by_hand in (False, True):
            with contexts.use(contexts.Context(device="CPU:0", strategy=strategy, quiet=True)):
                model = Sequential([Embedding(12, 2), Flatten(), Dense(3, "softmax")], seed=1).build((1,))
                optimizer = SGD(0.5)
                if by_hand:

                    def step(x: Any, y: Any, model: Any = model, optimizer: Any = optimizer) -> None:
                        each = losses.sparse_categorical_crossentropy(y, model(x, training=True))
                        optimizer.minimize(np.sum(each) / np.float32(10))

                    for batch in strategy.distribute_dataset(Dataset.from_arrays(x, y).batch(10)):
                        strategy.run(step, batch)
                    strategy.finish()
                else:
                    model.compile(optimizer, "sparse_categorical_crossentropy")
                    model.fit(Dataset.from_arrays(x, y).batch(10))
            weights.append(model.get_weights())
    for other in weights[1:]:
        for a, b in zip(weights[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("holes", [[], [3, 40]], ids=["whole", "holes"])
def test_averages_on_a_device_are_those_on_the_host(fake_gpu: None, holes: list[int]) -> None:
    """Batches of two sizes have a program each, and a skipped step changes nothing."""
    rng = np.random.default_rng(0)
    x, y = rng.random((50, 6), np.float32), rng.integers(0, 3, 50)
    x[holes] = np.nan
    averages = []
    for device in ("CPU:0", "GPU:0"):
        model = Sequential([BatchNorm(), Dense(3, "softmax")], seed=1)
        model.compile(SGD(0.1))
        with contexts.use(contexts.Context(device=device, quiet=True)):
            model.fit(Dataset.from_arrays(x, y).batch(16), epochs=3, nan="skip")
        averages.append(model.get_weights()[2:4])
    for host, ours in zip(*averages, strict=True):
        assert np.isfinite(host).all()
        np.testing.assert_allclose(ours, host, rtol=1e-5, atol=1e-6)


def test_without_cupy_a_gpu_is_a_clear_error() -> None:
    if backend.np.__name__ == "numpy":
        try:
            import cupy  # noqa: F401
        except ImportError:
            with pytest.raises(ImportError, match=r'pip install "nbdist\[gpu\]"'):
                backend.backend("GPU:0")


@pytest.mark.parametrize("devices", [["GPU:0"], ["GPU:0", "GPU:1"], ["CPU:0", "GPU:0"]], ids=str)
def test_a_custom_loop_on_devices_equals_one_on_the_host(fake_gpu: None, devices: list[str]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((50, 6), np.float32), rng.integers(0, 3, 50)

    def trained(strategy: Strategy) -> list[Any]:
        with strategy.scope():
            model = Sequential([Dense(5, "sigmoid"), Dropout(0.3), Dense(3, "softmax")], seed=1)
            optimizer = SGD(0.5)
            seen = Variable(np.float32(0), trainable=False, aggregation="sum")

        def step(x: Any, y: Any) -> Any:
            each = losses.sparse_categorical_crossentropy(y, model(x, training=True))
            replica = get_replica_context()
            assert replica is not None
            optimizer.minimize(compute_average_loss(each, replica.all_reduce("sum", np.float32(len(x)))))
            seen.assign_add(np.float32(len(x)))
            return each

        for batch in strategy.distribute_dataset(Dataset.from_arrays(x, y).batch(16)):
            mean = strategy.reduce("mean", strategy.run(step, batch), axis=0)
        return [*model.get_weights(), strategy.read(seen), seen.eval(), (seen * 2).eval(), mean]

    results = []
    for make in (OneDeviceStrategy, lambda: MirroredStrategy(devices)):
        with contexts.use(contexts.Context(quiet=True, seed=4)):
            results.append(trained(make()))
    host, device = results
    for a, b in zip(host, device, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_step_that_the_strategy_compiles_is_fed_from_the_host(fake_gpu: None) -> None:
    """JAX takes no arrays of CuPy; it places what it is given."""
    context = contexts.Context(quiet=True, device="GPU:0", strategy=TPUStrategy())
    assert LocalReplica(context, 0).xp is np


@pytest.mark.parametrize("devices", [["GPU:0"], ["GPU:0", "GPU:1"], ["CPU:0", "CPU:0"]], ids=str)
def test_what_was_read_before_a_training_is_new_after_it(fake_gpu: None, devices: list[str]) -> None:
    with contexts.use(contexts.Context(quiet=True, seed=4)):
        strategy = MirroredStrategy(devices)
        with strategy.scope():
            w = Variable(np.zeros(2, np.float32), name="w")
            optimizer = SGD(1.0)

        def read() -> Any:
            return w + 0

        def step() -> None:
            optimizer.minimize(np.sum(w) / np.float32(len(devices)))

        before = local_results(strategy.run(read))
        assert strategy._runner is not None
        strategy.run(step)
        strategy._runner.variables.first_values()
        strategy.finish()
        for old, new in zip(before, local_results(strategy.run(read)), strict=True):
            np.testing.assert_array_equal(old, 0)
            np.testing.assert_array_equal(new, -1)
        np.testing.assert_array_equal(strategy.read(w), -1)


@pytest.mark.parametrize("devices", [["GPU:0"], ["GPU:0", "GPU:1"]], ids=str)
@pytest.mark.parametrize("own_loop", [False, True], ids=["fit", "loop"])
def test_a_rate_and_a_checkpoint_on_devices(
    fake_gpu: None, devices: list[str], own_loop: bool, tmp_path: Path
) -> None:
    """The checkpoint requested after the first of two epochs has the devices' values at that step."""
    rng = np.random.default_rng(0)
    x, y = rng.random((48, 6), np.float32), rng.integers(0, 3, 48)
    tmp_path.chmod(0o700)

    class Ask(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            if epoch == 0:
                context.control.set_rate(0.0)
                context.control.ask_checkpoint(1)

    with contexts.use(
        contexts.Context(quiet=True, seed=4, checkpoints=Checkpoints(tmp_path / "c"))
    ) as context:
        strategy = MirroredStrategy(devices)
        with strategy.scope():
            model = Sequential([Dense(5, "sigmoid"), BatchNorm(), Dense(3, "softmax")], seed=1)
            optimizer = SGD(0.5)
            model.compile(optimizer)
        data = Dataset.from_arrays(x, y).batch(16)
        if not own_loop:
            model.fit(data, epochs=2, callbacks=[Ask()])
        else:

            def step(x: Any, y: Any) -> None:
                each = losses.sparse_categorical_crossentropy(y, model(x, training=True))
                optimizer.minimize(compute_average_loss(each, 16))

            for epoch in range(2):
                for batch in strategy.distribute_dataset(data):
                    strategy.run(step, batch)
                Ask().on_epoch_end(epoch, {})
            strategy.finish()
    trained = context
    if own_loop:
        assert strategy._runner is not None
        trained = strategy._runner.variables.context
    found = trained.progress.checkpoint
    assert found is not None
    assert (found["step"], found["error"], optimizer.learning_rate) == (3, None, 0.0)
    weights = [w for w in load(found["path"]).get_weights() if w.ndim == 2]
    assert len(weights) == 2
    for a, b in zip(weights, [w for w in model.get_weights() if w.ndim == 2], strict=True):
        np.testing.assert_array_equal(
            a, b
        )  # a rate of 0 keeps the weights; BatchNorm's averages still change


def test_in_a_timeline_a_pull_brings_parameters_to_the_device(fake_gpu: None) -> None:
    inner = OneDeviceReplica([("w", np.zeros(3, np.float32))], SGD(0.1))
    replica = on_device(inner, "GPU:0")
    assert (inner.spans.pull, replica.spans.pull) == (None, ("receive", "parameters from the host"))
    assert replica.spans.push == inner.spans.push == ("apply", "gradients")


@pytest.mark.parametrize("own_loop", [False, True], ids=["fit", "loop"])
def test_a_timeline_has_what_events_measured(fake_gpu: None, own_loop: bool) -> None:
    """A launch takes a millisecond of the stand-in's GPU, and the host does not wait for it."""
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 6), np.float32), rng.integers(0, 3, 40)
    log = StepLog("GPU:0")
    with contexts.use(contexts.Context(device="GPU:0", quiet=True, step_log=log)):
        strategy = OneDeviceStrategy()
        with strategy.scope():
            model = Sequential([Dense(5, "relu"), Dense(3, "softmax")], seed=1)
            optimizer = SGD(0.1)
            model.compile(optimizer)
        data = Dataset.from_arrays(x, y).batch(10)
        if own_loop:

            def step(x: Any, y: Any) -> None:
                each = losses.sparse_categorical_crossentropy(y, model(x, training=True))
                optimizer.minimize(compute_average_loss(each, 10))

            for batch in strategy.distribute_dataset(data):
                strategy.run(step, batch)
            strategy.finish()
        else:
            model.fit(data)
    spans = [span for span in log.spans("worker") if span.kind in ("compute", "apply")]
    assert {span.lane for span in spans} == {"GPU:0, CUDA events"}
    assert [(span.step, span.kind) for span in spans] == [
        (step, kind) for step in range(1, 5) for kind in ("compute", "apply")
    ]
    computing = [round(span.seconds * 1e3) for span in spans if span.kind == "compute"]
    assert computing[0] > computing[2]  # from the third step on CUDA graphs are launched
    assert computing[2] == computing[3]
    assert len({round(span.seconds * 1e3) for span in spans if span.kind == "apply"} - {0}) == 1


def test_a_step_that_is_not_done_has_the_times_of_the_host(
    fake_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, rows = StepEvents(backend.backend("GPU:0")), list[Any]()
    for step, done in ((1, True), (2, False), (3, True)):
        for place in range(4):
            events.mark(place)
        events.add((step, 0.5), rows.append)
        monkeypatch.setattr(Event, "done", done)
    events.flush()
    assert rows == [(1, 0.0, 0.0, 0.5), (2, 0.5), (3, 0.0, 0.0, 0.5)]


def test_values_on_a_device_are_reduced_there(fake_gpu: None) -> None:
    module = backend.backend("GPU:0")
    total = OneDeviceStrategy().all_reduce(module.asarray(np.arange(3)), "mean")
    assert isinstance(total, DeviceArray)
    np.testing.assert_array_equal(total.get(), [0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("devices", "kind", "note"),
    [
        (["GPU:1", "GPU:0"], "nccl", ""),
        (["GPU:0", "GPU:0"], "local", "through host memory: NCCL is not available: rank 0 (device GPU:0)"),
        (["CPU:0", "GPU:1"], "local", "through host memory: NCCL needs a GPU for each replica"),
        (["CPU:0", "CPU:0"], "local", ""),
    ],
    ids=str,
)
def test_replicas_compute_on_their_own_devices(
    fake_gpu: FakeNccl, capsys: pytest.CaptureFixture[str], devices: list[str], kind: str, note: str
) -> None:
    """An array of another GPU than the thread's is an error here; so each replica's are on its own."""
    for a, b in zip(train(MirroredStrategy(devices)), train(OneDeviceStrategy()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    printed = capsys.readouterr().out
    assert f"2 replicas, gradients by all-reduce ({kind})" in printed
    assert note in printed
    assert ("through host memory" in printed) == bool(note)
    assert bool(fake_gpu.calls) == (kind == "nccl")
    assert [one.destroyed for one in fake_gpu.communicators] == [True, True] * (kind == "nccl")


def test_devices_and_collectives_that_cannot_be_are_refused(fake_gpu: FakeNccl) -> None:
    with pytest.raises(InvalidArgumentError, match="no device 'GPU:2'"):
        train(MirroredStrategy(["GPU:0", "GPU:2"]))
    with pytest.raises(InvalidArgumentError, match="no collective 'shm'"):
        MirroredStrategy(["GPU:0", "GPU:1"], "shm")
    with pytest.raises(UnavailableError, match="NCCL needs a GPU for each replica, got GPU:0, CPU:0"):
        train(MirroredStrategy(["GPU:0", "CPU:0"], "nccl"))
    train(MirroredStrategy(["GPU:0", "GPU:1"], "local"))
    assert not fake_gpu.calls


def test_central_storage_allocates_nothing_for_a_device_that_is_missing(
    fake_gpu: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(central, "pinned_buffer", pytest.fail)
    with pytest.raises(InvalidArgumentError, match="no device 'GPU:2'"):
        train(CentralStorageStrategy(["GPU:2"]))


@pytest.mark.parametrize("failing", [0, 1])
def test_a_replica_that_fails_frees_one_that_waits_for_nccl(
    fake_gpu: FakeNccl, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    pushes, push = Counter[int](), AllReduceReplica.push

    def third_fails(replica: AllReduceReplica) -> None:
        rank = replica._group.rank
        pushes[rank] += 1
        if (rank, pushes[rank]) == (failing, 3):
            until(lambda: pushes[1 - failing] == 3)  # else it could end before its third step
            raise ValueError("no third step")
        push(replica)

    monkeypatch.setattr(AllReduceReplica, "push", third_fails)
    with pytest.raises(ValueError, match="no third step"):
        train(MirroredStrategy(["GPU:0", "GPU:1"]))
    assert pushes == {0: 3, 1: 3}
    assert [one.aborted for one in fake_gpu.communicators] == [True, True]


def test_buckets_on_a_gpu_are_reduced_on_a_stream_of_their_own(
    fake_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several buckets the first are reduced while the backward pass continues."""
    waited: list[tuple[int, Stream, Stream | None]] = []
    wait_event = Stream.wait_event

    def noted(stream: Stream, event: Event) -> None:
        waited.append((current_device(), stream, event.stream))
        wait_event(stream, event)

    monkeypatch.setattr(Stream, "wait_event", noted)
    weights = train(MirroredStrategy(["GPU:0", "GPU:1"]), hidden=60_000, rate=1e-5)
    assert {device for device, *_ in waited} == {0, 1}
    assert all(stream.non_blocking for _, stream, _ in waited)
    # The events are of the streams on which the replicas' threads compute: that holds for a default stream
    # per thread, too (CUPY_CUDA_PER_THREAD_DEFAULT_STREAM=1).
    assert len({id(source) for *_, source in waited}) > 1
    assert not any(source is stream for _, stream, source in waited)
    for a, b in zip(weights, train(OneDeviceStrategy(), hidden=60_000, rate=1e-5), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def train(strategy: Strategy, hidden: int = 5, rate: float = 0.01) -> list[Any]:
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 6), np.float32), rng.integers(0, 3, 40)
    with strategy.scope():
        model = Sequential([Dense(hidden, "relu"), Dropout(0.2), Dense(3, "softmax")], seed=1)
        model.compile(Adam(rate), "sparse_categorical_crossentropy")
    model.fit(Dataset.from_arrays(x, y).batch(10), epochs=2)
    weights: list[Any] = model.get_weights()
    return weights


def test_states_and_evaluations_wait_for_a_gpu_once(fake_gpu: None) -> None:
    """Moving averages are read at the end, the sums of all batches of an evaluation together."""
    rng = np.random.default_rng(0)
    x, y = rng.random((80, 6), np.float32), rng.integers(0, 3, 80)
    found = []
    for epochs in (1, 3):
        model = Sequential([BatchNorm(), Dense(4, "relu"), BatchNorm(), Dense(3, "softmax")], seed=1)
        model.compile(SGD(0.1), metrics=["accuracy"])
        with contexts.use(contexts.Context(device="GPU:0", quiet=True)):
            counts.clear()
            data = Dataset.from_arrays(x, y).batch(8)
            model.fit(data, epochs=epochs, validation_data=data)
            found.append(counts["host wait"])
    assert found[1] - found[0] == 2 * (10 + 1)


MLP = [Dense(100, "relu"), Dense(10, "softmax")]
CNN = [Conv2D(8, 3, activation="relu"), MaxPool2D(2), Flatten(), Dropout(0.2), Dense(10, "softmax")]


@pytest.mark.parametrize(
    ("network", "mirrors", "launches", "copies"),
    [(MLP, 0, 16, 2), (CNN, 0, 26, 3), (MLP, 1, 16, 2), (MLP, 2, 17, 2)],
    ids=["mlp", "cnn", "mlp on a mirror", "mlp on two mirrors"],
)
def test_what_a_step_costs_a_gpu(
    fake_gpu: None,
    network: list[Any],
    mirrors: int,
    launches: int,
    copies: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The host waits once a step, for three numbers: loss, accuracy, and whether gradients are finite.

    Of several replicas each also waits for its sums, which stay on its GPU.
    """
    shape = (64, 28, 28, 1) if len(network) > 2 else (64, 784)
    x, y = np.random.default_rng(0).random(shape, np.float32), np.arange(64) % 10
    found = []
    for steps in (3, 8):
        capsys.readouterr()
        gpus = [f"GPU:{number}" for number in range(mirrors)]
        strategy = MirroredStrategy(gpus) if gpus else OneDeviceStrategy()
        with contexts.use(contexts.Context(device="GPU:0", strategy=strategy, quiet=True)):
            model = Sequential([layer_from_config(layer.to_config()) for layer in network], seed=1)
            model.compile(Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
            counts.clear()
            model.fit(Dataset.from_arrays(x, y).batch(64).repeat(), steps_per_epoch=steps, epochs=1)
            found.append(counts.copy())
    step = {name: (number - found[0][name]) / 5 / max(mirrors, 1) for name, number in found[1].items()}
    assert (step["host wait"], step["bytes to host"]) == (1, 12)
    assert step.get("event wait", 0) == max(mirrors - 1, 0)
    assert step["launch"] <= launches
    assert step["copy to device"] <= copies
    note = capsys.readouterr().out.splitlines()[-1]
    assert "calls runs as 4 CUDA graphs; not recorded:" in note


def test_a_loss_scale_costs_no_wait_for_a_gpu(fake_gpu: None) -> None:
    """The same wait as in float32; a step that is left out changes one number on the device."""
    x, y = np.random.default_rng(0).random((64, 20), np.float32), np.arange(64) % 10
    found = []
    for steps in (3, 13):
        model = Sequential([Dense(10, "relu"), Dense(10, "softmax")], seed=1)
        optimizer = LossScaleOptimizer(Adam(0.01), initial_scale=2.0**32, dynamic_growth_steps=2)
        model.compile(optimizer, metrics=["accuracy"], precision="mixed_float16")
        context = contexts.Context(device="GPU:0", quiet=True)
        with contexts.use(context):
            counts.clear()
            model.fit(Dataset.from_arrays(x, y).batch(64).repeat(), steps_per_epoch=steps, epochs=1)
            found.append(counts.copy())
    assert context.progress.skipped > 3
    step = {name: (number - found[0][name]) / 10 for name, number in found[1].items()}
    assert (step["host wait"], step["bytes to host"]) == (1, 12)
