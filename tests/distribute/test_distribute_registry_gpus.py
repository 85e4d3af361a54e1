"""Every strategy on GPUs computes what it does on CPUs, in ``fit`` and in loops of one's own.

The GPUs are a stand-in (tests/fake_cupy.py). Here are all strategies, and in-graph placements. More on
one strategy, and other paths: tests/train/test_train_device.py (one_device, mirrored: embeddings, averages,
checkpoints, rates, counts), tests/train/test_train_resume.py (states),
tests/runtime/test_runtime_session_devices.py (sessions), tests/graph/test_graph_backend_cupy.py (every op),
tests/trials/test_trials_trial_worker_gpus.py (a sweep).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from fake_cupy import FakeCupy, counts
from parameter_town import Town
from tiers import matrix

from nbdist.data import Dataset
from nbdist.distribute import (
    CentralStorageStrategy,
    ElasticAveragingStrategy,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    ShardedStrategy,
    Strategy,
)
from nbdist.distribute.membership import pack_joined, unpack_joined
from nbdist.estimator import Estimator, EstimatorSpec, RunConfig
from nbdist.graph import backend
from nbdist.graph.variables import get_or_create_global_step
from nbdist.nn import BatchNorm, Dense, Dropout, Embedding, Flatten, Sequential
from nbdist.nn.functional import sparse_softmax_cross_entropy
from nbdist.optim import SGD, Adam, LossScaleOptimizer
from nbdist.testing.strategy import SEED, World, assert_alike, everywhere, fitted, looped, overflowing, points
from nbdist.testing.worlds import worlds
from nbdist.train.capabilities import JoinedState
from nbdist.train.context import Context, use
from nbdist.train.custom.api import end_loops

GRADIENTS = 4 * (784 * 100 + 112 + 1008 + 16)
"""Bytes of the gradients of 784-100-10: each variable begins at a multiple of 64 bytes."""


@pytest.fixture(autouse=True)
def fake_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeCupy(gpus=2)
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    monkeypatch.setitem(sys.modules, "cupy", module)


def context(strategy: Strategy, device: str, **options: Any) -> Context:
    return Context(strategy=strategy, device=device, seed=SEED, quiet=True, **options)


@contextmanager
def in_one_process(make: Callable[[list[str]], Strategy], devices: list[str]) -> Iterator[World]:
    """A strategy whose replicas are threads of one process."""
    strategy = make(devices)
    yield [(context(strategy, devices[0]), strategy)]


@contextmanager
def in_processes(make: Callable[[Any], Strategy], devices: list[str]) -> Iterator[World]:
    """A strategy with one replica in each process."""
    found = []
    for number, (place, device) in enumerate(zip(worlds(len(devices)), devices, strict=True)):
        strategy = make(place)
        found.append((context(strategy, device, world=place, is_chief=number == 0), strategy))
    yield found


@contextmanager
def on_servers(devices: list[str], servers: int = 2, **options: Any) -> Iterator[World]:
    """Replicas with parameter servers in this process."""
    town = Town(servers, len(devices), devices)
    found = []
    for i, place in enumerate(worlds(len(devices))):
        strategy = town.strategy(i, **options)
        one = context(strategy, devices[i], world=place, is_chief=i == 0, control=town.controls[i])
        found.append((one, strategy))
    try:
        yield found
        everywhere(found, lambda strategy, _: strategy.finish())
    finally:
        for one, _ in found:
            end_loops(one, whole=False)
        town.close()


ONE, TWO = ["GPU:0"], ["GPU:0", "GPU:1"]
STRATEGIES: dict[str, tuple[list[str], Callable[[list[str]], Any]]] = {
    "one_device": (ONE, lambda devices: in_one_process(lambda _: OneDeviceStrategy(), devices)),
    "mirrored": (TWO, lambda devices: in_one_process(MirroredStrategy, devices)),
    "mirrored on a CPU and a GPU": (
        ["CPU:0", "GPU:0"],
        lambda devices: in_one_process(MirroredStrategy, devices),
    ),
    "multi_worker": (
        TWO,
        lambda devices: in_processes(lambda world: MultiWorkerMirroredStrategy(world=world), devices),
    ),
    "sharded": (
        TWO,
        lambda devices: in_processes(lambda world: ShardedStrategy(world=world), devices),
    ),
    "ps": (TWO, lambda devices: on_servers(devices, synchronous=True)),
    "ps through sockets": (
        TWO,
        lambda devices: on_servers(devices, synchronous=True, transport="socket"),
    ),
    "ps on a CPU and a GPU": (
        ["CPU:0", "GPU:0"],
        lambda devices: on_servers(devices, synchronous=True),
    ),
    "ps, asynchronous": (ONE, lambda devices: on_servers(devices, staleness=0)),
    "central": (TWO, lambda devices: in_one_process(CentralStorageStrategy, devices)),
    "elastic": (
        TWO,
        lambda devices: in_processes(lambda world: ElasticAveragingStrategy(2, world=world), devices),
    ),
}


def by_fit(strategy: Strategy, _: Context) -> Any:
    return fitted(strategy, Adam(0.01), 61, 20, [BatchNorm(), Dropout(0.4)], nan="skip")[0]


def by_loop(strategy: Strategy, _: Context) -> Any:
    return looped(strategy, Adam(0.01), 61, 20, [Dropout(0.4)])[0]


def in_mixed_precision(strategy: Strategy, _: Context) -> Any:
    """The first steps overflow, and are left out on all replicas."""
    optimizer = LossScaleOptimizer(SGD(0.3, momentum=0.5), initial_scale=2.0**24)
    with strategy.scope():
        model = Sequential([Dense(6, "tanh"), Dense(3, "softmax")], seed=5)
        model.compile(optimizer, precision="mixed_float16")
    model.fit(Dataset.from_arrays(*points(60)).batch(20), epochs=4)
    assert model.loss_scale is not None
    assert model.loss_scale < 2.0**24
    return [*model.get_weights(), np.array(model.loss_scale)]


def by_rows(strategy: Strategy, _: Context) -> Any:
    """Replicas on CPUs and on GPUs agree on how the gradients of an embedding travel."""
    with strategy.scope():
        model = Sequential([Embedding(12, 2), Flatten(), Dense(3, "softmax")], seed=1)
        model.compile(SGD(0.5))
    x, y = np.tile(np.arange(10), 5)[:, None], np.arange(50) % 3
    model.fit(Dataset.from_arrays(x, y).batch(10))
    return model.get_weights()


def by_estimator(strategy: Strategy, here: Context) -> Any:
    """The chief's last checkpoint."""

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        model = Sequential([Dense(6, "tanh"), Dropout(0.4), Dense(3)], seed=5)
        logits = model(features, training=True)
        loss = np.mean(sparse_softmax_cross_entropy(labels, logits))
        train_op = Adam(0.01).minimize(loss, get_or_create_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    config = RunConfig(train_distribute=strategy, log_step_count_steps=None, save_summary_steps=2)
    with TemporaryDirectory() as folder:
        estimator = Estimator(model_fn, folder, config)
        for _ in range(2):  # the second call begins with the first one's slots
            estimator.train(lambda: Dataset.from_arrays(*points(61)).batch(20))
        names = estimator.get_variable_names() if here.is_chief else []
        return [estimator.get_variable_value(name) for name in names]


APIS = {
    "fit": by_fit,
    "estimator": by_estimator,
    "loop": by_loop,
    "mixed precision": in_mixed_precision,
    "embedding": by_rows,
}


CELLS = [
    (name, api)
    for name in STRATEGIES
    for api in APIS
    if name != "ps through sockets" or api == "fit"  # which differ from shared memory in the link only
]
MIXED = ("mirrored on a CPU and a GPU", "ps on a CPU and a GPU")
LOOPED = ("mirrored", "multi_worker", "ps")


def is_first(cell: tuple[str, str]) -> bool:
    """Every strategy in ``fit``; estimators and mixed precision in one process and on servers.

    Loops are those of one process, of several, of servers, and of exchanges between steps. A gradient that
    overflows is below, for every strategy. Replicas on unlike devices differ in embeddings.
    """
    name, api = cell
    if api in ("estimator", "mixed precision"):
        return name in ("mirrored", "ps")
    return api != "loop" or name in ("one_device", "elastic", *LOOPED)


@pytest.mark.parametrize(
    ("name", "api"),
    matrix(filter(is_first, CELLS), rest=[cell for cell in CELLS if not is_first(cell)]),
)
def test_gpus_compute_what_cpus_do(name: str, api: str) -> None:
    devices, make = STRATEGIES[name]
    results = []
    for where in (["CPU:0"] * len(devices), devices):
        with make(where) as world:
            results.append(everywhere(world, APIS[api]))
    for on_cpus, on_gpus in zip(*results, strict=True):
        assert_alike(on_gpus, on_cpus, rtol=1e-3, atol=1e-4)


OVERFLOWS = [(name, loop) for name in STRATEGIES for loop in (False, True)]
FIRST_OVERFLOWS = [
    (name, loop)
    for name, loop in OVERFLOWS
    if (name in LOOPED if loop else name not in (*MIXED, "ps through sockets"))
]


@pytest.mark.parametrize(
    ("name", "loop"),
    matrix(FIRST_OVERFLOWS, rest=[cell for cell in OVERFLOWS if cell not in FIRST_OVERFLOWS]),
)
def test_a_gradient_that_overflows_is_left_out_as_on_cpus(name: str, loop: bool) -> None:
    devices, make = STRATEGIES[name]
    results = []
    for where in (["CPU:0"] * len(devices), devices):
        with make(where) as world:
            results.append(everywhere(world, lambda strategy, _: overflowing(strategy, loop)))
    for (on_cpus, scale), (on_gpus, same) in zip(*results, strict=True):
        assert scale == same == 2048
        assert_alike(on_gpus, on_cpus, rtol=2e-3, atol=1e-5)
        assert abs(on_cpus[0]).max() > 0.05  # the second step is made


def layers() -> list[Any]:
    return [Dense(16, "tanh"), Dropout(0.3), BatchNorm(), Dense(3, "softmax")]


def split_layers(how: str) -> list[Any]:
    return [Dense(16, "tanh", split=how), Dense(3, "softmax")]


def embedding() -> list[Any]:
    return [Embedding(12, 4), Flatten(), Dense(3, "softmax")]


IN_GRAPH: dict[str, tuple[int, int, Callable[[], list[Any]], dict[str, Any]]] = {
    "one tower": (1, 1, layers, {}),
    "two towers": (2, 1, lambda: layers()[:2] + layers()[3:], {}),
    "two towers without servers": (2, 0, embedding, {}),
    "stages": (2, 1, lambda: layers()[:2] + layers()[3:], {"stages": 2, "micro_batches": 2}),
    "stages, 1f1b": (
        2,
        0,
        lambda: layers()[:2] + layers()[3:],
        {"stages": 2, "micro_batches": 2, "schedule": "1f1b"},
    ),
    "split by columns": (2, 1, lambda: split_layers("columns"), {}),
    "split by rows": (2, 1, lambda: split_layers("rows"), {}),
}
ALIKE = ("stages, 1f1b", "split by rows")
"""What differs from another one in the order or in the axis only, and so in nothing of the devices."""


@pytest.mark.parametrize(
    ("name", "data"),
    matrix(
        [*((name, "client") for name in IN_GRAPH if name not in ALIKE), ("stages", "workers")],
        rest=[*((name, "client") for name in ALIKE), ("two towers", "workers")],
    ),
)
def test_towers_on_gpus_compute_what_one_cpu_does(town: Callable[..., Any], name: str, data: str) -> None:
    workers, servers, made, options = IN_GRAPH[name]
    x, y = points(45)
    if made is embedding:
        x = np.arange(45)[:, None] % 12
    found = []
    optimizer = SGD(0.3) if made is embedding else Adam(0.01)  # which differ for rows and whole tables
    for strategy in (town(workers, servers, gpus=True, data=data), OneDeviceStrategy()):
        with use(context(strategy, "CPU:0" if found else "GPU:0")):  # that of the task which runs the body
            model = Sequential(made(), **options)
            model.compile(optimizer, metrics=["accuracy"])
            history = model.fit(
                Dataset.from_arrays(x, y).shuffle(50).batch(10), epochs=2, validation_data=(x, y)
            )
        found.append([*model.get_weights(), *map(np.array, history.history.values())])
    assert_alike(*found, rtol=1e-3, atol=1e-4)


def test_asynchronous_towers_on_gpus(town: Callable[..., Any]) -> None:
    with use(context(town(2, 1, gpus=True, synchronous=False), "GPU:0")):
        model = Sequential(layers())
        model.compile(SGD(0.1))
        history = model.fit(Dataset.from_arrays(*points(45)).batch(10), epochs=2)
    assert history.global_step == 2 * 2 * 5
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def cost_of_a_step(name: str, api: Callable[[Strategy, int], object]) -> dict[str, float]:
    """Return what a further step of all replicas costs."""
    devices, make = STRATEGIES[name]
    found = []
    for steps in (2, 6):
        with make(devices) as world:
            counts.clear()
            everywhere(world, lambda strategy, _, steps=steps: api(strategy, steps))
            found.append(counts.copy())
    return {name: (number - found[0][name]) / 4 for name, number in found[1].items()}


def fit_steps(strategy: Strategy, steps: int) -> None:
    """Train 784-100-10 on batches of 16."""
    x, y = np.random.default_rng(0).random((16, 784), np.float32), np.arange(16) % 10
    with strategy.scope():
        model = Sequential([Dense(100, "relu"), Dense(10, "softmax")], seed=1)
        model.compile(Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(Dataset.from_arrays(x, y).batch(16).repeat(), steps_per_epoch=steps, epochs=1)


@pytest.mark.parametrize("name", ["ps", "ps, asynchronous", "central"])
def test_what_a_step_with_parameters_on_the_host_costs(name: str) -> None:
    """A replica waits for its loss and for its gradients; each is one copy, as parameters are."""
    step, replicas = cost_of_a_step(name, fit_steps), len(STRATEGIES[name][0])
    assert step["host wait"] <= 2 * replicas
    assert step["bytes to host"] == (12 + GRADIENTS) * replicas
    assert step["copy to device"] <= 3 * replicas
    assert step["launch"] <= 17 * replicas
    assert not step["pinned bytes"]


def test_elastic_replicas_copy_only_in_an_exchange() -> None:
    """There is one in two steps."""
    step = cost_of_a_step("elastic", fit_steps)
    assert step["host wait"] == 2 * (1 + 0.5)
    assert step["bytes to host"] == 2 * (12 + GRADIENTS / 2)
    assert step["copy to device"] <= 2 * 2.5
    assert step["launch"] <= 2 * 19


def test_a_replica_has_two_pinned_buffers() -> None:
    """One for parameters and one for gradients, of exactly their size, whatever the number of servers."""
    devices, make = STRATEGIES["ps"]
    with make(devices) as world:
        counts.clear()
        everywhere(world, lambda strategy, _: fit_steps(strategy, 2))
    assert counts["pinned bytes"] == len(devices) * 2 * GRADIENTS


def test_a_loop_waits_once_for_what_a_step_returns() -> None:
    def steps(strategy: Strategy, count: int) -> None:
        with strategy.scope():
            model = Sequential([Dense(3)], seed=1)
            optimizer = SGD(0.1)

        def step(x: Any) -> Any:
            loss = np.mean(np.square(model(x)))
            optimizer.minimize(loss)
            return {"loss": loss, "outputs": model(x), "large": loss > 1}

        data = Dataset.from_arrays(np.ones((64, 4), np.float32)).batch(64).repeat()
        for number, batch in enumerate(strategy.distribute_dataset(data)):
            if number == count:
                break
            found = strategy.run(step, (batch,))
            assert {name: value.dtype.kind for name, value in found.items()} == {
                "loss": "f",
                "outputs": "f",
                "large": "b",
            }

    assert cost_of_a_step("one_device", steps)["host wait"] == 1


def test_a_process_that_joins_a_loop_receives_what_the_gpu_has() -> None:
    held = backend.backend("GPU:0").asarray(np.arange(3.0))
    (received,) = unpack_joined(pack_joined(JoinedState({"step": 7}, [held]))).arrays
    np.testing.assert_array_equal(received, [0, 1, 2])
