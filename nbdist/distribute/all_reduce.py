"""All-reduce strategies: each replica has a copy of the parameters, and applies the sum of all gradients.

In each step a replica works on its share of the batch, its gradients are summed with the others' by one
all-reduce per bucket, and each applies the same sums to the same parameters: copies stay equal bit for bit.

The group changes in four ways, with the same steps (`GroupReplica.form_again`): the ranks that are left
re-form the group at the first one's Server, and the replica with the most updates sends its parameters,
slots, step and learning rate to all.

death    A collective call fails on the remaining replicas, in the middle of a step. Some may have completed
         that step: after the newest parameters have arrived, the others repeat it or not.
reset    A call fails as it does after a death, because a connection was lost, and all ranks live:
         they form the group again, and repeat the step or not (`GroupStrategy.outlive`).
joining  The new process of a lost worker asks to be admitted. The first replica sees that before a push,
         which carries it to all in a control value, as it does a stop: all re-form the group before the next
         step. The new one also receives the position in the data, the history and the states of the model,
         and begins with the batch that the others have before them. Batches stay the same; shares become
         smaller.
leaving  A replica that is to leave says so with its next push, in a control value that is the number of those
         that leave. Before the next step all re-form the group, from which the leaving ones are missing;
         shares become larger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from nbdist.distribute.agreement import same_variables
from nbdist.distribute.membership import GroupReplica, GroupStrategy
from nbdist.errors import DataLossError, InvalidArgumentError, TaskDiedError, UnavailableError
from nbdist.graph.backend import backend, scoped_device, to_device
from nbdist.machine import count_cores
from nbdist.optim import Optimizer
from nbdist.optim.base import Part
from nbdist.runtime.groups import World
from nbdist.runtime.layout import ALIGNMENT
from nbdist.runtime.tables import RowGradient, Tables, no_rows
from nbdist.train.capabilities import (
    Agreement,
    ArrayMemory,
    LearningRate,
    Measures,
    Measuring,
    Nonfinite,
    Programs,
    StateAccess,
    StepChecks,
    StepSpans,
    TableRows,
)
from nbdist.train.one_device import apart, by_variable, interleaved
from nbdist.train.replica import Replica, RetryStep, itself, push_zeros, tables_in
from nbdist.train.trainable import Program, ProgramSpec, Shapes, Trainable
from nbdist.wire.collective.buckets import Bucket, Buckets, plan_buckets

Array: TypeAlias = np.ndarray[Any, Any]
CONTROL = "control"
END_CALL = "all_reduce(op='max', dtype=bool, shape=())"
"""What a replica calls at the end of its epoch, in the text of an error about calls that differ."""
COUNT = 21  # all but the last exact in a float of any size; those of metrics follow
STOP, HAS_RATE, RATE = 0, 1, slice(2, 10)  # whether to stop; a learning rate
JOINS, LEAVES = 10, 11  # whether others join; how many leave
OVERFLOWS = 12  # how many have a gradient that overflowed: all leave the step out
ASKS_STATE = 13  # whether the chief wants what only others have of the optimizer's state
ASKS_VALUES = 16  # whether the chief wants all parameters
NONFINITE, SKIPS = 14, 15  # how many have sums that are not finite, and a loss that is not: as OVERFLOWS
MEASURES = 17  # what `Measures` has: loss, part, whether it counts something else than examples, examples
NOTHING_COUNTS = Nonfinite(
    "nothing in the batch counts (ignored, masked, or of weight 0): its loss is NaN", False
)


class AllReduceStrategy(GroupStrategy):
    """Keep a copy of the parameters on each replica of ``world``, by default that of the surrounding run.

    ``collective`` says how gradients are reduced: "auto" is the best there is.
    """

    name = "all_reduce"
    continues = True
    has_sums = True
    takes_rows = True
    calls_update = True
    metrics = 0
    """How many metrics the model has that begins to be trained, besides its loss."""

    def __init__(self, collective: str = "auto", *, world: World | None = None) -> None:
        super().__init__(collective, world)
        self.takes_rows = all(info.device.startswith("CPU") for info in self.world.infos)  # all alike

    @property
    def devices(self) -> Sequence[str]:
        """The device of each replica."""
        infos = self.world.infos
        return [info.device for info in infos] if infos else [scoped_device()]

    def replica(
        self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer, tables: Sequence[int] = ()
    ) -> Replica:
        """Begin to train: all replicas get the chief's values."""
        return AllReduceReplica(self, variables, optimizer, tables)

    def begin(self, model: Trainable, optimizer: Optimizer) -> Replica:
        """Begin to train ``model``, whose metrics are added up as well."""
        self.metrics = model.measured_count
        try:
            return super().begin(model, optimizer)
        finally:
            self.metrics = 0

    def count_replicas(self) -> None:
        """Share batches among all replicas that there are now."""
        self.num_replicas_in_sync = self.world.size
        super().count_replicas()


