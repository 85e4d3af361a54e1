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

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NanLossError,
    UnavailableError,
)
from nbdist.frameworks.torch.counting import check_own_loss
from nbdist.frameworks.torch.data import training_data
from nbdist.frameworks.torch.model import TorchModel
from nbdist.frameworks.torch.optimizers import GroupRates, translated
from nbdist.frameworks.torch.weights import count_training
from nbdist.graph.backend import device_scope, to_host
from nbdist.optim import Optimizer
from nbdist.runtime.ps.client import StepStopped, TrainingOver
from nbdist.train.boundary import Boundary, describe_nonfinite, square_sum
from nbdist.train.context import Context, current, use_here
from nbdist.train.custom.api import scoped
from nbdist.train.device import on_device
from nbdist.train.fixed import share_fixed
from nbdist.train.strategy import RetryStep

if TYPE_CHECKING:
    import torch


@contextmanager
def wrap(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: Any, *, batch_size: int | None = None
) -> Iterator[Iterable[Any]]:
    """Run a loop of one's own under the run's strategy, inside a ``with``, whose target are the batches.

    Runs on the workers, or in any process on one device. Each pass over the batches is an epoch; it yields
    this replica's share of each batch, as tensors. Their ``len`` is their number
    in a pass, where it is known. All replicas make the same passes and call ``optimizer.step`` at the same
    batches. *Stop* ends the pass, and the ``with`` where the next
    one begins, without an error. Schedulers of torch change the rate of the strategy's updates.

    - ``model``: an nn.Module, made alike on every worker; at the end it has the trained weights
    - ``optimizer``: one of torch.optim that ``fit`` takes, of the model's parameters; its state is not used
    - ``data``: what ``nb.frameworks.torch.fit`` takes
    - ``batch_size``: examples of a batch of all replicas together, where the data has none; None for 32

    Raises what ``fit`` raises for them; FailedPreconditionError for a run with ``--checkpoint-every`` or
    ``--resume``, which need ``fit``, and for a ``step`` outside of a pass; NanLossError for a gradient that
    is not finite; UnavailableError if a worker is lost whose gradient a step needs.
    """
    import torch

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(
            f"wrap takes an optimizer of torch.optim, whose step() the loop calls, got {optimizer!r}"
        )
    context = scoped() or current()
    if context.states is not None:
        raise FailedPreconditionError(
            "a loop of one's own in PyTorch has no state that a run can save or continue: drop "
            "--checkpoint-every and --resume, or use nb.frameworks.torch.fit"
        )
    found, rule = training_data(data, batch_size), translated(optimizer, model)
    for note in filter(None, (found.note, rule.note)):
        context.note(note)
    trainable = TorchModel(
        model, _no_step, found.opened, rule.parameters, decay=rule.decay, factors=rule.factors, whole=True
    )
    with use_here(context), device_scope(context.device):
        try:
            batches = Batches(context, trainable, rule.optimizer, optimizer, found.dataset)
        except TrainingOver:
            trainable.release()
            print("the loop has ended on the other workers: it is left out here")
            yield ()
            return
        except BaseException:
            trainable.release()
            raise
        before = {name: optimizer.__dict__[name] for name in REPLACED if name in optimizer.__dict__}
        optimizer.step = batches.step_function()
        optimizer._step_supports_amp_scaling = True  # what a GradScaler looks for
        count_training(model)
        context.fitting = True  # it ends by itself when it is asked to stop
        try:
            with suppress(LoopStopped), checked_losses(context.strategy.num_replicas_in_sync > 1):
                yield batches
            batches.finish()
        except BaseException as error:
            batches.fail(error)
            raise
        finally:
            context.fitting = False
            for name in REPLACED:
                del optimizer.__dict__[name]
            optimizer.__dict__.update(before)
            batches.close()


@contextmanager
def checked_losses(shared: bool) -> Iterator[None]:
    """Refuse, at its backward in this thread, a loss of ``shared`` batches that does not count examples."""
    import torch.autograd

    original, thread = torch.autograd.backward, get_ident()

    def backward(tensors: Any, *args: Any, **options: Any) -> Any:
        if get_ident() == thread:
            check_own_loss(tensors)
        return original(tensors, *args, **options)

    if shared:
        torch.autograd.backward = backward
    try:
        yield
    finally:
        if shared:
            torch.autograd.backward = original


REPLACED = ("step", "_step_supports_amp_scaling")
NOT_APPLIED = "{}; that gradient was not applied. Try a smaller learning rate"


class LoopStopped(BaseException):
    """The loop was stopped, and began another pass: the ``with`` of `wrap` ends."""


