"""`wrap`: a training loop of one's own in PyTorch, under any strategy of a run.

    with nb.frameworks.torch.wrap(model, optimizer, loader) as batches:
        for epoch in range(3):
            for x, y in batches:                    # this replica's share, with the newest parameters
                optimizer.zero_grad()
                loss = loss_function(model(x), y)
                loss.backward()
                optimizer.step()                    # sends .grad where the strategy makes the update

Inside the ``with`` the module computes with the strategy's arrays, and ``optimizer.step`` hands ``.grad``
over in place of an update. What is done to ``.grad`` before (clipping, accumulation) acts on this replica's
own gradient, so nothing is sent before ``step``: the all-reduce of `fit` overlaps backward, this one not. A
GradScaler leaves the division by its scale, and what to do with a gradient that overflowed, to such an
optimizer: all replicas that make the step together leave it out then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from math import inf, isclose
from threading import get_ident
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from nbdist.frameworks.patches import Patches
from nbdist.frameworks.torch.counting import check_own_loss
from nbdist.frameworks.torch.data import training_data
from nbdist.frameworks.torch.model import TorchModel
from nbdist.frameworks.torch.optimizers import GroupRates, translated
from nbdist.frameworks.trainable import require_float32
from nbdist.runtime.ps.client import StepStopped, TrainingOver
from nbdist.train.boundary import check_policy, square_sum
from nbdist.train.context import Context, current, use_here
from nbdist.train.custom.api import scoped
from nbdist.train.replica import RetryStep, change_rate, rate_of
from nbdist.train.schedule import RateFactor
from nbdist.train.step import Step
from nbdist.train.step_timing import StepEvents
from nbdist.train.training import Training, opened_loop

if TYPE_CHECKING:
    import torch


@contextmanager
def wrap(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    batch_size: int | None = None,
    nan: str = "stop",
) -> Iterator[Iterable[Any]]:
    """Run a loop of one's own under the run's strategy, inside a ``with``, whose target are the batches.

    Runs on the workers, or in any process on one device. Each pass over the batches is an epoch; it yields
    this replica's share of each batch, as tensors. Their ``len`` is their number
    in a pass, where it is known. All replicas make the same passes and call ``optimizer.step`` at the same
    batches. *Stop* ends the pass, and the ``with`` where the next
    one begins, without an error. Schedulers of torch change the rate of the strategy's updates; a rate of the
    live view multiplies the rest of the schedule, and rates that the loop sets itself.

    - ``model``: an nn.Module, made alike on every worker; at the end it has the trained weights
    - ``optimizer``: one of torch.optim that ``fit`` takes, of the model's parameters; its state is not used
    - ``data``: what ``nb.frameworks.torch.fit`` takes
    - ``batch_size``: examples of a batch of all replicas together, where the data has none; None for 32
    - ``nan``: for steps with a NaN or infinite gradient, which are never applied, as in ``fit``: "stop"
      raises NanLossError, "skip" leaves this replica's part of the step out, and its change of buffers

    A run with ``--checkpoint-every`` saves the parameters, the optimizer's state and the place in the
    data before a batch, and ``--resume`` continues there: passes that were over are empty, and the one
    under way begins after its last batch, so the loop itself need not know. Values of one's own, such as
    a best loss, are kept by ``nb.train.state(...)``; ``nb.train.epochs`` counts from 0 here. Neither a
    scheduler of torch nor the scale of a GradScaler is in the state: step the scheduler as often as it
    was, or the first ``step`` raises FailedPreconditionError. Where a worker is lost, the batch of its
    step comes again, with other shares; a new process takes its place before a batch.

    Raises what ``fit`` raises for them; FailedPreconditionError for a ``step`` outside of a pass;
    NanLossError for a gradient that is not finite; UnavailableError if a worker is lost in a step for which
    the loop has added up several batches, which do not come again.
    """
    import torch

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(
            f"wrap takes an optimizer of torch.optim, whose step() the loop calls, got {optimizer!r}"
        )
    skip_nan, context = check_policy(nan), scoped() or current()
    require_float32(context, "compute in torch.autocast inside the loop")
    found, rule = training_data(data, batch_size), translated(optimizer, model)
    for note in filter(None, (found.note, rule.note)):
        context.note(note)
    trainable = TorchModel(
        model, _no_step, found.opened, rule.parameters, decay=rule.decay, factors=rule.factors, whole=True
    )
    with ExitStack() as stack:
        stack.enter_context(use_here(context))
        stack.callback(trainable.release)
        opening = opened_loop(
            context, trainable, rule.optimizer, found.dataset,
            skip_nan=skip_nan, config=trainable.to_config, save=trainable.write,
        )  # fmt: skip
        try:
            training = stack.enter_context(opening)
        except TrainingOver:
            print("the loop has ended on the other workers: it is left out here")
            yield ()
            return
        batches = Batches(training, trainable, optimizer)
        stack.enter_context(replaced_step(optimizer, batches))
        context.note_fit(model)
        with suppress(LoopStopped), checked_shares(context, optimizer):
            yield batches
        training.finish()


@contextmanager
def replaced_step(optimizer: Any, batches: Batches) -> Iterator[None]:
    """Have ``optimizer.step`` hand gradients to the strategy, inside a ``with``."""
    before = {name: optimizer.__dict__[name] for name in REPLACED if name in optimizer.__dict__}
    optimizer.step = batches.step_function()
    optimizer._step_supports_amp_scaling = True  # what a GradScaler looks for
    try:
        yield
    finally:
        for name in REPLACED:
            del optimizer.__dict__[name]
        optimizer.__dict__.update(before)


CLIPPED = (
    "the loop clips the gradient of each worker's share, before the shares are added up, and not that of the "
    "whole batch, as nb.frameworks.torch.fit(clip_norm=) does"
)


@contextmanager
def checked_shares(context: Context, optimizer: Any) -> Iterator[None]:
    """In this thread, if replicas share batches, refuse losses that count no examples, and note clipping.

    Clipping is that of gradients of the ``optimizer``'s parameters.
    """
    thread = get_ident()

    def before(act: Callable[..., object], original: Any, *args: Any, **options: Any) -> Any:
        if get_ident() == thread:
            act(*args, **options)
        return original(*args, **options)

    def backward(module: ModuleType, patches: Patches) -> None:
        check = partial(before, lambda tensors, *_, **__: check_own_loss(tensors))
        patches.wrap(module, "backward", check)

    def clipping(module: ModuleType, patches: Patches) -> None:
        def note(lists: Any, *_: Any, **__: Any) -> None:
            frame: FrameType | None = sys._getframe()
            while frame is not None and frame.f_globals is not vars(module):
                frame = frame.f_back
            clips = {} if frame is None else frame.f_locals  # of what clips, or computes a norm alone
            limit = clips.get("max_norm", clips.get("clip_value", inf))
            given, groups = set(map(id, lists[0])), optimizer.param_groups
            if limit < inf and any(id(one.grad) in given for group in groups for one in group["params"]):
                context.note(CLIPPED)

        # All that clip call it.
        patches.wrap(module, "_group_tensors_by_device_and_dtype", partial(before, note))

    shared = context.strategy.num_replicas_in_sync > 1
    changes = {"torch.autograd": backward, "torch.nn.utils.clip_grad": clipping}
    with Patches(changes if shared else {}, context.note):
        yield


REPLACED = ("step", "_step_supports_amp_scaling")


class LoopStopped(BaseException):
    """The loop was stopped, and began another pass: the ``with`` of `wrap` ends."""


class Batches:
    """This replica's shares of the batches; each iteration is an epoch."""

    def __init__(self, training: Training, model: TorchModel, optimizer: Any) -> None:
        self._training, self._model, self._optimizer = training, model, optimizer
        self._rates = GroupRates.of(optimizer.param_groups)
        rate = rate_of(training.replica) if training.joins else training.resume.rate
        self._factor = RateFactor(training.driver.boundary, training.context.control, self._rates.rate, rate)
        training.resume.components.register("rate_factor", self._factor)
        self._factor.follow_updates(rate)
        self._continues, self._follows = rate is not None, True
        self._weight = 0.0
        self._left = 0, 0
        """Examples of the batch under way in all and here, until it is counted."""
        self._added = 0
        """Batches whose gradients the next step has."""
        self._gradients = model.own_gradients
        model.bind(training.replica.values)
        self._step: Step | None = training.driver.pull(0, 0)
        """The step that is under way: it has the parameters, and `step` hands its gradients over."""

    def __len__(self) -> int:
        """Return the number of batches of a pass. Raises TypeError if it is unknown or without end."""
        return len(self._training.batches.dataset)

    def __iter__(self) -> Iterator[Any]:
        training, model = self._training, self._model
        if training.ended:  # all that step together have agreed on it
            raise LoopStopped
        self._follow_changes()
        for arrays, size in training.passes():
            try:
                step = self._step = self._step or training.driver.pull(0, 0)
            except StepStopped:
                training.ended = True
                continue
            mine = len(arrays[0])
            if not mine:  # a last batch with fewer examples than replicas
                for gradient in step.gradients:
                    gradient.fill(0)
                self._push(step)
                continue
            if training.remembers and step.restore is None:
                step.restore = model.remember()
            self._end_batch()  # of a pass that was left
            self._gradients.mark()
            self._weight, self._left = mine / size, (size, mine)
            yield model.tensors(model.opened(arrays))
            self._end_batch()
            self._weight = 0.0
            self._follow_changes()

    def _end_batch(self) -> None:
        """Count a batch without a step if it has changed ``.grad``; one that the loop leaves out has not."""
        if self._left[1] and self._gradients.have_changed(self._begin_anew):
            self._add()
        self._left = 0, 0

    def _add(self) -> None:
        """Count the batch under way among those of the next step, once."""
        (size, mine), self._left, step = self._left, (0, 0), self._step
        if mine and step is not None:
            step.size, step.mine, self._added = size, step.mine + mine, self._added + 1

    def _begin_anew(self) -> None:
        """Uncount the batches before this one, whose gradients the loop has put away."""
        if self._step is not None:
            self._step.mine = self._added = 0

    def _follow_changes(self) -> None:
        """Follow a scheduler before a state may be saved, which has the rate of the next update."""
        if self._continues or self._added:
            return
        try:
            self._follow_rate()
        except StepStopped:
            self._training.ended = True

    def step_function(self) -> Any:
        """Return what replaces ``optimizer.step``."""

        def step(closure: Any = None) -> None:
            if closure is not None:
                raise InvalidArgumentError("step(closure) is not supported under a strategy: call backward()")
            if not self._weight:
                raise FailedPreconditionError(
                    "optimizer.step() was called outside of a pass over the batches that wrap() returned"
                )
            training = self._training
            replica = training.replica
            try:
                one = self._step or training.driver.pull(0, 0)  # a further one for this batch
                self._add()
                self._follow_rate()
            except StepStopped:
                training.ended = True
                return
            scale, overflows = self._scaled()
            self._model.send(one.gradients, self._weight, scale)
            training.context.progress.skipped += overflows
            one.check(0.0, square_sum(replica.checks.flat_gradients()), overflow=overflows)
            self._push(one)
            self._optimizer._opt_called = True  # what torch's schedulers look for

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # read by torch's schedulers
        return step

    def _scaled(self) -> tuple[float, bool]:
        """Return the factor of the gradients if a GradScaler calls ``step``, and whether one overflowed.

        It leaves both at the optimizer for the time of the call; its own ``unscale_`` leaves no scale.
        """
        scale, found = (getattr(self._optimizer, name, None) for name in ("grad_scale", "found_inf"))
        return 1.0 if scale is None else float(scale), found is not None and bool(found)

    def _follow_rate(self) -> None:
        """Change the strategy's learning rate if a scheduler has changed the optimizer's."""
        rate, factor, replica = self._rates.rate, self._factor, self._training.replica
        multiplied = factor.state_dict()  # a user's rate takes the place of the one before this
        scheduled = "initial_lr" in self._optimizer.param_groups[0]  # a scheduler of torch has put it there
        if scheduled and self._continues and multiplied and not isclose(rate, factor.scheduled):
            self._miscounted(rate)
        if self._continues and self._follows:
            factor.scheduled = rate
        self._continues = False
        if not self._follows:
            factor.follow_updates(rate_of(replica))
        elif rate != factor.scheduled:
            factor.scheduled = rate
            change_rate(replica, factor.rate)
            self._training.driver.boundary.show_rate()

    def _miscounted(self, rate: float) -> None:
        """Refuse a scheduler that is not where the training is; one of a process that has joined is left."""
        training = self._training
        if training.joins:
            self._follows = False
            training.context.note(
                "the scheduler of torch in this new process counts from its beginning, and is not followed: "
                "the others' learning rate holds"
            )
            return
        raise FailedPreconditionError(
            f"the schedule continues at learning rate {self._factor.scheduled:g}, and the scheduler is at "
            f"{rate:g}: it counts from its beginning. Step it as often as it was stepped before, or keep its "
            "last_epoch in nb.train.state(...) and give it back"
        )

    def _push(self, step: Step) -> None:
        """Hand the step's gradients over; have the batch come again if replicas were lost."""
        added, self._added, self._step = self._added, 0, None
        step.batches = max(1, added)
        if step.events is not None:
            step.events.mark(StepEvents.COMPUTED)
        try:
            step.push()
        except RetryStep:
            if added > 1:
                raise UnavailableError(
                    f"a worker was lost in a step for which this loop has added up {added} batches, which do "
                    "not come again: nb.frameworks.torch.fit(accumulate=...) continues with the others"
                ) from None
            if "initial_lr" in self._optimizer.param_groups[0]:  # a scheduler of torch has put it there
                self._training.context.note(
                    "a worker was lost, and the batch of its step comes again: a scheduler of torch that is "
                    "stepped for each batch is one step ahead from here on; one stepped for each epoch is not"
                )
            self._training.retry()
            return
        training, replica = self._training, self._training.replica
        training.history.timed(training.driver.record(step), training.driver.steps, replica.report.staleness)


def _no_step(batch: Any) -> Any:
    raise FailedPreconditionError("a loop of one's own computes its loss itself")
