"""Sessions with pieces on TPUs, for which devices of the CPU stand in: the values of NumPy, to rounding.

The sessions are in this process, which loads no JAX; two engines compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiers import matrix

from nbdist.data.dataset import Dataset
from nbdist.data.recipe import describe
from nbdist.errors import InvalidArgumentError, OutOfRangeError
from nbdist.graph.ops.accumulators import ConditionalAccumulator
from nbdist.graph.ops.datasets import DatasetSource
from nbdist.graph.scopes import device
from nbdist.graph.tensor import Graph, Variable, constant, placeholder, record
from nbdist.graph.variables import get_variable, global_variables_initializer
from nbdist.nn.functional import embedding_lookup, sparse_softmax_cross_entropy
from nbdist.optim import SGD, Adam
from nbdist.runtime.session.session import Session
from nbdist.train import (
    MonitoredTrainingSession,
    Saver,
    StopAtStepHook,
    SyncReplicasOptimizer,
    get_or_create_global_step,
)

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

ONE, TWO = "/job:worker/task:0", "/job:worker/task:1"
RNG = np.random.default_rng(0)
ROWS, IDS, LABELS = (
    RNG.normal(size=(32, 12)).astype(np.float32),
    RNG.integers(0, 20, (32, 3)),
    RNG.integers(0, 5, 32),
)


@pytest.fixture(scope="module")
def tpus(own_home: Path) -> Iterator[Cluster]:
    """Two workers, started with eight devices of the host's CPU in place of TPUs."""
    from nbdist.cluster.launch import start_cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
        cluster = start_cluster(workers=2, report=None)
    yield cluster
    cluster.stop()


@pytest.fixture(autouse=True)
def emptied(tpus: Cluster) -> Iterator[None]:
    """Remove the variables of a test after it."""
    yield
    Session.reset(tpus.target)


def network(first: str, second: str) -> tuple[dict[Any, Any], list[Any], list[Any]]:
    """Make a model on two devices; return feeds, (loss, train op, step), and its variables."""
    x, ids = placeholder(np.float32, (None, 12)), placeholder(np.int64, (None, 3))
    labels = placeholder(np.int64, (None,))
    with device(first):
        step = get_or_create_global_step()
        table = get_variable("table", (20, 4), initializer="random_normal")
        w = get_variable("w", (24, 16))
        rows = np.reshape(embedding_lookup(table, ids), (-1, 12))
        hidden = np.tanh(np.concatenate([x, rows], axis=1) @ w)
    with device(second):
        v, b = get_variable("v", (16, 5)), get_variable("b", (5,), initializer="zeros")
        loss = np.mean(sparse_softmax_cross_entropy(labels, hidden @ v + b))
    train = Adam(0.01).minimize(loss, global_step=step)
    return {x: ROWS, ids: IDS, labels: LABELS}, [loss, train, step], [table, w, v, b]


def trained(cluster: Cluster, first: str, second: str) -> list[Any]:
    """Return the losses of some steps, and the variables after them."""
    with Graph().as_default() as graph:
        feeds, fetches, variables = network(first, second)
        with Session(cluster.target, graph) as session:
            session.run(global_variables_initializer(graph))
            losses = [session.run(fetches, feeds)[0] for _ in range(5)]
            few = {t: value[:7] for t, value in feeds.items()}  # another shape
            losses.append(session.run(fetches[0], few))
            found = [np.array(losses), *session.run([*variables, fetches[2]])]
    Session.reset(cluster.target)
    return found


@pytest.fixture(scope="module")
def on_a_cpu(tpus: Cluster) -> list[Any]:
    """What `trained` returns without a TPU."""
    return trained(tpus, f"{ONE}/device:CPU:0", f"{ONE}/device:CPU:0")


