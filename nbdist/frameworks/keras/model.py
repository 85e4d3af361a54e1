"""A compiled model of Keras as the training loop takes it: `KerasOnTorch` and `KerasOnJax`.

    torch   the model is an nn.Module: its variables are tensors on the strategy's arrays, and hooks hand over
            each gradient while backward continues, as for any module (see `TorchModel`)
    jax     loss, gradients and new states are one jitted function, which reads the strategy's arrays

Both compute the loss and the metrics that the model was compiled with, which `Compiled` knows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from nbdist.data import Dataset
from nbdist.data.structure import leaves_of, rebuild
from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.keras.data import HeldOut
from nbdist.frameworks.torch.model import TorchModel
from nbdist.frameworks.trainable import FrameworkModel
from nbdist.graph.backend import Array, to_host

Opened = Callable[[tuple[Array, ...]], Any]
"""Returns a batch of flat arrays in the form that the model takes."""


class Compiled:
    """A compiled model: its variables, loss and metrics; built by two examples of a batch's ``spec``."""

    def __init__(self, model: Any, spec: Any) -> None:
        self.model = model
        batch = [np.zeros([2 if n is None else n for n in one.shape], one.dtype) for one in leaves_of(spec)]
        x, y, *weights = rebuild(spec, [part[:2] for part in batch])
        found = model.compute_metrics(x, y, model(x), *weights)
        model.reset_metrics()
        self.metric_names = [name for name in found if name != "loss"]
        self.trained, self.states = named(model)
        for name, variable in self.trained.items():
            if variable.dtype not in ("float32", "float64"):
                raise InvalidArgumentError(
                    f"{name} is {variable.dtype}, and parameters are float32 or float64: make the model with "
                    "the dtype policy float32, or mixed_bfloat16, whose variables are float32"
                )

    def measured(self, predicted: Any, x: Any, y: Any, sample_weight: Any = None) -> list[float]:
        """Return the metrics of one batch."""
        if not self.metric_names:
            return []
        self.model.reset_metrics()
        found = self.model.compute_metrics(x, y, predicted, sample_weight)
        return [float(found[name]) for name in self.metric_names]

    def evaluated(self, data: HeldOut) -> dict[str, float]:
        """Return loss and metrics of the model as it is now."""
        if isinstance(data, Dataset):
            found = self.model.evaluate(iter(data), verbose=0, return_dict=True)
        else:
            x, y, *weights = data
            how = dict(zip(["sample_weight"], weights, strict=False))
            found = self.model.evaluate(x, y, **how, verbose=0, return_dict=True)
        return {name: float(value) for name, value in found.items()}


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
        super().__init__(model, self._loss, opened, parameters, metric_names=compiled.metric_names)
        self.keep_states({name: variable.value for name, variable in compiled.states.items()})
        model.train()

    def _loss(self, batch: Any) -> tuple[Any, list[float]]:
        import torch

        x, y, *weights = batch
        predicted = self.module(x, training=True)
        loss = self.module.compute_loss(x, y, predicted, *weights)
        with torch.no_grad():
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

        self.compiled, self._opened = Compiled(model, spec), opened
        compiled = self.compiled
        super().__init__(copies(compiled.trained), compiled.metric_names, copies(compiled.states))
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
        (loss, (predicted, changed)), found = self._step(values, states, *batch)
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
        return loss, (predicted, states)

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
