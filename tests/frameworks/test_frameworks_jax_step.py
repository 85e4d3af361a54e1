"""`LossFunction` through the training loop in one process: keys, several replicas, what a batch may be."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset
from nbdist.distribute import MirroredStrategy
from nbdist.errors import InvalidArgumentError, NanLossError
from nbdist.optim import SGD, Adam, AdamW
from nbdist.train.callbacks import Callback
from nbdist.train.context import Context, use
from nbdist.train.resume import TrainingStates

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("compiled_once")]

X = np.arange(20, dtype=np.float32).reshape(10, 2) % 7
Y = X @ np.array([1.0, -2.0], np.float32)


def fit(loss: Any, params: Any, data: Any, **options: Any) -> Any:
    from nbdist.frameworks.jax import fit

    with use(options.pop("context", None) or Context(quiet=True, seed=5)):
        return fit(loss, params, data, **{"optimizer": "sgd", "epochs": 2, **options})


def squared(params: Any, batch: Any) -> Any:
    x, y = batch
    return ((x @ params["w"] - y) ** 2).mean()


def test_replicas_of_a_process_train_as_one_device_does() -> None:
    start, batches = {"w": np.zeros(2, np.float32)}, Dataset.from_arrays(X, Y).batch(3)  # the last has 1
    two = Context(strategy=MirroredStrategy(["CPU:0", "CPU:0"]), quiet=True, seed=5)
    alone = fit(squared, start, batches).params["w"]
    np.testing.assert_allclose(fit(squared, start, batches, context=two).params["w"], alone, rtol=1e-5)


def test_each_step_has_a_key_of_its_own() -> None:
    import jax

    def drawn(params: Any, batch: Any, key: Any) -> Any:
        x, _ = batch
        noise = jax.random.uniform(key)
        return params["w"].sum() * 0 + 0 * x.mean() + noise, {"noise": noise}

    def noise(epochs: int, seed: int = 5) -> Any:
        options = {"epochs": epochs, "context": Context(quiet=True, seed=seed)}
        return fit(drawn, {"w": np.zeros(2)}, [(X, Y)], **options).history["noise"]

    first, second = noise(2)
    assert first != pytest.approx(second)
    assert noise(1) == [first]
    assert noise(1, seed=6) != pytest.approx([first])


def test_batches_have_numbers_of_any_type_that_jax_knows() -> None:
    import jax.numpy as jnp

    narrow = np.asarray(jnp.asarray(X, jnp.bfloat16))
    start = {"w": np.zeros(2, np.float32)}
    assert np.isfinite(fit(squared, start, [(narrow, Y)]).params["w"]).all()
    with pytest.raises(InvalidArgumentError, match="the first axis of each counts the examples"):
        fit(squared, start, [(X, Y[:4])])


START = {"w": np.full(2, 0.5, np.float32)}
BATCHES = [(X[:5], Y[:5]), (X[5:], Y[5:])]  # of one size: a step is compiled once
WRONG = (np.full_like(X[:5], np.inf), Y[:5])


def optimizers() -> list[Any]:
    import optax

    rated = optax.inject_hyperparams(optax.adamw)(learning_rate=0.1)
    return [AdamW(0.1, amsgrad=True), optax.chain(optax.clip_by_global_norm(1.0), rated)]


@pytest.mark.slow
def test_step_and_update_as_one_give_what_they_give_apart() -> None:
    for one in optimizers():
        apart = Context(strategy=MirroredStrategy(["CPU:0"]), quiet=True, seed=5)
        both = [fit(squared, START, BATCHES * 3, optimizer=one, epochs=2, context=c) for c in (None, apart)]
        np.testing.assert_allclose(both[0].params["w"], both[1].params["w"], rtol=1e-4, err_msg=repr(one))
        np.testing.assert_allclose(both[0].history["loss"], both[1].history["loss"], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [0, 1, 2])
def test_updates_of_several_batches_count_themselves(replicas: int) -> None:
    """With batches of one example, the first share of the second replica is empty."""
    import jax
    import optax

    def optimizer() -> Any:
        return optax.MultiSteps(optax.adam(0.1), every_k_schedule=2).gradient_transformation()

    alone, params, batches = optimizer(), START, [(X[n : n + 1], Y[n : n + 1]) for n in range(4)]
    state, gradients = alone.init(params), jax.jit(jax.grad(squared))
    for batch in batches * 2:
        updates, state = alone.update(gradients(params, batch), state, params)
        params = optax.apply_updates(params, updates)
    context = Context(
        quiet=True, **({"strategy": MirroredStrategy(["CPU:0"] * replicas)} if replicas else {})
    )
    found = fit(squared, START, batches, optimizer=optimizer(), context=context)
    np.testing.assert_allclose(found.params["w"], params["w"], rtol=1e-4)


def test_an_optimizer_of_ones_own_updates_in_numpy() -> None:
    class Sign(SGD):
        def apply(self, parameters: Any, gradient: Any, slots: Any, step: int) -> None:
            assert isinstance(parameters, np.ndarray)
            parameters -= self.learning_rate * np.sign(gradient)

    found = fit(squared, START, BATCHES[:1], optimizer=Sign(0.25), epochs=1).params["w"]
    np.testing.assert_allclose(np.abs(found - START["w"]), 0.25)


@pytest.mark.slow
def test_an_update_with_a_gradient_that_is_nan_is_not_made() -> None:
    wrong = [*BATCHES, WRONG]
    good = fit(squared, START, BATCHES, epochs=1, optimizer=Adam(0.1)).params["w"]
    skipped = fit(squared, START, wrong, epochs=1, optimizer=Adam(0.1), nan="skip").params["w"]
    np.testing.assert_array_equal(skipped, good)
    seen = Callback()
    with pytest.raises(NanLossError, match="at step 3"):
        fit(squared, START, wrong, epochs=1, optimizer=Adam(0.1), callbacks=[seen])
    np.testing.assert_array_equal(seen.model()["w"], good)


def test_a_step_that_is_dispatched_after_one_with_nan_is_not_made() -> None:
    before, wrong, seen = BATCHES * 2, WRONG, Callback()
    with pytest.raises(NanLossError, match="at step 5"):
        fit(squared, START, [*before, wrong, *BATCHES], epochs=1, optimizer=Adam(0.1), callbacks=[seen])
    good = fit(squared, START, before, epochs=1, optimizer=Adam(0.1)).params["w"]
    np.testing.assert_array_equal(seen.model()["w"], good)
    skipped = fit(squared, START, [*before, wrong, *BATCHES], epochs=1, optimizer=Adam(0.1), nan="skip")
    all_good = fit(squared, START, BATCHES * 3, epochs=1, optimizer=Adam(0.1))
    np.testing.assert_array_equal(skipped.params["w"], all_good.params["w"])


def test_a_batch_without_examples_makes_no_update() -> None:
    nothing = (X[:0], Y[:0])
    batches = [*BATCHES, nothing, *BATCHES, nothing, *BATCHES]
    both = [fit(squared, START, data, epochs=1, optimizer=Adam(0.1)) for data in (batches, BATCHES * 3)]
    np.testing.assert_array_equal(both[0].params["w"], both[1].params["w"])
    assert [one.history.global_step for one in both] == [6, 6]


@pytest.mark.slow
def test_a_training_continues_from_its_state(tmp_path: Path) -> None:
    for number, one in enumerate(optimizers()):
        path = tmp_path / f"{number}.safetensors"
        whole = fit(squared, START, BATCHES, optimizer=one, epochs=4)
        for epochs in (2, 4):
            states = TrainingStates(write=path, read=path if path.exists() else None)
            context = Context(quiet=True, seed=5, states=states)
            ended = fit(squared, START, BATCHES, optimizer=one, epochs=epochs, context=context)
        np.testing.assert_array_equal(ended.params["w"], whole.params["w"], err_msg=repr(one))
        assert ended.history["loss"] == whole.history["loss"]


def normalized(params: Any, stats: Any, batch: Any, train: bool) -> Any:
    """Return loss, new moving averages and a metric; the pytrees are those of flax's BatchNorm."""
    x, y = batch
    old = stats["BatchNorm_0"]
    mean = x.mean(0) if train else old["mean"]
    error = (x - mean) @ params["w"] - y
    new = {"mean": 0.5 * old["mean"] + 0.5 * mean, "steps": old["steps"] + 1}
    return (error**2).mean(), {"BatchNorm_0": new}, {"error": abs(error).mean()}


