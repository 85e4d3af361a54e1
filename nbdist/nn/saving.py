"""Saves a model in one file: weights as safetensors, all else as JSON in its header. No pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.graph.backend import Array
from nbdist.nn.model import Model, Sequential
from nbdist.train.tensorfile import TensorFile, write_tensors


def save(model: Model, path: str | Path, weights: Sequence[Array] | None = None) -> Path:
    """Write a model to ``path`` atomically, with a checksum of each weight; returns the path.

    ``weights`` replace the model's own in the file, in the same order. Raises FailedPreconditionError for a
    model without weights, NotFoundError if the folder does not exist.
    """
    weights = model.weights if weights is None else weights
    if not weights:
        raise FailedPreconditionError("the model has no weights yet: fit it, or call build(input_shape)")
    path = Path(path)
    if not path.parent.is_dir():
        raise NotFoundError(
            f"there is no folder {str(path.parent)!r} to save {path.name!r} into; make it first"
        )
    if path.is_dir():
        raise InvalidArgumentError(f"{str(path)!r} is a folder; give the path of a file in it")
    tensors = {f"{i:04d}": w for i, w in enumerate(weights)}
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write_tensors(partial, tensors, {"nbdist": json.dumps(model.to_config())})
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def load(path: str | Path) -> Model:
    """Return the model that was saved at ``path``.

    Raises NotFoundError if the file does not exist, DataLossError if it is damaged or of another kind; the
    error names the tensor with the wrong checksum. The shapes of the layers are compared with those of the
    file before memory is allocated.

    >>> import tempfile
    >>> from nbdist.nn import Dense
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = Sequential([Dense(2)]).build((3,)).save(folder + "/m.safetensors")
    ...     load(saved)
    <Sequential: 1 layers, 8 weights>
    """
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
            model = Sequential.from_config(config | {"input_shape": None})
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
