"""Goodput: the time that a training takes without faults, over the time that it takes with them.

    python -m bench goodput                                   # each program for ten minutes: about two hours
    python -m bench goodput --seconds 60 --every 5 --program all-reduce

Each program of `bench.kills` makes the same number of steps twice: undisturbed, and while every ``--every``
seconds a random task is killed (SIGKILL) or stopped (SIGSTOP) in turn. A stopped one is never continued: it
has to be found and replaced. The times are those from the first step of a training to its last. The goal is
0.85. Weights of programs whose replicas are in step are compared with those of the undisturbed training: bit
for bit, and by their largest difference, since a sum of three workers' parts is not rounded as that of four.
The exit status is 1 if a run ended, missed the goal, lost a step, or left something over.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.kills import PACE, PROGRAMS, SEED, Outcome, trained

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.run.run import Run

GOAL = 0.85
STEP_SECONDS = 1.3 * PACE
"""About what an undisturbed step takes: PACE of it is a sleep."""
IN_STEP = ("sync-ps", "all-reduce")
"""Programs whose weights do not depend on which process made a step."""


class Faults:
    """Kills and stops random tasks of a run in turn, every so many seconds, until it has ended."""

    def __init__(self, every: float, rng: random.Random) -> None:
        self.every, self.rng = every, rng
        self.counts: Counter[str] = Counter()
        """Of each kind of fault."""

    def __call__(self, run: Run, cluster: Cluster, steps: str) -> None:
        """Disturb the run; see `bench.kills.trained`."""
        Path(steps).with_name("end").touch()  # it ends with its last step
        signals = (signal.SIGKILL, signal.SIGSTOP)
        following = None
        while not run.poll():
            time.sleep(0.02)
            now = time.monotonic()
            if following is None:
                following = now + self.every if run.global_step else None
            elif now >= following:
                following = now + self.every
                dead = {info.rank for info in cluster.dead()}
                task = self.rng.choice([info for info in cluster.tasks if info.rank not in dead])
                signum = signals[self.counts.total() % len(signals)]
                os.kill(task.pid, signum)
                self.counts[signum.name] += 1
                print(f"  {task.name} {signum.name} at step {run.global_step:,}", flush=True)


def undisturbed(run: Run, cluster: Cluster, steps: str) -> None:
    """Let a run end with its last step."""
    Path(steps).with_name("end").touch()
    while not run.poll():
        time.sleep(0.02)


@dataclass(frozen=True)
class Goodput:
    """What faults cost a program."""

    program: str
    faults: Counter[str]
    calm: Outcome
    disturbed: Outcome

    @property
    def ratio(self) -> float:
        """Time without faults over time with them, from the first step to the last."""
        return self.calm.seconds / self.disturbed.seconds if self.disturbed.seconds else 0.0

    @property
    def wrong(self) -> list[str]:
        """What is not as it has to be, in words."""
        found = [f"the run ended with {one.error}" for one in (self.calm, self.disturbed) if one.error]
        if found:
            return found
        found += self.disturbed.left
        if self.ratio < GOAL:
            found.append(f"goodput below {GOAL}")
        if self.program in IN_STEP and self.difference > 1e-4:
            found.append("other weights than without faults")
        return found

    @property
    def difference(self) -> float:
        """The largest difference of a weight, over the largest weight."""
        pairs = list(zip(self.calm.weights, self.disturbed.weights, strict=False))
        if not pairs:
            return float("inf")
        largest = max(float(np.abs(calm).max()) for calm, _ in pairs)
        return max(float(np.abs(calm - other).max()) for calm, other in pairs) / largest

    def __str__(self) -> str:
        """Return one line of the report.

        >>> calm = Outcome(0.97, "", seconds=90.0, weights=[np.ones(2)])
        >>> disturbed = Outcome(0.97, "", seconds=100.0, weights=[np.ones(2)])
        >>> str(Goodput("sync-ps", Counter(SIGKILL=3), calm, disturbed)).split("  ")[-3:]
        ['accuracy 0.970 (+0.0)', 'weights equal', 'met']
        """
        faults = ", ".join(f"{number} {kind}" for kind, number in sorted(self.faults.items()))
        points = 100 * (self.disturbed.accuracy - self.calm.accuracy)
        parts = [
            f"{self.program:13}  goodput {self.ratio:.3f} ({self.calm.seconds:.1f} s, "
            f"{self.disturbed.seconds:.1f} s with {faults or 'no fault'})",
            f"accuracy {self.disturbed.accuracy:.3f} ({points:+.1f})",
        ]
        if self.program in IN_STEP:
            parts.append(f"weights differ by {self.difference:.1g}" if self.difference else "weights equal")
        parts.append(f"NOT MET: {'; '.join(self.wrong)}" if self.wrong else "met")
        return "  ".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the goodput of programs; return 1 if one is not as it has to be."""
    parser = argparse.ArgumentParser(
        prog="python -m bench goodput", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--program", choices=[*PROGRAMS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each training, about (default 600)")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two faults (default 15)")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.every <= 0:
        parser.error("--seconds and --every are numbers above 0")
    good = True
    for name in list(PROGRAMS) if options.program == "all" else [options.program]:
        found = measured(name, options.seconds, options.every, options.seed)
        print(found, flush=True)
        print(
            "\n".join(f"    {note}" for note in (found.disturbed.notes[-20:] if found.wrong else [])), end=""
        )
        good &= not found.wrong
    return 0 if good else 1


def measured(name: str, seconds: float, every: float, seed: int) -> Goodput:
    """Train a program without faults and with them."""
    steps = max(40, round(seconds / STEP_SECONDS / 20) * 20)
    program, faults = PROGRAMS[name], Faults(every, random.Random(seed))
    calm = trained(program, undisturbed, seed, least=steps)
    disturbed = trained(program, faults, seed, least=steps, max_restarts=1_000_000)
    return Goodput(name, faults.counts, calm, disturbed)
