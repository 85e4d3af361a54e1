"""A driver for tests to kill: starts a cluster and a sweep, prints their ids, and ends at a line of input.

python trials_driver.py <marks> <how many trials> <how many engines> <per trial>
"""

from __future__ import annotations

import sys

from trials_tools import ONCE

from nbdist.cluster.launch import start_cluster
from nbdist.trials.start import start_sweep


def main() -> None:
    marks, trials, workers, per_trial = sys.argv[1], *map(int, sys.argv[2:5])
    cluster = start_cluster(workers, 0, report=None, orphan_timeout=120.0)
    sweep = start_sweep(
        ONCE.format(folder=marks),
        {"number": list(range(trials))},
        metric="accuracy",
        sampler="grid",
        per_trial=per_trial,
        seed=3,
        cluster=cluster,
        report=lambda line: None,
    )
    print(sweep.id, cluster.id, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
