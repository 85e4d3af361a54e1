"""Dense layers split over several tasks, by columns (units) or by rows (inputs).

    columns    x goes to all;        each makes y[:, a:b];         the parts are joined where they are used
    rows       each gets x[:, a:b];  each makes a part of the sum; the parts are added up

A shard's work is on the device ``/task:i``, the i-th of those that a replica gets.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.array_methods import symbolic
from nbdist.graph.partitioners import shard_offsets
from nbdist.graph.scopes import device
from nbdist.graph.tensor import Tensor, Variable
from nbdist.nn.layers.activations import ACTIVATIONS
from nbdist.nn.layers.base import Array

SPLITS = ("columns", "rows")
MOST_SHARDS = 1024
WHOLE_ROW = ("softmax", "log_softmax")  # activations that need all units at once


def checked_split(split: str | None, shards: int) -> tuple[str | None, int]:
    """Return how a layer is split and into how many parts: two by default."""
    if split is None:
        if shards != 1:
            raise InvalidArgumentError(f"Dense: shards={shards} needs split='columns' or split='rows'")
        return None, 1
    if split not in SPLITS:
        raise InvalidArgumentError(f"Dense: no split {split!r}; {choices(split, SPLITS)}")
    if not isinstance(shards, (int, np.integer)) or isinstance(shards, bool) or shards < 1:
        raise InvalidArgumentError(f"Dense: shards is a whole number above 0, got {shards!r}")
    if shards > MOST_SHARDS:
        raise InvalidArgumentError(f"Dense: a layer has at most {MOST_SHARDS} shards, got {shards}")
    return split, max(int(shards), 2)


def split_weights(weights: dict[str, Array], split: str, shards: int) -> dict[str, Array]:
    """Return the parts of kernel and bias by name: kernel_0, bias_0, kernel_1, ..."""
    kernel, bias = weights["kernel"], weights.get("bias")
    axis = 1 if split == "columns" else 0
    if kernel.shape[axis] < shards:
        raise InvalidArgumentError(
            f"Dense: {kernel.shape[axis]} {split} of the kernel cannot be split into {shards} shards"
        )
    found: dict[str, Array] = {}
    for i, part in enumerate(_parts(kernel.shape[axis], shards)):
        found[f"kernel_{i}"] = kernel[:, part] if axis else kernel[part]
        if bias is not None and split == "columns":
            found[f"bias_{i}"] = bias[part]
    if bias is not None and split == "rows":
        found["bias"] = bias
    return found


def split_dense(x: Tensor, weights: dict[str, Any], split: str, shards: int, activation: str) -> Tensor:
    """Return ``activation(x @ kernel + bias)``, each shard's part computed on its own device."""
    for i in range(shards):
        for name in (f"kernel_{i}", f"bias_{i}"):
            if isinstance(weights.get(name), Variable):
                weights[name].device = f"/task:{i}"
    if split == "columns":
        return _by_columns(x, weights, shards, activation)
    return _by_rows(x, weights, shards, activation)


def _by_columns(x: Tensor, weights: dict[str, Any], shards: int, activation: str) -> Tensor:
    last = activation in WHOLE_ROW
    made = []
    for i in range(shards):
        with device(f"/task:{i}"):
            y = x @ weights[f"kernel_{i}"]
            if f"bias_{i}" in weights:
                y = y + weights[f"bias_{i}"]
            made.append(y if last else ACTIVATIONS[activation](y))
    joined: Tensor = symbolic.concatenate(made, axis=-1)
    return ACTIVATIONS[activation](joined) if last else joined


def _by_rows(x: Tensor, weights: dict[str, Any], shards: int, activation: str) -> Tensor:
    sizes = [weights[f"kernel_{i}"].shape[0] for i in range(shards)]
    inputs = _made_in_parts(x, sizes)
    total: Tensor | None = None
    for i, part in enumerate(_parts(sum(sizes), shards)):
        with device(f"/task:{i}"):
            mine = (inputs[i] if inputs is not None else x[..., part]) @ weights[f"kernel_{i}"]
        total = mine if total is None else total + mine
    assert total is not None
    if "bias" in weights:
        total = total + weights["bias"]
    return ACTIVATIONS[activation](total)


def _made_in_parts(x: Tensor, sizes: list[int]) -> list[Tensor] | None:
    """Return the parts that ``x`` was joined from, if they are just those that are wanted."""
    if x.type != "concatenate" or x.attrs.get("axis") not in (-1, x.ndim - 1):
        return None
    parts = list(x.inputs)
    return parts if [t.shape[-1] for t in parts] == sizes else None


def _parts(size: int, shards: int) -> list[slice]:
    edges = [*shard_offsets(size, shards), size]
    return [slice(a, b) for a, b in pairwise(edges)]
