"""The body that each worker runs in the slow worker benchmark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import nbdist as nb
from nbdist.train.callbacks import Callback

USUAL, SLOW, PAUSE, ONE_IN = 0.010, 0.050, 0.200, 50  # seconds, and how often there is a pause
LONGEST = 120.0  # seconds after which a training is given up
LOOK = 2  # steps of the first worker from one look at the held-out loss to the next


def train(
    pace: str, where: str, batch: int, rate: float, target: float, workers: int, seed: int, folder: str
) -> None:
    """Train at a pace until the held-out loss is ``target``.

    Writes the loss curve and the number of steps to a file in ``folder``.
    """
    x, y, x_test, y_test = nb.data.digits()
    rank = nb.task.rank
    waits = pauses(pace, rank == workers - 1, np.random.default_rng([seed, rank]))
    batches = nb.data.Dataset.from_arrays(x, y).shuffle(len(x)).batch(batch, drop_remainder=True).repeat()
    model = nb.nn.Sequential([nb.nn.Dense(32, "relu"), nb.nn.Dense(10, "softmax")])
    model.compile(nb.optim.SGD(rate), "sparse_categorical_crossentropy")
    model.build((64,))
    weights = np.random.default_rng(seed)
    shapes = [w.shape for w in model.get_weights()]
    model.set_weights([np.asarray(weights.standard_normal(one, np.float32) * 0.15) for one in shapes])
    if where == "data":
        batches = batches.map(slowed(lambda x, y: (x, y), waits))
    else:  # from pulling parameters to pushing the gradient: no callback is in between, so in what fit uses
        objective = model._objective_for(batches)
        program = objective.training_program
        slow = lambda spec: slowed(program(spec), waits)
        objective.training_program = slow  # type: ignore[method-assign]  # of this model only
    watch = Watch(target)
    model.fit(
        batches,
        steps_per_epoch=LOOK,
        epochs=1_000_000,
        validation_data=(x_test, y_test),
        callbacks=[watch],
    )
    report = {"steps": nb.train.context.current().progress.step, "curve": watch.curve}
    Path(folder, f"{rank}.json").write_text(json.dumps(report))


class Watch(Callback):
    """Records the held-out loss where it is computed, and ends the training when it reaches the target."""

    def __init__(self, target: float) -> None:
        self.target = target
        self.curve: list[tuple[float, float]] = []

    def on_train_begin(self) -> None:
        self.begin = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        seconds = time.monotonic() - self.begin
        if seconds > LONGEST:
            raise TimeoutError(f"the loss is {logs} after {LONGEST:g} s and was to be {self.target}")
        if "val_loss" in logs:
            self.curve.append((round(seconds, 3), round(logs["val_loss"], 4)))
            self.stop_training = logs["val_loss"] <= self.target


def slowed(function: Callable[..., Any], waits: Iterator[float]) -> Callable[..., Any]:
    """Return a function that sleeps for the next of ``waits`` in each call."""

    def slow(*arguments: Any) -> Any:
        time.sleep(next(waits))
        return function(*arguments)

    return slow


def pauses(pace: str, last: bool, random: np.random.Generator) -> Iterator[float]:
    """Yield how long each batch takes, in seconds."""
    while True:
        if pace == "now and then":
            yield PAUSE if random.random() < 1 / ONE_IN else USUAL
        else:
            yield SLOW if pace == "one slow" and last else USUAL
