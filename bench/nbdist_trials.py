"""Our side of P10: trivial trials a second on 4 engines, which are up already; each is written to its log."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import nbdist as nb
from nbdist.sweep.parse import read_space

ENGINES, TRIALS = 4, 500
SPACE = read_space("lr=log(1e-4, 1e-1) width=[32, 64, 128]")
BODY = "val = lr * width"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        print(json.dumps(measured(options.trials, Path(home))))


def measured(trials: int, home: Path) -> dict[str, object]:
    """Return the trials a second, and whether each of them has the expected result."""
    os.environ["NBDIST_HOME"] = str(home / "nbdist")
    run_sweep = nb.run_sweep  # loaded before the clock starts, as the peer's imports are
    cluster = nb.start_cluster(workers=ENGINES, threads=1, report=None)
    try:
        begin = time.perf_counter()
        sweep = run_sweep(
            BODY, SPACE, metric="val", sampler="random", trials=trials, seed=0, live=False, cluster=cluster
        )
        sweep.wait()
        seconds = time.perf_counter() - begin
        complete = sweep.ledger.counts["finished"]
        over = list(sweep.ledger.trials.values())
        sweep.close()
    finally:
        cluster.stop()
    right = [one.value == float(one.parameters["lr"]) * int(one.parameters["width"]) for one in over]
    return {
        "value": trials / seconds,
        "check": {"all complete": complete == len(right) == trials, "all right": all(right)},
    }


if __name__ == "__main__":
    main()
