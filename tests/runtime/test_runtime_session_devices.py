"""A task with two devices: each has its executor, its program and its variables' memory."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
from fake_cupy import FakeCupy, bytes_made, counts
from runtime_tasks import ONE, PS, Tasks, all_ways, begin
from waiting import until

from nbdist.errors import InvalidArgumentError, ResourceExhaustedError
from nbdist.graph import backend
from nbdist.graph.ops.accumulators import ConditionalAccumulator
from nbdist.graph.scopes import device
from nbdist.graph.tensor import Graph, Variable, placeholder
from nbdist.nn.functional import sigmoid, sparse_softmax_cross_entropy
from nbdist.optim import SGD, Adam
from nbdist.runtime.server import Server
from nbdist.train import (
    MonitoredTrainingSession,
    StopAtStepHook,
    SyncReplicasOptimizer,
    get_or_create_global_step,
)


@pytest.fixture(autouse=True)
def gpu(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Give worker 0 a GPU, with a stand-in for CuPy that takes no host arrays."""
    module = FakeCupy()
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    tasks["worker0"].sessions.kinds = ("CPU:0", "GPU:0")
    return module


@all_ways
def test_values_cross_between_the_devices_of_a_task(graph: Graph, tasks: Tasks) -> None:
    x = placeholder(np.float64, (None,), name="x")
    with device(f"{ONE}/device:GPU:0"):
        w = Variable(np.array([1.0, 2.0]), name="w")
        on_gpu = x * w
        trained = w.assign_sub(on_gpu * 0.5)
    with device(f"{ONE}/device:CPU:0"):
        on_cpu = np.sum(on_gpu) + 1
    with device(PS):
        far = on_cpu * 10 + w[0]
    with tasks.session() as session:
        assert f"{ONE.replace('/task', '/replica:0/task')}/device:GPU:0" in session.devices
        begin(session)
        values = session.run([far, on_cpu, on_gpu, trained], {x: [1.0, 1.0]})
        assert values[:2] == [41, 4]
        np.testing.assert_array_equal(values[2], [1, 2])
        np.testing.assert_array_equal(values[3], [0.5, 1])
        with tasks.session(isolate=True) as alone:
            begin(alone)
            np.testing.assert_array_equal(alone.run(w), [1, 2])
            assert len(tasks["worker0"].sessions.store.names()) == 2
        until(lambda: tasks["worker0"].sessions.store.names() == ["w"])
        np.testing.assert_array_equal(session.run(w), [0.5, 1])


def test_a_server_of_another_host_offers_its_gpus() -> None:
    cluster = {"worker": ["127.0.0.1:0"]}
    server = Server(cluster, start=False, devices=("CPU:0", "gpu:0", "/device:GPU:1", "GPU:0"))
    assert [one.rpartition("device:")[2] for one in server.sessions.devices] == ["CPU:0", "GPU:0", "GPU:1"]
    server.close()
    with pytest.raises(InvalidArgumentError, match="no backend for device 'NPU:0'; expected CPU:<i> or GPU"):
        Server(cluster, devices=["NPU:0"])


def test_a_device_that_a_task_has_not(graph: Graph, tasks: Tasks) -> None:
    with device("/job:worker/task:1/device:GPU:0"):
        w = Variable(1.0, name="w")
        y = w * 2
    with (
        tasks.session() as session,
        pytest.raises(
            InvalidArgumentError, match=r"multiply.*there are .*/task:0/device:GPU:0.*soft_placement"
        ),
    ):
        session.run(y)
    with tasks.session(allow_soft_placement=True) as session:
        begin(session)
        assert session.run(y) == 2
        assert session.plan(y).placement["w"] == "/job:worker/replica:0/task:1/device:CPU:0"


def test_any_gpu_is_one_of_those_that_are_known(graph: Graph, tasks: Tasks) -> None:
    with device("/job:worker/device:GPU:0"):
        y: Any = Variable(1.0, name="w") * 2
    with tasks.session(target=tasks["worker1"].target) as session:
        assert session.plan(y).placement[y.name] == "/job:worker/replica:0/task:0/device:GPU:0"


@all_ways
def test_an_accumulator_on_a_gpu_gives_arrays_there(graph: Graph, tasks: Tasks) -> None:
    with device(f"{ONE}/device:GPU:0"):
        w = Variable(np.array([1.0, 2.0]), name="w")
        gradients = ConditionalAccumulator(np.float64, (2,))
        given = gradients.apply_grad(w * 2)
        taken = gradients.take_grad(1) + w
        more = gradients.num_accumulated() + np.int64(1)
    with tasks.session() as session:
        begin(session)
        session.run(given)
        assert session.run(more) == 2
        np.testing.assert_array_equal(session.run(taken), [3, 6])


