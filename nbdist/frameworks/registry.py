"""`SPECS`: all that the rest of the system asks about PyTorch, JAX and Keras, a row each.

    framework_of(value)                     # the row whose model it is, None for none
    SPECS["torch"].read_trial(path)         # the weights in what a trial has kept

No module outside of `nbdist.frameworks` names a framework: it asks all rows, or the one of a name that it was
given. A framework is imported only by the functions of its row, for values of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nbdist.frameworks.base import Framework
from nbdist.frameworks.jax.distributed import Jax
from nbdist.frameworks.torch import step_parts, trial_state, weights
from nbdist.frameworks.torch.distributed import Torch
from nbdist.frameworks.torch.store import StoreService
from nbdist.frameworks.torch.weights import StateDict
from nbdist.graph.backend import Array
from nbdist.runtime.server import Server

__all__ = [
    "FRAMEWORKS", "SPECS", "FrameworkSpec", "StateDict", "array_of", "framework_of", "loaded", "unwrapped",
]  # fmt: skip
Weights = Mapping[str, Array]


class RunService(Protocol):
    """What a task serves to the ranks of a framework."""

    def drop_run(self, run: str) -> None:
        """Drop what belongs to a run that has ended."""


@dataclass(frozen=True)
class FrameworkSpec:
    """A framework: what its values are, and what a task and a client do for it.

    - ``launcher``: its own distribution, for ``--framework``; None if it has none
    - ``model``, ``array``: module and class of its models and of its arrays; None if it has no such class
    - ``state_of``: copies of a model's weights by name; InvalidArgumentError says why there are none
    - ``take``: gives a model these weights, if they fit; returns whether they do
    - ``array_of``: an array as one of NumPy; InvalidArgumentError says why there is none
    - ``unwrapped``: the model inside of what distributes it
    - ``read_trial``: the weights by name in what a trial has kept
    - ``can_promote``: whether a trial continues from what it has kept, and does not begin anew
    - ``serve``: what a task's Server answers for it; None for nothing
    - ``launcher_errors``: parts of its errors when it finds no launcher's variables
    - ``inner_files``: files whose frames are left out of a user's traceback
    - ``push_hints``: what to push in place of a value, by the beginning of its type's name
    """

    name: str
    launcher: type[Framework] | None = None
    model: tuple[str, str] | None = None
    array: tuple[str, str] | None = None
    state_of: Callable[[Any], dict[str, Array]] = lambda model: {}
    take: Callable[[Any, Weights], bool] = lambda model, weights: False
    array_of: Callable[[Any], Array] = lambda value: value
    unwrapped: Callable[[Any], Any] = lambda model: model
    read_trial: Callable[[Path], Weights] = trial_state.read_model
    can_promote: Callable[[Path], bool] = lambda path: True
    serve: Callable[[Server], RunService] | None = None
    launcher_errors: tuple[str, ...] = ()
    inner_files: tuple[str, ...] = ()
    push_hints: Mapping[str, str] = field(default_factory=dict)


def _state_of_keras(model: Any) -> dict[str, Array]:
    from nbdist.frameworks.keras.model import weights_of

    return weights_of(model)


def _take_keras(model: Any, weights: Weights) -> bool:
    from nbdist.frameworks.keras.model import take_weights

    return take_weights(model, weights)


def _array_of_jax(value: Any) -> Array:
    from nbdist.frameworks.jax.tree import array_of

    return array_of(value)


KERAS = FrameworkSpec("keras", model=("keras", "Model"), state_of=_state_of_keras, take=_take_keras)
TORCH = FrameworkSpec(
    "torch",
    launcher=Torch,
    model=("torch.nn", "Module"),
    array=("torch", "Tensor"),
    state_of=weights.state_of,
    take=weights.take_weights,
    array_of=weights.array_of,
    unwrapped=weights.unwrapped,
    can_promote=trial_state.has_place,
    serve=StoreService,
    launcher_errors=("environment variable RANK expected", "environment variable WORLD_SIZE expected"),
    inner_files=(step_parts.__file__,),  # which stands between two frames of torch
    push_hints={"torch.Tensor": "push tensor.numpy()"},
)
JAX = FrameworkSpec(
    "jax",
    launcher=Jax,
    array=("jax", "Array"),
    array_of=_array_of_jax,
    launcher_errors=("coordinator_address should be defined",),
    push_hints={"jax": "push np.asarray(array)"},
)

SPECS = {one.name: one for one in (KERAS, TORCH, JAX)}
"""Keras is first: with torch as its backend its models are modules of torch as well."""
FRAMEWORKS = {name: one.launcher for name, one in SPECS.items() if one.launcher is not None}
"""The frameworks of ``--framework``, by name."""


def framework_of(value: Any) -> FrameworkSpec | None:
    """Return the framework whose model a value is; None if it is none's."""
    return next((one for one in SPECS.values() if _is(value, one.model)), None)


def model_types() -> tuple[type, ...]:
    """Return the classes of which the models of the imported frameworks are."""
    found = (_kind(one.model) for one in SPECS.values())
    return tuple(one for one in found if one is not None)


def array_of(value: Any) -> Array | None:
    """Return an array of a framework as one of NumPy; None for any other value.

    Raises InvalidArgumentError for an array that NumPy cannot have, or that is not all in this process.
    """
    spec = next((one for one in SPECS.values() if _is(value, one.array, every=True)), None)
    return None if spec is None else spec.array_of(value)


def _is(value: Any, kind: tuple[str, str] | None, every: bool = False) -> bool:
    if (found := _kind(kind)) is None:  # it was not imported, so nothing is of it
        return False
    # For a model isinstance would load a lazy module; a jax.Array is one by its metaclass only.
    return isinstance(value, found) if every else issubclass(type(value), found)


def _kind(kind: tuple[str, str] | None) -> Any:
    return None if kind is None else getattr(sys.modules.get(kind[0]), kind[1], None)


def unwrapped(model: Any) -> Any:
    """Return the model inside of what distributes it; any other value as it is."""
    spec = framework_of(model)
    return model if spec is None else spec.unwrapped(model)


def loaded(results: Mapping[str, Any], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return results for a namespace: weights are loaded into a model that it has under their name."""
    found = dict(results)
    for name, value in results.items():
        model: Any = namespace.get(name)
        spec = framework_of(model) if isinstance(value, StateDict) else None
        if spec is not None and spec.take(model, value):
            found[name] = model
    return found
