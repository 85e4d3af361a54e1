"""Which strategy suits which cluster: ``python -m bench.simulate`` prints a table and draws a picture.

Clusters of 2 to 1,000 workers, eight to a host, are simulated with the schedules, placements and rules that
real trainings use (nbdist/distribute/simulation). It takes a minute or two.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench import drawing
from nbdist.distribute.simulation import Cost, Report, simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURE = Path(__file__).parent / "results" / "simulate.png"
WORKERS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
PER_HOST = 8


@dataclass(frozen=True)
class Way:
    """A strategy, how many servers it has, and which share of the workers are backups."""

    name: str
    servers: int = 0
    backups: float = 0.0

    def __str__(self) -> str:
        if self.backups:
            return f"{self.servers} ps, sync, backups"
        return f"{self.servers} ps" if self.servers else self.name


RING, HIERARCHICAL = Way("ring"), Way("hierarchical")
ONE, FOUR, MANY = Way("ps", 1), Way("ps", 4), Way("ps", 32)
BACKED = Way("ps_sync", 32, 1 / 8)
DRAWN = (RING, HIERARCHICAL, ONE, FOUR, MANY)


@dataclass(frozen=True)
class Scene:
    """A model, how even its workers are, and what is compared on it."""

    title: str
    model_bytes: int
    cost: Cost
    ways: tuple[Way, ...]
    drawn: tuple[Way, ...] = DRAWN
    slow_share: float = 0.0

    def report(self, way: Way, workers: int) -> Report:
        cost = replace(self.cost, slow_workers=round(workers * self.slow_share))
        hosts, backups = -(-workers // PER_HOST), round(workers * way.backups)
        return simulate(way.name, workers, way.servers, self.model_bytes, hosts, cost, backups=backups)


LARGE = Scene(
    "100 MB of parameters, 1 s a batch",
    100_000_000,
    Cost(compute_s=1.0),
    (RING, HIERARCHICAL, *(Way("ps", servers) for servers in (1, 2, 4, 8, 16, 32))),
)
SMALL = Scene("0.3 MB of parameters, 20 ms a batch", 300_000, Cost(compute_s=0.02), DRAWN)
UNEVEN = Scene(
    "100 MB, 1 s a batch; 1 in 8 is 3 times slower",
    100_000_000,
    Cost(compute_s=1.0),
    (*DRAWN, BACKED),
    (RING, HIERARCHICAL, FOUR, MANY, BACKED),
    slow_share=1 / 8,
)
SCENES = (LARGE, SMALL, UNEVEN)
Results = dict[tuple[str, Way, int], Report]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURE, help="where the picture goes")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    wanted = [(scene, way, workers) for scene in SCENES for way in scene.ways for workers in WORKERS]
    wanted.sort(key=lambda one: -one[2] * max(1, one[1].servers))  # what takes long first
    with ProcessPoolExecutor(options.processes) as pool:
        reports = pool.map(_report, wanted)
        results = {(scene.title, way, n): report for (scene, way, n), report in zip(wanted, reports)}
    print(table(results))
    options.out.parent.mkdir(exist_ok=True)
    draw(results).savefig(options.out, dpi=110)
    print(f"\n{options.out}")


def _report(wanted: tuple[Scene, Way, int]) -> Report:
    scene, way, workers = wanted
    return scene.report(way, workers)


def table(results: Results) -> str:
    """Return the figures as text."""
    lines = [
        f"{PER_HOST} workers a host, {Cost().link_bytes_per_s * 8 / 1e9:.0f} Gbit/s links. "
        "Efficiency: batches that count, as a part of what the workers could do undisturbed."
    ]
    for scene in SCENES:
        lines += ["", f"{scene.title}", f"{'workers':>33} " + "".join(f"{n:>9,}" for n in WORKERS)]
        for what, show in SHOWN.items():
            lines += [
                f"{what if way is scene.ways[0] else '':<12}{way!s:>21} "
                + "".join(f"{show(results[scene.title, way, n]):>9}" for n in WORKERS)
                for way in scene.ways
            ]
    return "\n".join(lines)


SHOWN: dict[str, Callable[[Report], str]] = {
    "step, s": lambda report: f"{report.critical_path_s:.3g}",
    "efficiency": lambda report: f"{report.efficiency:.2f}",
    "link, MB": lambda report: f"{report.busiest_link_bytes / 1e6:.4g}",
    "messages": lambda report: f"{report.messages:,}" if report.messages < 1e6 else f"{report.messages:.1e}",
}


# The picture.

COLOURS = {
    RING: "#8a5cc4",
    HIERARCHICAL: "#0b6e4f",
    ONE: "#e8a13a",
    FOUR: "#d9722e",
    MANY: "#a8361a",
    BACKED: "#1f6fc4",
}


@dataclass(frozen=True)
class Panel:
    """One pair of axes: what is shown of which scene."""

    title: str
    scene: Scene
    value: Callable[[Report], float]
    unit: str
    ideal: bool = False


PANELS = (
    Panel("Time of a step", LARGE, lambda report: report.critical_path_s, "s"),
    Panel("Through the busiest link in a step", LARGE, lambda report: report.busiest_link_bytes, "B"),
    Panel("Messages between tasks in a step", LARGE, lambda report: report.messages, ""),
    Panel("Batches a second, large model", LARGE, lambda report: report.batches_per_second, "/s", True),
    Panel("Batches a second, small model", SMALL, lambda report: report.batches_per_second, "/s", True),
    Panel("Batches a second, uneven workers", UNEVEN, lambda report: report.batches_per_second, "/s", True),
)


def draw(results: Results) -> Figure:
    """Return the figure: three panels on traffic, three on the resulting speed."""
    figure, everything = drawing.paper(
        2,
        3,
        f"Which strategy suits which cluster: 2 to 1,000 workers, {PER_HOST} a host, 10 Gbit/s between hosts",
        "Simulated with the schedules, placements and rules that trainings follow. ps: parameter servers on "
        "hosts of their own, asynchronous. Up to 8 workers share one host (shaded): there, memory takes the "
        "place of messages.",
    )
    for axes, panel in zip(everything, PANELS, strict=True):
        _draw_panel(axes, panel, results)
    return figure


def _draw_panel(axes: Axes, panel: Panel, results: Results) -> None:
    scene, ends = panel.scene, []
    drawing.prepare(axes, panel.title, scene.title, panel.unit, (2, 8, 32, 128, 1000))
    axes.axvspan(1, PER_HOST * 1.35, color=drawing.SHADE, zorder=0)
    for way in scene.drawn:
        values = [(n, panel.value(results[scene.title, way, n])) for n in WORKERS]
        seen = [(n, value) for n, value in values if value > 0]
        axes.plot(*zip(*seen), color=COLOURS[way], linewidth=2, marker="o", markersize=3)
        ends.append((seen[-1][1], str(way), COLOURS[way]))
    if panel.ideal:
        best = [n / scene.cost.compute_s for n in WORKERS]
        axes.plot(WORKERS, best, color=drawing.MUTED, linewidth=1.2, linestyle=(0, (2, 3)))
        ends.append((best[-1], "without waiting", drawing.MUTED))
    axes.set_xlabel("workers", fontsize=8.5, color=drawing.MUTED)
    drawing.name_ends(axes, ends)


if __name__ == "__main__":
    main()
