"""P10: how much of 4 engines' time goes into trials of 10 s, from the first start to the last end.

Measured twice: from the spans in the sweep's log, which the grid shows, and from the times that each trial
takes when its body begins and ends. The difference is the sweep's own overhead.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import nbdist as nb
from nbdist.sweep import Space, fixed, log

ENGINES, TRIALS, SECONDS = 4, 12, 10.0  # as many trials for each engine: all could be at work until the end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that a trial takes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        print(json.dumps(measured(options.trials, options.seconds, Path(home))))


def trial(lr: float, width: int, seconds: float) -> dict[str, float]:
    import time

    began = time.time()
    time.sleep(seconds)
    return {"val": lr * width, "began": began, "over": time.time()}


def measured(trials: int, seconds: float, home: Path) -> dict[str, float]:
    """Return the share of the engines' time spent in trials, in per cent, and what the sweep took in all."""
    os.environ["NBDIST_HOME"] = str(home / "nbdist")
    space = Space({"lr": log(1e-4, 1e-1), "width": [32, 64, 128], "seconds": fixed(seconds)})
    cluster = nb.start_cluster(workers=ENGINES, threads=1, report=None)
    try:
        sweep = nb.run_sweep(
            trial, space, metric="val", sampler="random", trials=trials, seed=0, live=False, cluster=cluster
        )
        sweep.wait()
        spans = [(span.start, span.end) for span in sweep.ledger.spans if span.how == "finished"]
        ends = [one.values for one in sweep.ledger.trials.values() if one.state == "finished"]
        sweep.close()
    finally:
        cluster.stop()
    bodies = [(values["began"], values["over"]) for values in ends]
    return {
        "trials not complete": trials - len(ends),
        "in trials, by the sweep's spans": 100 * share(spans, ENGINES),
        "in trials, by their own clocks": 100 * share(bodies, ENGINES),
        "first start to last end": max(end for _, end in spans) - min(start for start, _ in spans),
    }


def share(spans: Iterable[tuple[float, float]], engines: int) -> float:
    """Return which part of the engines' time, from the first start to the last end, lies within spans.

    >>> share([(0, 4), (1, 5), (5, 8), (4, 8)], engines=2)
    0.9375
    """
    starts, ends = zip(*spans)
    spent = sum(end - start for start, end in zip(starts, ends))
    return float(spent / (engines * (max(ends) - min(starts))))


if __name__ == "__main__":
    main()
