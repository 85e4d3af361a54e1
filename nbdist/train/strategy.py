"""The interface between training and distribution: how all replicas move to the next parameters.

All that the training loop knows of a strategy:

    replica = strategy.replica(variables, optimizer)
    for batch in strategy.batches(dataset):
        replica.pull()                          # newest parameters
        program(*batch, *replica.gradients())   # writes gradients where the strategy sends them from
        replica.push()                          # towards the next parameters
    replica.finish()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from nbdist.data import Dataset
from nbdist.data.meter import Meter
from nbdist.data.shares import share_of
from nbdist.data.structure import leaves_of
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.backend import Array, backend, backend_of, scoped_device, to_device
from nbdist.graph.op import Shape
from nbdist.graph.tensor import Placeholder, Tensor, Variable
from nbdist.optim import Optimizer
from nbdist.optim.precision import LossScale
from nbdist.runtime.layout import Layout
from nbdist.runtime.tables import RowGradient, Tables

if TYPE_CHECKING:
    from nbdist.train.context import Context
    from nbdist.train.custom.runner import Runner
    from nbdist.wire.collective.base import Collective


class RetryStep(Exception):
    """The current step was not made, because replicas were lost: the remaining replicas repeat it."""


class ReplicaLeft(BaseException):
    """This replica has left the training between two steps, which the others continue; its body ends.

    Not an Exception, so that a body which handles errors of its training does not handle this.
    """


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


@dataclass(frozen=True)
class RestoredState:
    """What a training that continues begins with; see `Strategy.restored`."""

    slots: Sequence[dict[str, Array]]
    updates: int


@dataclass(frozen=True)
class JoinedState:
    """What a process that joins a training receives from another replica, beside parameters and slots."""

    state: dict[str, Any]
    """The position of the training, as plain values: see `nbdist.train.resume.State`."""
    arrays: Sequence[Array]
    """What else changes in the model, such as moving averages."""


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


@dataclass(frozen=True)
class Nonfinite:
    """Why all replicas have left out a step: what is NaN or infinite in it, in words.

    ``scaled``: whether it depends on the scale of the loss, as gradients do.
    """

    what: str
    scaled: bool


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


class Replica(ABC):
    """One replica's side of a strategy, for one training. All calls come from the training thread."""

    values: list[Array]
    """The parameters, in the order of the variables. ``pull`` changes them in place."""
    global_step = 0
    """Updates so far, of all replicas; as of the last pull."""
    by_updates = False
    """Whether its steps are those of ``global_step``: with backups a replica has no part in some."""
    waited = 0.0
    """Seconds of all pulls so far that went by waiting for an answer."""
    dropped = 0
    """Gradients of this replica so far that came too late and were not applied."""
    overflows = 0
    """Steps so far that were left out because a gradient overflowed, here or on a replica in step."""
    nonfinite: Nonfinite | None = None
    """Why all have left out the last step, as they found in its push; None if they have made it."""
    unmade = 0
    """Steps so far that this replica has pushed and that were not made, because others had stopped before."""
    staleness: int | None = None
    """How many updates the last acknowledged gradient was late; None where updates are synchronous."""
    joins_at: int | None = None
    """Steps of this training that the replica's former process has made; None if there was none."""
    joined: JoinedState | None = None
    """What the others were at when this new process joined their training; None if it began with them."""
    saved: Callable[[], RestoredState | None] | None = None
    """Returns the optimizer's slots in the newest state that the run has saved; the training loop sets it."""
    regroups_next = False
    """Whether all have agreed to form the group anew before the next step: some wait to join, or leave."""
    stale = False
    """Whether :meth:`renew` is due before the next step, because others were admitted."""
    left_out: int | None = None
    """How many of the steps before ``joins_at`` neither this process nor a former one has made, if known."""
    position: Callable[[], JoinedState] | None = None
    """Returns what a new process that joins now has to know; the training loop sets it."""
    pull_is: tuple[str, str] | None = ("receive", "parameters")
    push_is: tuple[str, str] = ("send", "gradients")
    program_is: tuple[str, str] = ("compute", "step")
    """What a pull and a push are in a timeline: a kind of span and its name; None for what takes no time."""
    notes: Sequence[str] = ()
    """What a user should know, for example that parameters travel over sockets."""

    memory: tuple[Layout, Array] | None = None
    """Where each of ``values`` lies in one piece of pinned host memory; None where no GPU reads it."""
    resident = False
    """Whether values, gradients and the optimizer are on the device that its thread works for."""
    computes_elsewhere = False
    """Whether its program is a session's step: arrays on the host go in, and devices of its graph compute."""
    tables: Sequence[int] = ()
    """Numbers of the variables used only through row lookups, with gradients in the form of rows."""
    withholds = False
    """Whether no gradient of a step is sent before ``push``, because this replica may leave its part out."""

    before_update: Callable[[Sequence[Array], Sequence[Array]], object] | None = None
    """Is called with the gradients of an update and the parameters, by variable; it may change the gradients.

    Only replicas of strategies with ``has_sums`` call it.
    """

    adds_measures = False
    """Whether its push adds up what replicas have measured, and weighs their gradients: see `measure`."""
    measured: Sequence[float] | None = None
    """Loss and metrics of the whole batch of the last push, where it adds them up; None elsewhere."""

    measures_share = False
    """Whether its loss and metrics are those of its own share of each batch, and others measure the rest."""

    overlaps_steps = False
    """Whether the loop dispatches the next step before it reads the results of this one.

    Only for replicas that train alone: `pull`, `push`, `agree` and `admit` wait for no other replica, and
    raise neither RetryStep nor StepStopped. ``program`` returns at once, and its batch is not overwritten. A
    step that is dispatched after one that is not finite changes nothing, unless the replica ``withholds``.
    """

    def read_results(self, values: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays (loss, *metrics, ...) that a step's program has returned, after waiting for them.

        It is called once for each step with examples, in order.
        """
        return values

    def is_ready(self, values: Sequence[Array]) -> bool:
        """Return whether the device has finished a step, given what its program has returned."""
        return True

    @property
    def computed_with(self) -> Sequence[Array]:
        """The parameters that steps compute with: ``values``, or XLA's arrays on its devices."""
        return self.values

    def want(self, ids: Sequence[Array]) -> None:
        """Request the rows of each table that the next step reads; call it before ``pull``."""
        return

    def take(self, gradient: Sequence[RowGradient]) -> None:
        """Store the gradients of the tables' rows for the next ``push``."""
        raise FailedPreconditionError(f"{type(self).__name__} has no tables")

    @abstractmethod
    def pull(self) -> None:
        """Get ready for a step: bring the newest parameters into ``values`` if the step reads them there."""

    def fetch(self) -> None:
        """Bring the newest parameters into ``values`` in any case."""
        self.pull()

    def fetch_together(self, wanted: bool) -> None:
        """Bring the newest parameters where they are wanted; replicas in step all call it after an epoch."""
        if wanted:
            self.fetch()

    def newest(self) -> None:
        """Bring the newest parameters, which a checkpoint is made of, between two steps.

        Unlike :meth:`fetch` this waits for no replica that may be paused.
        """
        self.fetch()

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update; None on a replica that receives it from others."""
        return None

    def set_learning_rate(self, rate: float) -> None:
        """Make updates at another rate, from this replica's next step on; all replicas are asked.

        Replicas that make updates together change at the same one: the first notifies the others. Raises
        StepStopped if no update can follow.
        """
        raise FailedPreconditionError(f"{type(self).__name__} cannot change its learning rate in a training")

    def program(
        self, model: Trainable, shapes: tuple[tuple[int, ...], ...]
    ) -> Callable[..., tuple[Array, ...]]:
        """Return the step's program for batches of these shapes; see :meth:`Trainable.training_program`."""
        return model.training_program(shapes, self.values, **self._of_tables)

    @property
    def _of_tables(self) -> dict[str, Any]:
        return {"tables": self.tables} if self.tables else {}

    def agree(self, stop: bool) -> bool:
        """Return whether to stop before the next step, given whether this replica is to.

        Replicas that cannot make a step without each other stop together: the one that is asked to makes
        one more step, which carries the request to the others.
        """
        return stop

    def admit(self, leave: bool = False) -> bool:
        """Have new processes join and others leave, or continue without lost ones, before the next step.

        Replicas that make steps together call it at the same step, and learn of a ``leave`` with the next
        push. Return whether shares have changed. Raises ReplicaLeft where this replica has left.
        """
        return False

    def renew(self) -> None:
        """Begin to make steps with processes that were admitted to the loop; see `Strategy.admit_to_loop`."""
        return

    @property
    def joint(self) -> bool:
        """Whether :meth:`agree` stops all replicas together."""
        return type(self).agree is not Replica.agree

    def end_epoch(self, stop: bool) -> bool:
        """Return whether to end the training after this epoch, given whether this replica wants to."""
        return stop

    def abort(self, error: BaseException) -> None:
        """Notify the replicas that wait for this one why it makes no more steps."""
        return

    @property
    def slots(self) -> list[dict[str, Array]]:
        """What the optimizer keeps for each variable, in its own memory."""
        raise FailedPreconditionError(f"{type(self).__name__} has nothing of what the optimizer keeps")

    def ask_state(self) -> bool:
        """Return whether :meth:`state` can be called now; if not, the next step makes it possible.

        Only the chief is asked. Before the last step is finished it makes ``finish`` bring what is needed.
        """
        return True

    def ask_values(self) -> bool:
        """Return whether ``values`` are whole now; if not, the next step brings them. Only the chief asks."""
        return True

    def restore_slots(self, slots: Sequence[Mapping[str, Array]]) -> None:
        """Have the optimizer continue with these slots of each variable, in the order of ``slots``."""
        for own, kept in zip(self.slots, slots):  # not strict: some optimizers keep nothing
            for name, array in own.items():
                array[...] = to_device(kept[name].reshape(array.shape), backend_of(array))

    def state(self) -> ReplicaState:
        """Return what continues the training; its arrays are valid until the next step.

        Only the chief is asked, between two steps, if :meth:`ask_state` allows. Raises StepStopped if its
        last step cannot complete.
        """
        return ReplicaState(self.values, self.slots, self.global_step)

    def resume(self, updates: int, rate: float, mark: int) -> None:
        """Continue after so many updates, at a learning rate, once ``slots`` are restored.

        ``mark`` stands for the state that is continued: replicas in sync must have the same.
        """
        raise FailedPreconditionError(f"{type(self).__name__} cannot continue a training")

    @abstractmethod
    def gradients(self) -> Sequence[Array]:
        """Return the arrays to write this step's gradients to, one per variable that is not a table."""

    def flat_gradients(self) -> Sequence[Array]:
        """Return the same gradients in as few arrays as they have; what lies between them is zero."""
        return self.gradients()

    def measure(self, measures: Measures) -> None:
        """Have the next push add up what this replica has measured, where it ``adds_measures``.

        The sums of the gradients are divided by the sum of the replicas' parts, unless all count examples.
        """
        raise FailedPreconditionError(f"{type(self).__name__} does not add up losses of replicas")

    @abstractmethod
    def push(self) -> None:
        """Hand this step's gradients over. Raises RetryStep if the step must be repeated."""

    def settle(self) -> None:
        """Wait until the step of the last push is made, if replicas make steps together and it may not be.

        Raises StepStopped if it cannot be made; ``unmade`` counts it then.
        """
        return

    def skip(self) -> None:
        """Take no part in this step's update; replicas that make it together continue without this one."""
        for gradient in self.gradients():
            gradient.fill(0)
        self.push()

    def overflow(self) -> None:
        """Have all replicas leave out this step that make it together, since a gradient overflowed here.

        Replicas that step by themselves leave out their own step.
        """
        self.overflows += 1
        self.skip()

    @abstractmethod
    def finish(self) -> None:
        """Wait until every replica's gradients are applied, and bring the final parameters."""

    @abstractmethod
    def close(self) -> None:
        """Release groups, links and buffers, in any state."""


class Strategy(ABC):
    """How replicas are kept together; ``name`` is what a magic's ``--strategy`` takes."""

    name: ClassVar[str]
    num_replicas_in_sync: int = 1
    """Replicas whose gradients make one update together."""
    replica_index: int = 0
    takes_rows = False
    """Whether its replicas take the gradients of embedding tables as rows (``replica(tables=)``)."""
    pulls_rows = False
    """Whether a replica receives only the rows of a table that it requests (``want``)."""
    keeps_slots = True
    """Whether the optimizer's slots are in the replicas' memory, and not on a server."""
    skips = True
    """Whether a replica's part of a step can be left out."""
    continues = False
    """Whether the state of its trainings can be saved and continued: see ``TrainingStates``."""
    restored: RestoredState | None = None
    """What the next replica begins with if the training continues, where servers keep the slots."""
    enters_training = False
    """Whether the next replica of a loop takes part in a training that the others have begun."""
    has_sums = False
    """Whether a replica has the whole gradient of each of its updates: see ``Replica.before_update``."""
    alone = False
    """Whether there are no other replicas, so that none is waited for."""
    no_loops: ClassVar[str] = ""
    """Why loops of one's own cannot be run, if they cannot."""
    _runner: Runner | None = None
    """What runs custom loops under this strategy in this process, from its first use on."""
    _value_group: Collective | None = None
    """This replica's end of the group for values other than gradients, once it is formed."""
    _pieces: Array | None = None
    """How many examples of the last batch each replica has, where each reads its own data."""
    compiles_steps = False
    """Whether it compiles a step with its update as one function: see :meth:`compile_step`."""
    keeps_values = True
    """Whether the model ends with this replica's values; of several in one process only one's are kept."""

    @property
    def family(self) -> str:
        """Which states it continues: those of the strategies with the same word.

        "synchronous" replicas make steps on shares of the same batches: their states are interchangeable.
        """
        return "synchronous"

    @property
    def in_step(self) -> bool:
        """Whether all replicas take each step together, so that none is batches ahead of another."""
        return self.num_replicas_in_sync > 1

    @property
    def keeps_pace(self) -> bool:
        """Whether a replica waits for others while it trains, so that one that rests holds them up."""
        return self.num_replicas_in_sync > 1

    @abstractmethod
    def replica(self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer) -> Replica:
        """Begin to train these variables, given with their initial values. Runs on every replica."""

    def begin(self, model: Trainable, optimizer: Optimizer) -> Replica:
        """Begin to train ``model``; a strategy that builds a graph of its own needs more than variables."""
        if model.devices_needed > 1 and self.num_replicas_in_sync > 1:
            raise InvalidArgumentError(
                f"the model is spread over {model.devices_needed} tasks (stages=, split=) and a replica of "
                f"strategy {self.name} is on one; use %%distribute --replication in-graph"
            )
        tables = tables_of(self, model, optimizer)
        how = {"tables": tables} if tables else {}
        replica = self.replica(model.variables, optimizer, **how)
        if model.devices_needed > 1:
            replica.notes = [
                *replica.notes,
                f"the model has parts for {model.devices_needed} tasks and is on one here; "
                "%%distribute --replication in-graph spreads them",
            ]
        return replica

    def compile_step(self, step: WholeStep) -> Callable[..., tuple[Array, ...]]:
        """Return the program of a step of a loop of one's own, if the strategy ``compiles_steps``."""
        raise FailedPreconditionError(f"strategy {self.name} does not compile whole steps")

    def companions(self, context: Context, model: Trainable, optimizer: Optimizer) -> list[Context]:
        """Return the contexts of further replicas that this process trains at the same time."""
        return []

    def end(self) -> None:
        """Release what the replicas of a training share, in any state."""
        return

    def dataset(self, dataset: Dataset, seed: int | None) -> Dataset:
        """Return the dataset as this replica goes through it.

        Replicas that share batches must see one order; by default ``seed`` fixes it for all of them.
        """
        return dataset if seed is None else dataset.with_seed(seed)

    def share(self, size: int) -> slice:
        """Return which examples of a batch of ``size`` are this replica's.

        The batch size given is the global batch: shares differ by at most one and add up to it.
        """
        return share_of(size, self.num_replicas_in_sync, self.replica_index)

    def first_example(self, size: int) -> int:
        """Return the number of this replica's first example of a batch among those of all replicas.

        An example's random numbers follow from its number. Replicas that train independently get numbers far
        apart, so that they draw different ones.
        """
        if self._pieces is not None:
            return int(self._pieces[: self.replica_index].sum())
        own = self.replica_index << 32 if self.num_replicas_in_sync == 1 else 0
        return own + self.share(size).start  # type: ignore[no-any-return]

    def batches(
        self, dataset: Dataset, meter: Meter | None = None, reuse_buffers: bool = True
    ) -> Iterator[tuple[tuple[Array, ...], int]]:
        """Yield this replica's part of each batch of one epoch, with the size of the whole batch.

        With ``reuse_buffers`` the arrays are valid until the next batch is asked for. A ``meter`` measures
        the dataset's stages.
        """
        self._pieces = None
        if dataset.apart:
            self.begin_together(dataset)
            own = dataset.iterate(reuse_buffers=reuse_buffers, meter=meter)
            for piece, size in self.together(own, (np.empty(0),)):
                yield piece if isinstance(piece, tuple) else (piece,), size
            return
        for batch in dataset.iterate(reuse_buffers=reuse_buffers, meter=meter):
            self._batch = batch if isinstance(batch, tuple) else (batch,)
            yield self.batch()

    def begin_together(self, dataset: Dataset) -> None:
        """Make the order of the next pass follow from how often the first replica has opened its shuffles.

        One with less data may have opened them more often in a pass; a checkpoint has the first one's counts.
        """
        opened = np.array(dataset.opened, np.int64)
        if len(opened):
            opened *= self.replica_index == 0
            dataset.reopen(self.reduce_value(opened, "sum").tolist())

    def together(self, pieces: Iterator[Any], nothing: Any) -> Iterator[tuple[Any, int]]:
        """Yield this replica's pieces of global batches, with the size of the whole batch.

        It ends when no replica in sync has a piece any more; all of them call it at the same steps.
        ``nothing`` stands for a piece when this replica has none.
        """
        while True:
            piece = next(pieces, None)
            own = np.zeros(self.num_replicas_in_sync, np.int64)
            own[self.replica_index] = 0 if piece is None else len(leaves_of(piece)[0])
            self._pieces = self.reduce_value(own, "sum")
            if not self._pieces.any():
                return
            yield nothing if piece is None else piece, int(self._pieces.sum())

    def batch(self) -> tuple[tuple[Array, ...], int]:
        """Return this replica's part of the last batch, as shares are now, and the size of the whole.

        Raises FailedPreconditionError if each replica reads its own data: others cannot repeat the step.
        """
        self.require_shared()
        arrays = self._batch
        size = len(arrays[0])
        if self.num_replicas_in_sync > 1:
            part = self.share(size)
            arrays = tuple(a[part] for a in arrays)
        return arrays, size

    def require_shared(self) -> None:
        """Raise FailedPreconditionError if the last batch was made of pieces, which cannot be made again."""
        if self._pieces is not None:
            raise FailedPreconditionError(
                f"each of {len(self._pieces)} workers reads its own part of the data (with_auto_shard), and "
                "one of them was lost or another joins: the parts cannot be divided anew within an epoch. "
                "Train with policy DATA, with which they share each batch, or resume from a checkpoint"
            )

    @property
    def joins_loops(self) -> bool:
        """Whether this process waits to join the others' loops of one's own."""
        return False

    def join_loop(self) -> JoinedState | None:
        """Wait until the others admit this new process to their loops; return where they are.

        None if their loops have ended.
        """
        return None

    def admit_to_loop(self, give: Callable[[], JoinedState]) -> None:
        """Have new processes join a loop of one's own; all replicas call it between the same two steps.

        ``give`` returns the state that the new ones receive. Each replica is renewed before its next step.
        """
        return

    def reduce_value(self, array: Array, op: str) -> Array:
        """Return the sum or the mean over all replicas in sync of a value that is no gradient."""
        return import_module("nbdist.train.custom.replicas").value_group_of(self).all_reduce(array, op)  # type: ignore[no-any-return]

    def scope(self) -> AbstractContextManager[Strategy]:
        """Make this the strategy of what is made inside a ``with``: variables, models, optimizers."""
        return _custom().scope(self)  # type: ignore[no-any-return]

    def run(self, fn: Callable[..., Any], args: Any = (), *, nan: str = "stop") -> Any:
        """Run a function on every replica of this process, and return what it returned, with arrays.

        ``fn`` is called once with tensors for each form of ``args`` (a tuple), and later calls run the
        recorded graph. If this process has several replicas, the result is a PerReplica.

        ``nan`` is for steps with a NaN or infinite loss or gradient, which are never applied, as in
        ``fit``: "stop" raises NanLossError, "skip" leaves this replica's part of the update out, gives
        variables that the step assigned their old values, counts and prints the step, and continues.
        """
        return _custom().run(self, fn, args, nan)

    def reduce(self, op: Any, value: Any, axis: int | tuple[int, ...] | None = None) -> Any:
        """Return the "sum" or "mean" over all replicas in sync, and over an axis of their values as well.

        A mean over an axis is that of all elements, however many each replica has. All replicas call it.
        """
        return _custom().reduce(self, op, value, axis)

    def distribute_dataset(self, dataset: Dataset) -> Any:
        """Return the dataset's global batches as this process's replicas get their shares of them.

        With ``dataset.with_auto_shard(policy)`` each process reads its own part, and its replica gets a piece
        of each global batch of it.
        """
        return _custom().distribute_dataset(self, dataset)

    def distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Dataset]) -> Any:
        """Return batches for single replicas, from the dataset that ``dataset_fn(InputContext)`` makes here.

        A pass ends for all together; a replica without a batch gets an empty one until then. With
        ``with_auto_shard(policy)`` the dataset is divided among the processes.
        """
        return _custom().distribute_datasets_from_function(self, dataset_fn)

    def read(self, variable: Any) -> Any:
        """Return the newest value of a variable of this strategy, as it is outside of replicas."""
        return _custom().read(self, variable)

    def finish(self) -> None:
        """Wait until all replicas' updates are applied, and fetch the final values.

        A run does it at its end. What is trained afterwards is trained anew, by an optimizer without a past.
        """
        _custom().finish(self)

    def all_reduce(self, array: Array, op: str = "sum") -> Array:
        """Return the sum or the mean of the arrays of all replicas in sync; each calls it."""
        return import_module("nbdist.train.custom.replicas").all_reduce(self, array, op)  # type: ignore[no-any-return]

    def form_value_group(self) -> Collective:
        """Form a group of all replicas in sync for values other than gradients; return this end of it."""
        return import_module("nbdist.train.custom.replicas").common_group(self)  # type: ignore[no-any-return]


