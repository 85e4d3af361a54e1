"""`nb.frameworks.keras` on real engines, with both backends: `model.fit` of strategies against Keras's own.

Keras has one backend in a process; a body that wants another one imports Keras anew, which takes 2 s.
`conftest.py` lets the tests of one backend follow each other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiers import matrix

from nbdist.errors import WorkerError
from nbdist.run.options import Options
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = [pytest.mark.engines, pytest.mark.frameworks]

KERAS = """
import os, sys
os.environ["KERAS_BACKEND"] = "CHOSEN"
if "keras" in sys.modules and sys.modules["keras"].backend.backend() != "CHOSEN":
    for name in [one for one in sys.modules if one.partition(".")[0] == "keras"]:
        del sys.modules[name]
import keras, numpy as np
x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
y = (x @ np.arange(4) - 1).astype(np.float32)[:, None]
"""
MODEL = """
def make():
    first, second = (keras.initializers.GlorotUniform(seed=seed) for seed in (1, 2))
    layers = [keras.layers.Dense(5, "tanh", kernel_initializer=first, kernel_regularizer="l2"),
              keras.layers.Dense(1, kernel_initializer=second)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(OPTIMIZER, "mse", metrics=["mae"])
    return model
how = dict(batch_size=8, epochs=3, shuffle=False, verbose=0)
"""
TRAINED = """
model = nb.frameworks.keras.wrap(make())
history = model.fit(x, y, **how, **more)
weights = model.get_weights()
"""
COMPARED = (
    TRAINED
    + """
plain = make()
expected = plain.fit(x, y, **how, **more).history
own = plain.get_weights()
"""
)
SGD = "keras.optimizers.SGD(0.1, momentum=0.9)"
CLIPPED = "keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.3)"
ADAM = "keras.optimizers.Adam(0.01)"
ON = "worker:0-1"  # Keras and its backends take 10 s of CPU on each
TOGETHER = {
    "multi_worker": (Options(on=ON, strategy="multi_worker"), SGD),
    "ring": (Options(on=ON, strategy="multi_worker", collective="ring"), ADAM),
    "sharded": (Options(on=ON, strategy="sharded"), ADAM),
    "mirrored": (Options(on=ON, strategy="mirrored"), CLIPPED),
    "central": (Options(on=ON, strategy="central"), SGD),
    "ps": (Options(on=ON, strategy="ps", synchronous=True), ADAM),
}


def body(backend: str, optimizer: str, code: str, more: str = "") -> str:
    texts = KERAS.replace("CHOSEN", backend), MODEL.replace("OPTIMIZER", optimizer), f"more = dict({more})\n"
    return "".join(texts) + code


@pytest.fixture(scope="module")
def plain(cluster: Cluster) -> Callable[[str, str], list[Any]]:
    """Returns the weights that Keras trains by itself, with a backend and an optimizer."""
    known: dict[tuple[str, str], list[Any]] = {}

    def weights(backend: str, optimizer: str) -> list[Any]:
        if (backend, optimizer) not in known:
            text = body(
                backend, optimizer, "model = make(); model.fit(x, y, **how)\nfound = model.get_weights()"
            )
            results = start_run(text, Options(on="worker:0"), cluster=cluster).wait().results
            known[backend, optimizer] = results["found"]
        return known[backend, optimizer]

    return weights


def require_equal(weights: list[Any], expected: list[Any]) -> None:
    for found, one in zip(weights, expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("backend", "case"),
    matrix(
        [("torch", "multi_worker"), ("torch", "sharded"), ("jax", "mirrored"), ("jax", "ps")],
        rest=[
            *[("torch", case) for case in ("ring", "mirrored", "central", "ps")],
            *[("jax", case) for case in ("multi_worker", "ring", "sharded", "central")],
        ],
    ),
)
def test_replicas_in_step_train_as_keras_does(
    cluster: Cluster, plain: Callable[[str, str], list[Any]], case: str, backend: str
) -> None:
    options, optimizer = TOGETHER[case]
    expected = plain(backend, optimizer)
    results = start_run(body(backend, optimizer, TRAINED), options, cluster=cluster).wait().results
    require_equal(results["weights"], expected)
    assert list(results["history"].history) == ["loss", "mae"]
    names = [
        f"sequential/{layer}/{weight}" for layer in ("dense", "dense_1") for weight in ("kernel", "bias")
    ]
    assert list(results["model"]) == names
    np.testing.assert_array_equal(results["model"][names[0]], results["weights"][0])


@pytest.mark.parametrize(
    ("backend", "strategy"),
    matrix([("torch", "multi_worker")], rest=[("jax", "multi_worker"), ("torch", "sharded")]),
)
def test_metrics_are_those_of_the_whole_epoch(cluster: Cluster, backend: str, strategy: str) -> None:
    """And not means of those of batches or shares."""
    kinds = ("R2Score", "RootMeanSquaredError", "Recall")
    made = f"[{', '.join(f'keras.metrics.{kind}(name={kind!r})' for kind in kinds)}]"
    text = body(backend, SGD, COMPARED.replace("(x, y,", "(x, (y > 0) * 1.0,")).replace('["mae"]', made)
    results = start_run(text, Options(on=ON, strategy=strategy), cluster=cluster).wait().results
    require_equal(results["weights"], results["own"])
    own, expected = results["history"].history, results["expected"]
    assert own.keys() == expected.keys() == {"loss", *kinds}
    for name, values in own.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, err_msg=name)


MASKED = """
x = np.random.default_rng(1).integers(0, 5, (11, 4))
x[:, 0], x[5:, 2:] = 1, 0
y = np.random.default_rng(2).integers(0, 3, (11, 4))
def make():
    first, second = (keras.initializers.GlorotUniform(seed=seed) for seed in (1, 2))
    embedding = keras.layers.Embedding(5, 3, mask_zero=MASKS, embeddings_initializer=first)
    model = keras.Sequential([embedding, keras.layers.Dense(3, "softmax", kernel_initializer=second)])
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=IGNORED)
    model.compile(keras.optimizers.SGD(0.3), loss)
    return model
