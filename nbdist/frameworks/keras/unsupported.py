"""What a model of Keras, its optimizer and its callbacks have that the loop of a strategy would drop.

Keras's own loop calls ``train_step`` and methods of callbacks for batches, and its optimizer applies
constraints after an update. Under a strategy loop and updates are those of nbdist, so these are errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbdist.errors import InvalidArgumentError

BATCH_METHODS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
PER_BATCH = {"ModelCheckpoint": "save_freq", "BackupAndRestore": "save_freq", "OrbaxCheckpoint": "save_freq"}
"""Callbacks of Keras that act after batches only with such a setting; "epoch" has them act after epochs."""
EPOCHS_ENOUGH = ("TerminateOnNaN", "ProgbarLogger", "SwapEMAWeights")
"""Callbacks whose part in batches the loop does itself, shows, or refuses with the optimizer."""


def refuse_unsupported(model: Any, callbacks: Sequence[Any]) -> None:
    """Raise InvalidArgumentError for what would be dropped; ``model`` is built and compiled."""
    import keras

    kind = type(model)
    if kind.train_step is not keras.Model.train_step:
        raise InvalidArgumentError(
            f"{kind.__name__} has a train_step of its own, which a strategy would not call: compute the loss "
            "in compute_loss(), which it calls, or train with nb.frameworks.torch.fit or jax.fit"
        )
    for variable in model.trainable_variables:
        if variable.constraint is not None:
            raise InvalidArgumentError(
                f"{variable.path} has the constraint {type(variable.constraint).__name__}, which Keras "
                "applies after its own updates, and a strategy makes the updates: make the layer without it"
            )
    optimizer = model.optimizer
    if getattr(optimizer, "_exclude_from_weight_decay", None) or getattr(
        optimizer, "_exclude_from_weight_decay_pattern", None
    ):
        raise InvalidArgumentError(
            f"{type(optimizer).__name__}.exclude_from_weight_decay() has no equal here: a strategy decays "
            "all parameters alike, so compile the model without weight_decay, or without the exception"
        )
    for callback in callbacks:
        _refuse_batches(callback)


def _refuse_batches(callback: Any) -> None:
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
