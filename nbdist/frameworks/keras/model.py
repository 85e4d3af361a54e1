"""A compiled model of Keras as the training loop takes it: `KerasOnTorch` and `KerasOnJax`.

    torch   the model is an nn.Module: its variables are tensors on the strategy's arrays, and hooks hand over
            each gradient while backward continues, as for any module (see `TorchModel`)
    jax     loss, gradients and new states are one jitted function, which reads the strategy's arrays

Both compute the loss and the metrics that the model was compiled with, which `Compiled` knows.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from nbdist.data import Dataset
from nbdist.data.structure import leaves_of, rebuild
from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.keras.data import HeldOut
from nbdist.frameworks.keras.labels import check_labels, check_shapes, name_of, takes_probabilities
from nbdist.frameworks.torch.counting import Counted
from nbdist.frameworks.torch.model import TorchModel
from nbdist.frameworks.trainable import FrameworkModel
from nbdist.graph.backend import Array, to_host
from nbdist.train.context import current

Opened = Callable[[tuple[Array, ...]], Any]
"""Returns a batch of flat arrays in the form that the model takes."""


class Compiled:
    """A compiled model: its variables, loss and metrics; built by two examples of a batch's ``spec``."""

    def __init__(self, model: Any, spec: Any) -> None:
        self.model = model
        self.callbacks: Any = None
        """Keras's list of the callbacks of a training, which hear of validations, too."""
        batch = [np.zeros([2 if n is None else n for n in one.shape], one.dtype) for one in leaves_of(spec)]
        x, y, *weights = rebuild(spec, [part[:2] for part in batch])
        predicted = model(x)
        found = model.compute_metrics(x, y, predicted, *weights)
        model.reset_metrics()
        self.ignored: int | None = None
        """The class number that the loss ignores."""
        self.is_masked = self._finds_masks(x, y, predicted)
        """Whether the loss is a mean over what a mask keeps, and not over the examples."""
        self._losses = self._find_losses(y, predicted)
        """Loss and number of outputs of each array of labels."""
        self._normalises = any(
            type(layer).__name__ == "BatchNormalization" and layer.trainable and layer.input_spec.ndim == 2
            for layer in model._flatten_layers()
        )
        """Whether a layer takes means over examples alone."""
        self.to_check = math.inf
        """How many batches are still to be looked at closely: all of the first pass, for labels are data."""
        parts = {
            one.name for one in getattr(model._compile_loss, "metrics", ())
        }  # of a loss that was computed before
        self.metric_names = [name for name in found if name not in {"loss", *parts}]
        if self.metric_names:
            self._require_sums(x, y, predicted)
        self.sum_count = len(self._metric_states()) if self.metric_names else 0
        self.trained, self.states = named(model)
        weights = {id(one) for layer in model._flatten_layers() for one in layer._trainable_variables}
        self.frozen = [number for number, one in enumerate(self.states.values()) if id(one) in weights]
        """Which of the states are weights of frozen layers."""
        for name, variable in self.trained.items():
            if variable.dtype not in ("float32", "float64"):
                raise InvalidArgumentError(
                    f"{name} is {variable.dtype}, and parameters are float32 or float64: make the model with "
                    "the dtype policy float32, or mixed_bfloat16, whose variables are float32"
                )
            if (constraint := getattr(variable, "constraint", None)) is not None:
                raise InvalidArgumentError(
                    f"{name} has the constraint {type(constraint).__name__}, and the strategy, which makes "
                    "the updates, applies none: make the layer without it, with a regularizer for instance"
                )

    def _find_losses(self, y: Any, predicted: Any) -> list[tuple[Any, int]]:
        """Return the losses of all labels; none if they are not known one by one."""
        losses = [one.loss for one in getattr(self.model._compile_loss, "_flat_losses", None) or ()]
        labels, outputs = leaves_of(y), keras_tree().flatten(predicted)
        if isinstance(y, dict) or not len(losses) == len(labels) == len(outputs):
            return []
        for loss, own, output in zip(losses, labels, outputs, strict=True):
            check_shapes(loss, tuple(own.shape), tuple(output.shape))
        last = self.model.layers[-1:] if len(losses) == 1 else []
        if last and takes_probabilities(losses[0]) and getattr(last[0], "activation", 0) is keras_linear():
            current().note(
                f"{name_of(losses[0])} takes probabilities, and the last layer, {last[0].name}, has no "
                'activation: end the model with "softmax" or "sigmoid", or give the loss from_logits=True'
            )
        return [(loss, output.shape[-1]) for loss, output in zip(losses, outputs, strict=True)]

    def check(self, y: Any, are_weighted: bool = False) -> None:
        """Raise InvalidArgumentError for labels that the loss does not take."""
        for (loss, outputs), labels in zip(self._losses, leaves_of(y), strict=False):
            check_labels(loss, labels, outputs, is_whole=not (are_weighted or self.is_masked))

    def checked(self, opened: Opened) -> Opened:
        """Return what opens a batch, and looks at the labels of the first pass."""

        def read(batch: tuple[Array, ...]) -> Any:
            found = opened(batch)
            if self._normalises and len(leaves_of(found[1])[0]) == 1:
                current().note_single_example("BatchNormalization")
            if self.to_check > 0:
                self.to_check -= 1
                self.check(found[1], are_weighted=len(found) > 2)
            return found

        return read

    def _finds_masks(self, x: Any, y: Any, predicted: Any) -> bool:
        """Return whether a mask, of the outputs (mask_zero) or of the loss (ignore_class), is known here.

        Raises InvalidArgumentError for one of a model of several outputs, or of a loss function.
        """
        self.model.compute_loss(x, y, predicted)  # builds what it is compiled with
        flat = getattr(self.model._compile_loss, "_flat_losses", ())
        if flat is None:
            raise InvalidArgumentError(
                f"{type(self.model).__name__}.compute_loss does not call the loss that the model is compiled "
                "with, and what it divides by is not known, so shares of a batch cannot be put together: "
                "compile the model with this loss, and have compute_loss add to super().compute_loss(...)"
            )
        losses: list[Any] = list(flat)
        outputs = keras_tree().flatten(predicted)
        self.ignored = next(
            (n for one in losses if (n := getattr(one.loss, "ignore_class", None)) is not None), None
        )
        has_mask = any(mask_of(one) is not None for one in outputs)
        if (has_mask or self.ignored is not None) and (len(losses) > 1 or len(outputs) > 1):
            raise InvalidArgumentError(
                "a model of several outputs with a mask (mask_zero, ignore_class) has a loss that is not one "
                "mean, and shares of a batch could not be put together: train its outputs with sample_weight "
                "of 0 and 1 in place of masks"
            )
        is_one = len(losses) == len(outputs) == 1 and self.ignored is None
        if (
            is_one
            and mask_of(losses[0].loss.call(*map(as_tensor, (leaves_of(y)[0], outputs[0])))) is not None
        ):
            raise InvalidArgumentError(
                "the loss is a function that ignores a class: give "
                "keras.losses.SparseCategoricalCrossentropy(ignore_class=...), whose shares of a batch are "
                "put together by what they count"
            )
        return has_mask or self.ignored is not None

    def counted(self, y: Any, predicted: Any) -> Any:
        """Return what the loss of a batch with a mask divides by, a tensor."""
        from keras import ops

        predicted = keras_tree().flatten(predicted)[0]
        mask = mask_of(predicted)
        if self.ignored is not None:
            counts = ops.reshape(keras_tree().flatten(y)[0], ops.shape(predicted)[:-1]) != self.ignored
            mask = counts if mask is None else ops.logical_and(mask, counts)
        return ops.sum(ops.cast(mask, "float32"))

    def measured(self, predicted: Any, x: Any, y: Any, sample_weight: Any = None) -> list[float]:
        """Return the states of the metrics after one batch, divided by the number of examples.

        They are sums over examples (counts of hits, say), so that those of batches and shares add up, where
        a mean of values, such as AUC or precision, is not the value of all.
        """
        if not self.metric_names:
            return []
        self.model.reset_metrics()
        self.model.compute_metrics(x, y, predicted, sample_weight)
        states: list[float] = (self._metric_states() / len(leaves_of(y)[0])).tolist()
        return states

    def metrics_of(self, sums: Sequence[float]) -> list[float]:
        """Return the metrics whose states are these sums."""
        flat, begun = np.asarray(sums), 0
        for variable in self.model.metrics_variables:
            size = math.prod(variable.shape)
            variable.assign(flat[begun : begun + size].reshape(variable.shape))
            begun += size
        found = self.model.get_metrics_result()
        return [float(np.mean(to_array(found[name]))) for name in self.metric_names]

    def _metric_states(self) -> Array:
        states = [to_array(variable.value).ravel() for variable in self.model.metrics_variables]
        return np.concatenate(states).astype(np.float64)

    def require_mean(self, spec: Any) -> None:
        """Raise InvalidArgumentError if the loss has a part that is a sum over the examples of a batch.

        A batch of the same examples two and three times has the same mean, and a sum that grows by as much
        each time. With a mask, what a layer adds to the loss has to be the same for all batches.
        """
        rng = np.random.default_rng(0)
        batch = [
            np.zeros([2, *(2 if n is None else n for n in a.shape[1:])], a.dtype) for a in leaves_of(spec)
        ]
        inputs, labels, *weights = rebuild(spec, batch)
        drawn = [
            rng.normal(size=a.shape).astype(a.dtype) if a.dtype.kind == "f" else a for a in leaves_of(inputs)
        ]
        parts = [(inputs, drawn), (labels, leaves_of(labels))]
        parts += [(one, [1 + leaf for leaf in leaves_of(one)]) for one in weights]
        found, added = [], []
        for times in (1, 1, 2, 3):
            x, *rest = (rebuild(one, [np.concatenate([a] * times) for a in leaves]) for one, leaves in parts)
            found.append(float(to_array(self.model.compute_loss(x, rest[0], self.model(x), *rest[1:]))))
            added.append([float(to_array(one)) for one in self.model.losses])
        self.model.reset_metrics()
        once, again, twice, thrice = found
        grows = twice - once
        if (
            once == again
            and grows
            and abs(grows) > 1e-3 * abs(once)
            and np.isclose(thrice - twice, grows, 1e-2)
        ):
            raise InvalidArgumentError(
                "the loss has a part that is a sum over the examples of a batch, such as "
                "add_loss(ops.sum(...)), and replicas put together means of their shares: take ops.mean, or "
                "divide by the number of examples"
            )
        if self.is_masked:
            self.model(rebuild(inputs, [one + 1 if one.dtype.kind == "f" else 1 - one for one in drawn]))
            if not np.allclose(added[0], [float(to_array(one)) for one in self.model.losses]):
                raise InvalidArgumentError(
                    "the loss divides by what a mask keeps, and a layer adds a part (activity_regularizer, "
                    "add_loss) that does not: shares of a batch could not be put together. Drop the mask, or "
                    "the part"
                )

    def _require_sums(self, x: Any, y: Any, predicted: Any) -> None:
        """Raise InvalidArgumentError for a metric whose state is not a sum, such as a largest value."""
        self.model.reset_metrics()
        begun = self._metric_states()
        found = []
        for _ in range(2):
            self.model.compute_metrics(x, y, predicted)
            found.append(self._metric_states())
        self.model.reset_metrics()
        if begun.any() or not np.allclose(found[1], 2 * found[0], rtol=1e-3, equal_nan=True):
            raise InvalidArgumentError(
                f"one of the metrics {', '.join(self.metric_names)} has a state that is not a sum over "
                "examples, from 0 on, and those of batches and shares could not be added up: leave it out of "
                "compile, and compute it of model.predict in a callback"
            )

    def evaluated(self, data: HeldOut) -> dict[str, float]:
        """Return loss and metrics of the model as it is now."""
        if isinstance(data, Dataset):
            with warnings.catch_warnings():  # Keras takes the end of an iterator for a lack of data
                warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
                found = self.model.evaluate(iter(data), verbose=0, return_dict=True, callbacks=self.callbacks)
        else:
            x, y, *weights = data
            self.check(y, are_weighted=bool(weights))
            how = dict(zip(["sample_weight"], weights, strict=False))
            found = self.model.evaluate(x, y, **how, verbose=0, return_dict=True, callbacks=self.callbacks)
        return {name: float(value) for name, value in found.items()}