STATS = {"BatchNorm_0": {"mean": np.zeros(2, np.float32), "steps": np.zeros((), np.int32)}}


@pytest.mark.slow
def test_a_state_is_what_the_last_step_has_returned(tmp_path: Path) -> None:
    import jax

    params, stats = START, STATS
    training = partial(normalized, train=True)
    step = jax.jit(jax.value_and_grad(lambda *given: training(*given)[:2], has_aux=True))
    for batch in BATCHES * 4:
        (_, stats), found = step(params, stats, batch)
        params = {"w": params["w"] - 0.01 * found["w"]}
    for strategy in (None, MirroredStrategy(["CPU:0"])):
        for epochs in (2, 4):  # the second continues from the state of the first
            path = tmp_path / f"{strategy}"
            states = TrainingStates(write=path, read=path if path.exists() else None)
            own = {} if strategy is None else {"strategy": strategy}
            context = Context(quiet=True, seed=5, states=states, **own)
            ended = fit(normalized, START, BATCHES, state=STATS, epochs=epochs, context=context)
        np.testing.assert_allclose(ended.params["w"], params["w"], rtol=1e-5)
        jax.tree.map(np.testing.assert_allclose, ended.state, stats)
    held_out = fit(normalized, START, BATCHES, state=STATS, epochs=1, validation_data=(X, Y))
    expected = normalized(held_out.params, held_out.state, (X, Y), train=False)[0]
    assert held_out.history["val_loss"][0] == pytest.approx(float(expected), rel=1e-5)
    assert int(held_out.state["BatchNorm_0"]["steps"]) == 2


