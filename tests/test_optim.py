"""Optimizers compared with their formulas in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from examples import examples
from fake_cupy import FakeCupy, counts
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist import optim
from nbdist.errors import InvalidArgumentError
from nbdist.graph import backend
from nbdist.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

Array = np.ndarray[Any, Any]
STEPS = 12


def sgd(p: Array, gradients: list[Array], rate: float) -> Array:
    for g in gradients:
        p = p - rate * g
    return p


def momentum(p: Array, gradients: list[Array], rate: float, m: float, nesterov: bool) -> Array:
    """Sutskever et al. 2013 as Keras has it."""
    v = np.zeros_like(p)
    for g in gradients:
        v = m * v - rate * g
        p = p + m * v - rate * g if nesterov else p + v
    return p


def adam(p: Array, gradients: list[Array], rate: float, b1: float, b2: float, eps: float, ams: bool) -> Array:
    """Kingma and Ba 2015, section 2 (the form with epsilon outside the correction), and Reddi et al. 2018."""
    m, v, top = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gradients, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g**2
        top = np.maximum(top, v)
        p = p - rate * np.sqrt(1 - b2**t) / (1 - b1**t) * m / (np.sqrt(top if ams else v) + eps)
    return p


def corrected_adam(p: Array, gradients: list[Array], rate: float, eps: float, ams: bool) -> Array:
    """Algorithm 1 of the same paper, with epsilon beside the corrected root, as in PyTorch."""
    m, v, top = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        top = np.maximum(top, v)
        root = np.sqrt((top if ams else v) / (1 - 0.999**t))
        p = p - rate * m / (1 - 0.9**t) / (root + eps)
    return p


def adamw(p: Array, gradients: list[Array], rate: float, decay: float) -> Array:
    """Keras' form: the parameters shrink first, by the rate times the decay."""
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gradients, 1):
        p = p - rate * decay * p
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        p = p - rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-7)
    return p


def rmsprop(p: Array, gradients: list[Array], rate: float, rho: float, m: float, centered: bool) -> Array:
    square, mean, velocity = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for g in gradients:
        square, mean = rho * square + (1 - rho) * g**2, rho * mean + (1 - rho) * g
        velocity = m * velocity + rate * g / np.sqrt(square - mean**2 * centered + 1e-2)
        p = p - velocity
    return p


def torch_momentum(p: Array, gradients: list[Array], rate: float, m: float, nesterov: bool) -> Array:
    """PyTorch's form: the rate multiplies the velocity."""
    v = np.zeros_like(p)
    for g in gradients:
        v = m * v + g
        p = p - rate * (g + m * v if nesterov else v)
    return p


def torch_rmsprop(p: Array, gradients: list[Array], rate: float, m: float, centered: bool) -> Array:
    """PyTorch's form: epsilon is added to the root, and the rate multiplies the velocity."""
    square, mean, velocity = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for g in gradients:
        square, mean = 0.8 * square + 0.2 * g**2, 0.8 * mean + 0.2 * g
        velocity = m * velocity + g / (np.sqrt(square - mean**2 * centered) + 1e-2)
        p = p - rate * velocity
    return p


def torch_adagrad(p: Array, gradients: list[Array], rate: float) -> Array:
    total = np.zeros_like(p)
    for g in gradients:
        total = total + g**2
        p = p - rate * g / (np.sqrt(total) + 1e-2)
    return p


def adagrad(p: Array, gradients: list[Array], rate: float, start: float) -> Array:
    total = np.full_like(p, start)
    for g in gradients:
        total = total + g**2
        p = p - rate * g / np.sqrt(total + 1e-7)
    return p


