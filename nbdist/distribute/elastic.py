"""Elastic averaging SGD: independent replicas are periodically pulled towards a shared center.

Every ``every`` steps each replica moves a part ``alpha`` of its way to the center, and the center the same
part of its way to each: x -= alpha (x - c) and c += alpha sum(x - c) (Zhang, Choromanska and LeCun, "Deep
learning with Elastic Averaging SGD", NIPS 2015; in one all-reduce, as in AllReduceEA of torch-distlearn).

An exchange consists of parts: the flags, and each array of parameters. After a death in the middle of it,
the replica that has completed the most parts sends its centers to all. The others make the moves of the parts
that they lack towards the centers that these had, because their own part is in the sum, and all continue with
the part that follows. New processes join after an exchange, at the center, and replicas leave after one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.distribute.agreement import same_variables
from nbdist.distribute.membership import GroupReplica, GroupStrategy
from nbdist.distribute.sharing import own_order
from nbdist.distribute.spec import CollectiveOptions, StrategySpec
from nbdist.errors import InvalidArgumentError, TaskDiedError, UnavailableError
from nbdist.numbers import is_whole
from nbdist.optim import Optimizer
from nbdist.runtime.groups import World
from nbdist.train.capabilities import Agreement, ReplicaState
from nbdist.train.one_device import OneDeviceReplica
from nbdist.train.options import option, whole
from nbdist.train.replica import Replica, itself

Array: TypeAlias = np.ndarray[Any, Any]


class ElasticAveragingStrategy(GroupStrategy):
    """Train independent replicas, pulled towards a shared center by ``alpha`` every ``every`` steps.

    Each replica reads all the data in its own order (or its ``shard``), and all end with the center. A stop
    takes effect at the next exchange with the center. Runs on the workers. Source: elastic averaging SGD
    (Zhang, Choromanska and LeCun 2015, arXiv:1412.6651).

    - ``every``: steps between two exchanges with the center, 1 or more
    - ``alpha``: the part of the difference that is moved, above 0 and at most 1; None for 0.9 / replicas.
      With ``alpha * replicas`` above 1 the center may overshoot
    - ``collective``: the kind of all-reduce, as in :class:`MultiWorkerMirroredStrategy`
    - ``world``: the replicas; None for those of the surrounding run

    Raises InvalidArgumentError for other values of ``every`` and ``alpha``.

    >>> ElasticAveragingStrategy(every=5).alpha    # outside of a run: one replica
    0.9
    """

    name = "elastic"
    purpose = "center"
    larger = smaller = ""
    continues = True
    calls_update = True

    def __init__(
        self,
        every: int = 10,
        alpha: float | None = None,
        collective: str = "auto",
        *,
        world: World | None = None,
    ) -> None:
        super().__init__(collective, world)
        self.num_replicas_in_sync = 1
        if not is_whole(every, 1):
            raise InvalidArgumentError(f"every is a whole number of steps above 0, got {every!r}")
        self.every, self._given_alpha = every, alpha
        if not 0 < self.alpha <= 1:
            raise InvalidArgumentError(f"alpha is a number above 0 and at most 1, got {alpha!r}")

    @property
    def alpha(self) -> float:
        """The part of the difference that an exchange moves."""
        return 0.9 / self.world.size if self._given_alpha is None else float(self._given_alpha)

    @property
    def family(self) -> str:
        """The states that it continues: its own."""
        return "elastic"

    @property
    def keeps_pace(self) -> bool:
        """Whether replicas wait for each other: in the exchange with the center."""
        return self.world.size > 1

    def dataset(self, dataset: Dataset, seed: int | None) -> Dataset:
        """Return the dataset in this replica's own order."""
        return own_order(dataset, seed, self.world.size, self.replica_index)

    def share(self, size: int) -> slice:
        """Return all of a batch: replicas are independent."""
        return slice(0, size)

    def replica(self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer) -> Replica:
        """Begin to train: all replicas and the center get the chief's values."""
        return ElasticReplica(self, variables, optimizer)


