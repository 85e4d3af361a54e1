"""Copies parts of one graph into another: a tower for each replica, a chain for each micro-batch.

copy = Copier(target, {x: x0, w: shared_w}, place=lambda device: "/job:worker/task:0")
loss0, = copy([loss])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.specs import value_order
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import Placeholder, Tensor, Variable


class Copier:
    """Copies tensors into ``graph``, each once, with all that they depend on.

    ``replaced`` maps tensors to tensors of ``graph``; it has all placeholders and variables. ``place``
    returns the device of a copy, given the original's device as text.
    """

    def __init__(
        self,
        graph: Graph,
        replaced: Mapping[Tensor, Tensor],
        place: Callable[[str], str] = lambda device: device,
    ) -> None:
        self.graph, self._place = graph, place
        self._copies: dict[Tensor, Tensor] = dict(replaced)

    def __call__(self, wanted: Sequence[Tensor]) -> list[Tensor]:
        """Return the copies of ``wanted``, in the order given."""
        for node in value_order(wanted, given=self._copies):
            if node not in self._copies:
                self._copies[node] = self._copy(node)
        return [self._copies[node] for node in wanted]

    def _copy(self, node: Tensor) -> Tensor:
        if isinstance(node, (Placeholder, Variable)):
            raise InvalidArgumentError(f"{node!r} has to be replaced: it is not copied into another graph")
        inputs = tuple(self._input(i) for i in node.inputs)
        made = node.moved(self.graph, inputs, self._place(node.device), node.spec)
        made.control_inputs = tuple(self._copies[c] for c in node.control_inputs)
        return made

    def _input(self, node: Tensor) -> Tensor:
        if node not in self._copies:  # only its shape is used
            self([node])
        return self._copies[node]