class AllReduceReplica(
    GroupReplica, Agreement, LearningRate, Measuring, Programs, StateAccess, StepChecks, TableRows
):
    """One copy of the parameters."""

    spans = StepSpans(pull=None, push=("send", "all-reduce"))
    agreement = rate = measures = programs = state = checks = rows = itself
    exchange = "gradients by all-reduce"
    """What replicas exchange in a step, for people."""
    controls_apart = False
    """Whether control values have an exchange of their own, and not a place in the last bucket."""
    _omitted = 0
    """Steps so far that all have left out because nothing in the batch counts."""
    _ends = 0
    """Epochs so far whose end all have agreed on."""
    _ended = False
    """Whether any replica wanted to end the training at the last of them."""

    def __init__(
        self,
        strategy: AllReduceStrategy,
        variables: Sequence[tuple[str, Array]],
        optimizer: Optimizer,
        tables: Sequence[int] = (),
    ) -> None:
        self._optimizer = optimizer
        own, rest = apart(variables, tables)
        if not strategy.keeps_values:  # another replica of this process trains the model's own
            own = [array.copy() for array in own]
        self.tables, self._tables = tuple(tables), Tables(own, optimizer)
        self._taken: Sequence[RowGradient] = ()
        self._names = [str(number) for number in range(len(variables)) if number not in self.tables]
        # Replicas on GPUs and on CPUs have the same calls only if all are in host memory.
        self.memory = ArrayMemory(in_place=all("GPU" in device for device in strategy.devices))
        self.resident = self.memory.in_place
        if self.resident:  # in a bucket on a GPU the host would have to wait for them
            self.controls_apart = True
        self._xp = backend(scoped_device()) if self.resident else np
        self._overflowed = False  # whether this replica's gradients of the step have overflowed
        self._measured = slice(MEASURES, COUNT + strategy.metrics)
        self._controls = COUNT + strategy.metrics
        self._called = [name for name, _ in rest]
        self._measures: list[float] = []  # what this replica has measured in the step, for the control values
        self._wanted: float | None = None  # the learning rate that the next step sends to all
        self._agreed = np.zeros(self._controls)  # the control values of the last exchange
        self.begin_group(strategy, variables)
        if self._group.rank == 0:  # the first step makes all have one rate, whatever their optimizers say
            self._wanted = optimizer.learning_rate
        try:
            if not self.is_new:
                same_variables(self._group, variables)
            self._make_arrays(rest)
            self.values = interleaved(own, self._cut(self._flats), self.tables)
            if self.is_new:
                self.take_all()
            else:
                for table in own:
                    self._group.broadcast(table, root=0, out=table)
                self._begin_buckets()
        except BaseException as error:
            self.abort(error)
            self.close()
            raise
        note = f"{self._group.size} replicas, {self.exchange} ({self._group.kind})"
        self.notes = [*([note] if self._group.size > 1 and self._group.rank == 0 else []), *self._group.notes]

    def _make_arrays(self, variables: Sequence[tuple[str, Array]]) -> None:
        """Make the parameters, with the initial values of these variables, and the optimizer's slots."""
        tensors = [(name, value) for name, (_, value) in zip(self._names, variables, strict=True)]
        self._plan = self._plan_of(tensors)
        self._flats = [self._parameters(bucket) for bucket in self._plan]
        values = dict(zip(self._names, (value for _, value in variables), strict=True))
        for number in range(len(self._plan)):
            self._fill(number, values)
        self._slots = [self._optimizer.all_slots(flat) for flat in self._owned()]

    def _fill(self, number: int, values: Mapping[str, Array]) -> None:
        """Have a bucket begin with the chief's values, given this replica's by name."""
        flat = self._flats[number]
        for place in self._plan[number].places:
            if place.name in values:
                flat[place.start : place.stop] = to_device(values[place.name].reshape(-1), self._xp)
        if not self.is_new:  # which takes the newest values of the others
            self._group.broadcast(flat, root=0, out=flat)

    def _plan_of(self, tensors: Sequence[tuple[str, Array]]) -> tuple[Bucket, ...]:
        return _plan(tensors, controls=0 if self.controls_apart else self._controls)

    def _parameters(self, bucket: Bucket) -> Array:
        """Return zeros for the parameters of a bucket."""
        return _aligned(bucket.count, bucket.dtype, self._xp)

    def _owned(self) -> Sequence[Array]:
        """Return what this replica updates of the parameters, one flat array for each bucket: all."""
        return self._flats

    def _cut(self, flats: Sequence[Array]) -> list[Array]:
        """Return one array per variable, in the memory of flat arrays, one for each bucket."""
        views = {
            place.name: flat[place.start : place.stop].reshape(place.shape)
            for bucket, flat in zip(self._plan, flats, strict=True)
            for place in bucket.places
        }
        return [views[name] for name in self._names]

    def _begin_buckets(self) -> None:
        """Make the buckets of a group that is new."""
        group, local = self._group, self._strategy.world.local_size
        overlap = len(self._plan) > 1 and (group.over_network or self.resident or count_cores() >= 2 * local)
        self._buckets = self._make_buckets(overlap)
        self._gradients = [self._buckets.views[name] for name in self._names]
        self._unmarked = set(self._names)
        self._stops, self.regroups_next = False, False
        self._control = np.zeros(self._controls) if self.controls_apart else self._buckets.views[CONTROL]
        self._control[...] = 0

    def _make_buckets(self, overlap: bool) -> Buckets:
        return Buckets(self._group, self._plan, "sum", overlap=overlap, xp=self._xp)

    def pull(self) -> None:
        """Do nothing: the parameters are here."""

    def program(self, model: Trainable, shapes: Shapes) -> Program:
        """Return the step's program, which marks each gradient as soon as it is computed.

        On a GPU this cuts CUDA graphs, so it is left out for one bucket, which only ``push`` can reduce.
        """
        ready = None if self.resident and len(self._plan) == 1 else self._ready
        return model.training_program(ProgramSpec(shapes, self.values, ready, tables_in(self)))

    def gradients(self) -> Sequence[Array]:
        """Return the places of the gradients in their buckets."""
        return self._gradients

    def flat_gradients(self) -> Sequence[Array]:
        """Return the buckets on a GPU, which hold gradients only; else the gradients."""
        return self._buckets.rows if self.resident else self._gradients

    def take(self, gradient: Sequence[RowGradient]) -> None:
        """Take the gradients of the tables' rows, for the next push."""
        self._taken = gradient

    def measure(self, measures: Measures) -> None:
        """Have the next push add up what this replica has measured."""
        examples = measures.examples
        own = (one * examples for one in measures.metrics)
        self._measures = [measures.loss, measures.part, not measures.counts_examples, examples, *own]

    def push(self) -> None:
        """Sum the gradients over all replicas, and apply them."""
        waited = self._group.waited
        self.report.measured = None
        self._mark_rest()
        if self._wanted is not None:
            self._control[HAS_RATE] = 1
            self._control[RATE] = np.frombuffer(np.float64(self._wanted).tobytes(), np.uint8)
        self._control[JOINS] = self.others_wait
        self._control[LEAVES] = self.say_leaving()
        self._control[OVERFLOWS] = self._overflowed
        self._control[self._measured] = self._measures or 0
        self._measures = []
        if not self.controls_apart:
            self._buckets.mark(CONTROL)
        try:
            with self._same_batches():
                self._buckets.finish()
                self._check_sums()
                if self.controls_apart:
                    self._group.all_reduce(self._control, "sum", out=self._control)
                rows = self._all_rows()
        except UnavailableError as error:
            if self._recover(error):
                raise RetryStep from None
            self._take_measures()
            return  # the others had completed this step
        self._unmarked = set(self._names)
        self.report.waited += self._group.waited - waited
        self._agreed[...] = self._control
        self._complete(rows)

    def _complete(self, rows: Sequence[RowGradient]) -> None:
        """Do what the last exchange has agreed on, with the sums and the ``rows`` that it has brought."""
        self._stops = bool(self._agreed[STOP])
        self.note_changes(int(self._agreed[JOINS]), int(self._agreed[LEAVES]))
        if self._agreed[HAS_RATE]:
            self._take_rate()
        self._overflowed = False
        part, is_weighed = self._take_measures()
        if self._leaves_out():
            return
        if is_weighed and not part:
            self.report.nonfinite, self._omitted = NOTHING_COUNTS, self._omitted + 1
            return
        if is_weighed:
            for sums in self._sums():
                sums /= part
        self.report.global_step += 1
        self._apply(part if is_weighed else 1.0)
        self._tables.apply(rows, self.report.global_step)

    def _check_sums(self) -> None:
        """Put into the control values what all have to know of this replica's sums: nothing."""

    def _take_measures(self) -> tuple[float, bool]:
        """Take what was measured with the whole batch; return the sum of all parts.

        And whether it is not that of the examples, so that the sums of the gradients are to be divided by it.
        """
        loss, part, weighed, examples, *metrics = self._agreed[self._measured].tolist()
        if part:
            self.report.measured = loss / part, *(one / examples for one in metrics)
        return part, bool(weighed)

    def _leaves_out(self) -> bool:
        """Return whether all replicas leave out the step of the last exchange, and note why."""
        self.report.nonfinite = None
        self.report.overflows += bool(self._agreed[OVERFLOWS])
        return bool(self._agreed[OVERFLOWS])

    def _apply(self, part: float) -> None:
        """Change the parameters by the sums of the gradients, which were divided by ``part``."""
        if self.hooks.before_update is not None:
            self.hooks.before_update(self._gradients, self.values)
        flats = list(zip(self._owned(), self._sums(), self._slots, strict=True))
        self._optimizer.update(flats, self.report.global_step, self._by_variable, self._squares(part))

    def _by_variable(self) -> list[Part]:
        """Return what this replica updates, by variable: all, for with these settings nothing is a table."""
        return [Part(i, *one) for i, one in enumerate(zip(self._called, self.values, self._gradients))]

    def _squares(self, part: float) -> Array | None:
        """Return the sums of the squares of all gradients, if this replica has only parts of them."""
        return None

    def _sums(self) -> Sequence[Array]:
        """Return the sums of what this replica updates, one array for each bucket."""
        return self._buckets.rows

    def skip(self) -> None:
        """Make the step's exchange with gradients of 0."""
        push_zeros(self)

    def overflow(self) -> None:
        """Make the step's exchange, after which no replica applies the sums."""
        self._overflowed = True
        self.push()

    def _all_rows(self) -> list[RowGradient]:
        """Return the rows of all replicas, in the order of ranks, so that all add up alike.

        Replicas have different numbers of rows: the numbers are gathered first, and the rows are padded.
        """
        if not self.tables:
            return []
        mine, self._taken = self._taken or [no_rows(table) for table in self._tables.arrays], ()
        counts = self._group.all_gather(np.array([len(rows.indices) for rows in mine], np.int64))
        found = []
        for rows, count in zip(mine, counts.T, strict=True):
            parts = [self._gathered(part, count) for part in (rows.indices, rows.values)]
            found.append(RowGradient(*parts))
        return found

    def _gathered(self, own: Array, counts: Array) -> Array:
        padded = np.zeros((int(counts.max()), *own.shape[1:]), own.dtype)
        padded[: len(own)] = own
        everyone = self._group.all_gather(padded)
        return np.concatenate([part[:n] for part, n in zip(everyone, counts, strict=True)])

    def agree(self, stop: bool) -> bool:
        """Return whether any replica was asked to stop before the last step; the next push sends ``stop``."""
        self._control[STOP] = stop
        return self._stops

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update, on the first replica."""
        if self._group.rank:
            return None
        return self._optimizer.learning_rate if self._wanted is None else self._wanted

    def set_learning_rate(self, rate: float) -> None:
        """Change the rate of all replicas in the next step: the first replica sends it with its push."""
        if self._group.rank == 0:
            self._wanted = rate

    @property
    def slots(self) -> list[dict[str, Array]]:
        """What the optimizer keeps for each variable."""
        rest = by_variable(self._slots, self._cut, len(self._names))
        return interleaved(self._tables.slots, rest, self.tables)

    def resume(self, updates: int, rate: float, mark: int) -> None:
        """Continue after so many updates, at a learning rate; raise unless all have the same state."""
        marks = self._group.all_gather(np.array([updates, mark], np.int64))
        for name, theirs in zip(self._group.labels, marks, strict=True):
            if (theirs != marks[0]).any():
                raise DataLossError(
                    f"{name} continues from another state than {self._group.labels[0]}: all replicas need "
                    "the chief's file, on a file system that they share"
                )
        self.report.global_step, self._optimizer.learning_rate = updates, rate
        self._wanted = None

    def _take_rate(self) -> None:
        """Take the rate that the first replica sent; copies stay equal, because all take it in one step."""
        sent = self._agreed[RATE].astype(np.uint8)
        self._optimizer.learning_rate = float(sent.view(np.float64)[0])
        self._control[HAS_RATE], self._control[RATE], self._wanted = 0, 0, None

    def end_epoch(self, stop: bool) -> bool:
        """Return whether any replica wants to end the training."""
        repeats = True
        while repeats:
            try:
                with self._same_batches():
                    self._ended = bool(self._group.all_reduce(np.array(stop or self._stops), "max"))
                    self._ends, repeats = self._ends + 1, False
            except UnavailableError as error:
                repeats = self._recover(error)
        return self._ended

    @contextmanager
    def _same_batches(self) -> Iterator[None]:
        """Name the replica whose data has ended, where the others make another step."""
        try:
            yield
        except InvalidArgumentError as error:
            calling = [label for label in self._group.labels if f"{label} calls " in str(error)]
            ended = [label for label in calling if f"{label} calls {END_CALL}" in str(error)]
            others = [label for label in calling if label not in ended]
            if not ended or not others:
                raise
            raise InvalidArgumentError(
                f"the data of {ended[0]} ended after step {self._made:,}, and {others[0]} has a batch for "
                "the next step, which all replicas share: make the same dataset on every worker, or, where "
                "each reads data of its own, say so with dataset.with_auto_shard(...)"
            ) from None

    def _recover(self, error: UnavailableError) -> bool:
        """Continue with the remaining replicas; return whether the current exchange must be repeated.

        Some may have completed it when a death interrupted the others: all take the newest parameters, and
        what all have agreed on in a step or at the end of an epoch.
        """
        exchanged = self._made + self._ends
        self.form_again(error)
        return exchanged == self._made + self._ends

    @property
    def _made(self) -> int:
        """How many steps all replicas have made, or left out together."""
        return self.report.global_step + self.report.overflows + self._omitted

    def take_newest(self) -> None:
        """Take parameters, slots, step and learning rate of the replica with the most updates."""
        group = self._group
        made = -1 if self.is_new else self._made + self._ends
        counts = [self.report.global_step, self._omitted, self._ends, self._ended]
        known = group.all_gather(np.array([made, self._optimizer.learning_rate, *counts]))
        root = int(known[:, 0].argmax())
        if known[root, 0] < 0:
            raise TaskDiedError("all workers that had parameters are lost, and the new ones have none")
        kept = zip([*self._flats, *self._tables.arrays], [*self._slots, *self._tables.slots], strict=True)
        for flat, slots in kept:
            for array in (flat, *(slots[name] for name in sorted(slots))):
                group.broadcast(array, root, out=array)
        group.broadcast(self._agreed, root, out=self._agreed)
        if (known[:, 0] < 0).any():
            self.share_position(root)
        self._begin_buckets()
        self._optimizer.learning_rate, self._ended = float(known[root, 1]), bool(known[root, 5])
        made, self.report.global_step, self._omitted, self._ends = map(int, known[root, [0, 2, 3, 4]])
        self.report.overflows = made - self.report.global_step - self._omitted - self._ends

    def finish(self) -> None:
        """Do nothing: every update is applied when ``push`` returns."""

    def close(self) -> None:
        """Leave the group."""
        if hasattr(self, "_buckets"):
            self._buckets.close()
        self._group.close()

    def _ready(self, number: int) -> None:
        if not self.hooks.withholds:  # others would have what `skip` takes back
            self._mark(str(number))

    def _mark_rest(self) -> None:
        """Mark the gradients that no program has marked; this step writes no others."""
        for name in self._unmarked:
            self._buckets.mark(name, waits=False)
        self._unmarked = set()

    def _mark(self, name: str) -> None:
        """Have a gradient's bucket be reduced once it is full."""
        self._unmarked.discard(name)
        self._buckets.mark(name)


def _plan(variables: Sequence[tuple[str, Array]], controls: int = COUNT) -> tuple[Bucket, ...]:
    """Return the buckets: gradients of the last layer first; control values travel in the last bucket."""
    tensors = [(name, value.shape, value.dtype) for name, value in variables]
    last = tensors[0][2] if tensors else np.dtype(np.float32)
    control = [(CONTROL, (controls,), last)] if controls else []
    return plan_buckets([*reversed(tensors), *control], align=ALIGNMENT)


def _aligned(count: int, dtype: np.dtype[Any], xp: ModuleType) -> Array:
    """Return zeros of a backend that begin on a cache line."""
    if xp is not np:  # CuPy's memory pool aligns more than that
        return xp.zeros(count, dtype)  # type: ignore[no-any-return]  # CuPy has no types
    raw = np.zeros(count * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + count * dtype.itemsize].view(dtype)
