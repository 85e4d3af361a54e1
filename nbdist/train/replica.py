"""One replica's side of a strategy, as every training loop sees it: `Replica`.

    replica = strategy.replica(variables, optimizer)
    for batch in strategy.batches(dataset):
        replica.pull()                          # newest parameters
        program(*batch, *replica.gradients())   # writes gradients where the strategy sends them from
        replica.push()                          # towards the next parameters
    replica.finish()
    replica.close()

These five methods are all that a replica has to have. What only some replicas can do is a *capability*: an
attribute that is None, or an object of a class of `nbdist.train.capabilities`; most often the replica
`itself`, which then inherits from that class.

    class Mine(OneDeviceReplica, Agreement):
        agreement = itself

A replica that wraps another has the inner one's capabilities, but for those that move parameters and
gradients (`nbdist.train.device`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.train.capabilities import (
    Agreement,
    ArrayMemory,
    LearningRate,
    Measuring,
    Membership,
    Overlap,
    PendingPush,
    Programs,
    Reads,
    StateAccess,
    StepChecks,
    StepReport,
    StepSpans,
    TableRows,
    TrainingHooks,
)
from nbdist.train.trainable import Program, ProgramSpec, Shapes, Trainable


class RetryStep(Exception):
    """The current step was not made, because replicas were lost: the remaining replicas repeat it."""


class ReplicaLeft(BaseException):
    """This replica has left the training between two steps, which the others continue; its body ends.

    Not an Exception, so that a body which handles errors of its training does not handle this.
    """


class Itself:
    """A class attribute that is the object it is asked of, unless that sets another."""

    def __get__(self, one: Any, kind: type | None = None) -> Any:
        return self if one is None else one


itself: Any = Itself()


CAPABILITIES: dict[str, type[Any]] = {
    "programs": Programs, "rows": TableRows, "rate": LearningRate, "agreement": Agreement,
    "membership": Membership, "state": StateAccess, "measures": Measuring, "overlap": Overlap,
    "pending": PendingPush, "checks": StepChecks, "reads": Reads,
}  # fmt: skip
"""The class of each capability, by the attribute of a `Replica` that has it."""


class Replica(ABC):
    """One replica's side of a strategy, for one training. All calls come from the training thread."""

    values: list[Array]
    """The parameters, in the order of the variables. ``pull`` changes them in place."""
    notes: Sequence[str] = ()
    """What a user should know, for example that parameters travel over sockets."""
    report: StepReport
    """What it reports of its steps so far."""
    hooks: TrainingHooks
    """What the training tells it, and what it can ask the training for."""
    spans = StepSpans()
    """What its pulls, programs and pushes are in a timeline."""
    memory = ArrayMemory()
    """Where its arrays are."""

    programs: Programs | None = None
    """Makes the programs of its steps; None: a program is the model's, and reads ``values``."""
    rows: TableRows | None = None
    """Takes gradients of tables as rows; None: all gradients are arrays."""
    rate: LearningRate | None = None
    """Reads and changes the learning rate; None: none can. Where others do it, it reads None."""
    agreement: Agreement | None = None
    """Ends the training of all replicas together; None: each ends for itself."""
    membership: Membership | None = None
    """Has processes join and leave the training; None: they are those that it began with."""
    state: StateAccess | None = None
    """Saves and continues the training; None: it cannot be continued."""
    measures: Measuring | None = None
    """Adds up what replicas measure; None: losses and metrics are those of this replica's examples."""
    overlap: Overlap | None = None
    """Has steps dispatched before the last one's results are read; None: a step ends before the next."""
    pending: PendingPush | None = None
    """Waits for a step that a push leaves to be made; None: it is made when ``push`` returns."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make a replica that has made no step; classes need not call another's ``__init__`` for it."""
        made = super().__new__(cls)
        made.report, made.hooks = StepReport(), TrainingHooks()
        return made

    def __init_subclass__(cls, **options: Any) -> None:
        """Raise InvalidArgumentError for a class with methods of a capability that nothing would call."""
        super().__init_subclass__(**options)
        for name, kind in CAPABILITIES.items():
            said = next(one for one in cls.__mro__ if name in vars(one))
            if issubclass(cls, kind) and said is Replica:
                raise InvalidArgumentError(
                    f"{cls.__name__} inherits from {kind.__name__}, and nothing would call it: add the line "
                    f"`{name} = itself` to the class (itself is in nbdist.train.replica)"
                )

    @property
    def checks(self) -> StepChecks:
        """How a step is left out that is not finite."""
        return ZeroedSteps(self)

    @property
    def reads(self) -> Reads:
        """How the newest parameters are read between steps."""
        return PulledReads(self)

    @abstractmethod
    def pull(self) -> None:
        """Get ready for a step: bring the newest parameters into ``values`` if the step reads them there."""

    @abstractmethod
    def gradients(self) -> Sequence[Array]:
        """Return the arrays to write this step's gradients to, one per variable that is not a table."""

    @abstractmethod
    def push(self) -> None:
        """Hand this step's gradients over. Raises RetryStep if the step must be repeated."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until every replica's gradients are applied, and bring the final parameters."""

    @abstractmethod
    def close(self) -> None:
        """Release groups, links and buffers, in any state."""


class ZeroedSteps(StepChecks):
    """Leaves out this replica's part of a step by gradients of 0, so that the others need not know of it."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self.report = replica, replica.report

    def flat_gradients(self) -> Sequence[Array]:
        """Return the gradients."""
        return self._replica.gradients()

    def skip(self) -> None:
        """Push zeros."""
        push_zeros(self._replica)


class PulledReads(Reads):
    """Reads parameters as a step does: by a pull."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def fetch(self) -> None:
        """Pull."""
        self._replica.pull()


def push_zeros(replica: Replica) -> None:
    """Make a step with gradients of 0."""
    for gradient in replica.gradients():
        gradient.fill(0)
    replica.push()


def tables_in(replica: Replica) -> Sequence[int]:
    """Return the numbers of the variables whose gradients a replica takes as rows."""
    return () if replica.rows is None else replica.rows.tables


def continuing(replica: Replica) -> StateAccess:
    """Return what continues a replica's training. Raises FailedPreconditionError if nothing does."""
    if replica.state is None:
        raise FailedPreconditionError(f"{type(replica).__name__} cannot continue a training")
    return replica.state


def rate_of(replica: Replica) -> float | None:
    """Return the rate of a replica's next update; None where it does not know it."""
    return None if replica.rate is None else replica.rate.learning_rate


def change_rate(replica: Replica, rate: float) -> None:
    """Have a replica make updates at another rate; see `LearningRate.set_learning_rate`.

    Raises FailedPreconditionError if it cannot.
    """
    if replica.rate is None:
        raise FailedPreconditionError(
            f"{type(replica).__name__} cannot change its learning rate in a training"
        )
    replica.rate.set_learning_rate(rate)


def step_program(replica: Replica, model: Trainable, shapes: Shapes) -> Program:
    """Return a step's program for batches of these shapes; see `Trainable.training_program`."""
    if replica.programs is not None:
        return replica.programs.program(model, shapes)
    return model.training_program(ProgramSpec(shapes, replica.values, tables=tables_in(replica)))


def arrays_computed_with(replica: Replica) -> Sequence[Array]:
    """Return the parameters that steps compute with: ``values``, or XLA's arrays on its devices."""
    return replica.values if replica.programs is None else replica.programs.computed_with