def mask_of(tensor: Any) -> Any:
    """Return the mask that Keras has for a tensor; None for none."""
    from keras.src import backend  # it has no public name

    return backend.get_keras_mask(tensor)


NOTHING = 1e-6
"""What a share counts in which everything is masked: its loss is 0, and the model's penalties count."""


def to_array(value: Any) -> Array:
    """Return a tensor as an array."""
    from keras import ops

    return np.asarray(ops.convert_to_numpy(value))


def as_tensor(value: Any) -> Any:
    """Return an array as a tensor, for a loss of one's own."""
    from keras import ops

    return ops.convert_to_tensor(value)


def keras_linear() -> Any:
    """Return Keras's activation of a layer that has none."""
    import keras

    return keras.activations.linear


def keras_tree() -> Any:
    """Return Keras's functions for nested values."""
    import keras

    return keras.tree


def named(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the trained variables and the others of a model by name.

    A name is the variable's path. Keras numbers layers without a name by all that the process has made so
    far (``dense_7``): they are counted within the model instead, so that all workers have the same names.
    """
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    kinds = {type(layer).__name__.lower() for layer in model._flatten_layers()} | {"seedgenerator"}
    names = renumbered([variable.path for variable in variables], kinds)
    found = list(zip(names, variables, strict=True))
    count = len(model.trainable_variables)
    return dict(found[:count]), dict(found[count:])


def renumbered(paths: Sequence[str], kinds: Collection[str]) -> list[str]:
    """Return paths with parts that are called after one of ``kinds`` counted from the first one.

    Paths that are the same begin with their number.

    >>> renumbered(["dense_7/kernel", "dense_7/bias", "dense_9/kernel", "head_3/bias"], {"dense"})
    ['dense/kernel', 'dense/bias', 'dense_1/kernel', 'head_3/bias']
    """
    parts: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for part in (part for path in paths for part in path.split("/")):
        base = re.sub(r"_\d+$", "", part)
        if part not in parts and base.replace("_", "") in kinds:
            parts[part] = f"{base}_{counts[base]}" if counts[base] else base
            counts[base] += 1
    found = ["/".join(parts.get(part, part) for part in path.split("/")) for path in paths]
    return [name if found.count(name) == 1 else f"{number}:{name}" for number, name in enumerate(found)]


class KerasOnTorch(TorchModel):
    """A compiled model with torch as its backend."""

    def __init__(self, model: Any, spec: Any, opened: Opened) -> None:
        self.compiled = compiled = Compiled(model, spec)
        parameters = {name: variable.value for name, variable in compiled.trained.items()}
        self._number = 0.0
        super().__init__(
            model,
            self._loss,
            compiled.checked(opened),
            parameters,
            metric_names=compiled.metric_names,
            counter=(lambda batch, loss, rows: Counted(self._number, rows)) if compiled.is_masked else None,
            shared=True,
            whole=True,  # layers read variables of Keras, which no hook of torch sees
        )
        self.sum_count, self.metrics_of = compiled.sum_count, compiled.metrics_of  # type: ignore[method-assign]
        self.keep_states({name: variable.value for name, variable in compiled.states.items()})
        self.fixed = [self.states[number][1] for number in compiled.frozen]
        model.train()

    def _loss(self, batch: Any) -> tuple[Any, list[float]]:
        import torch

        x, y, *weights = batch
        predicted = self.module(x, training=True)
        loss = self.module.compute_loss(x, y, predicted, *weights)
        with torch.no_grad():
            if self.compiled.is_masked:
                self._number = self.compiled.counted(y, predicted).item() or NOTHING
            return loss, self.compiled.measured(predicted, x, y, *weights)

    def evaluated(self, values: Sequence[Array], data: HeldOut) -> dict[str, float]:
        """Return loss and metrics of validation data."""
        self.bind(values)
        try:
            return self.compiled.evaluated(data)
        finally:
            self.module.train()

    def show(self) -> None:
        """Do nothing: the model's variables are the parameters."""

    def unbind(self) -> None:
        """Give the model's variables the newest parameters in memory of their own."""
        for parameter, own in zip(self._parameters, self._own, strict=True):
            own.copy_(parameter.data)
            parameter.data = own

    def release(self) -> None:
        """Give the variables memory of their own, with the values of the training."""
        super().release()
        self.module.eval()


class KerasOnJax(FrameworkModel):
    """A compiled model with JAX as its backend; its step is compiled for each size of a batch."""

    def __init__(self, model: Any, spec: Any, opened: Opened) -> None:
        import jax

        self.compiled = compiled = Compiled(model, spec)
        self._opened = compiled.checked(opened)
        super().__init__(copies(compiled.trained), compiled.metric_names, copies(compiled.states))
        self.sum_count, self.metrics_of = compiled.sum_count, compiled.metrics_of  # type: ignore[method-assign]
        self.fixed = [self.states[number][1] for number in compiled.frozen]
        self._values: list[Any] = []
        self._step = jax.jit(jax.value_and_grad(self._loss, has_aux=True))

    def opened(self, batch: tuple[Array, ...]) -> Any:
        """Return a batch in the form that the model takes."""
        return self._opened(batch)

    def bind(self, values: Sequence[Array]) -> None:
        """Read these arrays in each step."""
        from nbdist.frameworks.jax.tree import shared

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
        from nbdist.frameworks.jax.tree import copy_from_jax, to_jax

        states = [array for _, array in self.states]
        values, batch = list(map(to_jax, self._values)), rebuild(batch, list(map(to_jax, leaves_of(batch))))
        (loss, (predicted, changed, number)), found = self._step(values, states, *batch)
        if self.compiled.is_masked:
            weight = self.count(float(number) or NOTHING, weight)
        for number in range(len(gradients) - 1, -1, -1):
            copy_from_jax(gradients[number], found[number], weight)
            ready(number)
        for array, new in zip(states, changed, strict=True):
            np.copyto(array, np.asarray(new))
        return [float(loss), *self.compiled.measured(predicted, *batch)]

    def _loss(self, trained: Any, states: Any, x: Any, y: Any, sample_weight: Any = None) -> Any:
        model = self.compiled.model
        metrics = [variable.value for variable in model.metrics_variables]
        loss, (_, predicted, states, _) = model.compute_loss_and_updates(
            trained,
            states,
            metrics,
            x,
            y,
            sample_weight,
            training=True,
            optimizer_variables=model.optimizer.variables,
        )
        number = self.compiled.counted(y, predicted) if self.compiled.is_masked else 0.0
        return loss, (predicted, states, number)

    def evaluated(self, values: Sequence[Array], data: HeldOut) -> dict[str, float]:
        """Return loss and metrics of validation data."""
        self._assign(values)
        return self.compiled.evaluated(data)

    def show(self) -> None:
        """Give the model's variables the newest parameters."""
        if self._values:  # else it has made no step yet
            self._assign(list(map(to_host, self._values)))

    def unbind(self) -> None:
        """Give the model's variables the newest parameters: they have memory of their own."""
        self.show()

    def release(self) -> None:
        """Give the model's variables the values of the training."""
        self._assign([array for _, array in self.variables])

    def _assign(self, values: Sequence[Array]) -> None:
        variables = [*self.compiled.trained.values(), *self.compiled.states.values()]
        for variable, array in zip(variables, self.all_arrays(values), strict=True):
            variable.assign(to_host(array).copy())  # JAX may use memory that it is given


KerasModel = KerasOnTorch | KerasOnJax
KERAS_MODELS: dict[str, type[KerasOnTorch] | type[KerasOnJax]] = {"torch": KerasOnTorch, "jax": KerasOnJax}
"""What trains a model, by the backend that Keras has in this process."""


def copies(variables: dict[str, Any]) -> list[tuple[str, Array]]:
    """Return the values of variables in arrays of their own, by name."""
    import keras

    return [
        (name, np.array(keras.ops.convert_to_numpy(variable.value))) for name, variable in variables.items()
    ]


def weights_of(model: Any) -> dict[str, Array]:
    """Return copies of all variables of a model by name; InvalidArgumentError if it has none yet."""
    trained, others = named(model)
    found = dict(copies(trained | others))
    if not found:
        raise InvalidArgumentError("a model without weights stays where it is")
    return found


def take_weights(model: Any, weights: Mapping[str, Array]) -> bool:
    """Give a model's variables these values, if names and shapes are the same; return whether they are."""
    trained, others = named(model)
    variables = trained | others
    if {name: tuple(one.shape) for name, one in variables.items()} != {
        n: a.shape for n, a in weights.items()
    }:
        return False
    for name, variable in variables.items():
        variable.assign(weights[name])
    return True
