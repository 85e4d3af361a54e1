"""How long training stands still when a task is killed, beside TensorFlow and torchrun.

    NBDIST_PEERS_PYTHON=peers/bin/python python -m bench recovery --rounds 5

Two workers train the 784-100-10 network and make a checkpoint every 100 global steps; at step 250 a task is
killed. Both sides of a row run alternately. "next step" is the time from the signal until training makes its
next step, "all" that until every worker trains, the replacement too; "lost" are global steps that are made a
second time. Where asynchronous workers continue beside a dead one, their next step follows at once.

nbdist replaces the task itself. TensorFlow replaces none; the script starts its process again at once, which
a cluster manager does later. torchrun starts all workers again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from bench.frame import Outcome
from bench.script import NotThere, elsewhere, here


@dataclass(frozen=True)
class Row:
    """Which task is killed, in which training of each side."""

    key: str
    text: str
    ours: Callable[[], Outcome]
    peer: Callable[[], Outcome]


def row(peer: str, text: str, program: str, kill: str) -> Row:
    """Return the row of a peer, our program of the same kind, and the task that is killed."""
    ours = here("nbdist_recovery", "--program", program, "--kill", kill)
    return Row(f"{peer}-{kill}", f"{text}, {kill}", ours, elsewhere(f"{peer}_recovery", "--kill", kill))


ROWS = (
    *(row("tensorflow", "MonitoredTrainingSession", "session", kill) for kill in ("worker", "chief", "ps")),
    *(row("torchrun", "all-reduce, torchrun", "fit", kill) for kill in ("worker", "chief")),
)
FIGURES = (("next step", "next_step", "s"), ("all", "all_steps", "s"), ("lost", "lost", ""))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench recovery", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rows", nargs="+", choices=[one.key for one in ROWS], help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side runs (default 3)")
    options = parser.parse_args(arguments)
    met = True
    for one in ROWS:
        if options.rows and one.key not in options.rows:
            continue
        try:
            met &= report(one, *alternately(one, options.rounds))
        except NotThere as problem:
            print(f"{one.text}: not run: {problem}", flush=True)
            met = False
    return 0 if met else 1


def alternately(one: Row, rounds: int) -> tuple[list[Outcome], list[Outcome]]:
    """Run both sides of a row in turn; return the figures of each round."""
    ours, peer = [], []
    for number in range(rounds):
        if number % 2:
            ours.append(one.ours())
            peer.append(one.peer())
        else:
            peer.append(one.peer())
            ours.append(one.ours())
    return ours, peer


def report(measured: Row, ours: list[Outcome], peer: list[Outcome]) -> bool:
    """Print the medians of a row; return whether ours are at most the peer's."""
    parts, met = [], True
    for title, key, unit in FIGURES:
        a, b = (median(one[key] for one in side) for side in (ours, peer))
        ratio = median(one[key] / other[key] for one, other in zip(ours, peer, strict=True)) if unit else None
        met &= a <= b
        parts.append(cell(title, a, b, unit, ratio))
    print(f"{measured.text:34} " + "   ".join(parts), flush=True)
    return met


def cell(title: str, ours: float, peer: float, unit: str, ratio: float | None) -> str:
    """Return the figures of both sides, and their ratio.

    >>> cell("all", 0.31, 6.2, "s", 0.05)
    'all 0.31 / 6.20 s (0.05x)'
    >>> cell("lost", 0, 50, "", None)
    'lost 0 / 50'
    """
    if ratio is None:
        return f"{title} {ours:.0f} / {peer:.0f}{unit}"
    return f"{title} {ours:.2f} / {peer:.2f} {unit} ({ratio:.2f}x)"
