"""What only some replicas can do: one class for each capability of a `Replica`, and what all report.

    StepReport, TrainingHooks       what a replica tells the training, and the training a replica
    StepSpans, ArrayMemory          what it does in a timeline, and where its arrays are
    StepChecks, Reads               how steps are left out, and parameters read between steps
    Programs, TableRows, Overlap    its own programs, rows of tables, steps dispatched ahead
    LearningRate, Agreement         what replicas agree on
    Membership, StateAccess         the processes of a training, and how it continues
    Measuring, PendingPush          losses of whole batches, and pushes that return early

`tests/train/test_train_capabilities.py` has the contract of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from nbdist.errors import FailedPreconditionError
from nbdist.graph.backend import Array, backend_of, to_device
from nbdist.runtime.layout import Layout
from nbdist.runtime.tables import RowGradient

if TYPE_CHECKING:
    from nbdist.train.trainable import Program, Shapes, Trainable


@dataclass(frozen=True)
class Nonfinite:
    """Why all replicas have left out a step: what is NaN or infinite in it, in words.

    ``scaled``: whether it depends on the scale of the loss, as gradients do.
    """

    what: str
    scaled: bool


@dataclass
class StepReport:
    """What a replica reports of its steps so far; the training reads it after each."""

    global_step: int = 0
    """Updates so far, of all replicas; as of the last pull."""
    waited: float = 0.0
    """Seconds of all pulls and pushes so far that went by waiting for an answer."""
    dropped: int = 0
    """Gradients of this replica so far that came too late and were not applied."""
    overflows: int = 0
    """Steps so far that were left out because a gradient overflowed, here or on a replica in step."""
    unmade: int = 0
    """Steps so far that it has pushed and that were not made, because others had stopped before."""
    nonfinite: Nonfinite | None = None
    """Why all have left out the last step, as they found in its push; None if they have made it."""
    staleness: int | None = None
    """How many updates the last acknowledged gradient was late; None where updates are synchronous."""
    measured: Sequence[float] | None = None
    """Loss and metrics of the whole batch of the last push, where it adds them up; None elsewhere."""
    measures_share: bool = False
    """Whether its loss and metrics are those of its own share of each batch, and others measure the rest."""
    by_updates: bool = False
    """Whether its steps are those of ``global_step``: with backups a replica has no part in some."""


@dataclass(frozen=True)
class JoinedState:
    """What a process that joins a training receives from another replica, beside parameters and slots."""

    state: dict[str, Any]
    """The position of the training, as plain values: see `nbdist.train.resume.State`."""
    arrays: Sequence[Array]
    """What else changes in the model, such as moving averages."""


@dataclass(frozen=True)
class RestoredState:
    """What a training that continues begins with; see `Strategy.restored`."""

    slots: Sequence[dict[str, Array]]
    updates: int


@dataclass
class TrainingHooks:
    """What the training tells its replica, and what the replica can ask it for; the loops set it."""

    withholds: bool = False
    """Whether no gradient of a step is to be sent before ``push``, because its part may be left out."""
    before_update: Callable[[Sequence[Array], Sequence[Array]], object] | None = None
    """Is called with the gradients of an update and the parameters, by variable; it may change the gradients.

    Only replicas of strategies with ``has_sums`` call it.
    """
    position: Callable[[], JoinedState] | None = None
    """Returns what a new process that joins now has to know; None where none can join."""
    saved: Callable[[], RestoredState | None] | None = None
    """Returns the optimizer's slots in the newest state that the run has saved."""


@dataclass(frozen=True)
class StepSpans:
    """What the parts of a step are in a timeline: each a kind of span and its name."""

    pull: tuple[str, str] | None = ("receive", "parameters")
    """None for one that takes no time."""
    program: tuple[str, str] = ("compute", "step")
    push: tuple[str, str] = ("send", "gradients")


@dataclass(frozen=True)
class ArrayMemory:
    """Where a replica's arrays are, seen from the device that its thread works for.

    ``in_place``: whether its programs take them where they are: on that device, or where a session or XLA
    has the parameters. Else they are in the host's memory.
    """

    in_place: bool = False
    pinned: tuple[Layout, Array] | None = None
    """Where each of ``values`` lies in one piece of pinned host memory; None where no GPU reads it."""


