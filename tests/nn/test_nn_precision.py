"""Mixed precision: what is float16, how good it is, and the scale of the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset, digits
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NanLossError
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Tensor, Variable, placeholder
from nbdist.nn import (
    Activation,
    BatchNorm,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    MaxPool2D,
    Reshape,
    Sequential,
)
from nbdist.nn.layers import Layer
from nbdist.optim import SGD, Adam, LossScaleOptimizer, from_config
from nbdist.optim.precision import LossScale
from nbdist.run.options import Options
from nbdist.runtime.session.session import Session
from nbdist.train.context import Context, use
from nbdist.train.options import TrainingOptions

MIXED = "mixed_float16"


def images() -> Sequential:
    layers = [
        Reshape((8, 8, 1)), Conv2D(8, 3, activation="relu"), BatchNorm(0.8), MaxPool2D(2), Flatten(),
        Dropout(0.1), Dense(32, activation="gelu"), LayerNorm(), Dense(10), Activation("softmax"),
    ]  # fmt: skip
    return Sequential(layers, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "epochs"),
    [
        (lambda: Sequential([Dense(64, activation="relu"), Dense(10, activation="softmax")], seed=1), 8),
        (images, 2),
    ],
    ids=["dense", "convolution"],
)
def test_mixed_precision_is_as_good_as_float32(make: Callable[[], Sequential], epochs: int) -> None:
    x, y, x_test, y_test = digits()
    accuracy = {}
    for precision in ("float32", MIXED):
        model = make()
        model.compile(Adam(0.003), metrics=["accuracy"], precision=precision)
        model.fit(Dataset.from_arrays(x, y).shuffle(len(x), seed=3).batch(64), epochs=epochs)
        accuracy[precision] = model.evaluate(x_test, y_test)["accuracy"]
        assert all(w.dtype == np.float32 for w in model.weights)
        assert model.predict(x_test[:3]).dtype == np.float32
    assert accuracy["float32"] > 0.7
    assert accuracy[MIXED] > accuracy["float32"] - 0.02


def test_products_are_float16_and_sums_float32() -> None:
    model = images()
    model.compile("adam", precision=MIXED)
    x, y, *_ = digits()
    model.fit(Dataset.from_arrays(x[:64], y[:64]).batch(64))
    dtypes: dict[str, set[Any]] = {}
    for t in model.graph.tensors:
        dtypes.setdefault(t.type, set()).add(t.dtype)
    half, single = {np.dtype(np.float16)}, {np.dtype(np.float32)}
    for name in ("matmul", "conv2d", "conv2d_to_kernel", "max_pool2d", "relu_grad"):
        assert dtypes.get(name, half) == half, name
    assert dtypes["matmul"] == half
    for name in ("softmax", "mean", "sparse_cross_entropy", "Variable"):
        assert dtypes[name] == single, name


def test_a_layer_says_what_it_computes_in() -> None:
    seen: dict[str, Any] = {}

    class Sums(Layer):
        computes_in = "float32"

        def build(self, shape: Any, rng: Any) -> dict[str, Any]:
            return {"w": np.ones(shape, np.float32)}

        def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
            seen[type(self).__name__] = x.dtype, weights["w"].dtype
            return x * weights["w"]

    class Scales(Sums):
        computes_in = "policy"

    model = Sequential([Embedding(5, 3), Sums(), Scales(), Flatten()], seed=0)
    model.compile("sgd", "mse", precision=MIXED)
    model.fit(np.zeros((4, 2), np.int64), np.zeros((4, 6), np.float32))
    assert seen == {"Sums": (np.float32, np.float32), "Scales": (np.float16, np.float16)}


def test_the_runs_precision_is_that_of_models_without_one() -> None:
    x, y = np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32)
    model, single = (Sequential([Dense(1)], seed=0).build((2,)) for _ in range(2))
    model.compile("sgd", "mse")
    single.compile("sgd", "mse", precision="float32")
    with use(Context(options=TrainingOptions(precision=MIXED), quiet=True)):
        for one in (model, single):
            one.fit(x, y)
    assert (model.loss_scale, single.loss_scale) == (2.0**15, None)
    model.fit(x, y)
    assert model.loss_scale is None
    again = Sequential.from_config(single.to_config())
    assert again.precision == "float32"


def test_a_gradient_that_overflows_at_a_scale_of_1_is_an_error() -> None:
    model = Sequential([Dense(1, kernel_initializer="zeros")])
    model.compile(LossScaleOptimizer(SGD(0.1), initial_scale=2), "mse", precision=MIXED)
    data = Dataset.from_arrays(np.full((8, 1), 6e4, np.float32), np.ones((8, 1), np.float32)).batch(2)
    with pytest.raises(NanLossError, match=r"a gradient is .* at step 2"):
        model.fit(data)
    assert model.loss_scale == 1


def test_the_scale_shrinks_at_once_and_grows_after_some_steps() -> None:
    scale = LossScale(8.0, growth_steps=2)
    found = []
    for finite in (True, True, True, False, True, True, False, False, False, False, False, False):
        scale.update(finite)
        found.append(scale.value)
    assert found == [8, 16, 16, 8, 8, 16, 8, 4, 2, 1, 1, 1]
    assert not scale.can_shrink
    array = scale.array(np)
    scale.restore(64.0, 1)
    assert (float(array), float(scale.twin().array(np))) == (64, 64)


def test_bfloat16_belongs_to_xla_and_numpy_computes_in_float32() -> None:
    x, y = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    model, plain = (Sequential([Dense(5, "tanh"), Dense(2)], seed=1) for _ in range(2))
    model.compile("sgd", "mse", precision="mixed_bfloat16")
    plain.compile("sgd", "mse")
    data = Dataset.from_arrays(x, y).batch(4)
    with pytest.raises(InvalidArgumentError, match=r"'mixed_bfloat16' is for --strategy tpu.*no bfloat16"):
        model.fit(data)
    plain.build((3,))
    np.testing.assert_array_equal(model.predict(x), plain.predict(x))
    assert model.evaluate(data) == plain.evaluate(data)
    with Graph().as_default(), Session() as session:
        fed = placeholder(np.float32, (4, 3), name="x")
        value = model(fed)
        with pytest.raises(InvalidArgumentError, match="NumPy has no bfloat16: train it with --strategy tpu"):
            session.run(value, {fed: x})
    with pytest.raises(InvalidArgumentError, match="--precision mixed_bfloat16 belongs to --strategy tpu"):
        Options(strategy="multi_worker", precision="mixed_bfloat16")


def test_settings_that_cannot_be() -> None:
    model = Sequential([Dense(1)])
    with pytest.raises(InvalidArgumentError, match="mixed_float16"):
        model.compile("sgd", "mse", precision="mixed_float61")
    for settings in ({"initial_scale": 0.5}, {"initial_scale": "big"}, {"dynamic_growth_steps": 0}):
        with pytest.raises(InvalidArgumentError, match=next(iter(settings))):
            LossScaleOptimizer(SGD(), **settings)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="inner"):
        LossScaleOptimizer(LossScaleOptimizer(SGD()))

    class Wide(Dense):
        def build(self, shape: Any, rng: Any) -> dict[str, Any]:
            return {name: w.astype(np.float64) for name, w in super().build(shape, rng).items()}

    wide = Sequential([Wide(1)])
    wide.compile("sgd", "mse", precision=MIXED)
    with pytest.raises(InvalidArgumentError, match=r"'kernel' of Wide.* is float64"):
        wide.build((2,))


def test_a_loss_scale_optimizer_has_a_config_and_needs_a_strategy() -> None:
    optimizer = LossScaleOptimizer(Adam(0.5), initial_scale=64)
    again = from_config(optimizer.to_config())
    assert repr(again) == repr(optimizer)
    again.learning_rate = 0.25
    assert isinstance(again, LossScaleOptimizer)
    assert (again.inner.learning_rate, optimizer.learning_rate) == (0.25, 0.5)
    with Graph().as_default():
        w = Variable(np.ones(2, np.float32))
        x = placeholder(np.float32, (2,))
        with pytest.raises(FailedPreconditionError, match=r"strategy\.run"):
            optimizer.minimize(np.sum(w * x))