def test_a_step_that_is_left_out_changes_no_state() -> None:
    wrong = [*BATCHES, WRONG]
    for strategy in (None, MirroredStrategy(["CPU:0"])):
        context = Context(quiet=True, seed=5, **({} if strategy is None else {"strategy": strategy}))
        found = fit(normalized, START, wrong, state=STATS, epochs=1, nan="skip", context=context)
        assert int(found.state["BatchNorm_0"]["steps"]) == 2
        assert np.isfinite(found.state["BatchNorm_0"]["mean"]).all()


def test_a_state_keeps_its_form() -> None:
    def returning(change: Any) -> Any:
        def loss(params: Any, stats: Any, batch: Any) -> Any:
            return change(*normalized(params, stats, batch, train=True)[:2])

        return lambda: fit(loss, START, BATCHES, state=STATS)

    with pytest.raises(InvalidArgumentError, match=r"loss returned the state .*, and took"):
        returning(lambda value, stats: (value, stats["BatchNorm_0"]))()
    with pytest.raises(InvalidArgumentError, match=r"state/BatchNorm_0/steps as float32 of shape \(\)"):
        returning(lambda value, stats: (value, {"BatchNorm_0": {**stats["BatchNorm_0"], "steps": 0.5}}))()
    with pytest.raises(InvalidArgumentError, match=r"it returns \(loss, new state\)"):
        returning(lambda value, stats: value)()
    with pytest.raises(InvalidArgumentError, match=r"takes \(params, batch\).*give state= as well"):
        fit(lambda params, stats, batch, key: 0.0, START, BATCHES)
    with pytest.raises(InvalidArgumentError, match="state/name is a str, and a state has arrays"):
        fit(normalized, START, BATCHES, state={"name": "x"})


def masked(params: Any, batch: Any) -> Any:
    x, y, mask = batch
    error = (x @ params["w"] - y) ** 2
    return (error * mask).sum() / mask.sum(), {"error": abs(x @ params["w"] - y).mean()}


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_masked_mean_is_that_of_one_device(replicas: int) -> None:
    """The last share of the last batch has nothing that counts; it is smaller than the others."""
    data = Dataset.from_arrays(X, Y, np.array([1, 0, 0, 1, 1, 1, 1, 1, 0, 0], np.float32)).batch(7)
    first = {"w": np.zeros(2, np.float32)}
    expected = fit(masked, first, data)
    context = Context(quiet=True, seed=5, strategy=MirroredStrategy(["CPU:0"] * replicas))
    found = fit(masked, first, data, context=context, normalizer=lambda batch: batch[2].sum())
    np.testing.assert_allclose(found.params["w"], expected.params["w"], rtol=1e-5)
    for name in ("loss", "error"):
        np.testing.assert_allclose(found.history[name], expected.history[name], rtol=1e-5)