class StepChecks(ABC):
    """How a step is left out that is not finite."""

    report: StepReport

    @abstractmethod
    def flat_gradients(self) -> Sequence[Array]:
        """Return the gradients to look at, in as few arrays as they have; what lies between them is zero.

        Nothing, where they are gone before ``push``, which then looks at their sums (`StepReport.nonfinite`).
        """

    @abstractmethod
    def skip(self) -> None:
        """Take no part in this step's update; replicas that make it together continue without this one."""

    def overflow(self) -> None:
        """Have all replicas leave out this step that make it together, since a gradient overflowed here.

        Replicas that step by themselves leave out their own step.
        """
        self.report.overflows += 1
        self.skip()


class Reads(ABC):
    """How the newest parameters are brought into ``values`` between steps."""

    @abstractmethod
    def fetch(self) -> None:
        """Bring the newest parameters in any case."""

    def fetch_together(self, wanted: bool) -> None:
        """Bring the newest parameters where they are wanted; replicas in step all call it after an epoch."""
        if wanted:
            self.fetch()

    def ask_values(self) -> bool:
        """Return whether ``newest`` can be called now; if not, the next step makes it possible.

        Only the chief asks.
        """
        return True

    def newest(self) -> None:
        """Bring the newest parameters, which a checkpoint is made of.

        Unlike :meth:`fetch` this waits for no replica that may be paused.
        """
        self.fetch()


class Programs(ABC):
    """A replica that makes the programs of its steps."""

    values: list[Array]

    @abstractmethod
    def program(self, model: Trainable, shapes: Shapes) -> Program:
        """Return the step's program for batches of these shapes; see `Trainable.training_program`."""

    @property
    def computed_with(self) -> Sequence[Array]:
        """The parameters that steps compute with: ``values``, or XLA's arrays on its devices."""
        return self.values


class TableRows(ABC):
    """Variables that are used only through row lookups, with gradients in the form of rows."""

    tables: Sequence[int]
    """Their numbers; none if this training has no such variables."""

    def want(self, ids: Sequence[Array]) -> None:
        """Request the rows of each table that the next step reads; it comes before ``pull``."""
        return

    @abstractmethod
    def take(self, gradient: Sequence[RowGradient]) -> None:
        """Store the gradients of the tables' rows for the next ``push``."""


