"""Variables that one optimizer trains in a custom loop, and the strategy's replicas that do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nbdist.errors import FailedPreconditionError
from nbdist.graph.backend import Array
from nbdist.graph.tensor import Variable
from nbdist.optim import Optimizer
from nbdist.train.context import Context
from nbdist.train.device import on_device
from nbdist.train.strategy import Replica
from nbdist.train.trainable import Trainable

Program = Callable[..., tuple[Array, ...]]
Ready = Callable[[int], object]
Shapes = tuple[tuple[int, ...], ...]


class Nothing(Trainable):
    """No variables: for asking a strategy what it needs none for."""

    def __init__(self) -> None:
        self.variables: list[tuple[str, Array]] = []
        self.metric_names: list[str] = []

    def training_program(
        self,
        shapes: Shapes,
        values: Sequence[Array],
        ready: Ready | None = None,
        tables: Sequence[int] = (),
    ) -> Program:
        """Refuse: there is nothing to train."""
        raise FailedPreconditionError("there are no variables to train")

    def prepare(self, batch: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the batch."""
        return batch


class Group(Nothing):
    """Variables of one optimizer; ``replicas`` are this process's, while they are trained."""

    def __init__(
        self, optimizer: Optimizer, trained: Sequence[Variable], counter: Variable | None = None
    ) -> None:
        super().__init__()
        self.optimizer, self.trained, self.counter = optimizer, tuple(trained), counter
        self.replicas: list[Replica] = []
        self._tables: tuple[int, ...] = ()
        self.agreed = False
        """Whether it was asked, since the last step, if there will be another one."""
        self.stepped = False
        """Whether it has made a step since the last pass through data ended."""

    @property
    def tables(self) -> tuple[int, ...]:
        """Numbers of the variables that their first training step uses only through row lookups."""
        return self._tables

    def begin(self, variables: Sequence[tuple[str, Array]], tables: Sequence[int]) -> None:
        """Store the initial values of a training, and the numbers of its tables."""
        self.variables, self._tables = list(variables), tuple(tables)

    def replica(self, context: Context) -> Replica:
        """Return a replica that begins to train these variables."""
        return on_device(context.strategy.begin(self, self.optimizer), context.device)

    @property
    def joint(self) -> bool:
        """Whether the replicas tell each other of a stop."""
        return self.replicas[0].joint

    def steps(self, index: int) -> int:
        """Return the updates so far, by all replicas, as one of this process's knows."""
        return self.replicas[index].global_step if self.replicas else 0

    def reads(self, variables: Sequence[Variable]) -> bool:
        """Whether any of these variables is trained here."""
        return not set(self.trained).isdisjoint(variables)

    def finish(self, index: int) -> None:
        """Wait for the others' updates, on a replica's thread."""
        if self.stepped:
            self.replicas[index].end_epoch(False)
        self.replicas[index].finish()

    def close(self) -> None:
        """Let go of the replicas; the next step begins to train anew."""
        replicas, self.replicas, self.agreed, self.stepped = self.replicas, [], False, False
        for replica in replicas:
            replica.close()


class Stepping(Nothing):
    """A step as what a replica asks for its program: ``compiled`` makes it, given the replica's values."""

    def __init__(self, compiled: Callable[[Sequence[Array], Ready | None], Program]) -> None:
        super().__init__()
        self._compiled = compiled

    def training_program(
        self,
        shapes: Shapes,
        values: Sequence[Array],
        ready: Ready | None = None,
        tables: Sequence[int] = (),
    ) -> Program:
        """Return the program, whose last arguments are the arrays for this replica's gradients."""
        return self._compiled(values, ready)
