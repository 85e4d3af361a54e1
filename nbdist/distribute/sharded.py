"""Sharded training (ZeRO): each replica keeps its part of what data parallelism has copies of.

    strategy = ShardedStrategy(stage=2)        # in a run; `%%distribute --strategy sharded --stage 2`

                                    stage 1         stage 2         stage 3
    slots of the optimizer          a part          a part          a part
    sums of gradients               all             a part          a part
    parameters                      all             all             a part

A step is that of `nbdist.distribute.all_reduce`, with the all-reduce cut in two. A reduce-scatter gives each
replica the sums of its part of the gradients; it applies them with the optimizer's slots of that part, which
no other replica has; an all-gather gives the new parameters to all. This sends as many bytes as an
all-reduce, and takes 1/N of the work for the update. Source: Rajbhandari et al., "ZeRO: Memory Optimizations
Toward Training Trillion Parameter Models", SC 2020.

Each bucket of gradients has one part for each rank (`Bucket.padded`), so that reduce-scatter, update and
all-gather run bucket by bucket. Optimizers change each element by itself, so it makes no difference where a
part begins in a variable; one that does not (`Optimizer.by_element`) is refused.

Stage 2. A bucket is reduced as soon as it is full, while the backward pass continues, and gives its memory
back (`nbdist.wire.pages`). A replica's own gradients are then gone before all of them are known, so that it
cannot look at them for NaN. It looks at the sums of its part, and the control values of the push say to all
what each has found: a step is left out by all or by none.

Stage 3. A replica has its part of the parameters between two steps, and gathers the others' while it needs
them (`nbdist.distribute.gathers`). Only models whose program says when that is are trained. Where all of them
are needed at one time, for validation, callbacks, a checkpoint or at the end, they are gathered into the
arrays that the model has in any case.

States. A state has the slots of all parts, and the chief writes it. The chief asks for them with the control
values of a push, and all replicas gather them before the next step (`ask_state`; in stage 3 parameters, too).
A state continues on any number of replicas, and in any stage: each takes its part.

Deaths. The slots of a lost replica are nowhere else, so the run ends, and continues from its last state.
After a lost connection, with all replicas alive, those that a step has failed on complete it where others
have (`ShardedReplica.take_newest`), or all repeat it; not in stage 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nbdist.distribute.all_reduce import (
    ASKS_STATE,
    ASKS_VALUES,
    NONFINITE,
    SKIPS,
    AllReduceReplica,
    AllReduceStrategy,
)
from nbdist.distribute.gathers import ParameterGathers
from nbdist.distribute.spec import CollectiveOptions, StrategySpec
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from nbdist.graph.backend import to_device
from nbdist.numbers import is_whole
from nbdist.optim import Optimizer
from nbdist.optim.base import Part, squares_of
from nbdist.runtime.groups import World
from nbdist.runtime.layout import ALIGNMENT
from nbdist.runtime.tables import RowGradient
from nbdist.runtime.task import TaskInfo
from nbdist.train.boundary import all_finite
from nbdist.train.capabilities import Nonfinite, Reads, StepSpans
from nbdist.train.one_device import by_variable
from nbdist.train.options import option, rows
from nbdist.train.replica import Replica, itself
from nbdist.train.trainable import ParameterReads, Program, ProgramSpec, Shapes, Trainable
from nbdist.wire.collective.buckets import Bucket, Buckets
from nbdist.wire.pages import TransientBuffer

Array: TypeAlias = np.ndarray[Any, Any]
STAGES = (1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class ShardedOptions(CollectiveOptions):
    """The options of `ShardedStrategy`."""

    stage: int | None = option(
        None,
        "what is divided: 1 slots (default), 2 gradients, 3 parameters, too",
        "|".join(map(str, STAGES)),
        "what each worker keeps a part of: 1 the optimizer's slots, 2 the sums of gradients, too, 3 (in "
        "fit) parameters, too",
        is_valid=lambda value: is_whole(value, 1) and value in STAGES,
        expected="1, 2 or 3",
    )


class ShardedStrategy(AllReduceStrategy):
    """Train with a copy of the parameters on every worker of the run, and a part of the optimizer's state.

    Runs on the workers. Source: ZeRO (Rajbhandari et al. 2020), whose stages DeepSpeed numbers alike; stage 1
    is PyTorch's ZeroRedundancyOptimizer.

    - ``collective``: "auto" (shared memory on one host, a ring if each worker is on a host of its own, else
      "hierarchical"; and NCCL if each worker has a GPU), or one of "shm" (one host), "ring", "hierarchical",
      "nccl", "mpi"
    - ``stage``: 1: each worker has a part of the optimizer's slots. 2: of the sums of the gradients, too; a
      step with a NaN gradient is then left out by all workers together. 3: of the parameters, too. Workers on
      GPUs take stage 1
    - ``world``: the replicas; None for those of the surrounding run

    Raises InvalidArgumentError for another stage, for stages 2 and 3 with workers on GPUs, and for stage 3
    with a model that computes with all of its parameters at one time.

    >>> ShardedStrategy(stage=2).num_replicas_in_sync    # outside of a run: a world of one
    1
    """

    name = "sharded"
    has_sums = False  # each replica has a part of them

    def __init__(
        self, collective: str = "auto", stage: int | None = None, *, world: World | None = None
    ) -> None:
        rows(ShardedOptions)["stage"].check(stage)
        super().__init__(collective, world=world)
        self.stage = 1 if stage is None else stage
        self.reads: ParameterReads | None = None
        """When a step of the model that begins to be trained reads which variables, if it says so."""
        if self.stage > 1 and any("GPU" in device for device in self.devices):
            raise InvalidArgumentError(
                f"--stage {self.stage} gives memory of the host back between two uses, and replicas on GPUs "
                f"have none of it: drop --stage, or train a PyTorch module with fully_shard of PyTorch in a "
                "cell with --framework torch"
            )
        self.takes_rows = False  # a table's gradient is one of the buckets, which are cut into parts

    def replica(
        self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer, tables: Sequence[int] = ()
    ) -> Replica:
        """Begin to train: all replicas get the chief's values.

        Raises InvalidArgumentError for an optimizer that cannot update a part of the parameters by itself.
        """
        if not optimizer.by_element and self.num_replicas_in_sync > 1:
            raise InvalidArgumentError(
                f"strategy {self.name} updates a part of the parameters on each worker, and "
                f"{type(optimizer).__name__} takes all of them at once: give an optimizer of nb.optim, or "
                "its name, such as 'adam', or take --strategy multi_worker"
            )
        if optimizer.gradient_accumulation_steps and (optimizer.clipnorm or optimizer.global_clipnorm):
            raise InvalidArgumentError(
                f"strategy {self.name} exchanges the norms of each step's gradients, and not of what "
                f"{optimizer.settings_beside()} adds up: drop one of them, or take --strategy multi_worker"
            )
        if self.stage == 3 and self.reads is None and self.num_replicas_in_sync > 1:
            raise InvalidArgumentError(
                "--stage 3 gathers parameters layer by layer, in fit of models of nb.nn and in "
                "nb.frameworks.torch.fit; here a step computes with all parameters at one time: take "
                "--stage 2"
            )
        return ShardedReplica(self, variables, optimizer, tables)

    def begin(self, model: Trainable, optimizer: Optimizer) -> Replica:
        """Begin to train ``model``, which says when it reads which variables if it can train in stage 3."""
        self.reads = model.parameter_reads
        return super().begin(model, optimizer)

    def shrink(self, admits: Sequence[int] = (), leaves: bool = False) -> list[TaskInfo]:
        """Return that training continues without none: a lost replica has had a part of the slots."""
        return []

    def outlive(self, error: UnavailableError, progress: tuple[int, int]) -> None:
        """Continue after a lost connection; raise ``error`` where a replica is lost."""
        if self.world.reform().lost:
            raise error
        super().outlive(error, progress)


class ShardedReplica(AllReduceReplica, Reads):
    """One copy of the parameters, with the optimizer's slots of its part of each bucket."""

    _strategy: ShardedStrategy

    spans = StepSpans(pull=None, push=("send", "reduce-scatter, all-gather"))
    reads = itself
    exchange = "gradients by reduce-scatter, parameters by all-gather"
    controls_apart = True
    _asks_state = False
    """Whether the chief asks for the slots of all replicas, with its next push."""
    _whole: list[dict[str, Array]] | None = None
    """On the chief, the slots of all replicas, by bucket, if they are those of this step."""
    _gathers: ParameterGathers | None = None
    """In stage 3, the parameters."""
    _asks_values = False
    """Whether the chief asks for all parameters, with its next push."""
    _shared = 0
    """How often the slots of all replicas were gathered."""
    _skips = False
    """Whether all are to leave out this step, because the loss is not a finite number here."""

    def __init__(
        self,
        strategy: ShardedStrategy,
        variables: Sequence[tuple[str, Array]],
        optimizer: Optimizer,
        tables: Sequence[int] = (),
    ) -> None:
        self._norms = slice(0)
        super().__init__(strategy, variables, optimizer, tables)
        self._views = self.values
        """The parameters as the program reads them."""
        if self._gathers is not None:  # all of them have only the place that the model has for them
            self.values = [value for _, value in variables]

    def _plan_of(self, tensors: Sequence[tuple[str, Array]]) -> tuple[Bucket, ...]:
        return tuple(bucket.padded(self._group.size, ALIGNMENT) for bucket in super()._plan_of(tensors))

    def _make_arrays(self, variables: Sequence[tuple[str, Array]]) -> None:
        # One replica has the one part of everything: it has nothing to give back.
        self._stage = self._strategy.stage if self._group.size > 1 else 1
        self._memory, self._parts = list[TransientBuffer](), list[Array]()
        if self._optimizer.clipnorm or self._optimizer.global_clipnorm:  # of which each has parts
            self._norms = slice(self._controls, self._controls + len(self._names))
            self._controls = self._norms.stop
            self._agreed = np.zeros(self._controls)
        super()._make_arrays(variables)
        if self._stage == 3:
            group = self._strategy.world.group("parameters", self._strategy.collective)
            reads = self._strategy.reads
            assert reads is not None, "stage 3 begins with a model that says what it reads"
            own = [value for _, value in variables]
            self._gathers = ParameterGathers(group, self._plan, self._memory, self._parts, own, reads)

    def _parameters(self, bucket: Bucket) -> Array:
        if self._stage == 3:
            self._memory.append(TransientBuffer(bucket.count, bucket.dtype))
            return self._memory[-1].array
        if self.resident:
            return super()._parameters(bucket)
        return self._group.symmetric_buffer((bucket.count,), bucket.dtype)

    def _fill(self, number: int, values: Mapping[str, Array]) -> None:
        super()._fill(number, values)
        own = self._by_rank(self._flats[number])[self._group.rank]
        self._parts.append(own.copy() if self._stage == 3 else own)
        if self._stage == 3:
            self._memory[number].release()

    def _make_buckets(self, overlap: bool) -> Buckets:
        self._transient = self._stage > 1
        return Buckets(
            self._group,
            self._plan,
            "sum",
            overlap=overlap or self._transient,
            xp=self._xp,
            scatter=True,
            transient=self._transient,
        )

    def _sums(self) -> Sequence[Array]:
        return self._buckets.parts

    def _ready(self, number: int) -> None:
        if self._transient:  # `skip` takes nothing back: all leave the step out
            self._mark(str(number))
        else:
            super()._ready(number)

    def flat_gradients(self) -> Sequence[Array]:
        """Return nothing where gradients are gone before ``push``, which then looks at their sums."""
        return () if self._transient else super().flat_gradients()

    def skip(self) -> None:
        """Leave out this replica's part of the step, or the step of all if its gradients were sent before."""
        if not self._transient:
            super().skip()
            return
        self._skips = True
        self.push()

    def _check_sums(self) -> None:
        if self._transient:
            self._control[NONFINITE] = not all_finite(self._sums())
            self._control[SKIPS], self._skips = self._skips, False
        if self._norms.stop:
            self._control[self._norms] = squares_of(self._by_variable(), len(self._names))

    def _leaves_out(self) -> bool:
        left_out = super()._leaves_out()
        if self._agreed[SKIPS]:
            self.report.nonfinite = Nonfinite("the loss of a replica is NaN or infinite", scaled=False)
        elif self._agreed[NONFINITE]:
            self.report.nonfinite = Nonfinite("a gradient is NaN or infinite", scaled=True)
        return left_out or self.report.nonfinite is not None

    def _owned(self) -> Sequence[Array]:
        return self._parts

    def _by_variable(self) -> list[Part]:
        found = []
        for bucket, own, sums in zip(self._plan, self._parts, self._sums(), strict=True):
            first = self._group.rank * len(own)
            for place in bucket.places:
                within = slice(max(place.start - first, 0), min(place.stop - first, len(own)))
                if within.start < within.stop:
                    name = self._called[number := self._names.index(place.name)]
                    found.append(Part(number, name, own[within], sums[within]))
        return found

    def _squares(self, part: float) -> Array | None:
        return self._agreed[self._norms] / part**2 if self._norms.stop else None

    def _by_rank(self, flat: Array) -> Array:
        """Return a bucket as one row for each rank."""
        return flat.reshape(self._group.size, -1)

    def pull(self) -> None:
        """Begin a step: in stage 3 without the parameters of others."""
        if self._gathers is not None:
            self._gathers.begin_step()

    def fetch(self) -> None:
        """Begin a step: all parameters are here, but in stage 3."""
        self.pull()

    def newest(self) -> None:
        """Do nothing: in stage 3 `ask_values` has said that they are here, and no step begins."""

    def program(self, model: Trainable, shapes: Shapes) -> Program:
        """Return the step's program, which in stage 3 gathers what it reads."""
        if self._gathers is None:
            return super().program(model, shapes)
        program = model.training_program(ProgramSpec(shapes, self._views, self._ready, gathers=self._gathers))

        def gathering(*arrays: Array) -> tuple[Array, ...]:
            with _fatal_losses():
                return program(*arrays)

        return gathering

    def push(self) -> None:
        """Receive the sums of this replica's part, apply them, and gather the new parameters."""
        self._whole = None
        self._control[ASKS_STATE], self._control[ASKS_VALUES] = self._asks_state, self._asks_values
        with _fatal_losses():
            if self._gathers is not None:
                self._mark_rest()  # others, which still compute, wait for both
                self._gathers.end_step()
            super().push()
            if self._agreed[ASKS_STATE]:
                self._share_slots()
            if self._gathers is not None and (self._agreed[ASKS_STATE] or self._agreed[ASKS_VALUES]):
                self._asks_values = False
                self._gathers.gather_all(keeps=self._group.rank == 0)

    def _complete(self, rows: Sequence[RowGradient]) -> None:
        before = self.report.global_step
        super()._complete(rows)
        if self.report.global_step == before or self._gathers is not None:
            return
        waited = self._group.waited
        try:
            self._gather_parameters()
        except UnavailableError as error:
            self.form_again(error)  # which gathers them, too
        self.report.waited += self._group.waited - waited

    def _gather_parameters(self) -> None:
        """Bring what each replica has updated to all."""
        for flat, own in zip(self._flats, self._parts, strict=True):
            if self._group.size > 1:
                self._group.all_gather(own, out=self._by_rank(flat))

    def fetch_together(self, wanted: bool) -> None:
        """Bring all parameters to the replicas that want them; in stage 3 all replicas call it."""
        if self._gathers is None:
            super().fetch_together(wanted)
            return
        with _fatal_losses():
            if self._group.all_reduce(np.array(wanted), "max"):
                self._gathers.gather_all(keeps=wanted)

    def ask_values(self) -> bool:
        """Return whether all parameters are here; if not, the next push brings them."""
        self._asks_values = self._gathers is not None and not self._gathers.is_whole
        return not self._asks_values

    def end_epoch(self, stop: bool) -> bool:
        """Return whether any replica wants to end the training."""
        with _fatal_losses():
            return super().end_epoch(stop)

    def form_again(
        self, error: UnavailableError | None = None, admits: Sequence[int] = (), leaves: bool = False
    ) -> None:
        """Form the group again with all replicas after a lost connection; raise ``error`` in stage 3."""
        if self._gathers is not None and error is not None:
            raise error  # it may have come in the middle of a pass, which gathers in a group of its own
        super().form_again(error, admits=admits, leaves=leaves)

    def take_newest(self) -> None:
        """Have all complete what some have completed: no replica has another one's slots.

        Where one has the control values of a step, all have the sums of their parts, which come before.
        """
        group = self._group
        made = [self._made + self._ends, self._ends, self._ended, self._shared]
        known = group.all_gather(np.array(made, np.int64))
        newest = known[known[:, 0].argmax()]
        group.broadcast(self._agreed, int(known[:, 0].argmax()), out=self._agreed)
        if newest[1] > self._ends:
            self._ends, self._ended = int(newest[1]), bool(newest[2])
        elif newest[0] > made[0]:
            super()._complete(())
        self._gather_parameters()
        if (known[:, 3] != made[3]).any():
            self._gather_slots()
        self._shared = int(known[:, 3].max())
        self._begin_buckets()

    def ask_state(self) -> bool:
        """Return whether all slots are here; if not, the next push or ``finish`` brings them."""
        self._asks_state = self._whole is None
        return not self._asks_state

    def finish(self) -> None:
        """Gather the slots of all replicas if the chief wants the state in which the training ends."""
        with _fatal_losses():
            if self._group.all_reduce(np.array(self._asks_state), "max"):
                self._share_slots()
            if self._gathers is not None:
                self._gathers.gather_all(keeps=True)

    def close(self) -> None:
        """Leave the groups."""
        super().close()
        if self._gathers is not None:
            self._gathers.close()

    def _share_slots(self) -> None:
        """Have the chief receive the slots of all replicas, again after a lost connection."""
        wanted = self._shared + 1
        while self._shared < wanted:
            try:
                self._gather_slots()
                self._shared = wanted
            except UnavailableError as error:
                self.form_again(error)

    def _gather_slots(self) -> None:
        """Have the chief receive the slots of all replicas, bucket by bucket."""
        self._asks_state, whole = False, list[dict[str, Array]]()
        for flat, slots in zip(self._flats, self._slots, strict=True):
            found = {name: self._group.all_gather(slots[name]) for name in sorted(slots)}
            if self._group.rank == 0:
                whole.append({name: array.reshape(flat.shape) for name, array in found.items()})
        if self._group.rank == 0:
            self._whole = whole

    @property
    def slots(self) -> list[dict[str, Array]]:
        """What the optimizer keeps for each variable, on the chief once it has asked for it."""
        if self._whole is None:
            raise FailedPreconditionError("the slots of other replicas are not here: call ask_state() before")
        return by_variable(self._whole, self._cut, len(self._names))

    def restore_slots(self, slots: Sequence[Mapping[str, Array]]) -> None:
        """Take this replica's part of the slots of all variables."""
        for bucket, own in zip(self._plan, self._slots, strict=True):
            for name, part in own.items():
                flat = np.zeros(bucket.count, part.dtype)
                for place in bucket.places:
                    flat[place.start : place.stop] = slots[int(place.name)][name].reshape(-1)
                part[...] = to_device(self._by_rank(flat)[self._group.rank], self._xp)


@contextmanager
def _fatal_losses() -> Iterator[None]:
    """Add to the error of a lost replica what it means for the training."""
    try:
        yield
    except UnavailableError as error:
        raise type(error)(
            f"{error}. --strategy {ShardedStrategy.name} does not continue: the optimizer's slots of its "
            "part are lost with a worker, and --stage 3 repeats no step after a lost connection. Continue "
            "from the last state with --resume (--checkpoint-every writes states)"
        ) from None


SPEC = StrategySpec(
    ShardedStrategy.name,
    make=lambda config: ShardedStrategy(world=config.world, **config.settings),
    synchronous=True,
    options=ShardedOptions,
)
