"""The work of p10.ask and p10.rebuild, for both sides: the space, the simulated result, and the timing.

One trial is one ask and one tell; both are stored before the next ask. The figure is the time of a trial in
a sweep that has a given number of trials already.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping
from statistics import median

from nbdist.sweep.parse import read_space

SPACE = read_space(  # a grid of 10,400 points
    "lr=log(1e-4, 1e-1, points=100) hidden=[32, 64, 128, 256] batch=int(16, 128, points=13) "
    "opt=['sgd', 'adam']"
)
WARM_UP, MOST = 5, 100
SECONDS = 15.0  # limit: some sides need seconds for a trial


def options() -> argparse.Namespace:
    """Return the command-line options of both sides."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sampler", choices=["random", "grid", "tpe"], default="random")
    parser.add_argument("--trials", type=int, default=1000, help="how many there are before the clock starts")
    parser.add_argument("--storage", choices=["memory", "journal"], default="journal", help="of the peer")
    parser.add_argument("--value", choices=["ask", "rebuild"], default="ask")
    return parser.parse_args()


def result(parameters: Mapping[str, object]) -> float:
    """Return a trial's result; the best is 0, at a rate of 0.003 with 128 units."""
    rate, width = float(str(parameters["lr"])), int(str(parameters["hidden"]))
    return -abs(math.log10(rate / 0.003)) - abs(math.log2(width / 128)) / 10


def milliseconds(one_trial: Callable[[], None]) -> float:
    """Return the median ms of a trial; the median ignores outliers that other load on the machine causes."""
    for _ in range(WARM_UP):
        one_trial()
    taken: list[float] = []
    start = time.perf_counter()
    while not taken or (len(taken) < MOST and time.perf_counter() - start < SECONDS):
        begin = time.perf_counter()
        one_trial()
        taken.append(time.perf_counter() - begin)
    return 1e3 * median(taken)
