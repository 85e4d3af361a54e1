"""The nodes of a drawn graph: one record per tensor, with its device, shape and inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nbdist.graph.op import Shape, show
from nbdist.graph.tensor import Constant, Graph, Tensor

SHORT_DTYPES = {"float": "f", "int": "i", "uint": "u", "complex": "c"}


@dataclass(frozen=True, slots=True)
class Node:
    """One op of a graph and the one tensor that it makes.

    ``type`` is Variable, Placeholder, Constant or an op's name; ``device`` is "" if none is set;
    ``dtype`` is "" for an op without a value; ``value`` is a constant's value as a short text.
    """

    name: str
    type: str
    device: str = ""
    inputs: tuple[str, ...] = ()
    control_inputs: tuple[str, ...] = ()
    shape: Shape = ()
    dtype: str = "float32"
    value: str = ""

    @property
    def bytes(self) -> int | None:
        """Size of the tensor, 0 if there is none; None while a part of its shape is unknown.

        >>> Node("w", "Variable", shape=(784, 100)).bytes, Node("x", "Placeholder", shape=(None, 784)).bytes
        (313600, None)
        """
        if not self.dtype:
            return 0
        if None in self.shape:
            return None
        return math.prod(n for n in self.shape if n is not None) * np.dtype(self.dtype).itemsize

    @property
    def spec(self) -> str:
        """Shape and dtype as a short text.

        >>> Node("x", "Placeholder", shape=(None, 784)).spec
        '(?, 784) f32'
        """
        return f"{show(self.shape)} {short_dtype(self.dtype)}" if self.dtype else ""


def describe(graph: Graph, placement: Mapping[str, str] | None = None) -> tuple[Node, ...]:
    """Return the nodes of a graph in order of creation.

    ``placement`` gives full devices by tensor name; the others have the graph's devices.

    >>> from nbdist.graph.tensor import placeholder
    >>> with Graph().as_default() as graph:
    ...     x = placeholder(np.float32, (None, 3), name="x")
    ...     y = np.exp(x)
    >>> [(node.name, node.type, node.inputs) for node in describe(graph)]
    [('x', 'Placeholder', ()), ('exp', 'exp', ('x',))]
    """
    placed = placement or {}
    return tuple(_node(tensor, placed.get(tensor.name, tensor.device)) for tensor in graph.tensors)


def _node(tensor: Tensor, device: str) -> Node:
    has_value = tensor.op is None or tensor.op.has_value
    return Node(
        tensor.name,
        tensor.type,
        device,
        tuple(dict.fromkeys(t.name for t in tensor.inputs)),
        tuple(dict.fromkeys(t.name for t in tensor.control_inputs)),
        tensor.shape,
        str(tensor.dtype) if has_value else "",
        _short_value(tensor) if isinstance(tensor, Constant) else "",
    )


def _short_value(constant: Constant) -> str:
    """Return a constant's value if it is one number, else its shape and dtype."""
    if constant.value.size == 1:
        value = constant.value.reshape(())[()]
        return f"{value:.4g}" if constant.value.dtype.kind in "fc" else str(value)
    return f"{show(constant.shape)} {short_dtype(str(constant.dtype))}"


def short_dtype(dtype: str) -> str:
    """Return a dtype's short name.

    >>> short_dtype("float32"), short_dtype("uint8"), short_dtype("bool")
    ('f32', 'u8', 'bool')
    """
    kind = dtype.rstrip("0123456789")
    return SHORT_DTYPES.get(kind, kind) + dtype[len(kind) :]
