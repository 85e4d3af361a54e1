"""`fit` and `wrap` for a compiled model of Keras: the training loop of nbdist, under any strategy of a run.

model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model = nb.frameworks.keras.wrap(model)
history = model.fit(x, y, batch_size=64, epochs=5)      # trained by the strategy; model has the weights

The model's own loss and metrics are computed. Its optimizer is translated, since updates are made where a
strategy keeps the parameters. Moving averages and seeds are each replica's own; the chief's are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.frameworks.batches import nested
from nbdist.frameworks.keras.callbacks import KerasCallbacks
from nbdist.frameworks.keras.data import training_data
from nbdist.frameworks.keras.data import validation_data as held_out_data
from nbdist.frameworks.keras.model import KERAS_MODELS
from nbdist.frameworks.keras.optimizers import clipping, scheduled_rate, translated
from nbdist.frameworks.trainable import require_float32, require_strategy
from nbdist.graph.backend import Array
from nbdist.train.callbacks import Callback, History
from nbdist.train.context import Context, current, use_here
from nbdist.train.custom.api import scoped
from nbdist.train.fit_arguments import fit_counts, own_callbacks
from nbdist.train.loop import train


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    callbacks: Sequence[Any] | None = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    steps_per_epoch: int | None = None,
    nan: str = "stop",
) -> History:
    """Train a compiled Keras model under the strategy of the surrounding run; it ends with the weights.

    - ``model``: a built or unbuilt ``keras.Model``, compiled; all replicas begin with the chief's weights
    - ``x``: an array of examples, or for several inputs a list of arrays, in their order, or a dict of them
      by name; or an ``nb.data.Dataset`` or another iterable of batches (x, y) or (x, y, sample_weight) that
      begins anew for each epoch. A batch is that of all replicas together where they step together
    - ``y``: the labels of an array of examples, or for several outputs a list or dict of them
    - ``batch_size``: examples of a batch, for arrays; None for 32
    - ``epochs``: how often to go through the data, 1 or more
    - ``callbacks``: a list of ``keras.callbacks.Callback``, whose methods for epochs and trainings are
      called, or of ``nb.train.Callback``; one with methods for batches is refused. A learning rate that
      they set is that of the next update
    - ``validation_split``: the part of the arrays that is held out, above 0 and below 1: their last rows; 0
      for none
    - ``validation_data``: arrays (x, y) or (x, y, sample_weight), or batches, evaluated by ``model.evaluate``
      after each epoch on the chief; or None
    - ``shuffle``: whether the examples of arrays are shuffled
    - ``class_weight``: weights of classes by number, 0 or more; None for 1
    - ``sample_weight``: a weight of each example, 0 or more, for arrays; None for 1
    - ``steps_per_epoch``: steps of an epoch, 1 or more; it continues where the one before ended. None for
      one pass through the data
    - ``nan``: for steps with a NaN or infinite loss or gradient: "stop" raises NanLossError, "skip" leaves
      them out

    Returns the History. Raises InvalidArgumentError for an optimizer without an equal one here, a backend
    other than torch and JAX, a loss whose shares do not add up, and models that differ between workers;
    FailedPreconditionError before ``compile``.
    """
    import keras

    context = scoped() or current()
    epochs, steps_per_epoch = fit_counts(epochs, steps_per_epoch)
    require_trainable(model, context)
    cut = validation_split if validation_data is None else 0.0
    data, held_out = training_data(x, y, batch_size, shuffle, sample_weight, class_weight, cut)
    held_out = held_out if validation_data is None else held_out_data(validation_data)
    require_mean(model, weighted=len(data.element_spec) == 3, context=context)
    batches = nested(data)
    trained = KERAS_MODELS[keras.backend.backend()](model, data.element_spec, batches.opened)
    if context.strategy.num_replicas_in_sync > 1:
        trained.compiled.require_mean(data.element_spec)
    if steps_per_epoch is None and (passed := batches.dataset.cardinality()) is not None:
        trained.compiled.to_check = passed
    theirs = [one for one in callbacks or () if not isinstance(one, Callback)]
    validate: Callable[[Sequence[Array]], dict[str, float]] | None = None
    if held_out is not None:
        validate = partial(trained.evaluated, data=held_out)
    own = own_callbacks([one for one in callbacks or () if isinstance(one, Callback)], model)
    rate_at = scheduled_rate(model.optimizer)
    epochs = context.options.epochs or epochs
    steps = steps_per_epoch or batches.dataset.cardinality()
    adapters = [KerasCallbacks(trained, theirs, epochs, steps, rate_at is None)] if theirs else []
    try:
        with use_here(context):
            context.note_fit(model)
            return train(
                trained,
                batches.dataset,
                translated(model.optimizer),
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validate=validate,
                callbacks=[*adapters, *own],
                nan=nan,
                save=trained.write,
                config=trained.to_config,
                rate_at=rate_at,
                before_update=clipping(model.optimizer, context),
            )
    finally:
        trained.release()
        for adapter in adapters:
            adapter.restore()


def wrap(model: Any) -> Any:
    """Have ``model.fit`` train under the strategy of the surrounding run, and return the model.

    It takes the arguments of `nb.frameworks.keras.fit`, which are some of Keras's, and ``verbose``, which has
    no effect: the live view shows the training. Another argument raises InvalidArgumentError.
    """

    def fit_under_strategy(
        x: Any = None, y: Any = None, batch_size: int | None = None, epochs: int = 1, **others: Any
    ) -> History:
        others.pop("verbose", None)
        if wrong := sorted(set(others) - set(ARGUMENTS)):
            raise InvalidArgumentError(
                f"fit: {wrong[0]} is not known under a strategy; there are x, y, batch_size, epochs, "
                f"{', '.join(ARGUMENTS)}"
            )
        return fit(model, x, y, batch_size, epochs, **others)

    require_trainable(model, scoped() or current())
    model.fit = fit_under_strategy
    return model


ARGUMENTS = (
    "callbacks", "validation_split", "validation_data", "shuffle", "class_weight", "sample_weight",
    "steps_per_epoch", "nan",
)  # fmt: skip
BACKENDS = ("torch", "jax")


def require_trainable(model: Any, context: Context) -> None:
    """Raise unless a model can be trained in this process, under the strategy of a run."""
    import keras

    if not isinstance(model, keras.Model):
        raise InvalidArgumentError(f"model is a keras.Model, got {type(model).__name__}")
    backend = keras.backend.backend()
    if backend not in BACKENDS:
        raise InvalidArgumentError(
            f"Keras computes with {backend} in this process, and strategies train models of torch or jax: "
            'write os.environ["KERAS_BACKEND"] = "jax" before the first import of keras, on all workers'
        )
    require_strategy(context, "nb.frameworks.keras")
    require_float32(context, 'make the model with the dtype policy "mixed_bfloat16"')
    own = next(kind for kind in type(model).__mro__ if "train_step" in vars(kind))
    if not own.__module__.startswith("keras."):
        raise InvalidArgumentError(
            f"{own.__name__} has a train_step of its own, which a strategy does not call, since it makes the "
            "updates: compile the model with its loss, and add what is missing in compute_loss"
        )
    if not model.compiled:
        raise FailedPreconditionError("the model has no loss: call model.compile(optimizer, loss) first")


def require_mean(model: Any, weighted: bool, context: Context) -> None:
    """Raise InvalidArgumentError if the losses of shares, by their examples, do not add up to the batch's."""
    import keras

    if context.strategy.num_replicas_in_sync == 1:
        return
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        if reduction in ("sum", "none", None) or (weighted and reduction == "mean_with_sample_weight"):
            raise InvalidArgumentError(
                f"{type(loss).__name__}(reduction={reduction!r}) is not a mean over the examples, of which "
                "each replica has a share: compile the model with reduction='sum_over_batch_size'"
            )
