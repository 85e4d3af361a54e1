"""Our side of g4: images per second of `nb.frameworks.torch.fit` on one device, in this process.

The weights are compared after the warm-up."""

from __future__ import annotations

import json

import numpy as np

import nbdist as nb
from bench import sync_work
from bench.nbdist_step import Clock
from bench.script import need_torch
from bench.torch_data_parallel import in_our_layout, network, optimizer_of
from nbdist.train.context import Context, use


def main() -> None:
    options = sync_work.options()
    torch, _ = need_torch(options.device)
    work = sync_work.scaled(options)
    x, y = work.data()
    x = np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if options.work == "cnn" else x
    model = network(options.work)
    clock = Clock(lambda: in_our_layout(options.work, [p.detach().cpu().numpy() for p in model.parameters()]))
    with use(Context(quiet=True, device=options.device)):  # what fit prints belongs to no step
        nb.frameworks.torch.fit(
            model,
            nb.data.Dataset.from_arrays(x, y).batch(sync_work.BATCH).repeat(),
            optimizer=optimizer_of(options.work, model),
            loss=torch.nn.CrossEntropyLoss(),
            steps_per_epoch=work.warm_up,
            epochs=1 + work.steps // work.warm_up,  # the first is the warm-up
            callbacks=[clock],
        )
    print(json.dumps(work.outcome(clock.end - clock.begin, clock.weights)))


if __name__ == "__main__":
    main()
