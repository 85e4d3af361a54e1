"""Losses and metrics of Lightning, Accelerate, transformers and Keras as series of the run, as by ``nb.log``.

`CHANGES` has, by the name of a module, the function that is called when a body imports it (see `Patches`): it
adds a callback to each trainer that is made from then on. Progress bars are left out: they would be lines of
output, many a second on each rank, that say what the view of the run shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from nbdist.frameworks.apart import see_step
from nbdist.frameworks.patches import Change, Patches
from nbdist.train.context import current
from nbdist.train.logging import log, see_not_finite


def report(values: Mapping[str, Any], step: int | None = None) -> None:
    """Log those of some values that are numbers.

    >>> report({})
    """
    found = {name: number for name, value in values.items() if (number := _as_number(value)) is not None}
    if found:
        log(found, step=step)


def _as_number(value: Any) -> float | None:
    """Return a number, or an array of one element, as a float; None for anything else.

    >>> _as_number(2), _as_number("high"), _as_number(True)
    (2.0, None, 1.0)
    """
    try:
        return None if isinstance(value, (str, bytes)) or value is None else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _is_same(value: Any, other: Any) -> bool:
    """Return whether a metric is one that was there before: the same number, or a view of the same tensor."""
    one, two = (getattr(metric, "data_ptr", lambda: None)() for metric in (value, other))
    return value is other or (one is not None and one == two)


def _lightning(module: ModuleType, patches: Patches) -> None:
    """Add a callback to every Trainer of Lightning."""
    base: Any = module.Callback

    class Reporter(base):  # type: ignore[misc]  # Lightning is Any here
        """Reports the loss of each step and all that is logged with ``self.log``."""

        reported: Mapping[str, Any] = {}
        """The newest values of all metrics, when they were last reported."""

        def report(self, trainer: Any, **more: Any) -> None:
            """Report the metrics that were logged since the last call, though Lightning keeps all of them."""
            values, old = {**trainer.callback_metrics}, self.reported
            new = {name: value for name, value in values.items() if not _is_same(value, old.get(name))}
            self.reported = values
            # One that is logged for steps and epochs has three names; the short one is that of the epochs.
            report(
                {**more, **{name: new[name] for name in new if f"{name}_step" not in new}},
                trainer.global_step,
            )

        def on_train_start(self, trainer: Any, model: Any) -> None:
            current().trainer, progress = "lightning", current().progress
            batches, accumulate = trainer.num_training_batches, trainer.accumulate_grad_batches
            steps = trainer.max_steps if trainer.max_steps > 0 else None
            if steps is None and trainer.max_epochs and trainer.max_epochs > 0 and batches != float("inf"):
                steps = -(-int(batches) // accumulate) * trainer.max_epochs
            progress.total = steps
            progress.epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None

        def on_train_epoch_start(self, trainer: Any, model: Any) -> None:
            current().begin_epoch(trainer.current_epoch + 1, current().progress.epochs)
            self.report(trainer)  # what the model has logged at the end of the epoch before

        def on_train_batch_end(self, trainer: Any, model: Any, outputs: Any, batch: Any, index: int) -> None:
            if model.device.type != "cpu" and trainer.global_step % trainer.log_every_n_steps:
                return  # reading a value waits for the GPU
            self.report(trainer, loss=outputs.get("loss") if isinstance(outputs, Mapping) else outputs)

        def on_train_epoch_end(self, trainer: Any, model: Any) -> None:
            self.report(trainer)

        on_train_end = on_test_end = on_train_epoch_end

        def on_validation_end(self, trainer: Any, model: Any) -> None:
            if not trainer.sanity_checking:
                self.report(trainer)

    def initialize(init: Any, trainer: Any, *args: Any, **options: Any) -> None:
        given = options.get("callbacks") or []
        given = given if isinstance(given, (list, tuple)) else [given]
        if not any(isinstance(one, module.callbacks.ProgressBar) for one in given):
            options.setdefault("enable_progress_bar", False)
        init(trainer, *args, **options)
        if not options.get("barebones"):  # that is to measure Lightning's own overhead
            trainer.callbacks.append(Reporter())

    patches.wrap(module.Trainer, "__init__", initialize)


def _accelerate(module: ModuleType, patches: Patches) -> None:
    """Have ``Accelerator.log`` report what it is given, on every rank."""

    def logged(
        original: Any, accelerator: Any, values: dict[str, Any], step: int | None = None, **options: Any
    ) -> Any:
        report(values, step)
        return original(accelerator, values, step=step, **options)

    patches.wrap(module.Accelerator, "log", logged)


def _transformers(module: ModuleType, patches: Patches) -> None:
    """Add a callback to every Trainer of transformers, and leave its progress bar out."""
    base: Any = module.TrainerCallback

    class Reporter(base):  # type: ignore[misc]  # transformers is Any here
        """Reports what the Trainer logs."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            current().trainer, progress = "transformers", current().progress
            progress.total, progress.epochs = state.max_steps, -(-state.num_train_epochs // 1)

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            current().begin_epoch(int(state.epoch or 0) + 1, current().progress.epochs)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
            report(
                {name: value for name, value in (logs or {}).items() if name != "epoch"}, state.global_step
            )

    class NoBar(base):  # type: ignore[misc]  # transformers is Any here
        """Takes the place of the progress bar."""

    def make(original: Any) -> Any:
        def training_step(trainer: Any, *args: Any, **options: Any) -> Any:
            loss = original(trainer, *args, **options)
            if trainer.args.logging_nan_inf_filter:  # the Trainer reads each loss, to log no NaN
                see_not_finite(current(), {"loss": float(loss)}, trainer.state.global_step + 1)
            return loss

        return training_step

    patches.replace(module.Trainer, "training_step", make)
    patches.append(module.DEFAULT_CALLBACKS, Reporter)
    patches.replace(module, "DEFAULT_PROGRESS_CALLBACK", lambda bar: NoBar)


def _keras(module: ModuleType, patches: Patches) -> None:
    """Add a callback to every ``fit`` of Keras 3, and leave its progress bars out."""
    base: Any = module.Callback

    class Reporter(base):  # type: ignore[misc]  # Keras is Any here
        """Reports loss and metrics of each step, as averages of the epoch, and those of each epoch."""

        batch_logs: Mapping[str, Any]
        """What was reported of the epoch's last batch, which are the epoch's values as well."""

        def on_train_begin(self, logs: Any = None) -> None:
            progress, steps = current().progress, self.params.get("steps")
            current().note_fit(getattr(self, "_model", None))
            progress.epochs = self.params.get("epochs")
            progress.total = progress.step + steps * progress.epochs if steps and progress.epochs else None

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            current().begin_epoch(epoch + 1, self.params.get("epochs"))
            self.batch_logs = {}

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            progress = current().progress
            progress.step += 1
            see_step("keras")
            self.batch_logs = {**(logs or {})}
            report(self.batch_logs, progress.step)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            last = {name: _as_number(value) for name, value in self.batch_logs.items()}
            found = {
                name: value for name, value in (logs or {}).items() if _as_number(value) != last.get(name)
            }
            report(found, current().progress.step)

    def initialize(
        init: Any,
        self: Any,
        callbacks: Any = None,
        add_history: bool = False,
        add_progbar: bool = False,
        **more: Any,
    ) -> None:
        if add_history:  # it is for a fit
            given = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []
            callbacks = [*given, Reporter()]
        init(self, callbacks, add_history=add_history, add_progbar=False, **more)

    patches.wrap(module.CallbackList, "__init__", initialize)


CHANGES: dict[str, Change] = {
    "lightning.pytorch": _lightning,
    "pytorch_lightning": _lightning,
    "accelerate.accelerator": _accelerate,
    "transformers.trainer": _transformers,
    "keras.src.callbacks.callback_list": _keras,
}
