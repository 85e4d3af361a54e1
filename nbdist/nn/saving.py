"""Saves a model in one file: weights as safetensors, all else as JSON in its header. No pickle."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.checkpoint.tensor_file import TensorFile, write_tensors
from nbdist.draft import draft_of
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.graph.backend import Array

if TYPE_CHECKING:
    from nbdist.nn.model import Model

OTHERS = (".h5", ".hdf5", ".keras", ".onnx", ".pb", ".pkl", ".pt", ".pth", ".tflite")
"""Endings of files that other programs read, in formats of their own."""


def save(model: Model, path: str | Path, weights: Sequence[Array] | None = None) -> Path:
    """Write a model to ``path`` atomically, with a checksum of each weight; returns the path.

    ``weights`` replace the model's own in the file, in the same order. Raises FailedPreconditionError for a
    model without weights, NotFoundError if the folder does not exist, InvalidArgumentError for a path that is
    no file, or ends as files of other formats do, StorageError if it cannot be written, for instance on a
    full disk.
    """
    weights = model.weights if weights is None else weights
    if not weights:
        raise FailedPreconditionError("the model has no weights yet: fit it, or call build(input_shape)")
    given, path = path, Path(path)
    if path.suffix.lower() in OTHERS:
        raise InvalidArgumentError(
            f"{path.name!r} would be a file of safetensors, which is all that save writes: call it "
            f"{path.stem + '.safetensors'!r} (to_onnx writes .onnx, for other programs)"
        )
    if not path.parent.is_dir():
        raise NotFoundError(
            f"there is no folder {str(path.parent)!r} to save {path.name!r} into; make it first"
        )
    tensors = {f"{i:04d}": w for i, w in enumerate(weights)}
    with draft_of(given) as draft:
        write_tensors(draft, tensors, {"nbdist": json.dumps(model.to_config())})
    return path


def read(path: str | Path, from_config: Callable[[dict[str, Any]], Model]) -> Model:
    """Return the model that was saved at ``path``, made by ``from_config``."""
    if not Path(path).is_file():
        raise NotFoundError(f"no model file at {str(path)!r}")
    with TensorFile(path, "a model saved by nbdist") as file:
        try:
            config: Any = json.loads(file.texts.get("nbdist", "{}"))
            if "layers" not in config:
                raise ValueError(
                    "it has no layers. Weights of PyTorch, JAX and Keras are read by "
                    "safetensors.numpy.load_file"
                )
            model = from_config(config | {"input_shape": None})
            if config["input_shape"] is None:
                raise ValueError("it has no shape of examples")
            network = model.network_for(config["input_shape"])
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise file.damaged(error) from None
        # The state of a training has more tensors than weights, with other names.
        names = [name for name in file.shapes if name.isdigit()]
        claimed, there = [v.shape for v in network.variables], [file.shapes[name] for name in names]
        if claimed != there:
            raise file.damaged(f"its layers have weights of shapes {claimed}, and the file has {there}")
        called = [v.name for v in network.variables]
        weights = [file.read(name, variable) for name, variable in zip(names, called, strict=True)]
        for name, variable, weight in zip(names, network.variables, weights, strict=True):
            if weight.dtype != variable.dtype:
                raise file.damaged(f"tensor {name!r} is {weight.dtype}, and {variable.name} {variable.dtype}")
    model.take(network, weights)
    return model
