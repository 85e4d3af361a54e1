"""A model in one file: weights as safetensors, everything else as JSON in its header. No pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.errors import DataLossError, FailedPreconditionError, NotFoundError
from nbdist.graph.backend import Array, to_host
from nbdist.nn.model import Model, Sequential


def save(model: Model, path: str | Path, weights: Sequence[Array] | None = None) -> Path:
    """Write a model to ``path``, whole or not at all; returns the path.

    ``weights`` are written instead of the model's own, in the same order.
    """
    from safetensors.numpy import save_file

    weights = model.weights if weights is None else weights
    if not weights:
        raise FailedPreconditionError("the model has no weights yet: fit it, or call build(input_shape)")
    path = Path(path)
    tensors = {f"{i:04d}": np.ascontiguousarray(to_host(w)) for i, w in enumerate(weights)}
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, str(partial), {"nbdist": json.dumps(model.to_config())})
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def load(path: str | Path) -> Model:
    """Return the model that was saved at ``path``.

    >>> import tempfile
    >>> from nbdist.nn import Dense
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     saved = Sequential([Dense(2)]).build((3,)).save(folder + "/m.safetensors")
    ...     load(saved)
    <Sequential: 1 layers, 8 weights>
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise NotFoundError(f"no model file at {str(path)!r}")
    try:
        with safe_open(str(path), "np") as file:
            config: Any = json.loads((file.metadata() or {})["nbdist"])
            # The state of a training has more than weights, by other names.
            weights = [file.get_tensor(name) for name in sorted(file.keys()) if name.isdigit()]
        model = Sequential.from_config(config)
        model.set_weights(weights)
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise DataLossError(f"{str(path)!r} is no model saved by nbdist, or is damaged: {error}") from None
    return model