class Overlap(ABC):
    """Steps are dispatched before the results of the last one are read.

    Only for replicas that train alone: they have no `Agreement` and no `Membership`, and ``pull`` and
    ``push`` raise neither RetryStep nor StepStopped. The program returns at once, and its batch is not
    overwritten. A step that is dispatched after one that is not finite changes nothing, unless the training
    has the replica ``withhold``.
    """

    @abstractmethod
    def read_results(self, values: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays (loss, *metrics, ...) that a step's program has returned, after waiting for them.

        It is called once for each step with examples, in order.
        """

    @abstractmethod
    def is_ready(self, values: Sequence[Array]) -> bool:
        """Return whether the device has finished a step, given what its program has returned."""

    @abstractmethod
    def interrupt(self) -> None:
        """Bring the newest parameters to the host after an error, if an interrupted step has left them."""


class LearningRate(ABC):
    """The learning rate of a training."""

    @property
    @abstractmethod
    def learning_rate(self) -> float | None:
        """The rate of the next update; None on a replica that receives it from others."""

    @abstractmethod
    def set_learning_rate(self, rate: float) -> None:
        """Make updates at another rate, from this replica's next step on; all replicas are asked.

        Replicas that make updates together change at the same one: the first notifies the others. Raises
        StepStopped if no update can follow.
        """

    def follow_schedule(self, rate: float, factor: float) -> bool:
        """Have what makes the updates follow the schedule of the optimizer, times ``factor``, by itself.

        Return False where nothing does, so that each update is given its ``rate`` before it is made. Raises
        StepStopped if no update can follow.
        """
        return False


class Agreement(ABC):
    """Replicas that cannot make a step without each other, and so end together."""

    @abstractmethod
    def agree(self, stop: bool) -> bool:
        """Return whether to stop before the next step, given whether this replica is to.

        One that is asked to stop may make one more step, which carries the request to the others.
        """

    @abstractmethod
    def end_epoch(self, stop: bool) -> bool:
        """Return whether to end the training after this epoch, given whether this replica wants to."""

    @abstractmethod
    def abort(self, error: BaseException) -> None:
        """Notify the replicas that wait for this one why it makes no more steps."""


class Membership(ABC):
    """Processes join a training between two steps, and leave it."""

    joins_at: int | None = None
    """Steps of this training that the replica's former process has made; None if there was none."""
    left_out: int | None = None
    """How many of the steps before ``joins_at`` neither this process nor a former one has made, if known."""
    joined: JoinedState | None = None
    """What the others were at when this new process joined their training; None if it began with them."""
    regroups_next = False
    """Whether all have agreed to form the group anew before the next step: some wait to join, or leave."""

    @abstractmethod
    def admit(self, leave: bool = False) -> bool:
        """Have new processes join and others leave, or continue without lost ones, before the next step.

        Replicas that make steps together call it at the same step, and learn of a ``leave`` with the next
        push. Return whether shares have changed. Raises ReplicaLeft where this replica has left.
        """

    def renew(self) -> None:
        """Begin to make steps with processes that were admitted to the loop; see `LoopJoining`."""
        return


@dataclass(frozen=True)
class ReplicaState:
    """What continues a training, beside the model: of one moment between two steps of a replica."""

    values: Sequence[Array]
    """The parameters, in the order of the variables."""
    slots: Sequence[dict[str, Array]]
    """What the optimizer keeps for each variable."""
    updates: int
    """Updates so far; some optimizers count them."""
    steps: Sequence[int] | None = None
    """How many steps of each replica are in the parameters; None if all have made the same steps."""


class StateAccess(ABC):
    """What continues a training: read from a replica, and given to the replica of another run."""

    values: list[Array]
    report: StepReport

    @property
    def slots(self) -> list[dict[str, Array]]:
        """What the optimizer keeps for each variable, in its own memory."""
        raise FailedPreconditionError(f"{type(self).__name__} has nothing of what the optimizer keeps")

    def ask_state(self) -> bool:
        """Return whether :meth:`read_state` can be called now; if not, the next step makes it possible.

        Only the chief is asked. Before the last step is finished it makes ``finish`` bring what is needed.
        """
        return True

    def read_state(self) -> ReplicaState:
        """Return what continues the training; its arrays are valid until the next step.

        Only the chief is asked, between two steps, if :meth:`ask_state` allows. Raises StepStopped if its
        last step cannot complete.
        """
        return ReplicaState(self.values, self.slots, self.report.global_step)

    def restore_slots(self, slots: Sequence[Mapping[str, Array]]) -> None:
        """Have the optimizer continue with these slots of each variable, in the order of ``slots``."""
        for own, kept in zip(self.slots, slots):  # not strict: some optimizers keep nothing
            for name, array in own.items():
                array[...] = to_device(kept[name].reshape(array.shape), backend_of(array))

    @abstractmethod
    def resume(self, updates: int, rate: float, mark: int) -> None:
        """Continue after so many updates, at a learning rate, once ``slots`` are restored.

        ``mark`` stands for the state that is continued: replicas in sync must have the same.
        """


class Measures(NamedTuple):
    """What a replica has measured with its share of a batch, whose losses and gradients are to be added up.

    The loss of a whole batch is a sum by a number: that of its examples or, with weights of classes, masks
    and ignored targets, what the loss counts in their place. A share's loss is a mean by its own number, so
    it takes part with ``part``, and the sum of all is divided by the sum of the parts.
    """

    loss: float
    """The mean over the share, times ``part``."""
    metrics: Sequence[float]
    """Means over the share's examples."""
    part: float
    """What the share counts, by the examples of the whole batch; 0 if nothing in it counts."""
    examples: float
    """Its examples, by those of the whole batch."""
    counts_examples: bool
    """Whether ``part`` is ``examples``, as the loss counts examples."""


class Measuring(ABC):
    """A push adds up what replicas have measured, and weighs their gradients by it."""

    @abstractmethod
    def measure(self, measures: Measures) -> None:
        """Have the next push add up what this replica has measured; `StepReport.measured` has the result.

        The sums of the gradients are divided by the sum of the replicas' parts, unless all count examples.
        """


class PendingPush(ABC):
    """A push returns before its step is made."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until the step of the last push is made, if replicas make steps together.

        Raises StepStopped if it cannot be made; ``unmade`` counts it then.
        """