def test_a_step_of_a_session_runs_as_cuda_graphs(graph: Graph, tasks: Tasks) -> None:
    """Also its changes of variables, and with the learning rate that a variable has in each step."""
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(20, 6)).astype(np.float32), rng.integers(0, 3, 20)
    values = [rng.normal(size=shape).astype(np.float32) for shape in ((6, 8), (8,), (8, 3))]
    found, launches = [], []
    for kind in ("CPU", "GPU"):
        with Graph().as_default() as own, device(f"{ONE}/device:{kind}:0"):
            x, y = placeholder(np.float32, (20, 6)), placeholder(np.int64, (20,))
            w, b, v = (Variable(value, name=f"{kind}{i}") for i, value in enumerate(values))
            loss = sparse_softmax_cross_entropy(y, sigmoid(x @ w + b) @ v).mean()
            rate = Variable(np.float32(0.1), trainable=False, name=f"{kind}rate")
            step = Adam(rate).minimize(loss)
            slower = rate.assign(rate * np.float32(0.5))
        with tasks.session(own) as session:
            begin(session)
            for number in range(6):
                counts.clear()
                found.append(session.run([loss, step], {x: rows, y: labels})[0])
                launches.append((counts["launch"], counts["host wait"]))
                if number == 3:
                    session.run(slower)
            found += session.run([w, b, v])
    for cpu, gpu in zip(found[:9], found[9:], strict=True):
        np.testing.assert_allclose(gpu, cpu, rtol=1e-4, atol=1e-5)
    assert launches[6][0] > 20
    assert set(launches[8:]) == {(4 + 5 + 2, 1)}  # graphs, matrix products and copies of the feeds


def test_a_session_without_memory_names_variables_and_buffers(
    graph: Graph, tasks: Tasks, gpu: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = placeholder(np.float32, (64, 300), name="x")
    with device(f"{ONE}/device:GPU:0"):
        w = Variable(np.ones((300, 500), np.float32), name="weights")
        y = np.sum(np.tanh(x @ w))

    def full(shape: Any, *more: Any, **named: Any) -> Any:
        raise MemoryError("Out of memory allocating 128,000 bytes")

    with tasks.session() as session:
        begin(session)
        monkeypatch.setattr(gpu, "empty", full, raising=False)
        with pytest.raises(ResourceExhaustedError) as caught:
            session.run(y, {x: np.zeros((64, 300), np.float32)})
    text = str(caught.value)
    for part in (
        "128,000 bytes",
        "'weights'",
        "(300, 500) float32 0.6 MB",
        "of buffers; the largest",
        "smaller batch",
    ):
        assert part in text, text


def test_a_monitored_session_makes_synchronous_steps_on_a_gpu(graph: Graph, tasks: Tasks) -> None:
    """Accumulators and tokens are on the host of the task; the program around them is on its GPU."""
    with device(f"{ONE}/device:GPU:0"):
        w = Variable(np.array([1.0, 2.0]), name="w")
        steps = get_or_create_global_step()
        optimizer = SyncReplicasOptimizer(SGD(0.25), 1, total_num_replicas=1)
        train = optimizer.minimize(np.sum(np.square(w)), steps)
    hook = optimizer.make_session_run_hook(is_chief=True)
    with MonitoredTrainingSession(tasks.target, hooks=[hook, StopAtStepHook(last_step=4)]) as session:
        while not session.should_stop():
            session.run(train)
    with tasks.session(graph) as after:
        value, made = after.run([w, steps])
    assert made >= 4
    np.testing.assert_array_equal(value, np.array([1.0, 2.0]) / 2**made)


@all_ways
def test_a_piece_computes_on_the_gpu_that_it_names(
    graph: Graph, tasks: Tasks, gpu: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current GPU is a property of a thread, and an executor's thread begins with GPU 0."""
    monkeypatch.setattr(tasks["worker0"].sessions, "kinds", ("CPU:0", "GPU:0", "GPU:1"))
    made = bytes_made[1]
    with device(f"{ONE}/device:GPU:1"):
        w = Variable(np.array([1.0, 2.0]), name="w")
        on_second = w * 3
        trained = w.assign_add(on_second)
    with device(f"{ONE}/device:GPU:0"):
        on_first = trained * 2
    with tasks.session() as session:
        begin(session)
        np.testing.assert_array_equal(session.run(on_first), [8, 16])
        assert bytes_made[1] > made
        np.testing.assert_array_equal(session.run(w), [4, 8])
