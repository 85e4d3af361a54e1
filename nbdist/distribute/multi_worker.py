"""A copy of the parameters on every worker, of any host; gradients are summed by all-reduce."""

from __future__ import annotations

from nbdist.distribute.all_reduce import AllReduceStrategy
from nbdist.distribute.spec import CollectiveOptions, StrategySpec


class MultiWorkerMirroredStrategy(AllReduceStrategy):
    """Train with a copy of the parameters on every worker of the run.

    Runs on the workers.

    - ``collective``: "auto" (shared memory on one host, a ring if each worker is on a host of its own, else
      "hierarchical"; and NCCL if each worker has a GPU), or one of "shm" (one host), "ring", "hierarchical",
      "nccl", "mpi"
    - ``world``: the replicas; None for those of the surrounding run

    >>> MultiWorkerMirroredStrategy().num_replicas_in_sync    # outside of a run: a world of one
    1
    """

    name = "multi_worker"


SPEC = StrategySpec(
    MultiWorkerMirroredStrategy.name,
    make=lambda config: MultiWorkerMirroredStrategy(world=config.world, **config.settings),
    synchronous=True,
    survives_worker_loss=True,
    survives_chief_loss=True,
    takes_new_workers=True,
    resizes=True,
    for_trials=True,
    options=CollectiveOptions,
)
