"""TPUStrategy on eight devices of the host, in one engine: the weights of one device, to rounding.

Of 75 examples in batches of 24, the last 3 cannot be divided by eight: each device has all of them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiers import matrix

from nbdist.errors import InvalidArgumentError, WorkerError
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.run.values.backfill import printed

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

ONE: dict[str, Any] = {"on": "worker:0", "seed": 7}

DATA = """
import numpy as np
rng = np.random.default_rng(0)
images = rng.normal(size=(75, 8, 8, 2)).astype(np.float32)
ids, labels = rng.integers(0, 30, (75, 5)), rng.integers(0, 4, 75)
"""
MODELS = (
    DATA
    + """
from nbdist.nn import *
from nbdist.optim import *
flat = images.reshape(75, -1)
cases = {
    "mlp": (flat, [Dense(16, "relu"), Dense(4, "softmax")], SGD(0.1)),
    "momentum": (flat, [Dense(8, "tanh"), Dense(4, "softmax")], SGD(0.1, momentum=0.9, nesterov=True)),
    "adam": (flat, [Dense(8, "gelu"), Dense(4, "softmax")], AdamW(0.01, amsgrad=True)),
    "rmsprop": (flat, [Dense(8, "sigmoid"), Dense(4, "softmax")], RMSprop(0.01, 0.9, 0.5, centered=True)),
    "adagrad": (flat, [Dense(8), LayerNorm(), Dense(4, "softmax")], Adagrad(0.1)),
    "cnn": (
        images,
        [Conv2D(4, 3, activation="relu", padding="same"), MaxPool2D(2), BatchNorm(), AveragePool2D(2),
         Flatten(), Dropout(0.4), Dense(4, "softmax")],
        SGD(0.1, momentum=0.9),
    ),
    "embedding": (ids, [Embedding(30, 6), Flatten(), Dropout(0.3), Dense(4, "softmax")], SGD(0.1)),
}
damaged = flat.copy()
damaged[30, 5] = np.nan  # the second batch is left out
cases["nan"] = (damaged, [Dense(8, "relu"), BatchNorm(), Dense(4, "softmax")], Adam(0.01))
weights, losses = {}, {}
for name in chosen:
    x, layers, optimizer = cases[name]
    model = nb.nn.Sequential(layers, seed=1)
    model.compile(optimizer, "sparse_categorical_crossentropy", ["accuracy"])
    rows = 75 if name in ("mlp", "cnn") else 72
    batches = nb.data.Dataset.from_arrays(x[:rows], labels[:rows]).batch(24)
    history = model.fit(batches, epochs=2, nan="skip")
    weights[name], losses[name] = model.get_weights(), history.history["loss"]
"""
)


def on_one_device(cluster: Cluster, body: str, **names: Any) -> Run:
    """Run a body on one device with NumPy."""
    return start_run(body, Options(strategy="one_device", **ONE), cluster=cluster, names=names).wait()


def on_eight_devices(cluster: Cluster, body: str, **names: Any) -> Run:
    """Run a body on eight devices that JAX makes of the host's CPU."""
    options = Options(strategy="tpu", host_devices=8, **ONE)
    return start_run(body, options, cluster=cluster, names=names).wait()


def check_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that arrays by name are equal, but for rounding."""
    assert found.keys() == expected.keys()
    for name, arrays in expected.items():
        for own, value in zip(found[name], arrays, strict=True):
            np.testing.assert_allclose(own, value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "chosen",
    matrix(
        [["cnn", "embedding", "adam", "nan"]],
        rest=[["mlp", "momentum", "rmsprop", "adagrad"]],
    ),
    ids=" ".join,
)
def test_models_have_the_weights_of_one_device(cluster: Cluster, chosen: list[str]) -> None:
    run = on_eight_devices(cluster, MODELS, chosen=chosen)
    expected = on_one_device(cluster, MODELS, chosen=chosen)
    check_alike(run.results["weights"], expected.results["weights"])
    check_alike(run.results["losses"], expected.results["losses"])
    assert "there is no TPU in this process: XLA on 8 CPU devices" in printed(run.folder, 0)


LOOP = (
    DATA
    + """
