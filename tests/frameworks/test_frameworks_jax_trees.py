"""The pure part of `nb.frameworks.jax`: pytrees as named arrays, optax on flat arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nbdist.errors import InvalidArgumentError
from nbdist.optim import Adam

pytestmark = pytest.mark.frameworks


@pytest.mark.slow
def test_a_module_comes_apart_and_together() -> None:
    import equinox
    import jax

    from nbdist.frameworks.jax import load_state_dict, state_dict

    module = equinox.nn.MLP(3, 1, 4, 1, key=jax.random.key(0))
    arrays = state_dict(module)
    assert {name: array.shape for name, array in arrays.items()} == {
        "layers/0/weight": (4, 3), "layers/0/bias": (4,), "layers/1/weight": (1, 4), "layers/1/bias": (1,)
    }  # fmt: skip
    doubled = load_state_dict(module, {name: 2 * array for name, array in arrays.items()})
    assert doubled.activation is module.activation
    np.testing.assert_array_equal(doubled.layers[0].weight, 2 * module.layers[0].weight)
    with pytest.raises(InvalidArgumentError, match=r"layers/0/bias has shape \(4,\) in params and nothing"):
        load_state_dict(module, {n: a for n, a in arrays.items() if n != "layers/0/bias"})


@pytest.mark.parametrize("flats", [1, 2])
def test_optax_makes_the_steps_of_our_adam_on_one_flat_array_or_two(flats: int) -> None:
    import optax

    from nbdist.frameworks.jax.optimizer import OptaxOptimizer
    from nbdist.frameworks.jax.tree import Parameters

    start = {"a": np.arange(3, dtype=np.float32), "b": np.ones((2, 2), np.float32)}
    taken = OptaxOptimizer(optax.adam(0.1), Parameters.of(start))
    ours = Adam(0.1)

    def steps(optimizer: Any) -> list[float]:
        flat = np.concatenate([start["a"], start["b"].reshape(-1)])
        cuts = [flat] if flats == 1 else [flat[:3], flat[3:]]
        slots = [optimizer.new_slots(one) for one in cuts]
        if optimizer is taken:
            optimizer.bind([flat[:3], flat[3:].reshape(2, 2)])
        for step in range(1, 5):
            gradient = 2 * flat + step
            parts = [gradient] if flats == 1 else [gradient[:3], gradient[3:]]
            for one, part, kept in zip(cuts, parts, slots, strict=True):
                optimizer.apply(one, part, kept, step)
        return flat.tolist()

    assert steps(taken) == pytest.approx(steps(ours), abs=1e-4)
    assert taken.kept_here == []