def test_a_loss_is_refused_that_divides_by_what_it_computes_from_its_batch() -> None:
    import jax
    import jax.numpy as jnp

    def mean_of_some(params: Any, batch: Any) -> Any:
        return jnp.mean((batch[0] @ params["w"] - batch[1]) ** 2, where=batch[2] > 0)

    def per_example(params: Any, batch: Any) -> Any:
        lengths = jnp.linalg.norm(batch[0], axis=1) + jnp.exp(params["w"]).sum()
        return jnp.mean((batch[0] @ params["w"] / lengths - batch[1]) ** 2) / 3

    data, first = (X, Y, np.ones(10, np.float32)), {"w": np.zeros(2, np.float32)}
    two = {"context": Context(quiet=True, strategy=MirroredStrategy(["CPU:0"] * 2))}
    for loss in (masked, jax.jit(mean_of_some)):
        with pytest.raises(InvalidArgumentError, match=r"divides by a number.*give normalizer="):
            fit(loss, first, data, **two)
        fit(loss, first, data)
    fit(per_example, first, data, **two)


@pytest.mark.slow
def test_a_sum_over_the_batch_is_refused_where_replicas_share_it() -> None:
    import jax
    import jax.numpy as jnp

    def errors(params: Any, batch: Any) -> Any:
        return batch[0] @ params["w"] - batch[1]

    @jax.jit
    def divided(total: Any, number: Any) -> Any:
        return total / number

    sums: list[Any] = [
        lambda params, batch: (errors(params, batch) ** 2).sum(),
        jax.jit(lambda params, batch: jnp.vdot(errors(params, batch), errors(params, batch)) / 2),
        lambda params, batch: abs(errors(params, batch)).sum() + (errors(params, batch) ** 2).mean(),
    ]
    means: list[Any] = [
        lambda params, batch: divided((errors(params, batch) ** 2).sum(), len(batch[0])),
        lambda params, batch: (errors(params, batch) ** 2 / len(batch[0])).sum() + (params["w"] ** 2).sum(),
        lambda params, batch: (errors(params, batch) ** 2).sum() / jnp.ones(len(batch[0])).sum(),
        lambda params, batch: jnp.stack([errors(params, batch)] * 3).var(),
        lambda params, batch: (params["w"] ** 2).sum(),
    ]
    hits = lambda params, batch: (errors(params, batch).mean(), {"hits": (batch[1] > 0).sum() * 1.0})
    two = {"context": Context(quiet=True, strategy=MirroredStrategy(["CPU:0"] * 2)), "epochs": 1}
    for loss, name in [*((one, "loss") for one in sums), (hits, "metric 'hits'")]:
        with pytest.raises(InvalidArgumentError, match=f"^{name} is a sum over the examples.*jnp.mean"):
            fit(loss, START, BATCHES[:1], **two)
        fit(loss, START, BATCHES[:1], epochs=1)
    for loss in means:
        fit(loss, START, BATCHES[:1], **two)


def test_outputs_do_not_meet_the_labels_of_other_examples() -> None:
    def loss(params: Any, batch: Any) -> Any:
        x, y = batch
        return ((x @ params - y) ** 2).mean()  # (n, 1) - (n,)

    def pairs(params: Any, batch: Any) -> Any:
        x, y = batch
        return ((x @ params - y[None, :]) ** 2).mean()

    with pytest.raises(
        InvalidArgumentError, match=r"computes subtract of .* \(n, 1\) and \(n,\).*y\[:, None\]"
    ):
        fit(loss, np.zeros((2, 1), np.float32), (X, Y))
    fit(loss, np.zeros((2, 1), np.float32), (X, Y[:, None]))
    fit(pairs, np.zeros((2, 1), np.float32), (X, Y))
    fit(loss, np.zeros(2, np.float32), (X, Y))
