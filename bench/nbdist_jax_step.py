"""Our side of jax: images per second of `nb.frameworks.jax.fit` on one device, in this process.

The weights are compared after the warm-up."""

from __future__ import annotations

import json

import numpy as np

import nbdist as nb
from bench import sync_work
from bench.jax_step import LOSSES
from bench.nbdist_step import Clock
from bench.script import need_jax
from nbdist.train.context import Context, use


def main() -> None:
    options = sync_work.options()
    need_jax(options.device)
    work = sync_work.scaled(options)
    batches = nb.data.Dataset.from_arrays(*work.data()).batch(sync_work.BATCH).repeat()
    clock = Clock(lambda: [np.asarray(weight) for weight in clock.model()])
    with use(Context(quiet=True, device=options.device)):  # what fit prints belongs to no step
        nb.frameworks.jax.fit(
            LOSSES[options.work],
            list(work.first_weights()),
            batches,
            optimizer=nb.optim.SGD(work.learning_rate),
            steps_per_epoch=work.warm_up,
            epochs=1 + work.steps // work.warm_up,  # the first is the warm-up: it compiles
            callbacks=[clock],
        )
    print(json.dumps(work.outcome(clock.end - clock.begin, clock.weights)))


if __name__ == "__main__":
    main()