class ElasticReplica(GroupReplica, OneDeviceReplica, Agreement):
    """Parameters of one replica, and its copy of the center, which is the same on all.

    All replicas take part in every exchange: one whose data has ended takes part until the data of all has
    ended. No replica can therefore wait for one that has finished its epoch.
    """

    agreement = itself

    def __init__(
        self,
        strategy: ElasticAveragingStrategy,
        variables: Sequence[tuple[str, Array]],
        optimizer: Optimizer,
    ) -> None:
        super().__init__(variables, optimizer)
        self._elastic, self._steps, self._exchanges, self._part = strategy, 0, 0, 0
        self._wants_stop = self._stops = self._all_ended = self._ended = self._owes_end = False
        self._centers = [parameters.copy() for parameters, _, _ in self._flats]
        self._moves = [np.empty_like(center) for center in self._centers]
        self.begin_group(strategy, variables)
        try:
            if self.is_new:
                self.take_all()
            else:
                same_variables(self._group, variables)
                for (parameters, _, _), center in zip(self._flats, self._centers, strict=True):
                    self._group.broadcast(parameters, root=0, out=parameters)
                    np.copyto(center, parameters)
                self._make_buffers()
        except BaseException as error:
            self.abort(error)
            self.close()
            raise
        group = self._group
        text = (
            f"{group.size} replicas, pulled to their center every {strategy.every} steps by "
            f"{strategy.alpha:.3g} ({group.kind})"
        )
        self.notes = [*([text] if group.rank == 0 else []), *group.notes]

    def _make_buffers(self) -> None:
        """Make the buffers of a group that is new."""
        group = self._group
        self._pulls = [
            np.empty_like(center)
            if self.memory.in_place
            else group.symmetric_buffer(center.shape, center.dtype)
            for center in self._centers
        ]
        # how many replicas want to stop, have ended their epoch, know of others that wait to join, and leave
        self._flags = group.symmetric_buffer((4,), np.int64)

    def read_state(self) -> ReplicaState:
        """Return the center, with this replica's slots: all replicas begin there when they continue."""
        centers = self._layout.cut(self._centers)
        return ReplicaState(centers, self.slots, self.report.global_step)

    def after_step(self) -> None:
        """Exchange with the center every ``every`` steps."""
        self._steps += 1
        if self._steps % self._elastic.every == 0:
            self._exchange()

    def agree(self, stop: bool) -> bool:
        """Return whether any replica wanted to stop at the last exchange."""
        self._wants_stop = self._wants_stop or stop
        return self._stops

    def end_epoch(self, stop: bool) -> bool:
        """Take part in exchanges until every replica's epoch has ended; return whether any wants to stop."""
        self._wants_stop, self._ended = self._wants_stop or stop, True
        while True:
            self.admit(self.leaving)
            if self._exchange(ended=True):
                self._ended = False
                return self._stops

    def admit(self, leave: bool = False) -> bool:
        """Have new processes join and others leave, if the last exchange said so; return whether it did.

        A new process that has joined others at the end of their epoch first takes part in its last exchange.
        """
        if not self._owes_end:
            return super().admit(leave)
        self._owes_end = False
        self._exchange(ended=True)
        return True

    def finish(self) -> None:
        """Copy the center into the parameters."""
        for (parameters, _, _), center in zip(self._flats, self._centers, strict=True):
            np.copyto(parameters, center)

    def close(self) -> None:
        """Leave the group."""
        self._group.close()

    def _exchange(self, ended: bool = False) -> bool:
        """Move replicas and center towards each other; return whether all have ended their epoch."""
        number, self._ended = self._exchanges, ended
        while self._exchanges == number:
            try:
                self._exchange_rest()
            except UnavailableError as error:
                self.form_again(error)
        return self._all_ended

    def _exchange_rest(self) -> None:
        """Make the parts of the exchange that are not made yet."""
        group, waited = self._group, self._group.waited
        if self._part == 0:
            self._flags[:] = self._wants_stop, self._ended, self.others_wait, self.say_leaving()
            group.all_reduce(self._flags, "sum", out=self._flags)
            stops, ended, waiting, leaving = map(int, self._flags)
            self._take_flags(bool(stops), ended == group.size, waiting, leaving)
            self._part = 1
        for number in range(self._part - 1, len(self._centers)):
            pull, move = self._pulls[number], self._moves[number]
            self._compute_move(number)
            np.copyto(pull, move)
            group.all_reduce(pull, "sum", out=pull)
            np.subtract(self._flats[number][0], move, out=self._flats[number][0])
            np.add(self._centers[number], pull, out=self._centers[number])
            self._part = number + 2
        self.report.waited += group.waited - waited
        self._exchanges, self._part = self._exchanges + 1, 0

    def _compute_move(self, number: int) -> None:
        parameters, move = self._flats[number][0], self._moves[number]
        np.subtract(parameters, self._centers[number], out=move)
        np.multiply(move, self._elastic.alpha, out=move)

    def _take_flags(self, stops: bool, all_ended: bool, waiting: int, leaving: int) -> None:
        self._stops, self._all_ended = stops, all_ended
        self.note_changes(waiting, leaving)

    def take_newest(self) -> None:
        """Take the centers of the replica that has made the most exchanges, and parts of one."""
        group = self._group
        own = [self._exchanges, self._part, self._stops, self._all_ended, self._steps, *self.said]
        known = group.all_gather(np.array([-1, *own[1:]] if self.is_new else own, np.int64))
        # Of equally new ones, one within its epoch: a new process has a batch to begin with there.
        ended = group.all_gather(np.array([self._ended], np.int64))[:, 0]
        root = max(range(group.size), key=lambda i: (known[i, 0], known[i, 1], -ended[i], -i))
        if known[root, 0] < 0:
            raise TaskDiedError("all workers that had parameters are lost, and the new ones have none")
        self._owes_end = self.is_new and bool(ended[known[:, 0] >= 0].all())
        exchanges, part, stops, all_ended, steps, waiting, leaving = map(int, known[root])
        lacks = exchanges > self._exchanges or part > self._part
        for number, (center, (parameters, _, _)) in enumerate(zip(self._centers, self._flats, strict=True)):
            made_there = exchanges > self._exchanges or number + 1 < part
            if not self.is_new and made_there and not number + 1 < self._part:
                self._compute_move(number)
                np.subtract(parameters, self._moves[number], out=parameters)
            group.broadcast(center, root, out=center)
        if (known[:, 0] < 0).any():
            self._take_slots(root, steps)
        self._make_buffers()
        if lacks or self.is_new:
            self._exchanges, self._part = exchanges, part
            self._take_flags(bool(stops), bool(all_ended), waiting, leaving)
        else:
            self.note_changes(*self.said)  # in the group as it is now

    def _take_slots(self, root: int, steps: int) -> None:
        """Have new processes begin at the center, with the slots and the position of another replica."""
        for (parameters, _, slots), center in zip(self._flats, self._centers, strict=True):
            for name in sorted(slots):
                sent = slots[name].copy()
                self._group.broadcast(sent, root, out=sent)
                if self.is_new:
                    np.copyto(slots[name], sent)
            if self.is_new:
                np.copyto(parameters, center)
        self.share_position(root)
        if self.joined is not None and self.is_new:
            self._steps, state = steps, self.joined.state
            self.resume(int(state["updates"]), float(state["rate"]), 0)


@dataclass(frozen=True, kw_only=True)
class ElasticOptions(CollectiveOptions):
    """The options of `ElasticAveragingStrategy`."""

    every: int | None = option(
        None,
        "steps between two pulls towards the center (default 10)",
        "TAU",
        doc="steps between two pulls towards the center; None is 10",
        **whole(1),
    )
    alpha: float | None = option(
        None,
        "how far each pull goes (default 0.9 / workers)",
        "A",
        doc="how far each pull goes, above 0 and at most 1; None is 0.9 divided by the number of workers",
        is_valid=lambda value: isinstance(value, (int, float)) and 0 < value <= 1,
        expected="a number above 0 and at most 1",
    )


SPEC = StrategySpec(
    ElasticAveragingStrategy.name,
    make=lambda config: ElasticAveragingStrategy(world=config.world, **config.settings),
    synchronous=False,
    survives_worker_loss=True,
    survives_chief_loss=True,
    takes_new_workers=True,
    resizes=True,
    options=ElasticOptions,
)
