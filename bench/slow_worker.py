"""The cost of a slow worker: wall time to a given loss, for four ways to synchronize the workers.

    python -m bench.slow_worker --rounds 3      # a table, and bench/results/slow_worker.png

Four workers and a parameter server train a 64-32-10 network on the digits until the loss of the held-out
fifth, which the first worker evaluates as it trains, is 0.25. Each of four ways to synchronize the workers
runs at three paces:

    "all alike"      every worker takes 10 ms for a gradient
    "one slow"       the last worker takes 50 ms
    "now and then"   a gradient takes 10 ms; one in fifty, on any worker, takes 200 ms

How to read it. Each worker has 32 examples a step, and the learning rate is 0.05 for each 32 examples of an
update (a synchronous update of four workers has four times that). All ways therefore need about the same
number of gradients, and their seconds differ by the gradients applied per second and by their staleness.
"x sync" is the time divided by that of synchronous training at the same pace. "per worker" is the number of
gradients that each worker computed: a worker that waits computes as few as the slowest one. "dropped" is the
number of gradients that arrived too late for their step. "staleness" is the number of updates between a
gradient's parameters and its application.

Expected for "one slow": plain synchronous steps take as long as the slowest worker's; with one backup they
take as long as the others', and the slow worker's gradients are dropped; asynchronous training applies all
gradients, including stale ones; with a bound it does so until the fast workers are ahead by the bound, and
then runs at the slow worker's pace. For "all alike", a backup costs a quarter of the work and gains nothing.
Backups and bounds are made for "now and then": no worker is slow for long, and they hide single pauses.

The pace is a sleep, which uses no core: a step's own work (0.1 ms) is small beside it, so five processes on
two cores do not slow each other down. The sleep is between the pull of the parameters and the push of the
gradient, like a slow processor. With ``--where data`` it is before the pull, like a slow disk: then the slow
worker's gradients are as fresh as the others', and a backup drops few of them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import RESULTS
from bench.slow_worker_picture import draw

WORKERS, SHARE, STALENESS = 4, 32, 4
LEARNING_RATE, TARGET = 0.05, 0.25
PACES = ("all alike", "one slow", "now and then")


@dataclass(frozen=True)
class Way:
    """A way to synchronize workers: options of nb.launch, and the number of gradients in an update."""

    name: str
    options: dict[str, Any]
    gradients: int


WAYS = (
    Way("sync", {"sync": True}, WORKERS),
    Way("sync, 1 backup", {"sync": True, "backups": 1}, WORKERS - 1),
    Way("async", {"sync": False}, 1),
    Way(f"async, at most {STALENESS} steps apart", {"sync": False, "staleness": STALENESS}, 1),
)


@dataclass(frozen=True)
class Outcome:
    """One training: its curve of the held-out loss, and its workers' counts."""

    pace: str
    way: str
    seconds: float
    updates: int
    per_worker: list[int]
    dropped: int
    staleness: float
    most_stale: int
    curve: list[tuple[float, float]]
    """(seconds, held-out loss)"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to a given loss with a slow worker.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--where", choices=["compute", "data"], default="compute", help="what is slow")
    options = parser.parse_args()
    rounds, name = options.rounds, "slow_worker" + "_data" * (options.where == "data")
    from nbdist.cluster.launch import start_cluster

    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        cluster = start_cluster(workers=WORKERS, ps=1, threads=1, report=None)
        try:
            for number in range(rounds):
                for pace in PACES:
                    outcomes += [trained(pace, way, options.where, number, cluster) for way in WAYS]
                print(f"round {number + 1} of {rounds} done", flush=True)
        finally:
            cluster.stop()
    middle = [typical(outcomes, pace, way.name) for pace in PACES for way in WAYS]
    print("\n".join(table(outcomes)))
    RESULTS.with_name(f"{name}.json").write_text(json.dumps([asdict(o) for o in middle], indent=1) + "\n")
    draw(middle, TARGET, RESULTS.with_name(f"{name}.png"))


BODY = """
from bench import slow_worker_body
slow_worker_body.train(**{settings!r})
"""


def trained(pace: str, way: Way, where: str, seed: int, cluster: Any) -> Outcome:
    """Train once and return the outcome."""
    from nbdist.ui.api import launch

    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "pace": pace,
            "where": where,
            "batch": SHARE * WORKERS if way.options["sync"] else SHARE,
            "rate": LEARNING_RATE * way.gradients,
            "target": TARGET,
            "workers": WORKERS,
            "seed": seed,
            "folder": folder,
        }
        body = BODY.format(settings=settings)
        run = launch(body, strategy="ps", live=False, cluster=cluster, seed=seed, **way.options)
        reports = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(WORKERS)]
    points = run.metrics()
    stale = points["value"][points["series"] == "staleness"]
    per_worker = [report["steps"] for report in reports]
    return Outcome(
        pace,
        way.name,
        seconds=reports[0]["curve"][-1][0],
        updates=run.global_step,
        per_worker=per_worker,
        dropped=sum(per_worker) - run.global_step * way.gradients if "backups" in way.options else 0,
        staleness=float(stale.mean()) if len(stale) else 0.0,
        most_stale=int(stale.max()) if len(stale) else 0,
        curve=reports[0]["curve"],
    )


def typical(outcomes: list[Outcome], pace: str, way: str) -> Outcome:
    """Return the training with the median time."""
    found = sorted((o for o in outcomes if (o.pace, o.way) == (pace, way)), key=lambda o: o.seconds)
    return found[(len(found) - 1) // 2]


def table(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield lines with the median and the spread of the times, and the counts of the median round."""
    yield (
        f"{'pace':13} {'kept together':28} {'seconds':>22} {'x sync':>7} {'updates':>8} {'per worker':>12} "
        f"{'dropped':>8} {'staleness':>14}"
    )
    for pace in PACES:
        times = {
            way.name: [o.seconds for o in outcomes if (o.pace, o.way) == (pace, way.name)] for way in WAYS
        }
        for name in times:
            seconds, middle = median(times[name]), typical(outcomes, pace, name)
            spread = f"{seconds:.2f} ({min(times[name]):.2f} to {max(times[name]):.2f})"
            yield (
                f"{pace:13} {name:28} {spread:>22} {seconds / median(times['sync']):7.2f} "
                f"{middle.updates:8,} "
                f"{min(middle.per_worker):5,} to {max(middle.per_worker):,} "
                f"{middle.dropped:8,} {middle.staleness:6.1f}, max {middle.most_stale}"
            )


if __name__ == "__main__":
    main()
