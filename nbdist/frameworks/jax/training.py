"""Train a function of JAX under the strategy of the run: `fit`.

def loss(params, batch):
    x, y = batch
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

params, history = nb.frameworks.jax.fit(loss, params, (x, y), optimizer="adam", epochs=5)
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from nbdist import optim
from nbdist.data import Dataset
from nbdist.data.adapter import batches_of
from nbdist.data.foreign import to_numpy
from nbdist.errors import InvalidArgumentError, MissingExtra
from nbdist.frameworks.batches import nested
from nbdist.frameworks.jax.optimizer import OptaxOptimizer
from nbdist.frameworks.jax.step import LossFunction, spec_with_rows
from nbdist.frameworks.jax.tree import Parameters, State
from nbdist.frameworks.trainable import require_float32, require_strategy
from nbdist.graph.backend import Array
from nbdist.optim import Optimizer
from nbdist.train.callbacks import Callback, History
from nbdist.train.context import Context, current, use_here
from nbdist.train.custom.api import scoped
from nbdist.train.fit_arguments import fit_counts, own_callbacks
from nbdist.train.loop import train


class Fitted(NamedTuple):
    """What `fit` returns: the trained parameters, in the form of those given, and the History."""

    params: Any
    history: History


class FittedWithState(NamedTuple):
    """What `fit` returns for a loss with a state: that is the chief's, in the form of the one given."""

    params: Any
    state: Any
    history: History


def fit(
    loss: Callable[..., Any],
    params: Any,
    data: Any,
    *,
    optimizer: Any = "sgd",
    epochs: int = 1,
    batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    validation_data: Any = None,
    callbacks: Sequence[Callback] = (),
    nan: str = "stop",
    state: Any = None,
    normalizer: Callable[[Any], Any] | None = None,
) -> Fitted | FittedWithState:
    """Train ``params`` to make ``loss`` small, under the strategy of the surrounding run.

    In the notebook that is one device. Every replica computes ``loss`` and its gradients for its share of a
    batch in one jitted function; all begin with the chief's parameters.

    - ``loss``: a function ``loss(params, batch)`` of JAX that returns the mean over the examples of the
      batch, one float; or that and a dict of metrics, each a mean as well: sums are refused where replicas
      share batches. With a third argument it also gets
      a key for random numbers, another one for each step and replica. An argument that is called ``train``
      is True in steps and False for ``validation_data``
    - ``params``: a pytree: arrays in dicts, lists and tuples, or a module of equinox or flax. Arrays of
      float32 and float64 are trained; other leaves of a module stay as they are
    - ``data``: a Dataset of batches; arrays of examples (one, or a tuple or dict of them), which are
      shuffled; or an iterable of batches, such as a list or a loader, which begins anew for each epoch. A
      batch is that of all replicas together where they step together
    - ``optimizer``: one of ``nb.optim``, its name, or a GradientTransformation of optax, under strategies
      that keep the optimizer on the workers: not ps, nor central
    - ``epochs``: how often to go through the data, 1 or more
    - ``batch_size``: examples of a batch, for arrays; None for 32
    - ``steps_per_epoch``: steps of an epoch, 1 or more; it continues where the one before ended. None for
      one pass through the data
    - ``validation_data``: a Dataset of batches or arrays, measured after each epoch by the chief, or None
    - ``callbacks``: a list of ``nb.train.Callback``; their ``model`` is a function that returns the newest
      parameters
    - ``nan``: for steps with a NaN or infinite loss or gradient: "stop" raises NanLossError, "skip" leaves
      them out
    - ``state``: a pytree of arrays that a step changes without gradients, such as ``batch_stats`` of flax;
      None for none. ``loss(params, state, batch)`` then returns ``(mean, new state)``, or these and the dict
      of metrics. Each replica has its own; the chief's is kept, in checkpoints as well
    - ``normalizer``: a function of a batch that returns what the loss divides its sum by, 0 or more, such as
      ``lambda batch: batch["mask"].sum()``; None for the number of examples. Replicas' shares are put
      together by it. Under synchronous ps and central it has to be the number of examples

    Returns (params, history), with a state (params, state, history). Raises InvalidArgumentError for what
    cannot be trained, NanLossError, and what ``loss`` raises. Each size of a batch is compiled once:
    ``batch(n, drop_remainder=True)`` has only one.

    For example, a line through points::

        def loss(params, batch):
            x, y = batch
            return jnp.mean((x * params["w"] - y) ** 2)

        x = np.linspace(-1, 1, 64, dtype=np.float32)
        params, history = nb.frameworks.jax.fit(loss, {"w": jnp.zeros(())}, (x, 3 * x), optimizer="adam")
    """
    context = scoped() or current()
    parameters = parameters_of(params, context)
    dataset = training_data(data, batch_size)
    epochs, steps_per_epoch = fit_counts(epochs, steps_per_epoch)
    callbacks = own_callbacks(callbacks, parameters.arrays)
    kept = None if state is None else State.of(state)
    model = loss_function(loss, parameters, spec_with_rows(dataset.element_spec), context, kept, normalizer)
    chosen = optimizer_of(optimizer, model, parameters, context)
    validate: Callable[[Sequence[Array]], dict[str, float]] | None = None
    if validation_data is not None:
        held_out = training_data(validation_data, shuffle=False)
        validate = lambda values: model.evaluate(held_out, values)
    with use_here(context):
        history = train(
            model,
            nested(dataset).dataset,
            chosen,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            validate=validate,
            callbacks=callbacks,
            nan=nan,
            save=model.write,
            config=model.to_config,
        )
    if kept is None:
        return Fitted(parameters.arrays(), history)
    return FittedWithState(parameters.arrays(), kept.arrays(), history)