from nbdist.nn import *
strategy = nb.get_strategy()
flat = images.reshape(75, -1)
with strategy.scope():
    model = Sequential([Dense(8, "relu"), BatchNorm(), Dropout(0.3), Dense(4, "softmax")], seed=1)
    scale = nb.Variable(np.float32(1), name="scale")
    correct = nb.Variable(np.float32(0), trainable=False, synchronization="on_read", aggregation="sum")
    fast, slow = nb.optim.Adam(0.01), nb.optim.SGD(0.01)

def step(x, y):
    predicted = model(x, training=True)
    each = nb.nn.losses.sparse_categorical_crossentropy(y, predicted)
    loss = nb.nn.compute_average_loss(each, global_batch_size=25) * scale**2
    fast.minimize(loss, var_list=model.trainable_variables)
    slow.minimize(loss, var_list=[scale])
    correct.assign_add(np.sum(np.argmax(predicted, axis=-1) == y).astype(np.float32))
    return loss

losses = []
for epoch in range(2):
    for x, y in strategy.distribute_dataset(nb.data.Dataset.from_arrays(flat, labels).batch(25)):
        losses.append(strategy.reduce("sum", strategy.run(step, (x, y))))
looked = strategy.run(lambda x: model(x) * scale, (flat[:16],))
arrays = {"loss": losses, "looked": looked, "scale": [scale.eval()], "correct": [correct.eval()]}
arrays["weights"] = model.get_weights()
"""
)


def test_a_loop_of_ones_own_with_two_optimizers(cluster: Cluster) -> None:
    run, expected = on_eight_devices(cluster, LOOP), on_one_device(cluster, LOOP)
    check_alike(run.results["arrays"], expected.results["arrays"])


AGAIN = (
    DATA
    + """
from nbdist.nn import *
from nbdist.optim import Adam
compiled, arrays = [], {}
tried = {"first": (0.01, 0.01), "again": (0.01, 0.01), "rate": (0.02, 0.01), "epsilon": (0.01, 0.1)}
for name, (rate, epsilon) in tried.items():
    print("fit", name)
    optimizer = Adam(rate, epsilon=epsilon)
    model = Sequential([Dense(13, "relu"), Dense(4, "softmax")], seed=1)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    model.fit(nb.data.Dataset.from_arrays(images.reshape(75, -1)[:72], labels[:72]).batch(24))
    arrays[name] = model.get_weights()
"""
)


def test_a_step_compiles_once_in_a_process(cluster: Cluster) -> None:
    """The learning rate is an argument of the program, epsilon a constant in it."""
    run = on_eight_devices(cluster, AGAIN)
    of_fits = re.split(r"^fit (\w+)$", printed(run.folder, 0), flags=re.MULTILINE)[1:]
    noted = dict(zip(of_fits[::2], of_fits[1::2], strict=True))
    took = r"XLA has compiled the step for x \(24, 128\), y \(24,\) in \d+\.\d s"
    assert [name for name, text in noted.items() if re.search(took, text)] == ["first", "epsilon"]
    check_alike(run.results["arrays"], on_one_device(cluster, AGAIN).results["arrays"])


PRECISIONS = (
    DATA
    + """
from nbdist.nn import *
strategy = nb.get_strategy()
flat, rounds = images.reshape(75, -1), {}
data = nb.data.Dataset.from_arrays(flat[:72], labels[:72]).batch(24)

