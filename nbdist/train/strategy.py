"""How replicas are kept together: `Strategy`, which makes a `Replica` for each training of a process.

replica = strategy.begin(model, optimizer)      # or replica(variables, optimizer)
for batch in strategy.batches(dataset):         # this replica's shares
    ...                                         # see nbdist.train.replica
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from nbdist.data import Dataset
from nbdist.data.meter import Meter
from nbdist.data.shares import share_of
from nbdist.data.structure import leaves_of
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.backend import Array, backend
from nbdist.optim import Optimizer
from nbdist.train.capabilities import JoinedState, RestoredState
from nbdist.train.replica import Replica
from nbdist.train.trainable import Trainable, WholeStep

if TYPE_CHECKING:
    from nbdist.train.context import Context
    from nbdist.train.custom.runner import Runner
    from nbdist.wire.collective.base import Collective


class SharedBatches:
    """What each replica of a strategy gets of the batches of a dataset."""

    num_replicas_in_sync: int = 1
    """Replicas whose gradients make one update together."""
    replica_index: int = 0
    _pieces: Array | None = None
    """How many examples of the last batch each replica has, where each reads its own data."""

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

    @abstractmethod
    def reduce_value(self, array: Array, op: str) -> Array:
        """Return the sum or the mean over all replicas in sync of a value other than a gradient."""


class LoopCalls(SharedBatches):
    """What loops of one's own call of a strategy."""

    no_loops: ClassVar[str] = ""
    """Why loops of one's own cannot be run, if they cannot."""
    _runner: Runner | None = None
    """What runs custom loops under this strategy in this process, from its first use on."""
    _value_group: Collective | None = None
    """This replica's end of the group for values other than gradients, once it is formed."""

    def scope(self) -> AbstractContextManager[Self]:
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

    def reduce_value(self, array: Array, op: str) -> Array:
        """Return the sum or the mean over all replicas in sync of a value other than a gradient."""
        return import_module("nbdist.train.custom.replicas").value_group_of(self).all_reduce(array, op)  # type: ignore[no-any-return]

    def form_value_group(self) -> Collective:
        """Form a group of all replicas in sync for values other than gradients; return this end of it."""
        return import_module("nbdist.train.custom.replicas").common_group(self)  # type: ignore[no-any-return]


def _custom() -> Any:
    return import_module("nbdist.train.custom.api")  # which imports this module


class LoopJoining(ABC):
    """New processes join loops of one's own that the others have begun."""

    enters_training = False
    """Whether the next replica takes part in a training that the others have begun."""

    @property
    @abstractmethod
    def joins_loops(self) -> bool:
        """Whether this process waits to join the others' loops of one's own."""

    @abstractmethod
    def join_loop(self) -> JoinedState | None:
        """Wait until the others admit this new process to their loops; return where they are.

        None if their loops have ended.
        """

    @abstractmethod
    def admit_to_loop(self, give: Callable[[], JoinedState]) -> None:
        """Have new processes join a loop of one's own; all replicas call it between the same two steps.

        ``give`` returns the state that the new ones receive. Each replica is renewed before its next step.
        """


class StepCompiler(ABC):
    """A step of a loop of one's own is compiled with its update as one function."""

    @abstractmethod
    def compile_step(self, step: WholeStep) -> Callable[..., tuple[Array, ...]]:
        """Return the program of a step; the strategy places the arrays that it is fed."""


class Strategy(LoopCalls, ABC):
    """How replicas are kept together.

    A strategy has a ``name`` and the method ``replica``. The methods of its bases share batches among the
    replicas and run loops; what is said below of its replicas may differ from what holds for most.
    """

    name: ClassVar[str]
    """What a magic's ``--strategy`` takes."""
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
    has_sums = False
    """Whether a replica has the whole gradient of each update, for ``TrainingHooks.before_update``."""
    calls_update = False
    """Whether its replicas make updates by `Optimizer.update`; for others, that only `apply` the optimizer,
    those are refused that clip or accumulate."""
    alone = False
    """Whether there are no other replicas, so that none is waited for."""
    keeps_values = True
    """Whether the model ends with this replica's values; of several in one process only one's are kept."""
    joining: LoopJoining | None = None
    """Has new processes join loops of one's own; None: it cannot."""
    compiler: StepCompiler | None = None
    """Compiles steps of loops of one's own; None: its replicas' programs do."""

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

    def companions(self, context: Context, model: Trainable, optimizer: Optimizer) -> list[Context]:
        """Return the contexts of further replicas that this process trains at the same time."""
        return []

    def end(self) -> None:
        """Release what the replicas of a training share, in any state."""
        return


def require_update(strategy: Strategy, optimizer: Optimizer, names: Sequence[str]) -> None:
    """Raise InvalidArgumentError where a strategy's replicas cannot update as an optimizer says.

    ``names`` are those of the variables that it trains.
    """
    optimizer.check_names(names)
    if not optimizer.is_plain and not strategy.calls_update:
        raise InvalidArgumentError(
            f"{type(optimizer).__name__}({optimizer.settings_beside()}): strategy {strategy.name} only "
            "applies the optimizer, without clipping, accumulation or decay by variable: have its replicas "
            "call optimizer.update and set calls_update = True, drop the setting, or take another strategy"
        )


def tables_of(strategy: Strategy, model: Trainable, optimizer: Optimizer) -> tuple[int, ...]:
    """Return the numbers of the model's variables with gradients that this strategy sends as rows."""
    from nbdist.train.context import current

    on_host = backend(current().device) is np
    takes_rows = optimizer.takes_rows and optimizer.is_plain
    return model.tables if strategy.takes_rows and takes_rows and on_host else ()
