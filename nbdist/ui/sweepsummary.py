"""What a sweep came to, as its last output tells it, and a line of how far it is. Pure.

mnist  ✓ finished · 24 of 24 trials · 4 min 12 s · best val_accuracy 0.953 (trial 7: lr=0.01 hidden=64)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nbdist.errors import NbdistError
from nbdist.metrics.run_folder import duration
from nbdist.sweep.parameters import Value, literal
from nbdist.sweep.state import Ledger, State, Trial
from nbdist.ui.shorten import clip
from nbdist.ui.sweephead import SweepSeen, ended_at
from nbdist.ui.sweepmatter import by_weight, ranked

GLYPHS = {"running": "▶", "paused": "⏸", "finished": "✓", "stopped": "■", "failed": "✕"}
MOST_ROWS = 10
MOST_NAMED = 6  # parameters in the table; those that matter most
OVER: tuple[State, ...] = ("finished", "pruned", "stopped", "failed")
SAID: tuple[State, ...] = ("running", "failed")


@dataclass(frozen=True)
class SweepSummary:
    """A sweep's end; ``rows`` is the table of its best trials, ``failed`` the first that failed."""

    id: str
    name: str
    headline: str
    counts: str
    rows: Sequence[Mapping[str, object]]
    finished: bool
    error: str | None
    failed: Trial | None
    failures: int


def summary_of(sweep: SweepSeen) -> SweepSummary:
    """Return what a sweep came to; called with its lock held."""
    ledger = sweep.ledger
    failed = sorted(
        (one for one in ledger.trials.values() if one.state == "failed"),
        key=lambda one: (one.ended_at or 0.0, one.number),
    )
    took = ended_at(ledger) - ledger.created.time
    parts = [f"{GLYPHS.get(sweep.state, '')} {sweep.state}".strip(), progress(ledger)]
    parts += [duration(took)] if took > 0 else []
    parts += [f"the space was edited {times(len(ledger.spaces) - 1)}"] if len(ledger.spaces) > 1 else []
    best = best_words(ledger)
    return SweepSummary(
        id=sweep.id,
        name=sweep.name,
        headline=" · ".join([*parts, *([best] if best else [])]),
        counts=" · ".join(f"{count:,} {state}" for state, count in ledger.counts.items() if count),
        rows=rows_of(ledger),
        finished=bool(ledger.counts["finished"]),
        error=None if sweep.error is None else words(sweep.error),
        failed=failed[0] if failed else None,
        failures=len(failed),
    )


def sweep_line(sweep: SweepSeen) -> str:
    """Return a line about a sweep that goes on; called with its lock held.

    ``12 of 24 trials, 3 running, best val_accuracy 0.953 (trial 7: lr=0.01 hidden=64)``
    """
    ledger = sweep.ledger
    parts = [progress(ledger)]
    parts += [f"{count:,} {state}" for state in SAID if (count := ledger.counts[state])]
    parts += [sweep.state] if sweep.state != "running" else []
    best = best_words(ledger)
    return ", ".join(
        [*parts, *([best] if best else []), *([clip(sweep.trouble, 200)] if sweep.trouble else [])]
    )


def progress(ledger: Ledger) -> str:
    """Return how many trials are over, of how many."""
    over = sum(ledger.counts[state] for state in OVER)
    wanted = ledger.wanted + len(ledger.trials) - ledger.sampled
    return f"{over:,} of {wanted:,} {'trial' if wanted == 1 else 'trials'}"


def best_words(ledger: Ledger) -> str:
    """Return the best trial in words; nothing while there is none."""
    best = ledger.best
    if best is None or best.value is None:
        return ""
    given = " ".join(f"{clip(name, 24)}={short(value)}" for name, value in best.parameters.items())
    return (
        f"best {clip(ledger.created.metric, 40)} {best.value:.4g} (trial {best.number}: {clip(given, 120)})"
    )


def rows_of(ledger: Ledger) -> list[dict[str, object]]:
    """Return the best trials as rows: number, value, and the parameters that matter most."""
    trials = ranked(ledger)
    finished = ledger.counts["finished"] > 0
    weighty = by_weight(ledger)
    some = {*weighty[:MOST_NAMED]} if weighty else {*list(ledger.space)[:MOST_NAMED]}
    names = [name for name in dict.fromkeys([*ledger.space, *weighty]) if name in some]
    metric = ledger.created.metric
    rows: list[dict[str, object]] = []
    for one in trials[:MOST_ROWS]:
        row: dict[str, object] = {"trial": str(one.number), other(metric, ("trial",), "metric"): one.value}
        if not finished:
            row[other("state", (metric,), "its")] = one.state
        taken = tuple(row)
        for name in names:
            value = one.parameters.get(name)
            row[other(name, taken, "parameter")] = short(value) if name in one.parameters else ""
        rows.append(row)
    return rows


def other(name: str, taken: Sequence[str], kind: str) -> str:
    """Return a name for a column, with its kind before it if another has it.

    >>> other("trial", ("trial",), "parameter"), other("lr", ("trial",), "parameter")
    ('parameter trial', 'lr')
    """
    return f"{kind} {name}" if name in taken else name


def short(value: Value) -> str:
    """Return a parameter's value in few letters.

    >>> short(0.0123456), short("adam"), short((1, 2)), short(None)
    ('0.01235', 'adam', '[1, 2]', 'None')
    """
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else literal(value)
    return clip(text, 40)


def times(count: int) -> str:
    """Return how often.

    >>> times(1), times(3)
    ('once', '3 times')
    """
    return "once" if count == 1 else f"{count} times"


def words(error: NbdistError) -> str:
    """Return what ended a sweep."""
    return f"{type(error).__name__}: {error}"
