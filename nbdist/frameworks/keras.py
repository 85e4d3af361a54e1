"""Keras 3: a compiled model under the run's strategy, with torch or JAX as its backend: `fit` and `wrap`.

model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model = nb.frameworks.keras.wrap(model)
history = model.fit(x, y, batch_size=64, epochs=5)      # trained by the strategy; model has the weights

The model's own loss and metrics are computed. Its optimizer is translated, since updates are made where a
strategy keeps the parameters. Moving averages and seeds are each replica's own; the chief's are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from nbdist import optim
from nbdist.data import Dataset
from nbdist.data.structure import leaves_of, rebuild
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.frameworks.trainable import FrameworkModel
from nbdist.graph.backend import Array
from nbdist.numbers import is_whole
from nbdist.optim import Optimizer
from nbdist.train.callbacks import Callback, History
from nbdist.train.context import Context, current, use_here
from nbdist.train.custom.api import scoped
from nbdist.train.loop import train

__all__ = ["fit", "wrap"]

BACKENDS = ("torch", "jax")
FIT_BATCH = 32
OPTIMIZERS: dict[str, tuple[type[Optimizer], tuple[str, ...]]] = {
    "SGD": (optim.SGD, ("momentum", "nesterov")),
    "Adam": (optim.Adam, ("beta_1", "beta_2", "epsilon", "amsgrad")),
    "AdamW": (optim.AdamW, ("beta_1", "beta_2", "epsilon", "amsgrad", "weight_decay")),
    "RMSprop": (optim.RMSprop, ("rho", "momentum", "epsilon", "centered")),
    "Adagrad": (optim.Adagrad, ("initial_accumulator_value", "epsilon")),
}
"""The optimizers of Keras that have an equal one here, and the settings of both."""
EXTRAS = (
    "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "loss_scale_factor", "weight_decay",
    "gradient_accumulation_steps",
)  # fmt: skip
RATE_CALLBACKS = ("LearningRateScheduler", "ReduceLROnPlateau")


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    callbacks: Sequence[Any] | None = None,
    validation_data: Any = None,
    shuffle: bool = True,
    steps_per_epoch: int | None = None,
    nan: str = "stop",
) -> History:
    """Train a compiled Keras model under the strategy of the surrounding run; it ends with the weights.

    - ``model``: a built or unbuilt ``keras.Model``, compiled; all replicas begin with the chief's weights
    - ``x``: an array of examples, or an ``nb.data.Dataset`` or another iterable of batches (x, y) that
      begins anew for each epoch. A batch is that of all replicas together where they step together
    - ``y``: the labels of an array of examples
    - ``batch_size``: examples of a batch, for arrays; None for 32
    - ``epochs``: how often to go through the data, 1 or more
    - ``callbacks``: a list of ``keras.callbacks.Callback``, whose methods for epochs and trainings are
      called, or of ``nb.train.Callback``
    - ``validation_data``: arrays (x, y), evaluated by ``model.evaluate`` after each epoch on the chief; or
      None
    - ``shuffle``: whether the examples of arrays are shuffled
    - ``steps_per_epoch``: steps of an epoch, 1 or more; None for one pass through the data
    - ``nan``: for steps with a NaN or infinite loss or gradient: "stop" raises NanLossError, "skip" leaves
      them out

    Returns the History. Raises InvalidArgumentError for an optimizer without an equal one here, a backend
    other than torch and JAX, callbacks that change the learning rate, and models that differ between workers;
    FailedPreconditionError before ``compile``.
    """
    import keras

    context = scoped() or current()
    for name, value in (("epochs", epochs), ("steps_per_epoch", steps_per_epoch)):
        if value is not None and not is_whole(value, 1):
            raise InvalidArgumentError(f"fit: {name} is a whole number above 0, got {value!r}")
    require_trainable(model, context)
    dataset = batches_of(x, y, batch_size, shuffle)
    trained = KERAS_MODELS[keras.backend.backend()](model, dataset.element_spec)
    own = [one for one in callbacks or () if isinstance(one, Callback)]
    for one in own:
        one.model = model
    theirs = [one for one in callbacks or () if not isinstance(one, Callback)]
    adapters = [KerasCallbacks(trained, theirs, int(epochs))] if theirs else []
    validate: Callable[[Sequence[Array]], dict[str, float]] | None = None
    if validation_data is not None:
        held_out = tuple(np.asarray(part) for part in validation_data)

        def evaluate(values: Sequence[Array]) -> dict[str, float]:
            trained.assign(values)
            found = model.evaluate(*held_out, verbose=0, return_dict=True)
            return {name: float(value) for name, value in found.items()}

        validate = evaluate
    try:
        with use_here(context):
            return train(
                trained,
                dataset,
                translated(model.optimizer),
                epochs=int(epochs),
                steps_per_epoch=steps_per_epoch,
                validate=validate,
                callbacks=[*adapters, *own],
                nan=nan,
            )
    finally:
        trained.release()


def wrap(model: Any) -> Any:
    """Have ``model.fit`` train under the strategy of the surrounding run, and return the model.

    It takes the arguments of `nb.frameworks.keras.fit`, which are some of Keras's, and ``verbose``, which has
    no effect: the live view shows the training. Another argument raises InvalidArgumentError.
    """

    def fit_under_strategy(
        x: Any = None, y: Any = None, batch_size: int | None = None, epochs: int = 1, **others: Any
    ) -> History:
        others.pop("verbose", None)
        known = ("callbacks", "validation_data", "shuffle", "steps_per_epoch", "nan")
        if wrong := sorted(set(others) - set(known)):
            raise InvalidArgumentError(
                f"fit: {wrong[0]} is not known under a strategy; there are x, y, batch_size, epochs, "
                f"{', '.join(known)}"
            )
        return fit(model, x, y, batch_size, epochs, **others)

    require_trainable(model, scoped() or current())
    model.fit = fit_under_strategy
    return model


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
    if context.framework is not None:
        raise InvalidArgumentError(
            f"this cell has --framework {context.framework}, in which {context.framework} distributes by "
            "calls of its own, and nb.frameworks.keras trains under a strategy of nbdist: write --strategy "
            "multi_worker, or another one, in place of --framework"
        )
    if not model.compiled:
        raise FailedPreconditionError("the model has no loss: call model.compile(optimizer, loss) first")


def translated(optimizer: Any) -> Optimizer:
    """Return the optimizer of nbdist that makes the updates of one of Keras; its state begins anew."""
    name = type(optimizer).__name__
    if name not in OPTIMIZERS:
        raise InvalidArgumentError(
            f"the strategy makes the updates, and has none of Keras's {name}: compile the model with "
            f"{', '.join(OPTIMIZERS)}"
        )
    kind, names = OPTIMIZERS[name]
    config = optimizer.get_config()
    for extra in EXTRAS:
        usual = 1 if extra == "gradient_accumulation_steps" else None
        if extra not in names and config.get(extra) not in (None, False, usual):
            raise InvalidArgumentError(
                f"{name}({extra}={config[extra]!r}) has no equal here: compile the model without {extra}"
            )
    rate = config["learning_rate"]
    if isinstance(rate, dict):
        raise InvalidArgumentError(
            f"the learning rate of {name} is a {rate.get('class_name', 'schedule')}, and a strategy takes a "
            "number, which the live view can change"
        )
    return kind(float(optimizer.learning_rate), **{setting: config[setting] for setting in names})


def batches_of(x: Any, y: Any, batch_size: int | None, shuffle: bool) -> Dataset:
    """Return what `fit` takes as data as a dataset of batches (x, y)."""
    if y is not None:
        rows = Dataset.from_arrays(np.asarray(x), np.asarray(y))
        rows = rows.shuffle(max(len(rows), 1)) if shuffle else rows
        found = rows.batch(FIT_BATCH if batch_size is None else batch_size)
    elif isinstance(x, Dataset):
        found = x
    elif isinstance(x, Iterable) and not isinstance(x, (Iterator, np.ndarray, tuple, dict)):
        found = Dataset.from_generator(lambda: (tuple(map(np.asarray, batch)) for batch in x))
    else:
        raise InvalidArgumentError(
            f"x is a {type(x).__name__}; expected an array with its labels y, or a Dataset or a list of "
            "batches (x, y)"
        )
    spec = found.element_spec
    if not isinstance(spec, tuple) or len(spec) != 2 or any(not hasattr(one, "shape") for one in spec):
        raise InvalidArgumentError(
            "a batch is (x, y), two arrays: models of several inputs and sample weights are not known under "
            "a strategy"
        )
    if any(not one.shape for one in spec):
        raise InvalidArgumentError("the dataset gives single examples, not batches; call .batch(size) on it")
    return found


class KerasModel(FrameworkModel):
    """A compiled model of Keras as the training loop takes it, on one of its backends."""

    def __init__(self, model: Any, spec: Any) -> None:
        self.model = model
        batch = [np.zeros([2 if n is None else n for n in one.shape], one.dtype) for one in leaves_of(spec)]
        x, y = rebuild(spec, [part[:2] for part in batch])
        metrics = self._metric_names(x, y)
        self.trained = list(model.trainable_variables)
        self.others = list(model.non_trainable_variables)
        super().__init__(*(named(self.trained),), metrics, named(self.others))
        for name, array in self.variables:
            if array.dtype not in (np.float32, np.float64):
                raise InvalidArgumentError(
                    f"{name} is {array.dtype}, and parameters are float32 or float64: make the model with "
                    "the dtype policy float32, or mixed_bfloat16, whose variables are float32"
                )

    def _metric_names(self, x: Array, y: Array) -> list[str]:
        """Build the model, and return the names of its metrics beside the loss."""
        predicted = self.model(x)
        found = self.model.compute_metrics(x, y, predicted)
        self.model.reset_metrics()
        return [name for name in found if name != "loss"]

    def measured(self, x: Any, y: Any, predicted: Any) -> list[float]:
        """Return the metrics of one batch."""
        if not self.metric_names:
            return []
        self.model.reset_metrics()
        found = self.model.compute_metrics(x, y, predicted)
        return [float(found[name]) for name in self.metric_names]

    def assign(self, values: Sequence[Array]) -> None:
        """Give the model's variables these values, and its states."""
        arrays = [*values, *(array for _, array in self.states)]
        for variable, array in zip([*self.trained, *self.others], arrays, strict=True):
            variable.assign(array)

    def release(self) -> None:
        """Give the model's variables the values of the training, in memory of their own."""
        self.assign([array for _, array in self.variables])


