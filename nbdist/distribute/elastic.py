"""Elastic averaging SGD: independent replicas are periodically pulled towards a shared center.

Every ``every`` steps each replica moves a part ``alpha`` of its way to the center, and the center the same
part of its way to each: x -= alpha (x - c) and c += alpha sum(x - c) (Zhang, Choromanska and LeCun, "Deep
learning with Elastic Averaging SGD", NIPS 2015; in one all-reduce, as in AllReduceEA of torch-distlearn).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.distribute.agreement import same_variables
from nbdist.distribute.spec import COLLECTIVE, Setting, StrategySpec, whole_number
from nbdist.errors import InvalidArgumentError
from nbdist.numbers import is_whole
from nbdist.optim import Optimizer
from nbdist.runtime.groups import World
from nbdist.train.context import current
from nbdist.train.strategy import OneDevice, Replica, ReplicaState, Strategy
from nbdist.wire.collective.base import Collective

Array: TypeAlias = np.ndarray[Any, Any]


class ElasticAveragingStrategy(Strategy):
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
    continues = True

    def __init__(
        self,
        every: int = 10,
        alpha: float | None = None,
        collective: str = "auto",
        *,
        world: World | None = None,
    ) -> None:
        self.world = current().world if world is None else world
        if not is_whole(every, 1):
            raise InvalidArgumentError(f"every is a whole number of steps above 0, got {every!r}")
        self.every, self.collective = every, collective
        self.alpha = 0.9 / self.world.size if alpha is None else float(alpha)
        if not 0 < self.alpha <= 1:
            raise InvalidArgumentError(f"alpha is a number above 0 and at most 1, got {alpha!r}")
        self.replica_index = self.world.index

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
        return dataset if seed is None else dataset.with_seed(seed, self.replica_index)

    def share(self, size: int) -> slice:
        """Return all of a batch: replicas are independent."""
        return slice(0, size)

    def replica(self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer) -> Replica:
        """Begin to train: all replicas and the center get the chief's values."""
        group = self.world.group("center", self.collective)
        return ElasticReplica(group, variables, optimizer, self.every, self.alpha)


class ElasticReplica(OneDevice):
    """Parameters of one replica, and its copy of the center, which is the same on all.

    All replicas take part in every exchange: one whose data has ended takes part until the data of all has
    ended. No replica can therefore wait for one that has finished its epoch.
    """

    push_is = ("apply", "gradients")

    def __init__(
        self,
        group: Collective,
        variables: Sequence[tuple[str, Array]],
        optimizer: Optimizer,
        every: int,
        alpha: float,
    ) -> None:
        super().__init__(variables, optimizer)
        self._group, self._every, self._alpha = group, every, alpha
        try:
            same_variables(group, variables)
            for parameters, _, _ in self._flats:
                group.broadcast(parameters, root=0, out=parameters)
            self._centers = [parameters.copy() for parameters, _, _ in self._flats]
            self._pulls = [group.symmetric_buffer(center.shape, center.dtype) for center in self._centers]
            # how many replicas want to stop, and how many have ended their epoch
            self._flags = group.symmetric_buffer((2,), np.int64)
        except BaseException as error:
            self.abort(error)
            self.close()
            raise
        self._steps = 0
        self._wants_stop = self._stops = False
        text = (
            f"{group.size} replicas, pulled to their center every {every} steps by {alpha:.3g} ({group.kind})"
        )
        self.notes = [*([text] if group.rank == 0 else []), *group.notes]

    def state(self) -> ReplicaState:
        """Return the center, with this replica's slots: all replicas begin there when they continue."""
        centers = self._layout.cut(self._centers)
        return ReplicaState(centers, self.slots, self.global_step)

    def push(self) -> None:
        """Apply the gradients to this replica; exchange with the center every ``every`` steps."""
        super().push()
        self._count_step()

    def skip(self) -> None:
        """Make no update; exchange with the center every ``every`` steps."""
        self._count_step()

    def agree(self, stop: bool) -> bool:
        """Return whether any replica wanted to stop at the last exchange."""
        self._wants_stop = self._wants_stop or stop
        return self._stops

    def end_epoch(self, stop: bool) -> bool:
        """Take part in exchanges until every replica's epoch has ended; return whether any wants to stop."""
        self._wants_stop = self._wants_stop or stop
        while self._exchange(ended=True) < self._group.size:
            pass
        return self._stops

    def finish(self) -> None:
        """Copy the center into the parameters."""
        for (parameters, _, _), center in zip(self._flats, self._centers, strict=True):
            np.copyto(parameters, center)

    def abort(self, error: BaseException) -> None:
        """Break the group, with the reason."""
        self._group.abort(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Leave the group."""
        self._group.close()

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps % self._every == 0:
            self._exchange()

    def _exchange(self, ended: bool = False) -> int:
        """Move replicas and center towards each other; return how many have ended their epoch."""
        waited = self._group.waited
        self._flags[:] = self._wants_stop, ended
        self._group.all_reduce(self._flags, "sum", out=self._flags)
        for (parameters, _, _), center, pull in zip(self._flats, self._centers, self._pulls, strict=True):
            np.subtract(parameters, center, out=pull)
            np.multiply(pull, self._alpha, out=pull)
            np.subtract(parameters, pull, out=parameters)
            self._group.all_reduce(pull, "sum", out=pull)
            np.add(center, pull, out=center)
        self.waited += self._group.waited - waited
        self._stops = bool(self._flags[0])
        return int(self._flags[1])


SPEC = StrategySpec(
    ElasticAveragingStrategy.name,
    make=lambda config: ElasticAveragingStrategy(world=config.world, **config.settings),
    synchronous=False,
    settings=(
        whole_number("every", "TAU", "steps between two pulls towards the center (default 10)", least=1),
        Setting(
            "alpha",
            "how far each pull goes (default 0.9 / workers)",
            float,
            "A",
            is_valid=lambda value: isinstance(value, (int, float)) and 0 < value <= 1,
            expected="a number above 0 and at most 1",
        ),
        COLLECTIVE,
    ),
)
