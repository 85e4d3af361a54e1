"""Callbacks as people know them from Keras: what watches a metric, sets the rate, or writes a file.

    model.fit(data, epochs=20, callbacks=[ModelCheckpoint("best.safetensors", save_best_only=True),
                                          ReduceLROnPlateau(patience=3)])

All replicas call them, and all copies of the parameters stay equal: a learning rate holds for all replicas
that make updates together, as the first one sends it; what ends the training of one ends that of all in step;
files are the chief's to write. Values of ``validation_data`` are the chief's.
"""

from __future__ import annotations

import csv
import inspect
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbdist.errors import InvalidArgumentError, choices
from nbdist.home import private_folder
from nbdist.keras_arguments import keras_arguments
from nbdist.numbers import is_whole
from nbdist.optim.base import number
from nbdist.optim.schedules import LearningRateSchedule
from nbdist.train.callbacks import Callback
from nbdist.train.context import current

MODES = ("auto", "min", "max")


class _Best:
    """The best value of a metric so far.

    >>> best = _Best("Example", "val_accuracy", "auto", 0.1)
    >>> best.improves(0.5), best.improves(0.55), best.improves(0.7), best.value
    (True, False, True, 0.7)
    """

    def __init__(self, owner: str, monitor: str, mode: str, min_delta: float = 0.0) -> None:
        if mode not in MODES:
            raise InvalidArgumentError(f"{owner}: no mode={mode!r}; {choices(mode, MODES)}")
        largest = mode == "max" or (mode == "auto" and monitor.endswith("accuracy"))
        self.owner, self.monitor, self.min_delta = owner, monitor, abs(min_delta)
        self.sign = -1.0 if largest else 1.0
        self.value: float | None = None

    def of(self, logs: dict[str, float]) -> float | None:
        """Return the metric of an epoch; None on a replica that has none, because the chief validates."""
        if self.monitor in logs:
            return logs[self.monitor]
        if self.monitor.startswith("val_") and not current().is_chief:
            return None
        raise InvalidArgumentError(
            f"{self.owner} watches {self.monitor!r}; this training has {', '.join(logs)}"
        )

    def improves(self, value: float) -> bool:
        """Take a value; return whether it is better than the best one, which it then is."""
        if self.value is not None and not self.sign * value < self.sign * self.value - self.min_delta:
            return False
        if math.isnan(value):
            return False
        self.value = value
        return True