class KerasOnTorch(KerasModel):
    """With torch: the variables are tensors in the strategy's memory."""

    def bind(self, values: Sequence[Array]) -> None:
        """Have the variables read these arrays."""
        import torch

        for variable, array in zip(self.trained, values, strict=True):
            variable.value.data = torch.from_numpy(array)

    def compute(
        self,
        batch: Any,
        gradients: Sequence[Array],
        weight: float,
        loss_scale: float,
        ready: Callable[[int], object],
    ) -> Sequence[Any]:
        """Return loss and metrics of a share, and write its gradients."""
        import keras

        x, y = (keras.ops.convert_to_tensor(part) for part in batch)
        for variable in self.trained:
            variable.value.grad = None
        predicted = self.model(x, training=True)
        loss = self.model.compute_loss(x=x, y=y, y_pred=predicted, training=True)
        loss.backward()
        for number in range(len(gradients) - 1, -1, -1):
            gradient = self.trained[number].value.grad
            if gradient is None:
                gradients[number].fill(0)
            else:
                np.multiply(gradient.numpy(), weight, out=gradients[number])
            ready(number)
        for variable, (_, array) in zip(self.others, self.states, strict=True):
            np.copyto(array, variable.numpy())
        return [float(loss.detach()), *self.measured(x, y, predicted.detach())]

    def release(self) -> None:
        """Give the variables memory of their own, with the values of the training."""
        import torch

        for variable, (_, array) in zip(self.trained, self.variables, strict=True):
            variable.value.data = torch.from_numpy(array.copy())
        super().release()