CASES: list[tuple[Optimizer, Callable[[Array, list[Array]], Array]]] = [
    (SGD(0.1), lambda p, gs: sgd(p, gs, 0.1)),
    (SGD(0.1, momentum=0.9), lambda p, gs: momentum(p, gs, 0.1, 0.9, False)),
    (SGD(0.1, momentum=0.5, nesterov=True), lambda p, gs: momentum(p, gs, 0.1, 0.5, True)),
    (Adam(0.01), lambda p, gs: adam(p, gs, 0.01, 0.9, 0.999, 1e-7, False)),
    (Adam(0.3, 0.5, 0.7, 1e-2), lambda p, gs: adam(p, gs, 0.3, 0.5, 0.7, 1e-2, False)),
    (Adam(0.01, amsgrad=True), lambda p, gs: adam(p, gs, 0.01, 0.9, 0.999, 1e-7, True)),
    (
        Adam(0.01, epsilon=0.1, bias_corrected_epsilon=True),
        lambda p, gs: corrected_adam(p, gs, 0.01, 0.1, False),
    ),
    (
        Adam(0.01, epsilon=0.1, amsgrad=True, bias_corrected_epsilon=True),
        lambda p, gs: corrected_adam(p, gs, 0.01, 0.1, True),
    ),
    (AdamW(0.01, weight_decay=0.1), lambda p, gs: adamw(p, gs, 0.01, 0.1)),
    (RMSprop(0.01, epsilon=1e-2), lambda p, gs: rmsprop(p, gs, 0.01, 0.9, 0.0, False)),
    (RMSprop(0.01, 0.8, 0.5, 1e-2), lambda p, gs: rmsprop(p, gs, 0.01, 0.8, 0.5, False)),
    (RMSprop(0.01, 0.8, 0.5, 1e-2, True), lambda p, gs: rmsprop(p, gs, 0.01, 0.8, 0.5, True)),
    (Adagrad(0.1), lambda p, gs: adagrad(p, gs, 0.1, 0.1)),
    (Adagrad(0.1, initial_accumulator_value=1.0), lambda p, gs: adagrad(p, gs, 0.1, 1.0)),
    (SGD(0.1, 0.9, rate_after_momentum=True), lambda p, gs: torch_momentum(p, gs, 0.1, 0.9, False)),
    (SGD(0.1, 0.9, True, rate_after_momentum=True), lambda p, gs: torch_momentum(p, gs, 0.1, 0.9, True)),
    (
        RMSprop(0.01, 0.8, 0.0, 1e-2, epsilon_outside_root=True),
        lambda p, gs: torch_rmsprop(p, gs, 0.01, 0.0, False),
    ),
    (
        RMSprop(0.01, 0.8, 0.5, 1e-2, epsilon_outside_root=True, rate_after_momentum=True),
        lambda p, gs: torch_rmsprop(p, gs, 0.01, 0.5, False),
    ),
    (
        Adagrad(0.1, initial_accumulator_value=0.0, epsilon=1e-2, epsilon_outside_root=True),
        lambda p, gs: torch_adagrad(p, gs, 0.1),
    ),
    (Adam(0.1, beta_1=0.0, beta_2=0.0), lambda p, gs: adam(p, gs, 0.1, 0.0, 0.0, 1e-7, False)),
]


def trained(optimizer: Optimizer, p: Array, gradients: list[Array]) -> Array:
    p = p.copy()
    slots = optimizer.new_slots(p)
    for step, g in enumerate(gradients, 1):
        optimizer.apply(p, g.copy(), slots, step)
    return p


