"""A loop of one's own over a `FrameworkModel`, on one replica of any strategy: `ReplicaLoop`.

    with ReplicaLoop(model, optimizer, dataset) as loop:
        for epoch in range(epochs):
            for arrays, size in loop.batches(dataset):      # this replica's share, and the size of the batch
                loss, *metrics = loop.step(arrays, size)    # pull, program, push
    # the model has the final values

It is a `Training` whose passes and steps are the caller's. Leaving the ``with`` by an error breaks the groups
in which the other replicas wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from nbdist.data import Dataset
from nbdist.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from nbdist.frameworks.trainable import FrameworkModel
from nbdist.graph.backend import Array, device_scope
from nbdist.optim import Optimizer
from nbdist.runtime.ps.client import StepStopped
from nbdist.train.context import current
from nbdist.train.replica import Replica, RetryStep
from nbdist.train.training import Training, opened_loop


class ReplicaLoop:
    """Trains a model by steps that the caller makes, under the strategy of the surrounding run.

    ``dataset`` is that of the first pass; None for a caller with batches of its own, which no run can save or
    continue. With ``skip_nan`` steps that are not finite are left out.
    """

    def __init__(
        self,
        model: FrameworkModel,
        optimizer: Optimizer,
        dataset: Dataset | None = None,
        skip_nan: bool = False,
    ) -> None:
        self.context, self.model = current(), model
        self._optimizer, self._dataset, self._skip_nan = optimizer, dataset, skip_nan
        self._training: Training | None = None
        self._stack = ExitStack()

    def __enter__(self) -> ReplicaLoop:
        model = self.model
        opening = opened_loop(
            self.context, model, self._optimizer, self._dataset,
            skip_nan=self._skip_nan, config=model.to_config, save=model.write,
        )  # fmt: skip
        self._training = self._stack.enter_context(opening)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        training, self._training = self.training, None
        with self._stack:  # what ends the training has to see its error
            if error is not None:
                raise error
            training.finish()

    @property
    def training(self) -> Training:
        """The training, inside the ``with``."""
        if self._training is None:
            raise FailedPreconditionError("this loop is over, or has not begun: use it inside its `with`")
        return self._training

    @property
    def replica(self) -> Replica:
        """The replica, inside the ``with``."""
        return self.training.replica

    def batches(self, dataset: Dataset) -> Iterator[tuple[tuple[Array, ...], int]]:
        """Yield this replica's share of each batch of one pass, with the size of the whole batch.

        The pass ends early if the run is asked to stop, and no other one follows then. A share may be empty:
        a step with it takes part in the update.
        """
        training = self.training
        if training.ended:
            return
        if self._dataset is None:
            self._dataset = dataset
            training.begin_batches(dataset)
        yield from training.passes(dataset)

    def step(self, batch: Sequence[Array], size: int | None = None) -> tuple[float, ...]:
        """Make a step with this replica's share of a batch of ``size``; return loss and metrics.

        They are those of the whole batch where replicas add them up (`Measuring`). Elsewhere they
        are means over the share, NaN for an empty one. They are NaN, too, where the run was stopped before
        the step of a batch of `batches` could be made; the pass ends then. Without a ``size`` the batch is
        one of equal shares. Raises NanLossError for a loss or gradient that is NaN or infinite, AbortedError
        if the training has ended.
        """
        training, strategy = self.training, self.context.strategy
        over = "the training has ended: the run was asked to stop, or another replica has left"
        if training.ended:
            raise AbortedError(f"{over}. A loop over batches() ends then")
        made, arrays = training.driver.steps, tuple(batch)
        if size is None and self.context.states is not None:
            raise InvalidArgumentError(
                "a batch from elsewhere than batches(data) has no place in the data that a run could save or "
                "continue: drop --checkpoint-every and --resume, or iterate batches(data)"
            )
        while training.driver.steps == made:
            try:
                with device_scope(self.context.device):
                    if not training.ready():
                        raise StepStopped
                    whole = len(arrays[0]) * strategy.num_replicas_in_sync if size is None else size
                    results = training.complete(training.compute(arrays, whole))
            except RetryStep:  # replicas were lost: the others share the batch anew
                training.ask_again()
                if size is not None:
                    arrays, size = strategy.batch()
            except StepStopped:
                training.ended = True
                if size is None:
                    raise AbortedError(f"{over} before this step") from None
                return (math.nan,) * (1 + len(self.model.metric_names))
        return tuple(float(value) for value in results)

    def fetch(self) -> list[Array]:
        """Return the newest values of the parameters."""
        with device_scope(self.context.device):
            self.replica.reads.fetch()
        return self.replica.values
