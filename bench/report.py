"""Prints figures, and keeps them in ``bench/results/results.jsonl``."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median

from bench.frame import Benchmark, Found, Outcome, Result, Survey

RESULTS = Path(__file__).parent / "results" / "results.jsonl"


def heading(benchmark: Benchmark | Survey) -> str:
    if isinstance(benchmark, Survey):
        bars = ", ".join(
            f"{goal.name} {goal.bar} {goal.unit}".strip() for goal in benchmark.goals if goal.bar
        )
        return f"{benchmark.key}: {benchmark.what}\n    bars: {bars}"
    return f"{benchmark.key}: {benchmark.what}\n    against {benchmark.peer_name}" + (
        f"; bar {benchmark.bar}" if benchmark.bar else ""
    )


def round_line(number: int, ours: Outcome, peer: Outcome, unit: str) -> str:
    return (
        f"    round {number + 1}: nbdist {ours['value']:.4g}, peer {peer['value']:.4g} {unit}, "
        f"ratio {ours['value'] / peer['value']:.3g}"
    ) + (f"; CPU {1e6 * ours['cpu']:.3g}, {1e6 * peer['cpu']:.3g} us" if "cpu" in ours else "")


def summary(benchmark: Benchmark, result: Result) -> str:
    same = "both sides computed the same" if all(result.same) else f"DIFFERENT RESULTS: {result.checks}"
    return (
        f"    median: nbdist {median(result.ours):.4g}, peer {median(result.peer):.4g} {benchmark.unit}; "
        f"{figures(result)}; {cpu(result)}{same}"
    ) + (f"; bar {result.bar}: {'met' if result.met else 'NOT MET'}" if result.bar else "")


def figures(result: Result) -> str:
    """Print the results of the sides, side by side."""
    text = f"ratio {result.ratio:.3g} ({min(result.ratios):.3g} to {max(result.ratios):.3g})"
    if result.bar is None or result.bar.of == "ratio":
        return text
    least, most = min(result.differences), max(result.differences)
    return f"{text}; difference {result.difference:+.3g} ({least:+.3g} to {most:+.3g})"


def cpu(result: Result) -> str:
    """Print the CPU time of an element, of both sides; "" if it was not measured."""
    if not result.cpu:
        return ""
    ours, peer = (1e6 * median(side) for side in zip(*result.cpu, strict=True))
    return f"CPU of an element {ours:.3g}, {peer:.3g} us; "


def peer_summary(benchmark: Benchmark, outcomes: list[Outcome]) -> str:
    values = [outcome["value"] for outcome in outcomes]
    return (
        f"    {benchmark.peer_name} alone: median {median(values):.4g} {benchmark.unit} "
        f"({min(values):.4g} to {max(values):.4g}); check {outcomes[-1]['check']}"
    )


def found_line(number: int, survey: Survey, found: dict[str, float]) -> str:
    figures = ", ".join(f"{goal.name} {found[goal.name]:.4g} {goal.unit}".strip() for goal in survey.goals)
    return f"    round {number + 1}: {figures}"


def found_summary(found: Found) -> str:
    """Say a survey's figures, one in a line."""
    lines = []
    for goal in found.goals:
        all_of_it = [one[goal.name] for one in found.rounds]
        line = f"    {goal.name}: {found.of(goal):.4g} {goal.unit}".rstrip()
        line += f" ({min(all_of_it):.4g} to {max(all_of_it):.4g})"
        lines.append(
            line + (f"; bar {goal.bar}: {'met' if found.met(goal) else 'NOT MET'}" if goal.bar else "")
        )
    return "\n".join(lines)


def keep(result: Result | Found, path: Path = RESULTS) -> None:
    """Append the result, with when and on what it was measured."""
    path.parent.mkdir(exist_ok=True)
    came_to = (
        {"medians": {goal.name: result.of(goal) for goal in result.goals}, "met": result.all_met}
        if isinstance(result, Found)
        else {"ratio": result.ratio, "met": result.met}
    )
    record = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        **asdict(result),
        **came_to,
    }
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