class Batches:
    """This replica's shares of the batches; each iteration is an epoch."""

    def __init__(
        self, context: Context, model: TorchModel, rule: Optimizer, optimizer: Any, dataset: Any
    ) -> None:
        self._context, self._model, self._optimizer = context, model, optimizer
        strategy = context.strategy
        context.trainings += 1
        context.progress.trainings = context.trainings
        seed = None if context.seed is None else context.seed + context.trainings - 1
        self._dataset = context.served(strategy.dataset(dataset, seed)).ahead_of_training()
        share_fixed(context, model)
        self._replica = on_device(strategy.begin(model, rule), context.device)
        context.see_arrays(self._replica.computed_with)
        for note in self._replica.notes:
            print(note)
        self._rate, self._rates = rule.learning_rate, GroupRates.of(optimizer.param_groups)
        self._weight, self._over, self._current = 0.0, False, True
        self._boundary = Boundary(
            context, lambda: [self._replica], lambda: self._replica.global_step, self._write
        )
        context.progress.state = "running"
        model.bind(self._replica.values)
        self._replica.pull()

    def __len__(self) -> int:
        """Return the number of batches of a pass. Raises TypeError if it is unknown or without end."""
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        replica, control = self._replica, self._context.control
        if self._over:  # all that step together have agreed on it
            raise LoopStopped
        ended = False
        for arrays, size in self._context.strategy.batches(self._dataset):
            try:
                if not self._begin_step():
                    ended = True
                    break
                if not len(arrays[0]):  # a last batch with fewer examples than replicas
                    for gradient in replica.gradients():
                        gradient.fill(0)
                    self._push()
                    continue
            except StepStopped:
                ended = True
                break
            self._weight = len(arrays[0]) / size
            element = self._model.opened(arrays)
            yield self._model.tensors(element)
            self._weight = 0.0
        try:
            if not ended:
                replica.settle()
        except StepStopped:
            ended = True
        self._over = replica.end_epoch(ended or control.stop_requested) or ended

    def _begin_step(self) -> bool:
        """Handle messages, and bring the newest parameters; return False if the loop is to end."""
        control = self._context.control
        if control.messages != self._boundary.handled:
            self._boundary.handle()
        if self._replica.agree(control.stop_requested):
            return False
        control.check()
        if not self._current:
            self._replica.pull()
            self._current = True
        return True

    def step_function(self) -> Any:
        """Return what replaces ``optimizer.step``."""

        def step(closure: Any = None) -> None:
            if closure is not None:
                raise InvalidArgumentError("step(closure) is not supported under a strategy: call backward()")
            if not self._weight:
                raise FailedPreconditionError(
                    "optimizer.step() was called outside of a pass over the batches that wrap() returned"
                )
            self._follow_rate()
            scale, overflows = self._scaled()
            self._model.send(self._replica.gradients(), self._weight, scale)
            if overflows:
                self._context.progress.skipped += 1
                self._push(self._replica.overflow)
                return
            squares = square_sum(self._replica.flat_gradients())
            if wrong := describe_nonfinite(0.0, squares, self._replica.gradients()):
                raise NanLossError(NOT_APPLIED.format(wrong))
            self._push()
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
        rate = self._rates.rate
        if rate != self._rate:
            self._rate = rate
            self._replica.set_learning_rate(rate)

    def _push(self, push: Callable[[], None] | None = None) -> None:
        progress = self._context.progress
        try:
            (push or self._replica.push)()
        except RetryStep:
            raise UnavailableError(
                "a worker was lost, and a loop of one's own in PyTorch cannot repeat its step: "
                "nb.frameworks.torch.fit continues with the others"
            ) from None
        if self._replica.nonfinite is not None:
            raise NanLossError(NOT_APPLIED.format(self._replica.nonfinite.what))
        self._current = False
        progress.step += 1
        progress.global_step = self._replica.global_step
        progress.dropped = self._replica.dropped

    def finish(self) -> None:
        """Wait until all updates are applied, and bring the final parameters."""
        self._context.progress.state = "waiting for the others"
        self._replica.finish()
        self._context.progress.global_step = self._replica.global_step
        self._boundary.end()

    def fail(self, error: BaseException) -> None:
        """Notify the replicas that wait for this one."""
        self._context.on_error(error)
        self._replica.abort(error)

    def close(self) -> None:
        """Give the module its own memory back, with the values as they are now."""
        for (_, own), value in zip(self._model.variables, self._replica.values, strict=True):
            np.copyto(own, to_host(value))
        self._model.release()
        self._replica.close()

    def _write(self, folder: Path) -> Path:
        return self._model.write(self._replica.values, folder)


def _no_step(batch: Any) -> Any:
    raise FailedPreconditionError("a loop of one's own computes its loss itself")
