"""Chains of elementwise ops as one GPU kernel each: a value that only the chain uses stays in a register.

    kernel, operands = fused_kernel(chain, values)     # operands: the tensors that it reads, then writes
    kernel(cupy, *arrays)

On a GPU a chain (`nbdist.graph.compile.elementwise`) is not cut into blocks: a thread computes all of its ops
for one element. The source is made of the ops' ``cuda`` expressions; each value is rounded to its dtype as
without fusion. All inputs are read before an output is written, so an output may overwrite an input.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from nbdist.graph.compile.elementwise import FUSED_TYPES, Chain
from nbdist.graph.compile.values import Values
from nbdist.graph.kernel import Kernel
from nbdist.graph.tensor import Constant, Tensor


def fused_kernel(chain: Chain, values: Values) -> tuple[Kernel, list[Tensor]]:
    """Return the kernel of a chain, and its operands in order: those it reads, then those it writes."""
    made = set(chain.members)
    read = dict.fromkeys(i for node in chain.members for i in values.reads(node) if i not in made)
    inputs = [t for t in read if _literal(t) is None]
    outputs = [t for t in chain.members if t not in chain.inner]
    names = {t: f"v{n}" for n, t in enumerate([*inputs, *chain.members])}
    names |= {t: text for t in read if (text := _literal(t)) is not None}
    lines = [f"const auto {names[t]} = x{n};" for n, t in enumerate(inputs)]
    for node in chain.members:
        ctype = FUSED_TYPES[values.specs[node].dtype.name]
        lines.append(f"const {ctype} {names[node]} = ({ctype})({_expression(node, values, names)});")
    lines += [f"y{n} = {names[t]};" for n, t in enumerate(outputs)]

    def parameters(tensors: list[Tensor], letter: str) -> str:
        return ", ".join(f"{values.specs[t].dtype} {letter}{n}" for n, t in enumerate(tensors))

    kernel = Kernel(
        "fused_" + "_".join(dict.fromkeys(node.type for node in chain.members))[:60],
        parameters(inputs, "x"),
        parameters(outputs, "y"),
        "\n".join(lines),
        types={},
    )
    return kernel, [*inputs, *outputs]


def _expression(node: Tensor, values: Values, names: dict[Tensor, str]) -> str:
    """Return an op's expression, with its inputs converted to the type that it computes in."""
    assert node.op is not None
    assert node.op.cuda is not None
    dtype = values.specs[node].dtype
    if dtype.kind != "f":
        dtype = np.result_type(*(values.specs[i].dtype for i in values.reads(node)))
    wide = {"float64": "double", "bool": "bool", "uint64": "unsigned long long"}.get(
        dtype.name, "float" if dtype.kind == "f" else "long long"
    )
    operands = dict(zip("abc", node.inputs, strict=False))

    def replaced(match: re.Match[str]) -> str:
        return f"({wide})" if match[0] == "W" else f"(({wide}){names[operands[match[0]]]})"

    return re.sub(r"\b[abcW]\b", replaced, node.op.cuda)


def _literal(t: Tensor) -> str | None:
    """Return a constant number as text; it then takes no memory access."""
    if not isinstance(t, Constant) or t.shape != () or t.dtype.kind != "f":
        return None
    value: Any = float(t.value)
    return f"({value!r})" if math.isfinite(value) else None
