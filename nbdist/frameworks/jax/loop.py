"""Loops of one's own over a function of JAX, under every strategy: `wrap`.

Such a loop is a `Training` whose passes and steps are the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from nbdist.data import Dataset
from nbdist.data.structure import leaves_of, rebuild, spec_of
from nbdist.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from nbdist.frameworks.batches import Pass, nested
from nbdist.frameworks.jax.step import spec_with_rows
from nbdist.frameworks.jax.training import (
    as_arrays,
    loss_function,
    optimizer_of,
    parameters_of,
    training_data,
)
from nbdist.frameworks.jax.tree import State
from nbdist.graph.backend import Array, device_scope, to_host
from nbdist.runtime.ps.client import StepStopped, TrainingOver
from nbdist.train.boundary import check_policy
from nbdist.train.context import current, use_here
from nbdist.train.custom.api import scoped
from nbdist.train.replica import RetryStep, change_rate, rate_of
from nbdist.train.training import Training, opened_loop


def wrap(
    loss: Callable[..., Any],
    params: Any,
    *,
    optimizer: Any = "sgd",
    state: Any = None,
    normalizer: Callable[[Any], Any] | None = None,
    nan: str = "stop",
) -> LoopOfSteps:
    """Return a training whose loop is the caller's, under the strategy of the surrounding run.

    - ``loss``, ``params``, ``optimizer``, ``state``, ``normalizer`` and ``nan`` are those of
      `nb.frameworks.jax.fit`

    A run with ``--checkpoint-every`` saves parameters, slots and the place in the data before a batch, and
    ``--resume`` continues there: passes that were over are empty, and the one under way begins after its last
    batch. A new process that takes the place of a lost worker joins there, too. Both need a first pass over
    `LoopOfSteps.batches`: a loop that brings batches of its own has no place that is known.

    Raises InvalidArgumentError for what cannot be trained.

    For example::

        with nb.frameworks.jax.wrap(loss, params, optimizer="adam") as training:
            for epoch in range(5):
                for batch in training.batches(dataset):     # this replica's share of each batch
                    value, metrics = training.step(batch)
        params = training.params
    """
    return LoopOfSteps(loss, params, optimizer, state, normalizer, nan)


class LoopOfSteps:
    """What `wrap` returns: `batches` and `step` inside a ``with``, `params` and `state`.

    Leaving the ``with`` by an error breaks the groups in which the other replicas wait.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        params: Any,
        optimizer: Any,
        state: Any,
        normalizer: Callable[[Any], Any] | None = None,
        nan: str = "stop",
    ) -> None:
        self._skip_nan, self._context = check_policy(nan), scoped() or current()
        self._parameters = parameters_of(params, self._context)
        self._loss, self._optimizer, self._normalizer = loss, optimizer, normalizer
        self._state = None if state is None else State.of(state)
        self._training: Training | None = None
        self._stack = ExitStack()
        self._dataset: Dataset | None = None
        self._entered = self._over = False
        self._spec: Any = None
        self._shared: tuple[Any, int] | None = None

    def __enter__(self) -> LoopOfSteps:
        self._entered = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        training, self._training, self._dataset, self._entered = self._training, None, None, False
        if training is not None:
            with self._stack:  # what ends the training has to see its error
                if error is not None:
                    raise error
                training.finish()

    @property
    def params(self) -> Any:
        """The newest parameters, in the form of those given; the trained ones after the ``with``."""
        if self._training is None:
            return self._parameters.arrays()
        import jax.numpy as jnp

        self._fetch(self._training)
        return self._parameters.tree([jnp.array(to_host(value)) for value in self._training.replica.values])

    @property
    def state(self) -> Any:
        """This replica's newest state, in the form of the one given; None without."""
        if self._training is not None:
            self._fetch(self._training)
        return None if self._state is None else self._state.arrays()

    def _fetch(self, training: Training) -> None:
        """Have the replica's values and states be the newest ones."""
        with device_scope(self._context.device):
            training.replica.reads.fetch()

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update, where this replica knows it."""
        return None if self._training is None else rate_of(self._training.replica)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        if self._training is None:
            raise FailedPreconditionError(
                "the training begins with the first of batches(); set the rate then"
            )
        change_rate(self._training.replica, float(rate))

    def batches(self, data: Any, batch_size: int | None = None) -> Pass:
        """Return this replica's share of each batch of one pass through ``data``, which is that of `fit`.

        Its ``len`` is the number of batches, where it is known.

        The pass ends early, and all later ones are empty, if the run is asked to stop. Where a batch is
        smaller than the number of replicas, some get one without examples: pass it to `step` as well.
        """
        dataset = training_data(data, batch_size)
        return Pass(self._shares(dataset), dataset)

    def _shares(self, dataset: Dataset) -> Iterator[Any]:
        spec = spec_with_rows(dataset.element_spec)
        data = nested(dataset).dataset
        if self._over:
            return
        try:
            training = self._begun(spec, data)
        except TrainingOver:
            self._over = True
            print("the loop has ended on the other workers: it is left out here")
            return
        if training.ended:
            return
        if self._dataset is None:  # the steps before this pass had batches from elsewhere
            self._dataset = data
            with use_here(self._context):
                training.begin_batches(data)
        shares = training.passes(data)
        while True:
            # Not around the yield: a pass that is left, and kept under a name, would stay in this context.
            with use_here(self._context):
                arrays, size = next(shares, (None, 0))
            if arrays is None:
                return
            batch = rebuild(spec, list(arrays))
            self._shared = batch, size
            yield batch

    def step(self, batch: Any) -> tuple[float, dict[str, float]]:
        """Make a step: return loss and metrics of the whole batch.

        Where replicas do not add them up (synchronous ps, central) they are those of the share, NaN for one
        without examples. They are NaN where a batch's step could not be made any more, because the run was
        stopped or another replica has left: its pass ends then, and what follows the loop is executed.

        ``batch`` is what `batches` has yielded, or this replica's part of a batch from elsewhere, which then
        counts as one of equal parts. Raises NanLossError for a loss or gradient that is NaN or infinite, and
        AbortedError after the end of the training.
        """
        size = None
        if self._shared is not None and self._shared[0] is batch:
            size = self._shared[1]
        else:
            batch = as_arrays(batch)
            self._begun(spec_with_rows(spec_of(batch)))
        training = self._begun(self._spec)
        with use_here(self._context):
            loss, *metrics = self._step(training, tuple(map(np.asarray, leaves_of(batch))), size)
        return loss, dict(zip(training.model.metric_names, metrics, strict=True))

    def _step(self, training: Training, arrays: tuple[Array, ...], size: int | None) -> tuple[float, ...]:
        """Make a step with this replica's share of a batch of ``size``, or, without, of equal shares."""
        strategy = self._context.strategy
        over = "the training has ended: the run was asked to stop, or another replica has left"
        if training.ended:
            raise AbortedError(f"{over}. A loop over batches() ends then")
        made = training.driver.steps
        if size is None:
            training.require_place()
        states = self._context.states
        if size is None and states is not None and states.are_asked_for():
            raise InvalidArgumentError(
                "a batch from elsewhere than batches(data) has no place in the data that a run could save or "
                "continue: drop --checkpoint-every and --resume, or iterate batches(data)"
            )
        while training.driver.steps == made:
            try:
                with device_scope(self._context.device):
                    if not training.ready_within():
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
                return (math.nan,) * (1 + len(training.model.metric_names))
        return tuple(float(value) for value in results)

    def _begun(self, spec: Any, dataset: Dataset | None = None) -> Training:
        """Return the training, which begins with the first batch: its form says which metrics there are."""
        if not self._entered:
            raise FailedPreconditionError(
                "batches and step are for the inside of `with nb.frameworks.jax.wrap(...) as training:`"
            )
        if self._training is None:
            with use_here(self._context):
                model = loss_function(
                    self._loss, self._parameters, spec, self._context, self._state, self._normalizer
                )
                optimizer = optimizer_of(self._optimizer, model, self._parameters, self._context)
                opening = opened_loop(
                    self._context, model, optimizer, dataset,
                    skip_nan=self._skip_nan, config=model.to_config, save=model.write,
                )  # fmt: skip
                self._training = self._stack.enter_context(opening)
            self._spec, self._dataset = spec, dataset
        elif spec != self._spec:
            raise InvalidArgumentError(
                f"batches of a training have one form, that of the first: {self._spec}, and this is {spec}"
            )
        return self._training