@pytest.mark.parametrize(("optimizer", "formula"), CASES, ids=[repr(case[0]) for case in CASES])
@settings(deadline=None, max_examples=examples(30))
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 20), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_formula(
    optimizer: Optimizer, formula: Callable[[Array, list[Array]], Array], seed: int, size: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    p = rng.normal(size=size)
    gradients = [rng.normal(size=size) * scale * (rng.uniform() < 0.9) for _ in range(STEPS)]
    expected = formula(p, gradients)
    np.testing.assert_allclose(trained(optimizer, p, gradients), expected, rtol=1e-9, atol=1e-9)
    single = trained(optimizer, p.astype(np.float32), [g.astype(np.float32) for g in gradients])
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=2e-3, atol=2e-3 * max(scale, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("optimizer", [case[0] for case in CASES], ids=repr)
def test_a_step_on_a_gpu_is_one_kernel_with_the_same_result(
    optimizer: Optimizer, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's operations are those of NumPy, in their order; a GPU joins products and sums, though."""
    module = FakeCupy()
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    rng = np.random.default_rng(0)
    p = rng.normal(size=300).astype(dtype)
    ours, slots = module.array(p), optimizer.new_slots(p)
    theirs = {name: module.array(array) for name, array in slots.items()}
    for step in range(1, 51):
        g = rng.normal(size=300).astype(dtype)
        given = module.array(g)
        counts.clear()
        optimizer.apply(ours, given, theirs, step)
        assert counts == {"launch": 1}
        optimizer.apply(p, g, slots, step)
    np.testing.assert_array_equal(ours.get(), p)
    for name, array in slots.items():
        np.testing.assert_array_equal(theirs[name].get(), array)


def test_amsgrad_never_takes_larger_steps_than_its_largest_gradient_allows() -> None:
    gradients = [np.array([100.0]), *[np.array([0.01])] * STEPS]
    plain = trained(Adam(0.1, beta_2=0.5), np.zeros(1), gradients)
    bounded = trained(Adam(0.1, beta_2=0.5, amsgrad=True), np.zeros(1), gradients)
    assert abs(bounded[0]) < abs(plain[0])


@pytest.mark.parametrize(("optimizer", "formula"), CASES)
def test_parameters_change_in_place_and_slots_are_reused(optimizer: Optimizer, formula: Any) -> None:
    p = np.ones(4, np.float32)
    slots = optimizer.new_slots(p)
    before = {name: id(array) for name, array in slots.items()}
    view = p[:]
    optimizer.apply(p, np.ones(4, np.float32), slots, 1)
    assert view[0] != 1
    assert {name: id(array) for name, array in slots.items()} == before
    assert all(array.dtype == np.float32 and array.shape == (4,) for array in slots.values())


def test_a_rate_of_zero_changes_nothing() -> None:
    for optimizer in (SGD(0), SGD(0, momentum=0.9), Adam(0)):
        np.testing.assert_array_equal(trained(optimizer, np.ones(3), [np.ones(3)] * 3), np.ones(3))


def test_the_rate_may_change_between_steps() -> None:
    p, optimizer = np.zeros(1), SGD(1.0)
    optimizer.apply(p, np.ones(1), {}, 1)
    optimizer.learning_rate = 0.5
    optimizer.apply(p, np.ones(1), {}, 2)
    assert p[0] == -1.5
    for after, expected in ((False, -1.0 - 0.9 - 0.5), (True, -1.0 - 0.5 * 1.9)):
        p, optimizer = np.zeros(1), SGD(1.0, 0.9, rate_after_momentum=after)
        slots = optimizer.new_slots(p)
        optimizer.apply(p, np.ones(1), slots, 1)
        optimizer.learning_rate = 0.5
        optimizer.apply(p, np.ones(1), slots, 2)
        assert p[0] == pytest.approx(expected)


@pytest.mark.parametrize("optimizer", [case[0] for case in CASES], ids=repr)
def test_an_optimizer_can_be_pickled(optimizer: Optimizer) -> None:
    config = optimizer.to_config()
    assert all(isinstance(value, (str, float, int, bool)) for value in config.values())
    assert optim.from_config(config) == optimizer


def test_optimizers_by_name() -> None:
    assert optim.get("sgd") == SGD()
    assert optim.get("Adam") == Adam()
    mine = Adam(0.5)
    assert optim.get(mine) is mine
    with pytest.raises(
        InvalidArgumentError, match="no optimizer 'adamm'; choose from adagrad, adam, adamw, rmsprop, sgd"
    ):
        optim.get("adamm")
    with pytest.raises(InvalidArgumentError, match="no optimizer 3"):
        optim.get(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="SGD has no setting 'speed'"):
        optim.from_config({"name": "SGD", "speed": 3})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SGD(-0.1), "learning_rate must be 0 or more and finite, got -0.1"),
        (lambda: SGD(float("nan")), "got nan"),
        (lambda: SGD(float("inf")), "got inf"),
        (lambda: SGD("0.1"), "learning_rate is a number, got '0.1'"),
        (lambda: SGD(True), "learning_rate is a number, got True"),
        (lambda: SGD(None), "got None"),
        (lambda: SGD(0.1, momentum=1.0), "momentum must be at least 0 and below 1, got 1.0"),
        (lambda: SGD(0.1, momentum=-0.1), "momentum must be"),
        (lambda: SGD(0.1, momentum="0.9"), "momentum is a number, got '0.9'"),
        (lambda: SGD(0.1, nesterov=True), "nesterov=True needs momentum above 0"),
        (lambda: Adam(beta_1=1.0), "beta_1 must be at least 0 and below 1, got 1.0"),
        (lambda: Adam(beta_2=-1), "beta_2"),
        (lambda: Adam(beta_2=None), "beta_2 is a number, got None"),
        (lambda: Adam(epsilon=-1e-7), "epsilon must be 0 or more"),
        (lambda: Adam(epsilon="tiny"), "epsilon is a number"),
        (lambda: AdamW(weight_decay=-1), "weight_decay must be 0 or more"),
        (lambda: RMSprop(rho=1), "rho must be at least 0 and below 1"),
        (lambda: Adagrad(initial_accumulator_value=-1), "initial_accumulator_value"),
    ],
)
def test_bad_values(make: Callable[[], Optimizer], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        make()


def test_numpy_scalars_are_numbers() -> None:
    optimizer = SGD(np.float32(0.5), momentum=np.float64(0.25))  # type: ignore[arg-type]
    assert type(optimizer.learning_rate) is float
    assert type(optimizer.momentum) is float


@pytest.mark.parametrize("optimizer", [case[0] for case in CASES[3:]], ids=repr)
def test_parameters_of_many_blocks_are_updated_and_the_gradient_is_only_read(
    optimizer: Optimizer,
) -> None:
    size = 3 * optim.base.BLOCK + 7
    rng = np.random.default_rng(0)
    p, gradients = rng.normal(size=size), [rng.normal(size=size) for _ in range(3)]
    kept = [g.copy() for g in gradients]
    slots, whole = optimizer.new_slots(p), p.copy()
    for step, g in enumerate(gradients, 1):
        optimizer.apply(whole, g, slots, step)
    np.testing.assert_array_equal(gradients, kept)
    for part in (slice(0, 5), slice(size - 9, size), slice(optim.base.BLOCK - 2, optim.base.BLOCK + 2)):
        np.testing.assert_array_equal(whole[part], trained(optimizer, p[part], [g[part] for g in gradients]))