class KerasOnJax(KerasModel):
    """With JAX: loss, gradients and new states are one jitted function, compiled for each size of a batch."""

    def __init__(self, model: Any, spec: Any) -> None:
        import jax

        super().__init__(model, spec)
        self._values: list[Any] = []
        self._step = jax.jit(jax.value_and_grad(self._loss, has_aux=True))

    def bind(self, values: Sequence[Array]) -> None:
        """Read these arrays in each step."""
        from nbdist.frameworks.jax.step import shared

        self._values = [shared(array) for array in values]

    def compute(
        self,
        batch: Any,
        gradients: Sequence[Array],
        weight: float,
        loss_scale: float,
        ready: Callable[[int], object],
    ) -> Sequence[Any]:
        """Return loss and metrics of a share, and write its gradients."""
        states = [array for _, array in self.states]
        (loss, (predicted, changed)), found = self._step(self._values, states, *batch)
        for number in range(len(gradients) - 1, -1, -1):
            np.multiply(np.asarray(found[number]), weight, out=gradients[number])
            ready(number)
        for array, new in zip(states, changed, strict=True):
            np.copyto(array, np.asarray(new))
        return [float(loss), *self.measured(batch[0], batch[1], predicted)]

    def _loss(self, trained: Any, states: Any, x: Any, y: Any) -> Any:
        model = self.model
        metrics = [variable.value for variable in model.metrics_variables]
        loss, (_, predicted, states, _) = model.compute_loss_and_updates(
            trained, states, metrics, x, y, None, training=True, optimizer_variables=model.optimizer.variables
        )
        return loss, (predicted, states)