@pytest.mark.parametrize(
    ("first", "second"),
    matrix(
        [("TPU:0", "task:0/device:TPU:3"), ("CPU:0", "task:1/device:TPU:0")],
        rest=[("TPU:7", "task:1/device:CPU:0")],
    ),
)
def test_a_model_on_tpus_trains_as_on_a_cpu(
    tpus: Cluster, on_a_cpu: list[Any], first: str, second: str
) -> None:
    found = trained(tpus, f"{ONE}/device:{first}", f"/job:worker/{second}")
    for array, value in zip(found, on_a_cpu, strict=True):
        np.testing.assert_allclose(array, value, rtol=1e-4, atol=1e-5)


def where(session: Session, v: Any) -> str:
    """Return the device that holds a variable."""
    return session.devices_of([v])[v][1]


def test_variables_live_there_and_are_set_saved_and_restored(tpus: Cluster, tmp_path: Path) -> None:
    with Graph().as_default() as graph, device(f"{ONE}/device:TPU:2"):
        v = Variable(np.arange(3, dtype=np.float64), name="v")
        count = Variable(np.int64(2**40), name="count")
        more = v.assign_add(np.ones(3))
        counted = count.assign_add(1)
        with Session(tpus.target, graph) as session:
            session.run(global_variables_initializer(graph))
            np.testing.assert_array_equal(session.run(more), [1, 2, 3])
            assert session.run(counted) == 2**40 + 1
            path = Saver().save(session, str(tmp_path / "v.ckpt"))
            session.set_value(v, [7, 8, 9])
            np.testing.assert_array_equal(session.run(v), [7, 8, 9])
            Saver().restore(session, path)
            np.testing.assert_array_equal(session.run(v * 2), [2, 4, 6])
            assert where(session, v) == "TPU:2"


def test_a_monitored_session_makes_synchronous_steps(tpus: Cluster, tmp_path: Path) -> None:
    """Accumulators and tokens stay on the host of the task; the functions around them are on its TPU."""
    for last_step in (3, 5):  # the second continues from a checkpoint
        with Graph().as_default() as graph:
            with device(f"{ONE}/device:TPU:0"):
                w = Variable(np.array([1.0, 2.0]), name="w")
                step = get_or_create_global_step()
                optimizer = SyncReplicasOptimizer(SGD(0.25), 1, total_num_replicas=1)
                train = optimizer.minimize(np.sum(np.square(w)), step)
            hooks = [optimizer.make_session_run_hook(is_chief=True), StopAtStepHook(last_step=last_step)]
            with MonitoredTrainingSession(
                tpus.target, checkpoint_dir=str(tmp_path), hooks=hooks, save_checkpoint_steps=1
            ) as session:
                while not session.should_stop():
                    session.run(train)
            with Session(tpus.target, graph) as after:
                value, made = after.run([w, step])
        assert made >= last_step
        np.testing.assert_array_equal(value, np.array([1.0, 2.0]) / 2**made)
        Session.reset(tpus.target)


def test_accumulators_on_a_tpu_give_values_there(tpus: Cluster) -> None:
    with Graph().as_default() as graph, device(f"{ONE}/device:TPU:1"):
        w = Variable(np.array([1.0, 2.0]), name="w")
        gradients = ConditionalAccumulator(np.float64, (2,))
        given = gradients.apply_grad(w * 2)
        taken = gradients.take_grad(1) + w
        with Session(tpus.target, graph) as session:
            session.run(global_variables_initializer(graph))
            session.run(given)
            np.testing.assert_array_equal(session.run(taken), [3, 6])


def test_a_dataset_is_read_on_the_host_for_a_tpu(tpus: Cluster) -> None:
    steps, arrays = describe(Dataset.from_arrays(ROWS).batch(20))
    with Graph().as_default() as graph, device(f"{TWO}/device:TPU:1"):
        source = DatasetSource(steps, arrays)
        total = np.sum(np.square(source.part(source.next(), 0, (None, 12), np.float32)))
        with Session(tpus.target, graph, allow_soft_placement=True) as session:
            found = [session.run(total) for _ in range(2)]
            with pytest.raises(OutOfRangeError, match="has ended after 2 batches"):
                session.run(total)
            assert session.plan(total).placement[total.name].endswith("task:1/device:TPU:1")
    np.testing.assert_allclose(found, [np.sum(ROWS[:20] ** 2), np.sum(ROWS[20:] ** 2)], rtol=1e-5)


