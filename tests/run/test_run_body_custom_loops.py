"""Custom loops on real engines, under every strategy: the results equal those of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from recording_view import RecordingView
from waiting import until

from nbdist.errors import WorkerError
from nbdist.run.options import Options
from nbdist.run.recovery import shutdown
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.train.context import Context, use

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines


def stopped(run: Run) -> None:
    """Stop a run after it begins to train, and wait for its end."""
    until(lambda: "loss" in run.store.series and run.store.last(0, "loss"), during=run)
    run.stop()
    run.wait()


LOOP = """
import numpy as np
rng = np.random.default_rng(0)
y = np.arange(61) % 3
x = (rng.normal(size=(61, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
data = nb.data.Dataset.from_arrays(x, y).shuffle(61, seed=3).batch(20)
strategy = nb.get_strategy()
with strategy.scope():
    model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dropout(0.2), nb.nn.Dense(3, "softmax")], seed=1)
    optimizer = nb.optim.SGD(0.3)
    seen = nb.Variable(np.float32(0), aggregation="sum", synchronization="on_read")

def step(x, y):
    each = nb.nn.losses.sparse_categorical_crossentropy(y, model(x, training=True))
    count = nb.get_replica_context().all_reduce("sum", np.float32(len(x)))
    loss = nb.nn.compute_average_loss(each, count)
    optimizer.minimize(loss)
    seen.assign_add(np.float32(len(x)))
    return loss, each

losses, means = [], []
for epoch in range(3):
    for batch in strategy.distribute_dataset(data):
        loss, each = strategy.run(step, batch)
        losses.append(float(strategy.reduce("sum", loss)))
        means.append(float(strategy.reduce("mean", each, axis=0)))
total = float(strategy.read(seen))
replicas = strategy.num_replicas_in_sync
"""


@pytest.fixture
def no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a long step finish on a busy machine: no stop sends a signal."""
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 60.0)
    monkeypatch.setattr(shutdown, "REPLACE_AFTER", 120.0)


@pytest.fixture
def begin(cluster: Cluster) -> Callable[..., Run]:
    def begin_one(body: Any, **options: Any) -> Run:
        return start_run(body, Options(**options), cluster=cluster, make_view=lambda run: RecordingView())

    return begin_one


