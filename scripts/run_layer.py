"""Runs layers of the suite, and prints the time of each beside its budget.

    python scripts/run_layer.py fast engines     # the first tier: each behaviour once (make test)
    python scripts/run_layer.py --all engines    # both tiers: the matrices, too (make test-all)
    python scripts/run_layer.py --list           # the layers and their budgets

A layer of pytest's tests also prints its ten slowest tests. A layer that takes half as long again as its
budget fails, if the machine had its normal speed before and after it; on a slower machine the time is only
printed. A test's hard time limit is `TEST_SECONDS`, times the machine's slowness when its layer starts.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from machine_speed import NORMAL, core_count, measure  # noqa: E402 - a module of the tests

TEST_SECONDS = 120.0
EXCESS = 1.5
EXAMPLES = 0.15
"""The share of each property's examples that the first tier takes; the second one takes them all."""


@dataclass(frozen=True)
class Layer:
    """What runs, and how long it may take on two quiet cores.

    - ``command``: a program and its arguments
    - ``budget``: seconds of the first tier, above 0
    - ``whole``: seconds of both tiers, above 0
    - ``marks``: pytest's expression for the layer's tests; None if the command is not pytest
    """

    command: tuple[str, ...]
    budget: float
    whole: float
    marks: str | None = None


def tests(paths: Sequence[str], budget: float, whole: float, marks: str, *options: str) -> Layer:
    """Return a layer of pytest's tests."""
    return Layer((sys.executable, "-m", "pytest", "-q", *paths, *options), budget, whole, marks)


def files_with(*marks: str) -> list[str]:
    """Return the test files with one of the marks: the others need not be imported to leave them out.

    The longest come first, so that no process has one left when the others have ended: tests/frameworks,
    which one process runs, the hosts and nodes, whose tests wait, and then the largest files.
    """
    named = re.compile(rf"\bmark\.({'|'.join(marks)})\b")
    files = (path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path.parent.name != "browser")
    texts = {path: text for path in files if named.search(text := path.read_text())}
    waits = {path: "mark.netns" in text for path, text in texts.items()}
    order = sorted(texts, key=lambda one: (one.parent.name != "frameworks", not waits[one], -len(texts[one])))
    return [str(path.relative_to(ROOT)) for path in order]


# Together 1,200 s, and checks and fast (make check) 150 s, on a quiet machine with two cores.
CHECKS = ("check-labextension", "check-types", "check-widget", "check-doctests")
# The fast tests deal the files out, so that a process imports and collects only its own (tests/conftest.py).
# Engines, Jupyter servers and Chromium wait often: more processes than cores keep the cores busy. The tests
# of the engines wait for two fifths of their time, for what is dead, cut off or frozen to be noticed.
LAYERS = {
    "checks": Layer(("make", "--no-print-directory", "--jobs=2", *CHECKS), budget=40, whole=40),
    "fast": tests(
        ["tests"],
        120,
        250,
        "not (engines or browser or netns or processes or slow)",
        *("--ignore", "tests/browser", "-n", "3", "--dist", "each", "-o", "console_output_style=classic"),
    ),
    "engines": tests(
        files_with("engines", "processes", "netns", "slow"),
        760,
        1700,
        "(engines or netns or processes or slow) and not browser",
        *("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder"),
    ),
    # Its files are in the order that they run in (tests/browser/conftest.py), the longest first.
    "browser": tests(
        ["tests/browser", *files_with("browser")],
        280,
        900,
        "browser",
        *("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder"),
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What one layer has shown."""

    name: str
    status: int
    seconds: float
    budget: float
    speed: float
    """The machine's speed, the lower one of before and after the layer."""

    @property
    def too_slow(self) -> bool:
        """Whether the layer's time is a failure."""
        return self.speed >= NORMAL and self.seconds > EXCESS * self.budget

    def __str__(self) -> str:
        verdict = "FAILED" if self.status else "TOO SLOW" if self.too_slow else "passed"
        return (
            f"layer {self.name:8} {self.seconds:5.0f} s of {self.budget:.0f} s, "
            f"machine speed {self.speed:.2f} of normal: {verdict}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Run layers of the suite.")
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"any of {', '.join(LAYERS)}")
    parser.add_argument("--all", action="store_true", help="both tiers")
    parser.add_argument("--list", action="store_true", help="print the layers and their budgets, run nothing")
    given = parser.parse_args()
    if unknown := [name for name in given.layers if name not in LAYERS]:
        parser.error(f"no layer {unknown[0]!r}; choose from {', '.join(LAYERS)}")
    if given.list:
        for name, layer in LAYERS.items():
            print(f"{name:8} {layer.budget:5.0f} s, with both tiers {layer.whole:5.0f} s")
        return 0
    if not given.layers:
        parser.error(f"name a layer: {', '.join(LAYERS)}")
    outcomes: list[Outcome] = []
    for name in given.layers:
        outcomes.append(run(name, LAYERS[name], given.all))
        print(outcomes[-1], flush=True)
        if outcomes[-1].status:
            break
    if len(outcomes) > 1:
        print("", *outcomes, summary(outcomes), sep="\n", flush=True)
    return next((one.status for one in outcomes if one.status), int(any(one.too_slow for one in outcomes)))


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return a line about all layers together."""
    seconds, budget = sum(one.seconds for one in outcomes), sum(one.budget for one in outcomes)
    slow = [one.name for one in outcomes if one.too_slow]
    line = f"all layers     {seconds:5.0f} s of {budget:.0f} s"
    if slow:
        line += f"; {', '.join(slow)}: over the budget by half. Make its tests cheaper (docs/testing.md)"
    return line


def run(name: str, layer: Layer, whole: bool) -> Outcome:
    """Run one layer to its end."""
    before = measure()
    print(f"\nlayer {name}: machine speed {before:.2f} of normal ({core_count()} cores)", flush=True)
    limit = round(TEST_SECONDS / min(1.0, before))
    environment = os.environ | {
        "NBDIST_TEST_EXAMPLES": "1" if whole else str(EXAMPLES),
        "PYTEST_TIMEOUT": str(limit),
    }
    command = command_of(layer, whole)
    if layer.marks is not None:
        command += ["-o", f"faulthandler_timeout={3 * limit}"]
    begun = time.monotonic()
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL)
    seconds = time.monotonic() - begun
    return Outcome(
        name,
        ended.returncode,
        seconds,
        layer.whole if whole else layer.budget,
        min(before, measure()),
    )


def command_of(layer: Layer, whole: bool) -> list[str]:
    """Return the command of a layer for one tier or both."""
    if layer.marks is None:
        return list(layer.command)
    marks = layer.marks if whole else f"({layer.marks}) and not exhaustive"
    return [*layer.command, "-m", marks, "--durations=10"]


if __name__ == "__main__":
    sys.exit(main())