def fitted(policy):
    model = Sequential([Dense(16, "gelu"), LayerNorm(), Dropout(0.3), Dense(4, "softmax")], seed=1)
    model.compile(nb.optim.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", precision=policy)
    history = model.fit(data, epochs=2, validation_data=data)
    return [*model.get_weights(), history.history["val_loss"], model.predict(flat[:3])]

def pooled(policy):
    layers = [Conv2D(4, 3, activation="relu", padding="same"), MaxPool2D(2), Flatten(), Dense(4, "softmax")]
    model = Sequential(layers, seed=1)
    model.compile("sgd", "sparse_categorical_crossentropy", precision=policy)
    model.fit(nb.data.Dataset.from_arrays(images[:72], labels[:72]).batch(24))
    return model.get_weights()

def looped(policy, optimizer):
    made = nb.distribute  # a graph for each: float16 stands for one of the two in it
    own = made.TPUStrategy(host_devices=8) if strategy.name == "tpu" else made.OneDeviceStrategy()
    with own.scope():
        model = Sequential([Dense(8, "relu"), Dense(4, "softmax")], seed=1)
        model.compile("sgd", "mse", precision=policy)

    def step(x, y):
        each = nb.nn.losses.sparse_categorical_crossentropy(y, model(x, training=True))
        loss = nb.nn.compute_average_loss(each, global_batch_size=24)
        optimizer.minimize(loss, var_list=model.trainable_variables)
        return loss

    batches = own.distribute_dataset(data)
    losses = [own.reduce("sum", own.run(step, batch)) for batch in batches]
    return [losses, *model.get_weights()]

arrays = {}
for number, policy in enumerate(policies):
    scaled = nb.optim.LossScaleOptimizer(nb.optim.SGD(0.1), initial_scale=2.0**18)  # overflows once
    optimizer = scaled if policy == "mixed_float16" else nb.optim.SGD(0.1)
    if "fit" in kinds[number]:
        arrays[f"fit {number}"] = fitted(policy)
    if "pooled" in kinds[number]:
        arrays[f"pooled {number}"] = pooled(policy)
    if "loop" in kinds[number]:
        arrays[f"loop {number}"] = looped(policy, optimizer)
"""
)


@pytest.mark.parametrize(
    "kinds",
    matrix([[["fit"], ["pooled", "loop"]]], rest=[[["fit", "pooled", "loop"]] * 2]),
    ids=str,
)
def test_mixed_precision_is_within_its_rounding(cluster: Cluster, kinds: list[list[str]]) -> None:
    """In bfloat16 (8 bits) near the weights of float32; in float16 (11 bits) near those of one device."""
    run = on_eight_devices(cluster, PRECISIONS, policies=["mixed_bfloat16", "mixed_float16"], kinds=kinds)
    expected = on_one_device(cluster, PRECISIONS, policies=["float32", "mixed_float16"], kinds=kinds)
    for name, arrays in expected.results["arrays"].items():
        most = 0.03 if name.endswith("0") else 0.004
        gaps = [
            np.max(np.abs(np.subtract(a, b)))
            for a, b in zip(run.results["arrays"][name], arrays, strict=True)
        ]
        assert max(gaps) < most, (name, gaps)
        assert max(gaps) > 1e-5, f"{name} is computed in float32"
    assert "the loss scale is now" in printed(run.folder, 0)


ESTIMATOR = (
    DATA
    + """
def model_fn(features, labels, mode):
    w = nb.get_variable("w", (128, 4), initializer="zeros")
    logits = features @ w
    if mode == "infer":
        return nb.estimator.EstimatorSpec(mode, predictions=logits)
    loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(labels, logits))
    train_op = nb.optim.Adam(0.01).minimize(loss, global_step=nb.train.get_or_create_global_step())
    return nb.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

def data():
    return nb.data.Dataset.from_arrays(images.reshape(75, -1), labels).batch(24).repeat()

estimator = nb.estimator.Estimator(model_fn, folder, nb.estimator.RunConfig(save_checkpoints_steps=4))
estimator.train(data, max_steps=6)
estimator.train(data, max_steps=10)
path = nb.train.latest_checkpoint(folder)
arrays = {name: [nb.train.load_variable(path, name)] for name in ("w", "global_step")}
"""
)


def test_an_estimator_continues_from_its_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    run = on_eight_devices(cluster, ESTIMATOR, folder=str(tmp_path / "mesh"))
    expected = on_one_device(cluster, ESTIMATOR, folder=str(tmp_path / "one"))
    check_alike(run.results["arrays"], expected.results["arrays"])


LAYOUTS = (
    DATA
    + """
from nbdist.nn import *
strategy = nb.get_strategy()
meshes = {
    "batch": ({"rows": 8}, {"batch": "rows"}, (128, 16)),
    "model": ({"cols": 8}, {"hidden": "cols"}, (128, 2)),
    "both": ({"rows": 2, "cols": 4}, {"batch": "rows", "hidden": "cols"}, (128, 4)),
}
arrays, held = {}, {}

