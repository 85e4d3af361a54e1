"""`FrameworkModel` with a framework made of NumPy: what the training loop asks of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset
from nbdist.distribute import MirroredStrategy
from nbdist.errors import InvalidArgumentError, NanLossError
from nbdist.frameworks.clipping import clipped_by_norm, clipped_by_value
from nbdist.frameworks.trainable import FrameworkModel
from nbdist.optim import SGD
from nbdist.train.context import Context, use
from nbdist.train.loop import train

X = np.arange(20, dtype=np.float32).reshape(10, 2) % 7
Y = X @ np.array([1.0, -2.0], np.float32)


class Linear(FrameworkModel):
    """A linear model with a squared error, which counts its steps in a state."""

    def __init__(self) -> None:
        super().__init__([("w", np.zeros(2, np.float32))], ["error"], [("steps", np.zeros((), np.int64))])
        self.weights: list[float] = []
        self.nan_at = -1

    def bind(self, values: Sequence[Any]) -> None:
        (self.w,) = values

    def compute(
        self,
        batch: Any,
        gradients: Sequence[Any],
        weight: float,
        loss_scale: float,
        ready: Callable[[int], object],
    ) -> Sequence[Any]:
        x, y = batch
        steps = self.states[0][1]
        steps += 1
        self.weights.append(weight)
        residual = x @ self.w - y
        gradients[0][...] = weight * 2 * (x.T @ residual) / len(x)
        if steps == self.nan_at:
            gradients[0][0] = np.nan
        ready(0)
        return float((residual**2).mean()), np.abs(residual).mean()


def fit(model: Linear, data: Dataset, nan: str = "stop", context: Context | None = None, **how: Any) -> Any:
    with use(context or Context(quiet=True)):
        return train(model, data, SGD(0.01), epochs=2, nan=nan, **how)


def test_a_framework_trains_through_the_loop_in_its_own_arrays() -> None:
    model, expected = Linear(), np.zeros(2, np.float32)
    own = model.variables[0][1]
    history = fit(model, Dataset.from_arrays(X, Y).batch(4))
    for _ in range(2):
        for at in (0, 4, 8):
            x, y = X[at : at + 4], Y[at : at + 4]
            expected = expected - 0.01 * 2 * x.T @ (x @ expected - y) / len(x)
    np.testing.assert_allclose(own, expected, rtol=1e-5)
    assert model.weights == [1.0] * 6
    assert model.all_arrays([own])[1] == 6
    assert history["error"][1] < history["error"][0]
    assert history["loss"][1] < history["loss"][0]


def test_each_update_is_made_at_its_scheduled_rate_times_what_a_user_asks_for() -> None:
    class Seen(Linear):
        def compute(self, *arguments: Any) -> Sequence[Any]:
            rates.append(context.progress.learning_rate)
            if len(rates) == 4:
                context.control.set_rate(0.8)
            return super().compute(*arguments)

    rates: list[float | None] = []
    context = Context(quiet=True)
    model, data = Seen(), Dataset.from_arrays(X, Y).batch(4)
    fit(model, data, context=context, rate_at=lambda updates, epoch: (1 + 9 * epoch) / 2**updates)
    # The fifth would be 10 / 16, the sixth 10 / 32: 0.8 takes the place of the fifth one.
    assert rates == pytest.approx([1, 1 / 2, 1 / 4, 10 / 8, 0.8, 0.4])


def test_the_gradients_of_an_update_can_be_changed_as_a_whole() -> None:
    seen: list[float] = []

    def clip(gradients: Sequence[Any], values: Sequence[Any]) -> None:
        assert values[0] is model.w
        clipped_by_norm(1.0, gradients, values)
        clipped_by_value(0.5, gradients, values)
        seen.append(float(np.abs(gradients[0]).max()))

    model, before = Linear(), np.zeros(2, np.float32)
    fit(model, Dataset.from_arrays(X, Y).batch(10), before_update=clip)
    assert seen == [0.5, 0.5]
    assert np.abs(model.variables[0][1] - before).max() == pytest.approx(2 * 0.01 * 0.5)


def test_a_gradient_that_is_no_number_is_never_applied() -> None:
    model = Linear()
    model.nan_at = 2
    with pytest.raises(NanLossError, match="a gradient is NaN at step 2"):
        fit(model, Dataset.from_arrays(X, Y).batch(5))
    model = Linear()
    model.nan_at = 2
    fit(model, Dataset.from_arrays(X, Y).batch(5), nan="skip")
    assert np.isfinite(model.variables[0][1]).all()
    assert model.states[0][1] == 1  # a step that is left out gives states their values back, each time


def test_what_no_strategy_can_train_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="one with an array of <U1: encode it"):
        fit(Linear(), Dataset.from_arrays(X, np.array(["a"] * 10)).batch(5))
    towers = Context(strategy=MirroredStrategy(["CPU:0", "CPU:0"]), quiet=True)
    with pytest.raises(InvalidArgumentError, match=r"one replica in each process.*without devices="):
        fit(Linear(), Dataset.from_arrays(X, Y).batch(4), context=towers)
    with pytest.raises(InvalidArgumentError, match=r"--strategy tpu compiles models of nb\.nn"):
        Linear().parts(xla=True)