def parameters_of(params: Any, context: Context) -> Parameters:
    """Return the parameters of a pytree, if a training of JAX can begin here.

    Raises MissingExtra without JAX, and InvalidArgumentError for a run that has no strategy for it.
    """
    if "jax" not in sys.modules and importlib.util.find_spec("jax") is None:
        raise MissingExtra("jax", "nb.frameworks.jax, on the hosts of all workers")
    require_strategy(context, "nb.frameworks.jax")
    require_float32(context, "compute in bfloat16 inside loss")
    return Parameters.of(params)


def loss_function(
    loss: Callable[..., Any],
    parameters: Parameters,
    spec: Any,
    context: Context,
    state: State | None,
    normalizer: Callable[[Any], Any] | None = None,
) -> LossFunction:
    """Return a loss as what the training loop trains, for batches of a ``spec``."""
    if not callable(loss):
        raise InvalidArgumentError(f"loss is a function of (params, batch), got {loss!r}")
    if normalizer is not None and not callable(normalizer):
        raise InvalidArgumentError(f"normalizer is a function of a batch or None, got {normalizer!r}")
    shared = context.strategy.num_replicas_in_sync > 1
    seed = context.seed
    seed = int(np.random.default_rng().integers(1 << 62)) if seed is None else int(seed)
    return LossFunction(loss, parameters, spec, seed, context.trainings + 1, state, normalizer, shared)


def optimizer_of(optimizer: Any, model: LossFunction, parameters: Parameters, context: Context) -> Optimizer:
    """Return the optimizer of a training; raises InvalidArgumentError for one that cannot be used in it."""
    if isinstance(optimizer, (str, Optimizer)):
        return optim.get(optimizer)
    found = OptaxOptimizer(optimizer, parameters)
    strategy = context.strategy
    if not strategy.keeps_slots:
        raise InvalidArgumentError(
            f"strategy {strategy.name} applies gradients on a server, which makes an optimizer from its name "
            "and settings, and a GradientTransformation of optax is functions: give optimizer='adam' or "
            "nb.optim.Adam(0.001), or take --strategy multi_worker or elastic"
        )
    if context.states is not None and found.kept_here and context.states.are_asked_for():
        raise InvalidArgumentError(
            f"the state of this optimizer cannot be saved and continued: {', '.join(found.kept_here)} of it "
            "belongs to no parameter. Drop --checkpoint-every and --resume, or take another optimizer"
        )
    model.on_bind = found.bind
    return found


def training_data(data: Any, batch_size: int | None = None, shuffle: bool = True) -> Dataset:
    """Return what `fit` takes as data as a dataset of batches."""
    expected = "a Dataset of batches, a tuple or dict of arrays, or an iterable of batches"
    return batches_of(data, batch_size, rows=_rows, batch=as_arrays, expected=expected, shuffle=shuffle)


def _rows(data: Any) -> tuple[Any, ...] | None:
    import jax

    many = isinstance(data, (tuple, dict)) and data and all(map(is_array, jax.tree.leaves(data)))
    return (jax.tree.map(np.asarray, data),) if many or is_array(data) else None


def is_array(value: Any) -> bool:
    """Return whether a value is an array of examples, of NumPy or JAX."""
    import jax

    return isinstance(value, (np.ndarray, jax.Array)) and value.ndim > 0


def as_arrays(batch: Any) -> Any:
    """Return a batch of any framework with arrays of NumPy; lists become tuples."""
    import jax

    return jax.tree.map(np.asarray, to_numpy(batch))
