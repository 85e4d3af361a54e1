"""`CompiledReplica`: a replica whose step is one function that XLA compiles, with the update in it.

    class Mine(CompiledReplica):
        def fetch(self): ...        # copy parameters, slots and states to the host, if they have changed
        def upload(self): ...       # copy those of the host to the device
        def program(self, model, shapes): ...       # the step; it clears `host_is_current`

Parameters, slots and states are on the device from step to step, and the host has copies as of the last
fetch. A push only counts. The step withholds an update that is not finite: it returns the old values and, in
``gradients()``, a number that is not finite, which the training loop checks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from nbdist.graph.backend import Array
from nbdist.graph.xla.functional import require_compilable
from nbdist.optim import Optimizer
from nbdist.train.capabilities import (
    ArrayMemory,
    LearningRate,
    Programs,
    Reads,
    ReplicaState,
    StateAccess,
    StepChecks,
    StepSpans,
)
from nbdist.train.replica import Replica, itself


class CompiledReplica(Replica, LearningRate, Programs, Reads, StateAccess, StepChecks):
    """Parameters on a device of XLA; ``values`` are copies on the host, as of the last fetch.

    - ``values``: the parameters' first values
    - ``slots``: the optimizer's state for each of them
    """

    spans = StepSpans(pull=None, program=("compute", "step and update"), push=("apply", "count"))
    memory = ArrayMemory(in_place=True)
    rate = programs = reads = state = checks = itself

    def __init__(
        self, optimizer: Optimizer, values: Sequence[Array], slots: Sequence[dict[str, Array]]
    ) -> None:
        require_compilable(optimizer)
        optimizer.to_config()  # raises for a learning rate that only a graph computes
        self.optimizer, self.values, self.host_slots = optimizer, list(values), list(slots)
        self.flag = np.zeros(1)
        self.host_is_current = True
        """Whether the host's copies are those of the device."""

    @abstractmethod
    def fetch(self) -> None:
        """Copy parameters, slots and states to the host, if a step has changed them."""

    @abstractmethod
    def upload(self) -> None:
        """Copy parameters, slots and states to the device."""

    def pull(self) -> None:
        """Do nothing: the step reads the parameters on the device."""

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update."""
        rate: float = self.optimizer.learning_rate
        return rate

    def set_learning_rate(self, rate: float) -> None:
        """Make updates at another rate from the next step on; nothing is compiled again."""
        self.optimizer.learning_rate = rate

    @property
    def slots(self) -> list[dict[str, Array]]:
        """The optimizer's state of each variable, on the host; `resume` copies changes to the device."""
        self.fetch()
        return self.host_slots

    def read_state(self) -> ReplicaState:
        """Return what continues the training."""
        self.fetch()
        return super().read_state()

    def resume(self, updates: int, rate: float, mark: int) -> None:
        """Continue after so many updates, at a learning rate, with values and slots as the host has them."""
        self.report.global_step, self.optimizer.learning_rate = updates, rate
        self.upload()

    def gradients(self) -> Sequence[Array]:
        """Return one number, which is finite if all gradients of the step were."""
        return [self.flag]

    def flat_gradients(self) -> Sequence[Array]:
        """Return the same number."""
        return [self.flag]

    def push(self) -> None:
        """Count the update, which the step has made."""
        self.report.global_step += 1

    def skip(self) -> None:
        """Count nothing: the step has left everything as it was."""

    def finish(self) -> None:
        """Bring the final parameters to the host."""
        self.fetch()
