"""What the replicas of a group agree on: the same variables, and the end of the training.

same_variables(group, variables)                    # raises on all replicas, if they differ
self.agreement = self.rate = GroupAgreement(group, optimizer)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.optim import Optimizer
from nbdist.runtime.layout import Layout
from nbdist.train.capabilities import Agreement, LearningRate
from nbdist.wire.collective.base import Collective

Array = np.ndarray[Any, Any]


def digest_of(variables: Sequence[tuple[str, Array]]) -> str:
    """Return a text that is equal for the same names, shapes and dtypes in the same order."""
    return Layout.of((name, value.shape, value.dtype) for name, value in variables).digest()


def same_variables(group: Collective, variables: Sequence[tuple[str, Array]]) -> None:
    """Raise on all replicas, naming the first difference, unless they have the same variables."""
    texts = [f"{name} {value.shape} {value.dtype}" for name, value in variables]
    digests = group.all_gather(np.frombuffer(digest_of(variables).encode(), np.uint8))
    if (digests == digests[0]).all():
        return
    own = "\n".join(texts).encode()
    longest = int(group.all_reduce(np.array(len(own)), "max"))
    padded = np.zeros(longest, np.uint8)
    padded[: len(own)] = np.frombuffer(own, np.uint8)
    everyone = [row.tobytes().rstrip(b"\0").decode().split("\n") for row in group.all_gather(padded)]
    for rank, theirs in enumerate(everyone):
        for number, (a, b) in enumerate(zip_longest(everyone[0], theirs, fillvalue="nothing")):
            if a != b:
                raise InvalidArgumentError(
                    f"the replicas built different models: variable {number} is {a} on {group.labels[0]} and "
                    f"{b} on {group.labels[rank]}; build the same model on every worker"
                )


class GroupAgreement(Agreement, LearningRate):
    """Replicas of a group end together and have one learning rate, by a small all-reduce before each step.

    It is for strategies of one's own, whose steps need not carry such messages. A rate of a schedule, which a
    step asks for after it has begun, holds from the next step on.

    - ``group``: all replicas; each makes steps with the same batches
    - ``optimizer``: makes this replica's updates
    """

    def __init__(self, group: Collective, optimizer: Optimizer) -> None:
        self._group, self._optimizer = group, optimizer
        self._wanted: float | None = None

    def agree(self, stop: bool) -> bool:
        """Return whether any replica is to stop, and take the first one's learning rate."""
        stops, rate = self._group.all_reduce(np.array([stop, self.learning_rate or 0.0]), "sum")
        self._optimizer.learning_rate, self._wanted = float(rate), None
        return bool(stops)

    def end_epoch(self, stop: bool) -> bool:
        """Return whether any replica wants to end the training."""
        return bool(self._group.all_reduce(np.array(stop), "max"))

    def abort(self, error: BaseException) -> None:
        """Break the group, with the reason."""
        self._group.abort(f"{type(error).__name__}: {error}")

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update, on the first replica."""
        if self._group.rank:
            return None
        return self._optimizer.learning_rate if self._wanted is None else self._wanted

    def set_learning_rate(self, rate: float) -> None:
        """Change the rate of all replicas before the next step; the first one sends it."""
        self._wanted = rate