def test_graphs_that_differ_in_a_constant_are_two_programs(tpus: Cluster) -> None:
    for value in (1, 2):
        with Graph().as_default() as graph, device(f"{ONE}/device:TPU:1"):
            y = np.sum(placeholder(np.int64, (4000,), name="x") + constant(np.full(4000, value)))
            with Session(tpus.target, graph) as session:
                assert session.run(y, {graph.tensor("x"): np.zeros(4000, int)}) == 4000 * value


def test_what_a_tpu_lacks_is_an_error_or_runs_on_the_cpu(tpus: Cluster) -> None:
    with Graph().as_default() as graph:
        ids = placeholder(np.int64, (4,), name="ids")
        with device(f"{TWO}/device:TPU:0"):
            w = Variable(np.arange(9.0), name="w")
            distinct = record("distinct_rows", ids, rows=9)
            picked = record("gather_rows", w * 2, distinct)
        with device(f"{ONE}/device:TPU:8"):
            ninth = w + 1
        feeds = {ids: [5, 2, 5, 8]}
        refused: list[Callable[[Session], Any]] = [lambda s: s.run(picked, feeds), lambda s: s.run(ninth)]
        with Session(tpus.target, graph) as session:
            session.run(global_variables_initializer(graph))
            for run, text in zip(
                refused,
                (r"'distinct_rows'.*cannot be placed on /job:worker/replica:0/task:1/device:TPU:0.*values",
                 r"'add'.*no device '/job:worker/task:0/device:TPU:8' here; there are .*device:TPU:7"),
                strict=True,
            ):  # fmt: skip
                with pytest.raises(InvalidArgumentError, match=text):
                    run(session)
        with Session(tpus.target, graph, allow_soft_placement=True) as session:
            np.testing.assert_array_equal(session.run(picked, feeds), [4, 10, 16])
            plan = session.plan(picked, feeds)
            assert plan.placement[distinct.name].endswith("task:1/device:CPU:0")
            assert plan.placement[picked.name].endswith("task:1/device:CPU:0")
            assert plan.placement[picked.inputs[0].name].endswith("task:1/device:TPU:0")
            np.testing.assert_array_equal(session.run(ninth), np.arange(9) + 1)


def test_a_step_is_traced_function_by_function(tpus: Cluster) -> None:
    with Graph().as_default() as graph:
        feeds, (loss, train, _), _ = network(f"{ONE}/device:TPU:0", f"{ONE}/device:TPU:1")
        with Session(tpus.target, graph) as session:
            session.run(global_variables_initializer(graph))
            _, timeline = session.trace([loss, train], feeds)
    lanes = [(span.lane, span.kind) for span in timeline.spans]
    assert lanes.count(("TPU:0", "send")) == lanes.count(("TPU:1", "receive"))
    assert ("TPU:0", "apply") in lanes
    assert ("TPU:1", "apply") in lanes


def test_a_host_without_tpus_says_so(cluster: Cluster) -> None:
    with Graph().as_default() as graph, device(f"{ONE}/device:TPU:0"):
        y = Variable(1.0, name="of no TPU") * 2
        with (
            Session(cluster.target, graph) as session,
            pytest.raises(
                InvalidArgumentError, match=r"worker/task:0: JAX has no TPU; XLA_FLAGS=--xla_force"
            ),
        ):
            session.run(y)
        with Session(cluster.target, graph, allow_soft_placement=True, isolate=True) as session:
            session.run(global_variables_initializer(graph))
            assert session.run(y) == 2