def _custom() -> Any:
    return import_module("nbdist.train.custom.api")  # which imports this module


# `Trainable`: variables, a program for a step, and the step as tensors of a graph.


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
    """Whether a step weighs its share by what the loss counts: `Replica.adds_measures`."""
    counted: float | None = None
    """What the loss of the program's last call counts (`Measures.part`); None if that is its examples.

    A step that ``weighs`` multiplies loss and gradients by it, in place of the examples.
    """

    def attach(self, replica: Replica) -> None:
        """Begin to be trained by a replica, in its thread; its first share may have no example."""
        self.weighs = replica.adds_measures

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
    def training_program(
        self,
        shapes: tuple[tuple[int, ...], ...],
        values: Sequence[Array],
        ready: Callable[[int], object] | None = None,
        tables: Sequence[int] = (),
        gathers: Gathers | None = None,
    ) -> Callable[..., tuple[Array, ...]]:
        """Return ``program(*batch, scale, [draw,] *gradients) -> (loss, *metrics, *rows)``.

        Gradients of ``tables`` are not written to arrays: ``rows`` holds, for each table, the gradients of
        the rows that were looked up and their row numbers.

        ``ready`` is called with the number of a variable as soon as its gradient is there; those of the last
        layers come first.

        With ``gathers`` the program has each unit of parameters be here while it reads it; only models with
        :attr:`parameter_reads` get them.

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


class OneDevice(Replica):
    """Parameters and optimizer in this process, on the device that its thread works for.

    ``parameters`` are bytes of the host for them, if another process reads them there.
    """

    pull_is = None
    push_is = ("apply", "gradients")

    def __init__(
        self,
        variables: Sequence[tuple[str, Array]],
        optimizer: Optimizer,
        parameters: Array | None = None,
        tables: Sequence[int] = (),
    ) -> None:
        optimizer.to_config()  # raises for a learning rate that only a graph computes
        own, rest = apart(variables, tables)
        self.tables, self._tables = tuple(tables), Tables(own, optimizer)
        self._taken: Sequence[RowGradient] = ()
        self._layout = layout = layout_of(rest)
        xp = backend(scoped_device()) if parameters is None else np
        self.resident = xp is not np
        gradient = layout.buffer(xp)
        parameters = layout.buffer(xp) if parameters is None else parameters
        views, self._gradients = layout.views(parameters), layout.views(gradient)
        for view, (_, value) in zip(views, rest, strict=True):
            view[...] = to_device(value, xp)
        self.values = interleaved(own, views, tables)
        self._optimizer = optimizer
        self._flats = [
            (p, g, optimizer.new_slots(p))
            for p, g in zip(layout.flats(parameters), layout.flats(gradient), strict=True)
        ]

    def pull(self) -> None:
        """Do nothing: the parameters are here."""

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update."""
        rate: float = self._optimizer.learning_rate
        return rate

    def set_learning_rate(self, rate: float) -> None:
        """Make updates at another rate from the next step on."""
        self._optimizer.learning_rate = rate

    @property
    def slots(self) -> list[dict[str, Array]]:
        """What the optimizer keeps for each variable."""
        kept = [slots for *_, slots in self._flats]
        count = len(self.values) - len(self.tables)
        return interleaved(self._tables.slots, by_variable(kept, self._layout.cut, count), self.tables)

    def resume(self, updates: int, rate: float, mark: int) -> None:
        """Continue after so many updates, at a learning rate."""
        self.global_step, self._optimizer.learning_rate = updates, rate

    def gradients(self) -> Sequence[Array]:
        """Return the gradient buffers, one per variable that is not a table."""
        return self._gradients

    def flat_gradients(self) -> Sequence[Array]:
        """Return the memory of the gradients, one array per dtype."""
        return [gradient for _, gradient, _ in self._flats]

    def take(self, gradient: Sequence[RowGradient]) -> None:
        """Take the gradients of the tables' rows."""
        self._taken = gradient

    def push(self) -> None:
        """Apply the gradients."""
        self.global_step += 1
        if self.before_update is not None:
            self.before_update(self._gradients, self.values)
        for parameters, gradient, slots in self._flats:
            self._optimizer.apply(parameters, gradient, slots, self.global_step)
        if self._taken:
            self._tables.apply(self._taken, self.global_step)
            self._taken = ()

    def skip(self) -> None:
        """Make no update."""

    def finish(self) -> None:
        """Do nothing: every update is applied when ``push`` returns."""

    def close(self) -> None:
        """Do nothing: memory goes with the object."""


