"""Schedulers of PyTorch in `fit`: `ScheduledRates`, and `Plateau` for those that watch a value."""

from __future__ import annotations

from typing import Any

from nbdist.errors import InvalidArgumentError, choices
from nbdist.frameworks.torch.optimizers import GroupRates
from nbdist.train.callbacks import Callback
from nbdist.train.context import current

INTERVALS = ("epoch", "step")


class ScheduledRates:
    """The rates of a scheduler by their number, from 0; it is stepped as far as they are asked for."""

    def __init__(self, scheduler: Any, interval: str) -> None:
        self._scheduler, self._by_step = scheduler, interval == "step"
        self._groups = GroupRates.of(scheduler.optimizer.param_groups)
        self._rates = [self._groups.rate]

    def __call__(self, updates: int, epoch: int) -> float:
        """Return the rate of an update, given the updates before it and the number of its epoch, from 0."""
        number = updates if self._by_step else epoch
        while len(self._rates) <= number:
            self._scheduler.optimizer._opt_called = True  # what schedulers look for: the strategy makes steps
            self._scheduler.step()
            self._rates.append(self._groups.rate)
        return self._rates[number]


class Plateau(Callback):
    """Steps a ReduceLROnPlateau with a value of each epoch, where it is known: validation is the chief's."""

    def __init__(self, scheduler: Any, monitor: str) -> None:
        self._scheduler, self._monitor = scheduler, monitor
        self._groups = GroupRates.of(scheduler.optimizer.param_groups)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Change the rate of the updates that follow, if the value has not improved."""
        shown = current().progress.learning_rate
        if self._monitor not in logs or shown is None:
            return
        self._groups.change(shown)  # the live view may have changed it
        self._scheduler.step(logs[self._monitor])
        rate = self._groups.rate
        if rate != shown:
            current().control.set_rate_of_fit(rate)


def checked_scheduler(scheduler: Any, optimizer: Any, interval: str) -> None:
    """Raise InvalidArgumentError for what `fit` cannot follow as its ``scheduler``, None for none."""
    from torch.optim.lr_scheduler import LRScheduler

    if interval not in INTERVALS:
        raise InvalidArgumentError(f"fit: no scheduler_interval {interval!r}; {choices(interval, INTERVALS)}")
    if scheduler is None:
        return
    if not isinstance(scheduler, LRScheduler):
        raise InvalidArgumentError(
            f"fit: scheduler is one of torch.optim.lr_scheduler, got {type(scheduler).__name__}"
        )
    if scheduler.optimizer is not optimizer:
        raise InvalidArgumentError("fit: the scheduler is of another optimizer than the one given")
    if getattr(scheduler, "cycle_momentum", False):
        raise InvalidArgumentError(
            f"{type(scheduler).__name__}(cycle_momentum=True) changes the momentum, and a strategy changes "
            "the rate only: write cycle_momentum=False"
        )
