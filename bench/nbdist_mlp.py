"""Our side of P5: milliseconds per step of model.fit on one device, in this process."""

from __future__ import annotations

import argparse
import json
import time

import nbdist as nb
from bench import work
from nbdist.train.callbacks import Callback


class Clock(Callback):
    begin = end = 0.0

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        self.end = time.perf_counter()
        if epoch == 0:
            self.begin = self.end


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, required=True)
    updates = parser.parse_args().updates
    x, y = work.data()
    batches = nb.data.Dataset.from_arrays(x, y.argmax(1)).batch(work.BATCH).repeat()
    model = nb.nn.Sequential([nb.nn.Dense(work.HIDDEN, "sigmoid"), nb.nn.Dense(work.CLASSES, "softmax")])
    model.compile(nb.optim.SGD(work.LEARNING_RATE), "sparse_categorical_crossentropy")
    model.build((work.INPUTS,))
    model.set_weights(work.first_weights())
    clock, epochs = Clock(), updates // work.WARM_UP
    # The first epoch is the warm-up; what fit prints belongs to no step.
    with nb.train.context.use(nb.train.context.Context(quiet=True)):
        history = model.fit(batches, steps_per_epoch=work.WARM_UP, epochs=epochs, callbacks=[clock])
    value = 1000 * (clock.end - clock.begin) / ((epochs - 1) * work.WARM_UP)
    print(json.dumps({"value": value, "check": work.check(history.global_step, *model.get_weights())}))


if __name__ == "__main__":
    main()