T = TypeVar("T")


def tables_of(strategy: Strategy, model: Trainable, optimizer: Optimizer) -> tuple[int, ...]:
    """Return the numbers of the model's variables with gradients that this strategy sends as rows."""
    from nbdist.train.context import current

    on_host = backend(current().device) is np
    return model.tables if strategy.takes_rows and optimizer.takes_rows and on_host else ()


def apart(
    variables: Sequence[tuple[str, Array]], tables: Sequence[int]
) -> tuple[list[Array], list[tuple[str, Array]]]:
    """Return the arrays of the tables, which are trained in place, and all other variables."""
    rest = [v for i, v in enumerate(variables) if i not in tables]
    return [variables[i][1] for i in tables], rest


def interleaved(own: Sequence[T], rest: Sequence[T], tables: Sequence[int]) -> list[T]:
    """Merge items of tables and of other variables in the order of all variables; undoes :func:`apart`."""
    of_tables, others = dict(zip(tables, own, strict=True)), iter(rest)
    count = len(own) + len(rest)
    return [of_tables[i] if i in of_tables else next(others) for i in range(count)]


def layout_of(variables: Sequence[tuple[str, Array]]) -> Layout:
    """Return where each variable lies in one buffer of all."""
    return Layout.of((name, value.shape, value.dtype) for name, value in variables)


def by_variable(
    slots: Sequence[dict[str, Array]], cut: Callable[[Sequence[Array]], list[Array]], count: int
) -> list[dict[str, Array]]:
    """Return the slots of each of ``count`` variables, given those of flat arrays, which ``cut`` cuts up."""
    columns = {name: cut([one[name] for one in slots]) for name in (slots[0] if slots else ())}
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


class OneDeviceStrategy(Strategy):
    """Everything on one device: for testing code before distributing it.

    >>> OneDeviceStrategy().num_replicas_in_sync
    1
    """

    name = "one_device"
    alone = True
    has_sums = True
    continues = True
    takes_rows = True

    def replica(
        self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer, tables: Sequence[int] = ()
    ) -> Replica:
        """Begin to train in this process."""
        return OneDevice(variables, optimizer, tables=tables)

    def begin(self, model: Trainable, optimizer: Optimizer) -> Replica:
        """Begin to train ``model``, with steps and updates as one where the model has such."""
        return model.whole_replica(optimizer) or super().begin(model, optimizer)
