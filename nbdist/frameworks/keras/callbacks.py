"""Callbacks of Keras in the training loop: `KerasCallbacks`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.keras.model import KerasModel
from nbdist.train.callbacks import Callback
from nbdist.train.context import current

WRITERS = ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "TensorBoard")
"""What writes files, which the chief writes for all."""
BATCH_METHODS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
PER_BATCH = {"ModelCheckpoint": "save_freq", "BackupAndRestore": "save_freq", "OrbaxCheckpoint": "save_freq"}
"""Callbacks of Keras that act after batches only with such a setting; "epoch" has them act after epochs."""
EPOCHS_ENOUGH = ("TerminateOnNaN", "ProgbarLogger", "SwapEMAWeights")
"""Callbacks whose part in batches the loop does itself, shows, or refuses with the optimizer."""


class KerasCallbacks(Callback):
    """Calls the methods of Keras's callbacks for trainings and epochs; the model has the newest weights.

    Replicas other than the chief have no ``val_`` values and leave out what monitors these, and what writes
    files. With ``sets_rate`` a learning rate that they give to Keras's optimizer is that of the next update.
    """

    def __init__(
        self,
        trained: KerasModel,
        callbacks: Sequence[Any],
        epochs: int,
        steps: int | None,
        sets_rate: bool = True,
    ) -> None:
        import keras

        for one in callbacks:
            if not isinstance(one, keras.callbacks.Callback):
                raise InvalidArgumentError(f"fit: {one!r} is not a callback of Keras or nbdist")
            refuse_batches(one)
        chosen = [one for one in callbacks if current().is_chief or not of_the_chief(one)]
        self._trained, self._model, self._sets_rate = trained, trained.compiled.model, sets_rate
        self._chosen = chosen
        self._params = {"verbose": 0, "epochs": epochs, "steps": steps}
        self._weights: list[Any] | None = None

    def on_train_begin(self) -> None:
        """Begin the training; an error of a callback here is one of the training, which ends for all."""
        import keras

        self._model.stop_training = False
        self._all = keras.callbacks.CallbackList(self._chosen, model=self._model, **self._params)
        self._trained.compiled.callbacks = self._all
        self._take_rate()  # a resumed training has that of its state
        with self._rate_set():
            self._all.on_train_begin()

    def on_epoch_begin(self, epoch: int) -> None:
        """Begin an epoch."""
        with self._rate_set():
            self._all.on_epoch_begin(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """End an epoch; what callbacks add to the ``logs`` is in the history."""
        self._trained.show()
        self._take_rate()
        with self._rate_set():
            for one in self._chosen:
                one.on_epoch_end(epoch, logs)
        self.stop_training = bool(self._model.stop_training)

    def _take_rate(self) -> None:
        """Give Keras's optimizer the rate of the last update, which the live view may have changed."""
        shown = current().progress.learning_rate
        if self._sets_rate and shown is not None:
            self._model.optimizer.learning_rate = shown

    @contextmanager
    def _rate_set(self) -> Iterator[None]:
        """Have the next update made at the learning rate that a callback sets inside a ``with``."""
        before = float(self._model.optimizer.learning_rate)
        yield
        after = float(self._model.optimizer.learning_rate)
        if self._sets_rate and after != before:
            current().control.set_rate_of_fit(float(str(np.float32(after))))  # 0.1, and not 0.10000000149

    def on_train_end(self) -> None:
        """End the training, with the trained weights; a callback may give the model other ones."""
        self._trained.unbind()
        before = self._model.get_weights()
        self._all.on_train_end()
        after = self._model.get_weights()
        if any((one != other).any() for one, other in zip(before, after, strict=True)):
            self._weights = after

    def restore(self) -> None:
        """Give the model the weights that a callback has given it at the end, as EarlyStopping does."""
        if self._weights is not None:
            self._model.set_weights(self._weights)


def of_the_chief(callback: Any) -> bool:
    """Return whether a callback is called on the chief only."""
    import keras

    kinds = tuple(getattr(keras.callbacks, name) for name in WRITERS)
    return isinstance(callback, kinds) or str(getattr(callback, "monitor", "")).startswith("val_")


def refuse_batches(callback: Any) -> None:
    """Raise InvalidArgumentError for a callback that acts after batches, which would not be called."""
    import keras

    name = type(callback).__name__
    if type(callback).__module__.startswith("keras."):
        setting = PER_BATCH.get(name)
        frequency = "epoch" if setting is None else getattr(callback, setting, "epoch")
        if name == "TensorBoard":
            setting, frequency = "update_freq", getattr(callback, "update_freq", "epoch")
        if frequency != "epoch":
            raise InvalidArgumentError(
                f"{name}({setting}={frequency!r}) acts after batches, and callbacks are called after epochs "
                f'under a strategy: write {setting}="epoch", or --checkpoint-every'
            )
        if setting is not None or name in EPOCHS_ENOUGH:
            return
    for method in BATCH_METHODS:
        own, usual = getattr(callback, method), getattr(keras.callbacks.Callback, method)
        if getattr(own, "__func__", own) is not usual:
            raise InvalidArgumentError(
                f"{name}.{method}() would not be called: under a strategy, callbacks are called for "
                "trainings and epochs. Use on_epoch_end(), or a loop of one's own (nb.frameworks.torch.wrap)"
            )