class Look(nb.train.Callback):
    def on_epoch_end(self, epoch, logs=None):
        import jax
        kernels = [a for a in jax.live_arrays("cpu") if a.shape == (128, 16)]  # a kernel, two slots
        held[name] = sorted({a.sharding.shard_shape(a.shape) for a in kernels})

for name in chosen:
    mesh, layout, part = meshes[name]
    if strategy.name == "tpu":
        strategy.mesh(**mesh).layout(**layout)
    model = Sequential(
        [Dense(16, "relu", dimension="hidden"), BatchNorm(), Dense(16, "relu"), Dense(4, "softmax")], seed=1
    )
    model.compile(nb.optim.Adam(0.01), "sparse_categorical_crossentropy")
    callbacks = [Look()] if strategy.name == "tpu" else []
    data = nb.data.Dataset.from_arrays(images.reshape(75, -1)[:72], labels[:72]).batch(24)
    model.fit(data, epochs=2, callbacks=callbacks)
    arrays[name] = model.get_weights()
parts = {name: [meshes[name][-1]] for name in chosen}
"""
)


@pytest.mark.parametrize("chosen", matrix([["both"]], rest=[["batch", "model"]]), ids=" ".join)
def test_layouts_by_name_split_batch_and_model(cluster: Cluster, chosen: list[str]) -> None:
    run = on_eight_devices(cluster, LAYOUTS, chosen=chosen)
    expected = on_one_device(cluster, LAYOUTS, chosen=chosen)
    check_alike(run.results["arrays"], expected.results["arrays"])
    assert run.results["held"] == run.results["parts"]


OPS = """
import numpy as np, jax, sys
sys.path.insert(0, "TESTS")
from op_inputs import Example, examples_of
from nbdist.graph.op import OPS
from nbdist.graph.tensor import Graph, placeholder, record
from nbdist.graph.xla.forms import FORMS
from nbdist.graph.xla.devices import wide_types
from nbdist.graph.xla.trace import pure_function

rng = np.random.default_rng(0)
besides = {
    "dropout_mask": [
        Example((np.zeros((5, 7), np.float32), np.array([3, 1, 2, 9])), {"rate": 0.4, "number": 3}),
        Example((np.zeros((2, 9), np.float32), np.array([3, 1, 2, 2**63 - 1])), {"rate": 0.1, "number": 1}),
    ],
    "one_hot": [Example((np.array([1, 0, 3]),), {"depth": 4, "dtype": np.dtype(np.float32)})],
    "sparse_cross_entropy": [
        Example((rng.normal(size=(3, 4)), rng.uniform(size=(3, 4)), np.array([1, 0, 3])), {})
    ],
}

def function_of(examples):
    with Graph().as_default():
        feeds = [[placeholder(np.asarray(a).dtype, np.shape(a)) for a in one.inputs] for _, one in examples]
        values = [record(op.name, *fed, **one.attrs) for (op, one), fed in zip(examples, feeds)]
    flat = [f for fed in feeds for f in fed]
    function = pure_function(values, feeds=flat, shapes=[f.shape for f in flat])
    return function, [np.asarray(a) for _, one in examples for a in one.inputs]

def close(value, expected):
    return value.dtype == expected.dtype and np.allclose(value, expected, 1e-6, 1e-9)

pooled = OPS["max_pool2d"]
besides["max_pool2d_which"] = [
    Example((pooled.forward(np, *one.inputs, **one.attrs), *one.inputs), one.attrs)
    for one in examples_of("max_pool2d")
]
given = {op: [*examples_of(op.name), *besides.get(op.name, ())] for op in OPS.values()}
every = [(op, one) for op, ones in given.items() for one in ones]
own = [(op, one) for op, ones in given.items() if op.name in FORMS for one in ones[:2]]
with wide_types():
    jax.eval_shape(*function_of(every), [])  # raises for an op that has no form, or another shape
    function, arrays = function_of(own)
    found, _ = jax.jit(function)(arrays, [])
    expected = [np.asarray(op.forward(np, *one.inputs, **one.attrs)) for op, one in own]
    wrong = [op.name for (op, _), a, b in zip(own, found, expected) if not close(np.asarray(a), b)]
