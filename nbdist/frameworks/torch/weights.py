"""`StateDict`: a module's weights as arrays by name, which is how a trained module reaches the notebook.

    run.model                                       # after a cell that has trained `model`
    run.model.save("model.safetensors")             # read by safetensors.torch.load_file
    model.load_state_dict(run.model)                # in a process that has torch and the module's class

A module is code, and stays on its worker. Its state_dict travels as arrays; nothing is pickled. A notebook
that has a module of the same name, parameters and shapes finds the weights in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.checkpoint.tensor_file import write_tensors
from nbdist.draft import draft_of
from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array


class ModelArray(np.ndarray[Any, Any]):
    """An array that torch copies from as from a tensor, as ``module.load_state_dict`` does."""

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch with tensors for arrays."""
        import torch

        def given(value: Any) -> Any:
            return torch.from_numpy(np.array(value)) if isinstance(value, cls) else value

        return function(*map(given, args), **{name: given(one) for name, one in (kwargs or {}).items()})

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))


class StateDict(dict[str, Array]):
    """Arrays by name, as in ``module.state_dict()``; ``module.load_state_dict`` takes it.

    >>> import numpy as np
    >>> StateDict(weight=np.zeros((2, 3), np.float32))
    <StateDict: 1 arrays, 6 numbers: weight (2, 3)>
    """

    def __init__(self, *args: Any, **arrays: Array) -> None:
        super().__init__(*args, **arrays)
        self.update({name: one.view(ModelArray) for name, one in self.items() if type(one) is np.ndarray})

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, with a checksum of each array in its header.

        Raises InvalidArgumentError for a folder, a device or a pipe, StorageError if it cannot be written.
        """
        with draft_of(path) as draft:
            write_tensors(draft, self, {})

    def tensors(self) -> dict[str, Any]:
        """Return tensors by name, copies of the arrays; this imports torch."""
        import torch

        return {name: torch.from_numpy(array.copy()) for name, array in self.items()}

    def __repr__(self) -> str:
        numbers = sum(array.size for array in self.values())
        shapes = ", ".join(f"{name} {array.shape}" for name, array in list(self.items())[:4])
        more = ", ..." * (len(self) > 4)
        return f"<StateDict: {len(self)} arrays, {numbers:,} numbers: {shapes}{more}>"


def state_of(module: Any) -> dict[str, Array]:
    """Return copies of a module's parameters and buffers by name; InvalidArgumentError if NumPy has no such.

    The state of a module that is wrapped in DistributedDataParallel is that of the module itself.
    """
    found = {}
    for name, value in unwrapped(module).state_dict().items():
        try:
            found[name] = array_of(value).copy()
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{name} of the module: {error}") from None
    return found


def take_weights(module: Any, weights: Mapping[str, Array]) -> bool:
    """Give a module these values, if names and shapes are the same; return whether they are."""
    own = module.state_dict()
    if {name: tuple(one.shape) for name, one in own.items()} != {n: a.shape for n, a in weights.items()}:
        return False
    module.load_state_dict(StateDict(weights).tensors())
    return True


def unwrapped(module: Any) -> Any:
    """Return the module that a DistributedDataParallel wraps; any other model as it is."""
    return module.module if type(module).__name__ == "DistributedDataParallel" else module


def array_of(value: Any) -> Array:
    """Return a tensor as an array of NumPy, with the same memory if it is on the CPU.

    Raises InvalidArgumentError for a part of a tensor that is divided among ranks, and for what NumPy lacks.
    """
    if hasattr(value, "full_tensor"):
        raise InvalidArgumentError(
            "a tensor is divided among the ranks: gather it on all of them, by full_tensor().numpy()"
        )
    try:
        array: Array = value.detach().cpu().numpy()
    except (AttributeError, RuntimeError, TypeError) as error:
        if str(getattr(value, "dtype", "")) == "torch.bfloat16":
            raise InvalidArgumentError("NumPy has no bfloat16: convert it, by float().numpy()") from None
        raise InvalidArgumentError(f"it cannot be an array of NumPy: {error}") from None
    return array