class EarlyStopping(Callback):
    """End the training when a metric has stopped improving.

    - ``monitor``: the name of a loss or metric
    - ``patience``: how many epochs in a row may pass without improvement; 0 counts as 1
    - ``min_delta``: a value counts as better if it improves on the best one by more than this; the sign is
      ignored
    - ``mode``: "min" if smaller is better, "max" if larger; "auto" is "max" where the name ends in "accuracy"
    - ``baseline``: the value that is to be improved on at first; None for any
    - ``start_from_epoch``: how many epochs are not looked at, 0 or more

    Only the chief validates: other replicas have no ``val_`` values, and continue until their epochs are done
    (asynchronous) or the chief has ended their common steps (synchronous).
    """

    @keras_arguments("EarlyStopping")
    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 0,
        min_delta: float = 0.0,
        *,
        mode: str = "auto",
        baseline: float | None = None,
        start_from_epoch: int = 0,
    ) -> None:
        if patience < 0:
            raise InvalidArgumentError(f"patience must be 0 or more, got {patience}")
        self.monitor, self.patience, self.min_delta = monitor, patience, abs(min_delta)
        self.baseline, self.start_from_epoch, self._mode = baseline, start_from_epoch, mode
        self.on_train_begin()

    def on_train_begin(self) -> None:
        """Start without a best epoch."""
        self._best = _Best("EarlyStopping", self.monitor, self._mode, self.min_delta)
        self._best.value, self._waited, self.stop_training = self.baseline, 0, False

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Compare ``logs`` of ``epoch`` with the best epoch so far."""
        value = self._best.of(logs)
        if value is None or epoch < self.start_from_epoch:
            return
        if self._best.improves(value):
            self._waited = 0
            return
        self._waited += 1
        self.stop_training = self._waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and how many epochs have passed since."""
        return {"best": self._best.value, "waited": self._waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self._best.value, self._waited = state["best"], int(state["waited"])


class TerminateOnNaN(Callback):
    """End the training at a step with a loss or a gradient that is NaN or infinite, without an error.

    ``fit`` raises NanLossError for such a step otherwise. The step's gradient is not applied; replicas that
    make steps together end after the same one, and the model has the parameters of then. An asynchronous
    replica ends by itself, or with the chief.

    >>> callbacks = [TerminateOnNaN()]
    """

    def on_train_begin(self) -> None:
        """Begin a training in which nothing was NaN."""
        self.stop_training = False

    def end(self) -> None:
        """End the training, since a step of this process was not finite."""
        self.stop_training = True
        current().note_here("TerminateOnNaN: the training ends with this step")


class LearningRateScheduler(Callback):
    """Set the learning rate of each epoch.

    - ``schedule``: a function of the number of the epoch, from 0, and the rate of now, or of the number
      alone; it returns a rate, a finite number of 0 or more. It is called on each replica, and is to return
      the same on all of them

    Rates that change with each update are one of ``nb.optim.schedules``, given to the optimizer; an optimizer
    that has one is refused. ``learning_rate`` is added to the logs of the epoch.

    >>> halving = LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate)
    """

    @keras_arguments("LearningRateScheduler")
    def __init__(self, schedule: Callable[..., float]) -> None:
        if not callable(schedule):
            raise InvalidArgumentError(
                f"LearningRateScheduler: schedule is a function of the epoch and the rate, got {schedule!r}"
            )
        self.schedule, self._takes_rate = schedule, True
        try:
            inspect.signature(schedule).bind(0, 0.1)
        except TypeError:
            self._takes_rate = False
        except ValueError:  # of a function without a signature
            pass

    def on_train_begin(self) -> None:
        """Refuse an optimizer that has a schedule of its own."""
        _require_number(self)

    def on_epoch_begin(self, epoch: int) -> None:
        """Set the rate of an epoch."""
        now = current().progress.learning_rate
        if now is None:  # the first replica's is that of all
            return
        rate = self.schedule(*([epoch, now] if self._takes_rate else [epoch]))
        _set_rate(number("LearningRateScheduler: what schedule returns", rate), now)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Add the rate to the logs."""
        _log_rate(logs)


class ReduceLROnPlateau(Callback):
    """Multiply the learning rate by a factor when a metric has stopped improving.

    - ``monitor``: the name of a loss or metric
    - ``factor``: by what the rate is multiplied, above 0 and below 1
    - ``patience``: after how many epochs in a row without improvement, 1 or more (0 counts as 1)
    - ``mode``: "min" if smaller is better, "max" if larger; "auto" is "max" where the name ends in "accuracy"
    - ``min_delta``: by how much a value has to be better than the best one, 0 or more
    - ``cooldown``: how many epochs after a reduction do not count, 0 or more
    - ``min_lr``: the smallest rate, 0 or more

    ``learning_rate`` is added to the logs of the epoch. The rate is that of all replicas that make updates
    together. Elastic replicas have a rate each, and only the chief has ``val_`` values: watch "loss" there.

    Raises InvalidArgumentError for a setting out of range, and in a training whose optimizer has a schedule.

    >>> callbacks = [ReduceLROnPlateau("val_loss", factor=0.5, patience=3)]
    """

    @keras_arguments("ReduceLROnPlateau")
    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        *,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        if not 0 < number("ReduceLROnPlateau: factor", factor) < 1:
            raise InvalidArgumentError(f"ReduceLROnPlateau: factor is above 0 and below 1, got {factor!r}")
        for name, value in {"patience": patience, "cooldown": cooldown}.items():
            if not is_whole(value, 0):
                raise InvalidArgumentError(
                    f"ReduceLROnPlateau: {name} is a whole number of 0 or more, got {value!r}"
                )
        self.monitor, self.factor, self.patience, self.cooldown = monitor, float(factor), patience, cooldown
        self.min_lr, self.min_delta = number("ReduceLROnPlateau: min_lr", min_lr), min_delta
        self._mode = mode
        self._reset()

    def _reset(self) -> None:
        self._best = _Best("ReduceLROnPlateau", self.monitor, self._mode, self.min_delta)
        self._waited = self._cooling = 0

    def on_train_begin(self) -> None:
        """Start without a best epoch; refuse an optimizer that has a schedule."""
        _require_number(self)
        self._reset()

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Compare ``logs`` of ``epoch`` with the best epoch so far."""
        now, value = current().progress.learning_rate, self._best.of(logs)
        _log_rate(logs)
        if value is None:
            return
        if self._cooling:
            self._cooling, self._waited = self._cooling - 1, 0
        if self._best.improves(value):
            self._waited = 0
        elif not self._cooling:
            self._waited += 1
            if self._waited >= self.patience:
                self._waited, self._cooling = 0, self.cooldown
                if now is not None and now > self.min_lr:
                    _set_rate(max(now * self.factor, self.min_lr), now)

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, and the epochs since then and since the last reduction."""
        return {"best": self._best.value, "waited": self._waited, "cooling": self._cooling}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self._best.value = state["best"]
        self._waited, self._cooling = int(state["waited"]), int(state["cooling"])


class ModelCheckpoint(Callback):
    """Save the model after each epoch, or after those that are better than all before; the chief does.

    - ``filepath``: a file, relative to the run's folder (outside of a run, to the current one). It may name
      the epoch (from 1) and metrics: ``"{epoch:02d}-{val_loss:.2f}.safetensors"``. A model of ``nb.nn`` is
      read by ``nb.nn.load``
    - ``monitor``: the name of a loss or metric, for ``save_best_only`` and ``save_top_k``
    - ``save_best_only``: whether to save only a model that is better than all saved before
    - ``save_top_k``: how many models to keep, those of the best epochs; None for all. Needs ``{epoch}`` in
      the name
    - ``mode``: "min" if smaller is better, "max" if larger; "auto" is "max" where the name ends in "accuracy"
    - ``initial_value_threshold``: a model is saved only if it is better than this; None for any

    A file appears as a whole, or stays as it was. Raises InvalidArgumentError for settings that do not fit,
    and a name with a metric that the training does not have.

    >>> best = ModelCheckpoint("best.safetensors", monitor="val_accuracy", save_best_only=True)
    """

    @keras_arguments("ModelCheckpoint")
    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        *,
        save_best_only: bool = False,
        save_top_k: int | None = None,
        mode: str = "auto",
        initial_value_threshold: float | None = None,
    ) -> None:
        self.filepath, self.monitor = os.fspath(filepath), monitor
        self.save_best_only, self.save_top_k = save_best_only, save_top_k
        if save_top_k is not None and not is_whole(save_top_k, 1):
            raise InvalidArgumentError(
                f"ModelCheckpoint: save_top_k is a whole number of 1 or more, or None, got {save_top_k!r}"
            )
        if save_top_k is not None and "{epoch" not in self.filepath:
            raise InvalidArgumentError(
                f"ModelCheckpoint: save_top_k={save_top_k} keeps several files, and {self.filepath!r} names "
                'one: put {epoch} into it, such as "epoch-{epoch}.safetensors"'
            )
        self._best = _Best("ModelCheckpoint", monitor, mode)
        self._best.value = initial_value_threshold
        self._kept: list[tuple[float, str]] = []

    @property
    def best(self) -> float | None:
        """The best value of the metric so far; None before the first."""
        return self._best.value

    def on_train_begin(self) -> None:
        """Refuse a model that cannot be saved."""
        if not callable(getattr(self.model, "save", None)):
            raise InvalidArgumentError(
                f"ModelCheckpoint calls model.save(path), which {type(self.model).__name__} does not have: "
                "write a callback that saves it in on_epoch_end, where it has the newest weights"
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Save the model, if it is one to keep."""
        if not current().is_chief:
            return
        if not self.save_best_only and self.save_top_k is None and self._best.value is None:
            self._save(epoch, logs)
            return
        value = self._best.of(logs)
        if value is None:
            return
        better = self._best.improves(value)
        if self.save_top_k is None:
            if better:
                self._save(epoch, logs)
            return
        worst = max((rank for rank, _ in self._kept), default=-math.inf)
        rank = self._best.sign * value
        if math.isnan(value) or (len(self._kept) >= self.save_top_k and rank >= worst):
            return
        self._kept.append((rank, str(self._save(epoch, logs))))
        while len(self._kept) > self.save_top_k:
            gone = max(self._kept)
            self._kept.remove(gone)
            if gone[1] not in [path for _, path in self._kept]:
                Path(gone[1]).unlink(missing_ok=True)

    def _save(self, epoch: int, logs: dict[str, float]) -> Path:
        try:
            name = self.filepath.format(**{**logs, "epoch": epoch + 1})
        except (KeyError, IndexError, ValueError) as error:
            raise InvalidArgumentError(
                f"ModelCheckpoint: {self.filepath!r} names {error}; there are epoch, {', '.join(logs)}"
            ) from None
        path = file_of_run(name)
        self.model.save(path)
        path.chmod(0o600)
        return path

    def state_dict(self) -> dict[str, Any]:
        """Return the best value; files are those of the run that has written them."""
        return {"best": self._best.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self._best.value = state["best"]


class CSVLogger(Callback):
    """Write the loss and the metrics of each epoch into a file of comma-separated values; the chief does.

    - ``filename``: a file, relative to the run's folder (outside of a run, to the current one)
    - ``separator``: what is between two values, one character
    - ``append``: whether lines are added to a file that is there, which else is overwritten

    The columns are ``epoch``, from 0, and the logs of the first epoch, in the order of the alphabet; a value
    that an epoch does not have is ``NA``. A training that continues a run adds its lines after those of the
    epochs before, where the file is there.

    >>> callbacks = [CSVLogger("training.csv")]
    """

    @keras_arguments("CSVLogger")
    def __init__(self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False) -> None:
        if not isinstance(separator, str) or len(separator) != 1:
            raise InvalidArgumentError(f"CSVLogger: separator is one character, got {separator!r}")
        self.filename, self.separator, self.append = os.fspath(filename), separator, append
        self._columns: list[str] = []

    def on_train_begin(self) -> None:
        """Begin a new file, unless lines are to be added."""
        self._columns, self._path = [], None
        if not current().is_chief:
            return
        self._path = file_of_run(self.filename)
        if self.append and self._path.is_file():
            with self._path.open(newline="") as file:
                self._columns = next(csv.reader(file, delimiter=self.separator), [])
        else:
            self._path.unlink(missing_ok=True)
            self._path.touch(0o600)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Add a line."""
        if self._path is None:
            return
        begins = not self._columns
        self._columns = self._columns or ["epoch", *sorted(logs)]
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(
                file, self._columns, restval="NA", extrasaction="ignore", delimiter=self.separator
            )
            if begins:
                writer.writeheader()
            writer.writerow({**logs, "epoch": epoch})

    _path: Path | None = None


def file_of_run(name: str) -> Path:
    """Return the path of a file that a callback writes, in the folder of the run if the name is relative.

    Its folder is made.
    """
    checkpoints = current().checkpoints
    path = (Path() if checkpoints is None else checkpoints.folder.parent) / name
    if checkpoints is not None and not Path(name).is_absolute():
        folder = checkpoints.folder.parent
        for part in path.parent.relative_to(folder).parts:
            folder = private_folder(folder / part)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _set_rate(rate: float, now: float) -> None:
    if rate != now:
        current().control.set_rate_of_fit(rate)


def _log_rate(logs: dict[str, float]) -> None:
    if (rate := current().progress.learning_rate) is not None:
        logs["learning_rate"] = rate


def _require_number(callback: Callback) -> None:
    """Raise InvalidArgumentError for a training with an optimizer that follows a schedule."""
    rate: Any = getattr(getattr(callback.model, "optimizer", None), "learning_rate", None)
    if isinstance(rate, LearningRateSchedule):
        raise InvalidArgumentError(
            f"{type(callback).__name__} sets the learning rate, and the optimizer's follows a schedule "
            f"({type(rate).__name__}): give the optimizer a number, or leave the callback out"
        )
