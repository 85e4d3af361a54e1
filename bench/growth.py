"""P14 as a picture: ``python -m bench.growth`` measures 4, 8 and 16 tasks here, and simulates up to 1,000.

All tasks share the cores of this host, one of them is a parameter server. It takes a few minutes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench import drawing, scaling
from bench.script import here
from nbdist.distribute.simulation import Cost

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = Path(__file__).parent / "results" / "growth.png"
REAL, SIMULATED = (4, 8, 16), (2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
POINT, LINE = "#b8473f", "#1f6fc4"
Measured = dict[int, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURE, help="where the picture goes")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    starts, times, plain, alone = _empty(), _empty(), [], []
    bells: dict[int, float] = {}
    for number in range(options.rounds):
        plain.append(here("scaling", "--tasks", 1, "--value", "plain")()["value"])
        alone.append(here("scaling", "--tasks", 1, "--value", "alone")()["value"])
        for tasks in REAL:
            outcome = here("scaling", "--tasks", tasks, "--value", "step")()
            times[tasks].append(outcome["value"] / 1e3)
            bells[tasks] = _messages(outcome["check"])
            starts[tasks].append(here("scaling", "--tasks", tasks, "--value", "start")()["value"])
        print(f"round {number + 1} of {options.rounds}", flush=True)
    cost = Cost(compute_s=min(alone), cores=cores)
    found = {tasks: scaling.simulated_with(tasks - 1, "auto", cost) for tasks in SIMULATED}
    beside = {tasks: one["value"] / 1e3 for tasks, one in found.items()}
    sent = {tasks: _messages(one["check"]) for tasks, one in found.items()}
    slope, least = straight({tasks: min(values) for tasks, values in starts.items()})
    line = {tasks: least + slope * tasks for tasks in SIMULATED}
    print(f"a step, in ms of a core: plain NumPy {min(plain) * 1e3:.3f}, nbdist alone {min(alone) * 1e3:.3f}")
    print(_table("bring-up, s", starts, line, 1))
    print(_table("a worker's step, ms of a core", times, beside, 1e3))
    print(_table("messages in a step", {n: [value] for n, value in bells.items()}, sent, 1))
    figure, (left, middle, right) = drawing.paper(
        1,
        3,
        f"How cost grows with the tasks of one host of {cores} cores",
        "Asynchronous training of a 784-100-10 network, one task being the parameter server. Dots: measured, "
        f"the largest the least of {options.rounds} rounds. Lines: simulated with the rules that clusters "
        "follow; for bring-up, straight.",
    )
    _panel(left, "Bring-up", "until every worker has trained a step", "s", starts, line)
    _panel(middle, "A worker's step", "time of a core, in all tasks; dashed: plain NumPy", "s", times, beside)
    middle.axhline(min(plain), color=drawing.MUTED, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    middle.set(yscale="linear", ylim=(0, 1.15 * max(max(values) for values in times.values())))
    middle.yaxis.set_major_formatter(lambda value, _: drawing.short(value, "s") if value else "0")
    one_step = {n: [value] for n, value in bells.items()}
    _panel(right, "Messages in a step of all workers", "none of them through the hub", "", one_step, sent)
    options.out.parent.mkdir(exist_ok=True)
    figure.savefig(options.out, dpi=110)
    print(options.out)


def straight(points: dict[int, float]) -> tuple[float, float]:
    """Return slope and intercept of the straight line nearest to some points.

    >>> straight({1: 3.0, 2: 5.0, 3: 7.0})
    (2.0, 1.0)
    """
    middle = sum(points) / len(points)
    height = sum(points.values()) / len(points)
    rise = sum((at - middle) * (value - height) for at, value in points.items())
    slope = rise / sum((at - middle) ** 2 for at in points)
    return slope, height - slope * middle


def _empty() -> Measured:
    return {tasks: [] for tasks in REAL}


def _messages(check: dict[str, float]) -> float:
    """Return how many there were; none may go through the hub."""
    if check["through the hub"]:
        raise AssertionError(f"a step sends {check['through the hub']} messages through the hub")
    return check["in shared memory"] + check["over sockets"]


def _table(what: str, real: Measured, line: dict[int, float], times: float) -> str:
    rows = [f"{what}: tasks, least measured, line"]
    for tasks, value in line.items():
        values = [one * times for one in real.get(tasks, [])]
        seen = f"{min(values):.4g} (median {median(values):.4g}, most {max(values):.4g})" if values else ""
        rows.append(f"{tasks:>7,}  {seen:<40} {value * times:.4g}")
    return "\n".join(rows)


def _panel(axes: Axes, title: str, subtitle: str, unit: str, real: Measured, line: dict[int, float]) -> None:
    drawing.prepare(axes, title, subtitle, unit, (2, 8, 32, 128, 1000))
    seen = [(tasks, value) for tasks, value in line.items() if value > 0]
    axes.plot(*zip(*seen), color=LINE, linewidth=2, zorder=2)
    dots = [(tasks, value) for tasks, values in real.items() for value in values]
    axes.scatter(
        [tasks for tasks, _ in dots],
        [value for _, value in dots],
        color=POINT,
        s=16,
        alpha=0.6,
        linewidth=0,
        zorder=3,
    )
    least = [(tasks, min(values)) for tasks, values in real.items()]
    axes.scatter(
        [tasks for tasks, _ in least],
        [value for _, value in least],
        color=POINT,
        s=46,
        edgecolor=drawing.PAPER,
        linewidth=1.2,
        zorder=4,
    )
    values = [value for _, value in [*seen, *dots]]
    axes.set_ylim(min(values) / 2.5, max(values) * 2.5)
    axes.set_xlabel("tasks", fontsize=8.5, color=drawing.MUTED)


if __name__ == "__main__":
    main()