KERAS_MODELS: dict[str, type[KerasModel]] = {"torch": KerasOnTorch, "jax": KerasOnJax}


class KerasCallbacks(Callback):
    """Calls the methods of Keras's callbacks for trainings and epochs; the model has the newest weights."""

    def __init__(self, trained: KerasModel, callbacks: Sequence[Any], epochs: int) -> None:
        import keras

        for one in callbacks:
            if not isinstance(one, keras.callbacks.Callback):
                raise InvalidArgumentError(f"fit: {one!r} is not a callback of Keras or nbdist")
            if type(one).__name__ in RATE_CALLBACKS:
                raise InvalidArgumentError(
                    f"fit: {type(one).__name__} changes the learning rate of Keras's optimizer, and the "
                    "strategy makes the updates: change it in the live view, or leave the callback out"
                )
        self._trained, self._model = trained, trained.model
        params = {"verbose": 0, "epochs": epochs, "steps": None}
        self._all = keras.callbacks.CallbackList(list(callbacks), model=trained.model, **params)

    def on_train_begin(self) -> None:
        """Begin the training and its first epoch."""
        self._model.stop_training = False
        self._all.on_train_begin()
        self._all.on_epoch_begin(0)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """End an epoch, and begin the next; Keras counts from 0."""
        self._trained.assign([array for _, array in self._trained.variables])
        self._all.on_epoch_end(epoch, dict(logs))
        self.stop_training = bool(self._model.stop_training)
        if not self.stop_training:
            self._all.on_epoch_begin(epoch + 1)

    def on_train_end(self) -> None:
        """End the training, with the trained weights."""
        self._trained.assign([array for _, array in self._trained.variables])
        self._all.on_train_end()


def named(variables: Sequence[Any]) -> list[tuple[str, Array]]:
    """Return copies of variables with their paths, which begin with the number where two are the same."""
    import keras

    paths = [variable.path for variable in variables]
    names = [path if paths.count(path) == 1 else f"{i}:{path}" for i, path in enumerate(paths)]
    convert = partial(np.array, copy=True)
    return [(name, convert(keras.ops.convert_to_numpy(v.value))) for name, v in zip(names, variables)]
