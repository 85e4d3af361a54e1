"""What the loops train: `Trainable`, its variables and a program for a step; and a step as tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from nbdist.graph.backend import Array
from nbdist.graph.op import Shape
from nbdist.graph.tensor import Placeholder, Tensor, Variable
from nbdist.optim import Optimizer
from nbdist.optim.precision import LossScale

if TYPE_CHECKING:
    from nbdist.train.replica import Replica


@dataclass(frozen=True)
class ParameterReads:
    """Which variables, by number, the forward passes of a step read, and which the backward passes.

    A step has at most ``passes`` of each.
    """

    forward: frozenset[int]
    backward: frozenset[int]
    passes: int = 1


class Gathers(ABC):
    """Parameters that are here for a while, unit by unit; see :mod:`nbdist.distribute.gathers`."""

    units: Mapping[int, int]
    """The unit of each variable, by number."""
    present: list[bool]
    """Whether a unit is here."""
    watch: Callable[[int, bool], object]
    """Is called with a unit when it has come, and when it has gone."""
    watch_whole: Callable[[], object]
    """Is called when the model's own arrays have got all newest values, until the next step."""

    @abstractmethod
    def need(self, unit: int) -> None:
        """Have a unit be here."""

    @abstractmethod
    def release(self, unit: int, again: bool = False) -> None:
        """Let go of a unit; ``again`` if this pass may read it again."""

    @abstractmethod
    def end_pass(self) -> None:
        """End a forward and backward pass of a step that has several."""


Program: TypeAlias = Callable[..., tuple[Array, ...]]
Shapes: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ProgramSpec:
    """What a replica wants of the program of its steps: see `Trainable.training_program`."""

    shapes: Shapes
    """Of the arrays of a batch."""
    values: Sequence[Array]
    """The parameters that the program computes with."""
    ready: Callable[[int], object] | None = None
    """Called with a variable's number once its gradient is there; those of the last layers come first."""
    tables: Sequence[int] = ()
    """Variables with no array for their gradients: the program's ``rows`` are, for each, the gradients of the
    rows that were looked up, and their row numbers."""
    gathers: Gathers | None = None
    """Has each unit of parameters be here while it is read; only for models with ``parameter_reads``."""


class Trainable(ABC):
    """What the loop trains: variables, and a program for batches of given shapes."""

    variables: list[tuple[str, Array]]
    metric_names: list[str]
    sum_count = 0
    """How many sums a program returns after the loss, as means over the examples, in place of the metrics,
    which follow from these sums (`metrics_of`), such as counts of hits; 0 if it returns the metrics."""
    devices_needed = 1
    """Tasks that one replica is spread over, where replicas can be."""
    loss_scale: LossScale | None = None
    """The scale of the loss in mixed precision, for this replica; the program reads its array."""
    in_graph = True
    """Whether it has a step as tensors: see :meth:`parts`."""
    draws = False
    """Whether the program is also fed :meth:`draw`, because it has random numbers in it."""
    fixed: Sequence[Array] = ()
    """Arrays that no step changes, such as weights of frozen layers; all replicas begin with the chief's."""
    weighs = False
    """Whether a step weighs its share by what the loss counts: `Measuring`."""
    counted: float | None = None
    """What the loss of the program's last call counts (`Measures.part`); None if that is its examples.

    A step that ``weighs`` multiplies loss and gradients by it, in place of the examples.
    """

    def attach(self, replica: Replica) -> None:
        """Begin to be trained by a replica, in its thread; its first share may have no example."""
        self.weighs = replica.measures is not None

    @property
    def measured_count(self) -> int:
        """How many numbers a program returns after the loss."""
        return self.sum_count or len(self.metric_names)

    def metrics_of(self, sums: Sequence[float]) -> Sequence[float]:
        """Return the metrics that follow from sums over examples, where ``sum_count`` is not 0."""
        raise NotImplementedError(f"{type(self).__name__} returns its metrics")

    @property
    def dimensions(self) -> list[tuple[str | None, ...]]:
        """The names of the dimensions of each variable; None for one without a name."""
        return [(None,) * value.ndim for _, value in self.variables]

    @property
    def tables(self) -> tuple[int, ...]:
        """Numbers of the variables that a step uses only through row lookups."""
        return ()

    @property
    def parameter_reads(self) -> ParameterReads | None:
        """When its program reads which variables; None if it needs all of them all the time."""
        return None

    def lookups(self, shapes: Shapes) -> Program:
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

    def whole_replica(self, optimizer: Optimizer) -> Replica | None:
        """Return a replica that makes step and update as one, where no other takes part; None for none."""
        return None

    def twin(self) -> Trainable:
        """Return what another replica of this process trains: the same, with states of its own."""
        return self

    def fetch_states(self) -> None:
        """Bring states, such as moving averages, to the host if a device has changed them."""
        return

    def remember(self) -> Callable[[], object]:
        """Return what undoes what the next step does to states, such as moving averages."""
        return lambda: None

    @abstractmethod
    def training_program(self, spec: ProgramSpec) -> Program:
        """Return ``program(*batch, scale, [draw,] *gradients) -> (loss, *metrics, *rows)``.

        ``scale`` is one over the size of the global batch; the loss is the sum over the examples times it,
        so that gradients (and losses) of replicas add up. Metrics are means over the replica's examples.
        """

    def parts(self, xla: bool = False) -> Parts:
        """Return the step as tensors, for strategies that build a graph of their own.

        With ``xla`` it is for XLA, and may be in mixed precision.
        """
        raise NotImplementedError(f"{type(self).__name__} has no graph: it cannot be trained in-graph")

    @abstractmethod
    def prepare(self, batch: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return a batch as the program takes it, or raise if it does not fit."""


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
    check_labels: Callable[[Array], object] = lambda labels: None
    """Raises for labels that the loss does not take; for data that all replicas read where they are."""
    states: dict[Variable, Array] = field(default_factory=dict)
    updates: dict[Variable, Tensor] = field(default_factory=dict)
    """New values of states, computed in the step."""
    loss_scale: tuple[Variable, LossScale] | None = None
    """In float16: the variable that multiplies the loss, and what it is at each step."""
    devices_needed: int = 1
    stages: int = 1
    micro_batches: int = 1
    schedule: str = "gpipe"


@dataclass(frozen=True)
class Held:
    """Variables whose values a replica holds; with ``gradients``, the step updates them.

    ``updates`` are new values of the replica's states, by variable.
    """

    replica: Replica
    variables: Sequence[Variable]
    gradients: Sequence[Tensor] = ()
    updates: dict[Variable, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class WholeStep:
    """A step with its updates, for a strategy that compiles all of it as one function.

    The program is called with the ``feeds``, then the replicas' :meth:`Replica.gradients`. It returns the
    ``fetches``; ``checked`` are those that must be finite, or no update is made. ``others`` are variables
    that no replica holds, with their arrays, which the program reads and assigns. ``order`` are the tensors
    to compute, inputs before users; None for any order.
    """

    feeds: Sequence[Tensor]
    shapes: Sequence[Shape]
    fetches: Sequence[Tensor]
    checked: Sequence[Tensor]
    held: Sequence[Held]
    others: dict[Variable, Array] = field(default_factory=dict)
    order: Sequence[Tensor] | None = None