missing = sorted(set(FORMS) - {op.name for op, _ in own})

with Graph().as_default():
    ids = placeholder(np.int64, (3,), name="ids")
    distinct = record("distinct_rows", ids, rows=5)
try:
    pure_function([distinct], feeds=[ids], shapes=[(3,)])
except nb.errors.InvalidArgumentError as error:
    refused = str(error)
"""


def test_ops_have_the_values_of_numpy(cluster: Cluster) -> None:
    body = OPS.replace("TESTS", str(Path(__file__).parent.parent))
    run = start_run(body, Options(on="worker:0"), cluster=cluster).wait()
    assert run.results["wrong"] == []
    assert run.results["missing"] == ["all_reduce", "assign", "assign_add", "assign_sub"]
    assert re.match(
        r"'distinct_rows' \(distinct_rows, made at the cell line 52\) has the shape \(\?,\), with a size",
        run.results["refused"],
    )


MISTAKES = (
    DATA
    + """
from nbdist.nn import *
strategy, refused = nb.get_strategy(), []

def fit(units, name):
    model = Sequential([Dense(units, "relu", dimension=name), Dense(4, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(nb.data.Dataset.from_arrays(images.reshape(75, -1), labels).batch(24))

for sizes, rules, units, name in (
    ({"rows": 3}, {"batch": "rows"}, 8, "hidden"),
    ({"cols": 8}, {"hidden": "cols"}, 10, "hidden"),
    ({"cols": 8}, {"hiden": "cols"}, 8, "hidden"),
):
    strategy.mesh(**sizes).layout(**rules)
    try:
        fit(units, name)
    except nb.errors.InvalidArgumentError as error:
        refused.append(str(error))
strategy.mesh(rows=8)
fit(8, None)
"""
)


def test_meshes_and_layouts_that_do_not_fit(cluster: Cluster) -> None:
    places, size, name = on_eight_devices(cluster, MISTAKES).results["refused"]
    # jax.distributed in the same process has its own device again.
    count = "import jax; jax.distributed.initialize(); devices = jax.local_device_count()"
    after = start_run(count, Options(framework="jax", on="worker:0"), cluster=cluster).wait()
    assert after.results["devices"] == 1
    assert "the mesh rows 3 has 3 places, and there are 8 devices" in places
    assert "dimension 'hidden' of 'dense/kernel' has the size 10, and 'cols' of the mesh has 8" in size
    assert "the model has no dimension 'hiden'; choose from batch, hidden; did you mean hidden?" in name


def test_several_workers_are_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidArgumentError, match=r"the run has 3 workers: add --on worker:0"):
        start_run("1", Options(strategy="tpu"), cluster=cluster)


RESUMED = (
    DATA
    + """
from dataclasses import replace
from pathlib import Path
from nbdist.nn import *

class Fail(nb.train.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and Path(r"MARKER").exists():
            raise ValueError("the second epoch failed")

model = Sequential([Dense(8, "relu"), BatchNorm(), Dropout(0.3), Dense(4, "softmax")], seed=1)
model.compile(nb.optim.Adam(0.01), "sparse_categorical_crossentropy")
data = nb.data.Dataset.from_arrays(images.reshape(75, -1)[:72], labels[:72]).shuffle(72).batch(24)
model.fit(data, epochs=3, callbacks=[Fail()])
arrays = {"weights": model.get_weights()}
"""
)


def test_a_run_continues_from_its_state(cluster: Cluster, tmp_path: Path) -> None:
    marker = tmp_path / "fail"
    body = RESUMED.replace("MARKER", str(marker))
    expected = on_one_device(cluster, body)
    marker.touch()
    options = Options(strategy="tpu", host_devices=8, checkpoint_every=1, **ONE)
    failed = start_run(body, options, cluster=cluster)
    with pytest.raises(WorkerError, match="the second epoch failed"):
        failed.wait()
    marker.unlink()
    again = start_run(body, replace(options, resume=failed.id), cluster=cluster).wait()
    check_alike(again.results["arrays"], expected.results["arrays"])
    assert again.tally.resumed_steps > 0