how = dict(batch_size=4, epochs=2, shuffle=False, verbose=0)
model = make()
model(x[:2])
"""


@pytest.mark.parametrize(
    ("backend", "masks", "ignored"),
    matrix(
        [("torch", "True", "None")],
        rest=[("jax", "True", "None"), ("torch", "False", "1"), ("jax", "False", "1")],
    ),
)
def test_a_masked_loss_is_that_of_keras(cluster: Cluster, backend: str, masks: str, ignored: str) -> None:
    text = KERAS.replace("CHOSEN", backend) + MASKED.replace("MASKS", masks).replace("IGNORED", ignored)
    text += "first = model.get_weights()\nmore = {}\n" + COMPARED.replace("make()", "model").replace(
        "plain = model", "plain = make(); plain(x[:2]); plain.set_weights(first)"
    )
    results = start_run(text, Options(on=ON, strategy="multi_worker"), cluster=cluster).wait().results
    require_equal(results["weights"], results["own"])
    np.testing.assert_allclose(results["history"]["loss"], results["expected"]["loss"], rtol=1e-5)
    with pytest.raises(WorkerError, match=r"counts .* where there are 2 examples .*strategy ps adds up"):
        start_run(text, Options(on=ON, strategy="ps", synchronous=True), cluster=cluster).wait()


@pytest.mark.parametrize(
    ("backend", "strategy"),
    matrix([("torch", "ps"), ("jax", "elastic")], rest=[("torch", "elastic"), ("jax", "ps")]),
)
def test_replicas_at_their_own_pace_learn(cluster: Cluster, backend: str, strategy: str) -> None:
    options = Options(on=ON, strategy=strategy, every=2 if strategy == "elastic" else None)
    text = body(backend, "'adam'", "model = nb.frameworks.keras.wrap(make())\nfound = []\n", "epochs=20")
    text += """
