"""Arguments of Keras that nbdist's models, layers and callbacks do not have, and what to do instead.

@keras_arguments("fit")
def fit(self, data, y=None, *, epochs=1): ...

model.fit(x, y, validation_split=0.2)       # InvalidArgumentError: fit has no validation_split: hold ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from nbdist.errors import InvalidArgumentError, choices

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_X = "the examples are the first argument, the labels the second"
_VERBOSE = (
    "leave it out. fit prints a line for each epoch, which %%capture hides, and the live view shows the rest"
)
_QUIET = "leave it out: nothing is printed"
_WEIGHTS = (
    "models of nb.nn count all examples alike. Write a loop with strategy.run, whose loss you weigh, or "
    "train a model of Keras with nb.frameworks.keras.wrap"
)
_LOAD = "give Dataset.map(function, workers=4).prefetch(), which reads ahead"
_STEPS = "give the part of the data that you mean: Dataset.take(steps), or rows of the arrays"
_ROWS = "leave it out: the rows are computed in blocks, and the result does not depend on it"
_AFTER = "nothing is called between batches: write a loop over the batches of a Dataset"
_COMPILED = "leave it out: steps are always compiled"
_REGULARIZER = (
    "give the optimizer weight_decay=..., or add the penalty to the loss in a loop with strategy.run"
)
_CONSTRAINT = "change the weights in a callback: on_epoch_end, model.set_weights"
_SEED = "give the model a seed: Sequential(layers, seed=0), or the run: --seed 0"
_INPUT = "leave it out: the model takes the shape from the data, or from model.build(shape)"
_LAST = "the channels are the last axis: np.moveaxis(x, 1, -1)"

_ANY_LAYER = {
    "name": "layers have no names: they are model.layers[number]",
    "dtype": "weights are float32; model.compile(precision='mixed_float16') computes in float16",
    "trainable": "set it afterwards: layer.trainable = False",
    "input_shape": _INPUT,
    "input_dim": _INPUT,
    "kernel_regularizer": _REGULARIZER,
    "bias_regularizer": _REGULARIZER,
    "activity_regularizer": _REGULARIZER,
    "embeddings_regularizer": _REGULARIZER,
    "beta_regularizer": _REGULARIZER,
    "gamma_regularizer": _REGULARIZER,
    "kernel_constraint": _CONSTRAINT,
    "bias_constraint": _CONSTRAINT,
    "embeddings_constraint": _CONSTRAINT,
    "beta_constraint": _CONSTRAINT,
    "gamma_constraint": _CONSTRAINT,
    "seed": _SEED,
    "data_format": _LAST,
    "axis": "the last axis is normalised: np.moveaxis(x, axis, -1)",
    "mask_zero": "models of nb.nn have no masks: train a model of Keras with nb.frameworks.keras.wrap",
    "noise_shape": "elements are dropped one by one: write a layer of your own (nb.nn.Layer)",
    "synchronized": "each replica normalises its share of a batch; LayerNorm does not depend on the share",
}

_CLIPPED = "the optimizer clips gradients: nb.optim.SGD(clipnorm=...)"
_AVERAGED = "average the weights in a callback: on_epoch_end, model.get_weights"
ATTRIBUTES: dict[str, str] = {
    **{name: what for name, what in _ANY_LAYER.items() if name.endswith(("_regularizer", "_constraint"))},
    **dict.fromkeys(("clipnorm", "clipvalue", "global_clipnorm"), _CLIPPED),
    "use_ema": _AVERAGED,
    "weight_decay": "the optimizer has it: nb.optim.SGD(weight_decay=...)",
    "stop_training": "a callback sets its own: self.stop_training = True",
    "run_eagerly": _COMPILED,
    "jit_compile": _COMPILED,
}
"""What to do instead of an attribute of Keras that is set on a layer, a model or an optimizer."""

_RULE = {
    "lr": "it is called learning_rate",
    "decay": "give a schedule as learning_rate: nb.optim.schedules",
    "betas": "they are called beta_1 and beta_2",
    "eps": "it is called epsilon",
    **dict.fromkeys(("use_ema", "ema_momentum", "ema_overwrite_frequency"), _AVERAGED),
    "loss_scale_factor": "give the optimizer as nb.optim.LossScaleOptimizer",
    "name": "optimizers have no names",
}
_SCHEDULE = {
    "name": "schedules have no names",
    "cycle": "give CosineDecayRestarts, which begins again",
}

INSTEAD: dict[str, dict[str, str]] = {
    "fit": {
        "x": _X,
        "verbose": _VERBOSE,
        "validation_split": "hold rows out, of shuffled ones: fit(x[:n], y[:n], "
        "validation_data=(x[n:], y[n:]))",
        "shuffle": "arrays are shuffled; for their order give Dataset.from_arrays(x, y).batch(32)",
        "class_weight": _WEIGHTS,
        "sample_weight": _WEIGHTS,
        "initial_epoch": "give the epochs that are left, or continue a run with --resume",
        "validation_steps": _STEPS,
        "validation_batch_size": _ROWS,
        "validation_freq": "validation_data is evaluated after each epoch; for other times call "
        "model.evaluate in a callback",
        "workers": _LOAD,
        "use_multiprocessing": _LOAD,
        "max_queue_size": _LOAD,
    },
    "compile": {
        "loss_weights": "models of nb.nn have one output, and one loss",
        "weighted_metrics": _WEIGHTS,
        "run_eagerly": _COMPILED,
        "steps_per_execution": _COMPILED,
        "jit_compile": _COMPILED + "; XLA compiles them under --strategy tpu",
        "auto_scale_loss": "give the optimizer as nb.optim.LossScaleOptimizer, or leave it out",
    },
    "evaluate": {
        "x": _X,
        "batch_size": _ROWS,
        "verbose": _QUIET,
        "sample_weight": _WEIGHTS,
        "steps": _STEPS,
        "callbacks": _AFTER,
        "return_dict": "leave it out: the result is a dict",
    },
    "predict": {"batch_size": _ROWS, "verbose": _QUIET, "steps": _STEPS, "callbacks": _AFTER},
    "EarlyStopping": {
        "verbose": _QUIET,
        "restore_best_weights": "give ModelCheckpoint(save_best_only=True), and nb.nn.load the file",
    },
    "LearningRateScheduler": {"verbose": _QUIET},
    "ReduceLROnPlateau": {"verbose": _QUIET},
    "ModelCheckpoint": {
        "verbose": _QUIET,
        "save_weights_only": "leave it out: a file has the model with its weights",
        "save_freq": "leave it out: it saves after epochs. --checkpoint-every 500 saves states by steps",
    },
    "CSVLogger": {},
    **dict.fromkeys(("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"), _RULE),
    **dict.fromkeys(
        (
            "CosineDecay",
            "CosineDecayRestarts",
            "ExponentialDecay",
            "OneCycle",
            "PiecewiseConstantDecay",
            "PolynomialDecay",
        ),
        _SCHEDULE,
    ),
}
"""What to do instead of an argument of Keras, by function or class; layers have a common table."""


class KerasAttributes:
    """Refuses to set attributes of Keras that have no effect on an object of nbdist's own classes.

    None and False ask for nothing, and may be set.

    >>> class Ours(KerasAttributes): limit = 1
    >>> Ours.__module__ = "nbdist.nn"
    >>> Ours().run_eagerly = True
    Traceback (most recent call last):
        ...
    nbdist.errors.InvalidArgumentError: Ours has no run_eagerly: leave it out: steps are always compiled
    """

    if not TYPE_CHECKING:  # a type checker would allow all names

        def __setattr__(self, name: str, value: object) -> None:
            kind = type(self)
            if (
                name in ATTRIBUTES
                and value is not None
                and value is not False
                and kind.__module__.startswith("nbdist.")
                and not any(
                    name in {*vars(one), *vars(one).get("__annotations__", ())} for one in kind.__mro__
                )
            ):
                raise InvalidArgumentError(f"{kind.__name__} has no {name}: {ATTRIBUTES[name]}")
            super().__setattr__(name, value)


def keras_class(kind: type[T]) -> type[T]:
    """Have a class whose ``__init__`` is generated refuse arguments, as :func:`keras_arguments` does."""
    made: Any = kind
    made.__init__ = keras_arguments(kind.__name__)(made.__init__)
    return kind


def keras_arguments(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a method refuse arguments that it lacks by a sentence: what Keras's has, and what is misspelt.

    - ``name``: what messages call it; its row in `INSTEAD`, or a layer's name
    """
    instead = INSTEAD.get(name, _ANY_LAYER)

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        parameters = list(inspect.signature(method).parameters.values())[1:]
        known = [one.name for one in parameters]
        by_position = sum(one.kind == one.POSITIONAL_OR_KEYWORD for one in parameters)

        @wraps(method)
        def checked(*given: P.args, **named: P.kwargs) -> R:
            for one in named:
                if one not in known:
                    what = instead.get(one) or choices(one, known)
                    raise InvalidArgumentError(f"{name} has no {one}: {what}")
            if len(given) - 1 > by_position:
                raise InvalidArgumentError(
                    f"{name} takes {', '.join(known[:by_position])} by position, and got "
                    f"{len(given) - 1} arguments: write the others with their names, such as "
                    f"{known[-1] if by_position == len(known) else known[by_position]}=..."
                )
            return method(*given, **named)

        return checked

    return decorate
