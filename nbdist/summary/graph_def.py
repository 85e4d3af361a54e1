"""A graph as TensorBoard draws it: a GraphDef, with a node for each tensor."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Tensor
from nbdist.metrics.event_file import protos

PRODUCER = 22  # the version of GraphDefs that TensorBoard reads


def graph_event(graph: Graph) -> bytes:
    """Return the event with a graph: names, ops, inputs, devices, dtypes and shapes; no values."""
    nodes = [node(tensor) for tensor in graph.tensors]
    definition = protos().GraphDef(node=nodes, versions=protos().Versions(producer=PRODUCER))
    made = protos().Event(wall_time=time.time(), graph_def=definition.SerializeToString())
    found: bytes = made.SerializeToString()
    return found


def node(tensor: Tensor) -> Any:
    """Return the node of a tensor."""
    attributes = protos().Attribute
    shape = protos().Shape(dim=[protos().Shape.Dim(size=-1 if n is None else n) for n in tensor.shape])
    return protos().Node(
        name=tensor.name,
        op=tensor.type,
        input=[one.name for one in tensor.inputs] + [f"^{one.name}" for one in tensor.control_inputs],
        device=tensor.device,
        attr={
            "dtype": attributes(type=dtype_name(tensor.dtype)),
            "_output_shapes": attributes(list=attributes.ListValue(shape=[shape])),
        },
    )


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return TensorFlow's name of a dtype.

    >>> dtype_name(np.dtype(np.float32)), dtype_name(np.dtype(np.uint8)), dtype_name(np.dtype(np.float16))
    ('DT_FLOAT', 'DT_UINT8', 'DT_HALF')
    """
    special = {"float32": "DT_FLOAT", "float64": "DT_DOUBLE", "float16": "DT_HALF", "bool": "DT_BOOL"}
    return special.get(dtype.name, f"DT_{dtype.name.upper()}")