model.compile(keras.optimizers.Adam(0.05), "mse")
model.fit(x, y, 4, 20)
loss = float(np.mean((model.predict(x, verbose=0) - y) ** 2))
"""
    results = start_run(text, options, cluster=cluster).wait().results
    assert results["loss"] < 5.0  # the labels' variance is 14


DECAY = "keras.optimizers.schedules.PolynomialDecay(0.2, 8, 0.01)"
RATES = {
    "schedule": (f"keras.optimizers.SGD({DECAY})", "", "ring"),
    "schedule-ps": (f"keras.optimizers.Adam({DECAY})", "", "ps"),
    "scheduler": (SGD, "LearningRateScheduler(lambda epoch, rate: rate * 0.5)", "mirrored"),
    "plateau": (ADAM, "ReduceLROnPlateau('val_mae', 0.1, 1, min_delta=1e9)", "ps"),
}


AFTERWARDS = """
history = history.history
last = [float(one.optimizer.learning_rate) for one in (model, plain)]
model = nb.frameworks.keras.wrap(make())
model.fit(x, y, **how)
afterwards = model.get_weights()
plain = make()
plain.fit(x, y, **how)
expected_afterwards = plain.get_weights()
"""


@pytest.mark.parametrize(
    ("backend", "case"),
    matrix(
        [("torch", "schedule"), ("torch", "plateau"), ("jax", "scheduler")], rest=[("jax", "schedule-ps")]
    ),
)
def test_learning_rates_change_at_the_steps_of_keras(cluster: Cluster, backend: str, case: str) -> None:
    optimizer, callback, strategy = RATES[case]
    more = f"callbacks=[keras.callbacks.{callback}], validation_data=(x, y)" if callback else ""
    results = start_run(
        body(backend, optimizer, COMPARED + AFTERWARDS, more), TOGETHER[strategy][0], cluster=cluster
    ).wait().results  # fmt: skip
    require_equal(results["weights"], results["own"])
    require_equal(results["afterwards"], results["expected_afterwards"])  # a model has rates of its own
    rates = [results[name].get("learning_rate", []) for name in ("history", "expected")]
    np.testing.assert_allclose(*rates, rtol=1e-5)
    assert results["last"][0] == pytest.approx(results["last"][1])


WEIGHTS = "np.linspace(0, 2, 24, dtype=np.float32)"


@pytest.mark.parametrize(
    ("backend", "more"),
    [
        ("jax", f"sample_weight={WEIGHTS}, validation_split=0.25, steps_per_epoch=1"),
        ("torch", "class_weight={0: 0.5, 1: 3.0, -2: 2.0}, validation_split=0.25"),
    ],
)
def test_weights_and_held_out_rows_are_those_of_keras(cluster: Cluster, backend: str, more: str) -> None:
    options = Options(on=ON, strategy="multi_worker")
    results = start_run(body(backend, SGD, COMPARED, more), options, cluster=cluster).wait().results
    require_equal(results["weights"], results["own"])
    found = results["history"]["val_loss"]
    np.testing.assert_allclose(found, results["expected"]["val_loss"], rtol=1e-3)


SEVERAL = """
a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
model = keras.Model([a, b], keras.layers.BatchNormalization()(keras.layers.Dense(1)(a + b)))
model.compile("sgd", "mse")
class Seen(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        begun.append(epoch)
    def on_test_begin(self, logs=None):
        begun.append("test")
    def on_epoch_end(self, epoch, logs=None):
        seen.append((sorted(logs), error()))
        logs |= {"twice": np.float32(2 * epoch), "name": "late"}
def error():
    return float(np.square(model.predict({"a": x, "b": x}, verbose=0) - y).mean())
seen, begun = [], []
stop = keras.callbacks.EarlyStopping("val_loss", mode="max", patience=1, restore_best_weights=True)
rows = nb.data.Dataset.from_arrays({"a": x, "b": x}, y).batch(12)
history = nb.frameworks.keras.fit(model, rows, epochs=6, callbacks=[Seen(), stop], validation_data=rows)
error = error()
"""


@pytest.mark.parametrize("backend", matrix(["jax"], rest=["torch"]))
def test_callbacks_see_and_restore_the_weights_of_a_model_of_several_inputs(
    cluster: Cluster, backend: str
) -> None:
    text = KERAS.replace("CHOSEN", backend) + SEVERAL
    results = start_run(text, Options(on=ON, strategy="multi_worker"), cluster=cluster).wait().results
    seen, validated = results["seen"], results["history"]["val_loss"]
    assert seen[0][0] == ["loss", "val_loss"]
    np.testing.assert_allclose([error for _, error in seen], validated, rtol=1e-3)
    assert len(seen) == 2  # val_loss falls, and "max" calls that worse
    assert results["error"] == pytest.approx(validated[0], rel=1e-3)
    assert results["begun"] == [0, "test", 1, "test"]
    assert results["history"]["twice"] == [0, 2]


LISTS = """
def make():
    a, b = keras.Input((4,)), keras.Input((3,))
    first, second = (keras.initializers.GlorotUniform(seed=seed) for seed in (1, 2))
    heads = [keras.layers.Dense(1, kernel_initializer=one) for one in (first, second)]
    joined = keras.layers.Concatenate()([a, b])
    model = keras.Model([a, b], [head(joined) for head in heads])
    model.compile("sgd", ["mse", "mae"])
    return model
how = dict(batch_size=8, epochs=2, shuffle=False, verbose=0, validation_split=0.25)
x, y, more = [x, x[:, :3]], [y, y / 2], {}
"""
AGAIN = """
rows = [([x[0][:8], x[1][:8]], [y[0][:8], y[1][:8]])]
again = list(model.fit(rows, validation_data=rows).history)
"""


@pytest.mark.parametrize("backend", matrix(["torch"], rest=["jax"]))
def test_inputs_and_outputs_in_lists_are_those_of_keras(cluster: Cluster, backend: str) -> None:
    text = KERAS.replace("CHOSEN", backend) + LISTS + COMPARED + AGAIN
    results = start_run(text, Options(on=ON, strategy="multi_worker"), cluster=cluster).wait().results
    require_equal(results["weights"], results["own"])
    np.testing.assert_allclose(results["history"]["val_loss"], results["expected"]["val_loss"], rtol=1e-4)
    assert [name for name in results["again"] if not name.startswith("val_")] == ["loss"]


@pytest.mark.parametrize("backend", ["torch"])
def test_a_model_of_an_earlier_cell_comes_home_if_it_is_trained(cluster: Cluster, backend: str) -> None:
    made = body(backend, SGD, "net = make()")
    start_run(made, Options(on="worker:0"), cluster=cluster).wait()
    again = "history = nb.frameworks.keras.wrap(net).fit(x, y, **how)\nkernel = net.get_weights()[0]"
    run = start_run(again, Options(strategy="multi_worker", on="worker:0"), cluster=cluster).wait()
    assert run.notes == ["run.model is net, which the body has trained"]
    np.testing.assert_array_equal(next(iter(run.model.values())), run.results["kernel"])


@pytest.mark.parametrize("backend", ["torch"])
def test_a_precision_that_would_be_dropped_is_refused(cluster: Cluster, backend: str) -> None:
    text = body(backend, SGD, "nb.frameworks.keras.wrap(make())")
    options = Options(strategy="multi_worker", on="worker:0", precision="mixed_float16")
    with pytest.raises(WorkerError, match=r"drop it, and make the model with the dtype policy"):
        start_run(text, options, cluster=cluster).wait()


@pytest.mark.parametrize("backend", ["torch"])
def test_a_model_is_asked_for_no_optimizer_of_keras(cluster: Cluster, backend: str, tmp_path: Path) -> None:
    made = f"""
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.kernel = keras.layers.Dense(1)
        self.optimizer = dict(rate=0.1)
    def call(self, x):
        return self.kernel(x)
own, net = Own(), make()
own(x)
net.fit(x, y, **how)
net.save({str(tmp_path / "net.keras")!r})
"""
    run = start_run(body(backend, SGD, made), Options(on="worker:0"), cluster=cluster).wait()
    assert run.notes == ["run.model is net, which the body has trained"]
    read = f"read = keras.models.load_model({str(tmp_path / 'net.keras')!r})\nloss = read.evaluate(x, y)"
    run = start_run(read, Options(on="worker:0"), cluster=cluster).wait()
    assert (run.model, run.notes) == (None, [])  # its file counts the steps of another process


OWN = {
    "constraint": (
        "keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_constraint='non_neg')])",
        "kernel has the constraint NonNeg, and the strategy",
    ),
    "step": ("Own([keras.Input((4,)), keras.layers.Dense(1)])", "Own has a train_step of its own"),
    "loss": ("Lost([keras.Input((4,)), keras.layers.Dense(1)])", "Lost.compute_loss does not call the loss"),
}


@pytest.mark.parametrize("case", OWN)
def test_what_a_model_has_of_its_own_is_not_dropped(cluster: Cluster, case: str) -> None:
    model, message = OWN[case]
    text = (
        KERAS.replace("CHOSEN", "torch")
        + f"""
class Own(keras.Sequential):
    def train_step(self, data):
        return {{"loss": 0.0}}
class Lost(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.sum(y_pred)
model = {model}
model.compile("sgd", "mse")
nb.frameworks.keras.wrap(model).fit(x, y)
"""
    )
    with pytest.raises(WorkerError, match=message):
        start_run(text, Options(on=ON, strategy="multi_worker"), cluster=cluster).wait()


DECAYING = """
def without_decay():
    optimizer = keras.optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer
"""


@pytest.mark.parametrize(
    ("optimizer", "more", "message"),
    [
        ("keras.optimizers.Lion(0.1)", "", "has none of Keras's Lion"),
        ("keras.optimizers.SGD(0.1, use_ema=True)", "", r"SGD\(use_ema=True\) has no equal here"),
        ("'sgd'", "initial_epoch=1", "initial_epoch is not known under a strategy"),
        ("'sgd', keras.losses.MeanSquaredError('sum')", "", r"reduction='sum'\) is not a mean"),
        ("'sgd'", "validation_split=0.99", "leaves examples on both sides, got 0.99 of 24 examples"),
        ("without_decay()", "", r"AdamW.exclude_from_weight_decay\(\) has no equal here"),
    ],
    ids=["optimizer", "setting", "argument", "loss", "split", "decay"],
)
def test_what_cannot_be_followed_is_refused(
    cluster: Cluster, optimizer: str, more: str, message: str
) -> None:
    optimizer, _, loss = optimizer.partition(", keras.losses")
    text = body("jax", optimizer, "nb.frameworks.keras.wrap(make()).fit(x, y, **how, **more)", more)
    text = text.replace('"mse"', f"keras.losses{loss}" if loss else '"mse"').replace(
        "def make", DECAYING + "def make"
    )
    with pytest.raises(WorkerError, match=message):
        start_run(text, Options(on=ON, strategy="multi_worker"), cluster=cluster).wait()
