"""Exact shapes and dtypes of all values, from the feeds' shapes and dtypes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import Shape, Spec, show
from nbdist.graph.tensor import Tensor


class Specs:
    """Infers the specs of tensors from those of their inputs, each once.

    A size of None is known only while the graph runs (rows that a mask selects, for example).
    """

    def __init__(self, known: Mapping[Tensor, Spec]) -> None:
        self._known = dict(known)

    @classmethod
    def fed(cls, feeds: Sequence[Tensor], shapes: Sequence[Shape]) -> Specs:
        """Start from the shapes of the feeds, which have to fit the declared ones."""
        return cls({f: Spec(checked(f, s), f.dtype) for f, s in zip(feeds, shapes, strict=True)})

    def __contains__(self, node: Tensor) -> bool:
        return node in self._known

    def __getitem__(self, node: Tensor) -> Spec:
        stack = [node]  # not recursion: the graph below a value that is used for its shape only may be deep
        while node not in self._known:
            one = stack[-1]
            missing = [i for i in one.inputs if i not in self._known]
            if missing:
                stack.extend(missing)
                continue
            if one.op is None or one.op.external:
                self._known[one] = one.spec
            else:
                self._known[one] = one.op.spec(*(self._known[i] for i in one.inputs), **one.attrs)
            stack.pop()
        return self._known[node]

    def exact(self, node: Tensor) -> bool:
        """Whether every size is known before the graph runs."""
        return None not in self[node].shape

    def reads(self, node: Tensor) -> list[Tensor]:
        """Return the inputs whose values are needed, not just their shapes."""
        if node.op is None or not node.op.shape_only:
            return list(node.inputs)
        return [t for i, t in enumerate(node.inputs) if i not in node.op.shape_only or not self.exact(t)]


def value_order(
    wanted: Sequence[Tensor], specs: Specs | None = None, given: Collection[Tensor] = ()
) -> list[Tensor]:
    """Return the tensors that have to be computed for ``wanted``, inputs before users, each once.

    Tensors in ``given`` (feeds) are included where they are needed, but not their inputs.
    """
    specs = specs or Specs({})
    done: dict[Tensor, None] = {}
    entered: set[Tensor] = set()
    stack: list[tuple[Tensor, bool]] = [(t, False) for t in reversed(wanted)]
    while stack:
        node, inputs_done = stack.pop()
        if node in done:
            continue
        if inputs_done:
            done[node] = None
            continue
        if node in entered:
            raise InvalidArgumentError(f"the graph has a cycle through {node.name!r}")
        entered.add(node)
        stack.append((node, True))
        before = [] if node in given else [*node.control_inputs, *specs.reads(node)]
        stack.extend((i, False) for i in reversed(before) if i not in done)
    return list(done)


def size_of(spec: Spec) -> int:
    """Return how many bytes a value of exact shape takes.

    >>> import numpy as np
    >>> size_of(Spec((2, 3), np.dtype(np.float32)))
    24
    """
    return prod(n or 0 for n in spec.shape) * spec.dtype.itemsize


def checked(node: Tensor, shape: Shape) -> Shape:
    """Return the shape of a fed value; raises InvalidArgumentError if it does not fit the declared one."""
    fits = len(shape) == len(node.shape) and all(
        want is None or got is None or want == got for want, got in zip(node.shape, shape, strict=False)
    )
    if not fits:
        raise InvalidArgumentError(
            f"{node.name!r} was declared with shape {show(node.shape)} and is fed {show(shape)}"
        )
    return shape
