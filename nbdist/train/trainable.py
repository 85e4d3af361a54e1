"""What can be trained: variables, a program for a step, and the step as tensors of a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nbdist.graph.backend import Array
from nbdist.graph.tensor import Placeholder, Tensor, Variable


@dataclass(frozen=True)
class Parts:
    """A training step as tensors of one graph, for one replica and any batch size.

    ``loss`` is the sum over the examples times ``scale``; ``metrics`` are means over the examples. A device
    of the form ``/task:i`` in it means the i-th of the devices that one replica gets (``devices_needed``).
    """

    x: Placeholder
    y: Placeholder
    scale: Placeholder
    draw: Placeholder | None
    loss: Tensor
    metrics: list[Tensor]
    weights: list[Variable]
    values: list[Array]
    """What the weights are now."""
    gradients: list[Tensor]
    classes: int | None = None
    """Where labels are class numbers: how many classes there are."""
    states: dict[Variable, Array] = field(default_factory=dict)
    updates: dict[Variable, Tensor] = field(default_factory=dict)
    """New values of states, computed in the step."""
    devices_needed: int = 1
    stages: int = 1
    micro_batches: int = 1
    schedule: str = "gpipe"


class Trainable(ABC):
    """What the loop trains: variables, and a program for batches of given shapes."""

    variables: list[tuple[str, Array]]
    metric_names: list[str]
    devices_needed = 1
    """Tasks that one replica is spread over, where replicas can be."""
    draws = False
    """Whether the program is also fed :meth:`draw`, because it has random numbers in it."""

    @property
    def tables(self) -> tuple[int, ...]:
        """Numbers of the variables that a step uses only through row lookups."""
        return ()

    def lookups(self, shapes: tuple[tuple[int, ...], ...]) -> Callable[..., tuple[Array, ...]]:
        """Return ``program(*batch)``, which returns the row numbers that a batch looks up in each table."""
        raise NotImplementedError(f"{type(self).__name__} has no tables")

    def draw(self, step: int, first: int) -> Array:
        """Return the numbers that a step's random numbers follow from.

        ``first`` is the place of the replica's first example among those of all replicas.
        """
        raise NotImplementedError(f"{type(self).__name__} draws, and does not say from what")

    def origin(self) -> list[int]:
        """Return the numbers that random numbers follow from, beside the step and the example's place."""
        return []

    def draw_from(self, origin: Sequence[int]) -> None:
        """Draw as a training did that had this :meth:`origin`."""
        return

    def all_arrays(self, values: Sequence[Array]) -> list[Array]:
        """Return all that training changes, weights and states, in a fixed order, given the weights."""
        return list(values)

    def twin(self) -> Trainable:
        """Return what another replica of this process trains: the same, with states of its own."""
        return self

    def remember(self) -> Callable[[], object]:
        """Return what undoes what the next step does to states, such as moving averages."""
        return lambda: None

    @abstractmethod
    def training_program(
        self,
        shapes: tuple[tuple[int, ...], ...],
        values: Sequence[Array],
        ready: Callable[[int], object] | None = None,
        tables: Sequence[int] = (),
    ) -> Callable[..., tuple[Array, ...]]:
        """Return ``program(*batch, scale, [draw,] *gradients) -> (loss, *metrics, *rows)``.

        Gradients of ``tables`` are not written to arrays: ``rows`` holds, for each table, the gradients of
        the rows that were looked up and their row numbers.

        ``ready`` is called with the number of a variable as soon as its gradient is there; those of the last
        layers come first.

        ``scale`` is one over the size of the global batch; the loss is the sum over the examples times it,
        so that gradients (and losses) of replicas add up. Metrics are means over the replica's examples.
        """

    def parts(self) -> Parts:
        """Return the step as tensors, for strategies that build a graph of their own."""
        raise NotImplementedError(f"{type(self).__name__} is no graph: it cannot be trained in-graph")

    @abstractmethod
    def prepare(self, batch: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return a batch as the program takes it, or raise if it does not fit."""