def here() -> dict[str, Any]:
    """Run the loop on one device of this process."""
    import nbdist as nb

    found: dict[str, Any] = {"nb": nb}
    with use(Context(seed=7, quiet=True)):
        exec(LOOP, found)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "ps", "synchronous": True},
        {"strategy": "mirrored"},
        {"strategy": "multi_worker"},
        {"strategy": "central"},
        {"strategy": "one_device"},
    ],
    ids=lambda options: options["strategy"],
)
def test_a_loop_on_engines_equals_one_device(begin: Callable[..., Run], options: dict[str, Any]) -> None:
    run = begin(LOOP, seed=7, fetch=("losses", "means", "total", "replicas"), **options).wait()
    expected = here()
    assert run.results["replicas"] == (1 if options["strategy"] == "one_device" else len(run.tasks))
    np.testing.assert_allclose(run.results["losses"], expected["losses"], rtol=1e-4)
    np.testing.assert_allclose(run.results["means"], expected["means"], rtol=1e-4)
    assert run.results["total"] == 3 * 61
    for replica in range(len(run.tasks)):  # the live curves
        point = run.store.last(replica, "loss")
        assert point is not None
        assert point.step in (11, 12)  # the last batch has one example
        assert 0 < point.value < 2
    assert {span.name for span in run.timeline().spans} >= {"step"}
    for ours, theirs in zip(run.model.get_weights(), expected["model"].get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("options", [{"strategy": "ps"}, {"strategy": "elastic", "every": 3}], ids=str)
def test_independent_replicas(begin: Callable[..., Run], options: dict[str, Any]) -> None:
    """Each replica trains on all the data; its reductions return its own value."""
    run = begin(LOOP, fetch=("losses", "total", "replicas"), **options).wait()
    assert run.results["replicas"] == 1
    assert run.results["total"] == 3 * 61
    untrained = here()["losses"][0]  # not this replica's first update: others may have pushed earlier
    assert np.mean(run.results["losses"][-4:-1]) < untrained  # the last epoch, less the batch of one example
    assert run.global_step == (len(run.tasks) if options["strategy"] == "ps" else 1) * 12


def test_an_error_in_a_loop_is_the_bodys_error(begin: Callable[..., Run]) -> None:
    body = LOOP.replace("    return loss, each", "    return float(loss)")
    with pytest.raises(WorkerError, match="step was being traced"):
        begin(body, strategy="ps", synchronous=True).wait()


ENDLESS = """
import numpy as np
strategy = nb.get_strategy()
with strategy.scope():
    w, optimizer = nb.Variable(np.float32(3), name="w"), nb.optim.SGD(0.001)

def step(x):
    loss = nb.nn.compute_average_loss(np.square(x * w), 6)
    optimizer.minimize(loss)
    return loss

for x in strategy.distribute_dataset(nb.data.Dataset.range(600).batch(6).repeat()):
    loss = strategy.reduce("sum", strategy.run(step, (x / 600,)))
value = float(strategy.read(w))
"""


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "ps", "synchronous": True},
        {"strategy": "ps"},
        {"strategy": "multi_worker"},
        {"strategy": "elastic", "every": 3},
    ],
    ids=str,
)
def test_a_stop_ends_the_loop_and_the_rest_of_the_body_runs(
    begin: Callable[..., Run], options: dict[str, Any], no_signal: None
) -> None:
    run = begin(ENDLESS.replace('    loss = strategy.reduce("sum", ', "    loss = ("), **options)
    stopped(run)
    assert run.status == "stopped"
    assert run.global_step > 0
    assert run.results["value"] < 3


@pytest.mark.parametrize(
    "options", [{"strategy": "multi_worker"}, {"strategy": "ps", "synchronous": True}], ids=str
)
def test_a_stop_in_the_middle_of_a_reduction(
    begin: Callable[..., Run], options: dict[str, Any], no_signal: None
) -> None:
    """The stop reaches replicas at different steps; synchronous replicas end together."""
    run = begin(ENDLESS, **options)
    stopped(run)
    assert run.status == "stopped"
    assert run.results["value"] < 3


BARE = """
import numpy as np
strategy = nb.get_strategy()
with strategy.scope():
    w, optimizer = nb.Variable(np.zeros(2, np.float32)), nb.optim.SGD(0.1)
def step(x):
    optimizer.minimize(np.mean((x @ w - 1) ** 2))
for x in strategy.distribute_dataset(nb.data.Dataset.from_arrays(np.ones((8, 2), np.float32)).batch(4)):
    strategy.run(step, (x,))
"""

NAMES_IT = """
import numpy as np
model = nb.nn.Sequential([nb.nn.Dense(1)])
model.compile("sgd", "mse", precision="mixed_float16")
model.fit(np.ones((8, 2)), np.ones((8, 1)))
"""


def test_a_precision_that_no_model_has_computed_in_is_named(begin: Callable[..., Run]) -> None:
    options = {"strategy": "multi_worker", "precision": "mixed_float16"}
    [said] = begin(BARE, **options).wait().notes
    assert said.startswith("--precision had no effect: models of nb.nn and nb.frameworks.torch.fit compute")
    for obeys in (LOOP, NAMES_IT):
        assert [note for note in begin(obeys, **options).wait().notes if "no effect" in note] == []


def test_a_strategy_of_an_earlier_cell_is_refused(begin: Callable[..., Run]) -> None:
    begin(LOOP, seed=7, strategy="multi_worker").wait()
    with pytest.raises(
        WorkerError, match=r"belongs to a run that has ended.*strategy = nb\.get_strategy\(\)"
    ):
        begin("loss = strategy.run(step, (x[:20], y[:20]))", strategy="multi_worker").wait()
