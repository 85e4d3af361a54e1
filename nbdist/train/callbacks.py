"""`Callback`, what users have called in a training, and `History`, which records its steps and epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.text import measured
from nbdist.train.context import Context, current
from nbdist.train.logging import as_number


class Callback:
    """The base class of callbacks for ``fit``; override the methods that you need.

    During ``on_epoch_end`` the model has its newest weights. Set ``stop_training`` to end the training.

    >>> class Print(Callback):
    ...     def on_epoch_end(self, epoch, logs):
    ...         print(epoch, logs["loss"])
    """

    stop_training = False
    """Set it to True to end the training after this epoch."""
    model: Any = None
    """The model that is trained; ``fit`` sets it."""

    def on_train_begin(self) -> None:
        """Run before the first step."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Run before the first step of an epoch: ``epoch`` is its number from 0, as in Keras."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Run after a complete epoch: ``epoch`` is its number from 0, ``logs`` its mean loss and metrics.

        Numbers that it adds to ``logs`` are in the history, too.
        """

    def on_train_end(self) -> None:
        """Run after the last step."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain values that are saved with the training; what it knows of the epochs so far."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned; called after ``on_train_begin``."""


class History:
    """Means per epoch, and the points of each step; what ``fit`` returns.

    ``history["loss"]`` is the list of epoch means, also as ``history.history["loss"]`` like in Keras.
    They are those of whole batches, unless ``share`` says of which part.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback] = (),
        context: Context | None = None,
        metric_names: Sequence[str] = (),
        metrics_of: Callable[[Sequence[float]], Sequence[float]] | None = None,
    ) -> None:
        self.history: dict[str, list[float]] = {}
        self.epoch: list[int] = []
        self.global_step = 0
        self.share = ""
        """The part of each batch that loss and metrics are of, in words; empty if they are of all of it."""
        self.metric_names = list(metric_names)
        self._metrics_of = metrics_of
        """What makes metrics of the sums of an epoch, or of a step; None if their means are the metrics."""
        self._callbacks = callbacks
        self._context = context
        self._sums: dict[str, float] = {}
        self._count = 0
        self._last: tuple[int, dict[str, float]] = 0, {}
        self._validation: dict[str, float] = {}
        self._before: dict[str, Any] | None = None
        self._saved_callbacks: list[list[Any]] = []
        """The class and the state of each callback in a training that is continued."""
        if context is not None:
            context.metric_names = self.metric_names
        self._recorder = context.recorder if context else None
        # Towers that step together are replicas of their own, and the strategy records what each one did.
        self._steps = self._recorder if context is None or context.towers is None else None

    def __getitem__(self, name: str) -> list[float]:
        return self.history[name]

    def __iter__(self) -> Any:
        return iter(self.history)

    def __repr__(self) -> str:
        last = ", ".join(f"{k} {v[-1]:.4g}" for k, v in self.history.items() if v)
        return f"<History: {len(self.epoch)} epochs, {last}{self._of}>" if self.epoch else "<History: empty>"

    @property
    def _of(self) -> str:
        return f" (of {self.share})" if self.share else ""

    @property
    def stop_training(self) -> bool:
        """Whether a callback wants to end the training."""
        return any(c.stop_training for c in self._callbacks)

    def begin(self, notes: Sequence[str]) -> None:
        """Start a training; prints ``notes`` once."""
        for note in notes:
            print(note)
        for callback in self._callbacks:
            callback.on_train_begin()
        for callback, (name, state) in zip(self._callbacks, self._saved_callbacks):
            if state and type(callback).__name__ == name:  # a body may have others when it is resumed
                callback.load_state_dict(state)

    def begin_epoch(self, epoch: int) -> None:
        """Run the callbacks before an epoch."""
        for callback in self._callbacks:
            callback.on_epoch_begin(epoch)

    def step(
        self,
        step: int,
        loss: float,
        values: Sequence[Any],
        staleness: int | None,
        seconds: float,
        examples: int,
    ) -> None:
        """Record a step: loss, metric values, staleness (updates), duration (seconds), number of examples."""
        sums = self._sums
        self._last = self._count, sums.copy()
        self._count += examples
        names = self.metric_names
        if self._metrics_of is not None:
            own = [float(value) * examples for value in values[1:]]
            for number, value in enumerate(own):
                sums[str(number)] = sums.get(str(number), 0.0) + value
            values = [loss, *self._metrics_of(own)] if self._steps is not None and own else [loss]
        sums["loss"] = sums.get("loss", 0.0) + loss * examples
        recorder = self._steps
        if recorder is not None:
            add, series = recorder.add, recorder.series
            add(series("loss"), step, loss)
            self.timed(seconds, step, staleness)
            for name, value in zip(names, values[1:]):
                add(series(name), step, value)
        for name, value in zip(names, values[1:] if self._metrics_of is None else ()):
            sums[name] = sums.get(name, 0.0) + float(value) * examples

    def timed(self, seconds: float, step: int, staleness: int | None) -> None:
        """Record the duration of a step, and how many updates its gradient was late."""
        if (recorder := self._steps) is not None:
            recorder.add(recorder.series("step_ms"), step, seconds * 1e3)
            if staleness is not None:
                recorder.add(recorder.series("staleness"), step, staleness)

    def take_back(self) -> None:
        """Leave the last step out of its epoch, because it was not made."""
        self._count, self._sums = self._last

    def validated(self, logs: dict[str, float], step: int) -> None:
        """Record the validation after an epoch."""
        self._validation = {f"val_{name}": value for name, value in logs.items()}
        if self._recorder is not None:
            for name, value in self._validation.items():
                self._recorder.add(self._recorder.series(name), step, value)

    def end_epoch(self, epoch: int, whole: bool = True) -> None:
        """Close an epoch: add its means to the history and, if it was ``whole``, run the callbacks."""
        if not self._count:
            return
        if not whole:
            self._before = self.state_dict()
        logs = self._of_epoch() | self._validation
        self._sums, self._count, self._validation = {}, 0, {}
        self.epoch.append(epoch)
        for callback in self._callbacks if whole else ():
            callback.on_epoch_end(epoch, logs)
        for name, value in list(logs.items()):
            try:
                logs[name] = as_number(name, value)
            except InvalidArgumentError:
                current().note(
                    f"{name}, which a callback gives for an epoch, is not a number: the history leaves it out"
                )
                del logs[name]
        if self._context is not None:
            self._context.last_epoch = logs
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)
        if self._context is not None and not self._context.quiet:
            values = ", ".join(f"{name} {measured(value)}" for name, value in logs.items())
            print(f"epoch {epoch + 1}: {values}{self._of}")

    def _of_epoch(self) -> dict[str, float]:
        """Return loss and metrics of the epoch so far."""
        sums = dict(self._sums)
        if self._metrics_of is None:
            return {name: total / self._count for name, total in sums.items()}
        loss = sums.pop("loss") / self._count
        found = self._metrics_of([sums[key] for key in sorted(sums, key=int)]) if sums else ()
        return {"loss": loss, **dict(zip(self.metric_names, map(float, found)))}

    def end(self, global_step: int) -> None:
        """Close the training."""
        self.global_step = global_step
        for callback in self._callbacks:
            callback.on_train_end()

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` takes, as plain values; an epoch that was cut short is open."""
        if self._before is not None:
            return self._before
        return {
            "history": {name: [float(v) for v in values] for name, values in self.history.items()},
            "epoch": list(self.epoch),
            "sums": {name: float(total) for name, total in self._sums.items()},
            "count": self._count,
            "callbacks": [[type(one).__name__, one.state_dict()] for one in self._callbacks],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.history = {name: list(values) for name, values in state["history"].items()}
        self.epoch, self._sums = list(state["epoch"]), dict(state["sums"])
        self._count = int(state["count"])
        self._saved_callbacks = list(state.get("callbacks", ()))
        if self._context is not None:
            self._context.last_epoch = {name: values[-1] for name, values in self.history.items() if values}

    def to_config(self) -> dict[str, Any]:
        """Return plain values, for :meth:`from_config`."""
        names = ("history", "epoch", "global_step", "share")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> History:
        """Return the history that :meth:`to_config` described."""
        history = cls()
        history.history = {name: list(map(float, values)) for name, values in config["history"].items()}
        history.epoch, history.global_step = list(config["epoch"]), int(config["global_step"])
        history.share = str(config.get("share", ""))
        return history
