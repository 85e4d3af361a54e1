"""What steering and faults did to a run, as marks on its curves. Pure: the clock is handed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nbdist.metrics.words import duration
from nbdist.runs.progress import LOST, PAUSED, Standing
from nbdist.ui.summary import Mark, MarkKind, short_task

MOST = 100  # marks of a run
MOST_RATES = 12  # changes of the learning rate that are drawn; more are a schedule's


class Marks:
    """Finds the marks of a run by comparing each standing with the one before.

    >>> marks, tasks = Marks(), ["/job:worker/task:0"]
    >>> def standing(step, rate, state="running"):
    ...     return Standing(state, step, None, 0.0, 0.0, None, 0.0, [], learning_rate=rate)
    >>> for now, one in enumerate([standing(1, 0.1), standing(8, 0.01), standing(9, 0.01, "paused")]):
    ...     _ = marks.see(one, tasks, float(now))
    >>> [(mark.step, mark.text) for mark in marks.all()]
    [(8, 'learning rate 0.1 → 0.01'), (9, 'paused')]
    """

    def __init__(self) -> None:
        self._found: list[Mark] = []
        self._rate: float | None = None
        self._checkpoint: int | None = None
        self._lost: set[int] = set()
        self._paused: tuple[int, float] | None = None  # the mark of the pause under way, and since when

    def see(self, standing: Standing, tasks: Sequence[str], now: float) -> bool:
        """Compare how far a run is with the last time; whether the marks changed. ``now`` in seconds."""
        before = list(self._found)
        step = max((replica.step for replica in standing.replicas), default=standing.step)
        rate = standing.learning_rate
        if rate is not None:
            if self._rate is not None and rate != self._rate:
                self._add(step, "rate", f"learning rate {self._rate:.4g} → {rate:.4g}")
            self._rate = rate
        if standing.state == PAUSED and self._paused is None:
            self._paused = len(self._found), now
            self._add(step, "pause", "paused")
        elif standing.state != PAUSED and self._paused is not None:
            place, since = self._paused
            self._paused = None
            if place < len(self._found):
                self._found[place] = replace(self._found[place], text=f"paused for {duration(now - since)}")
        saved = standing.checkpoint
        if saved is not None and saved["number"] != self._checkpoint:
            self._checkpoint = saved["number"]
            if not saved.get("error"):
                self._add(step, "checkpoint", f"checkpoint at step {saved['step']:,}")
        for i, replica in enumerate(standing.replicas):
            if replica.state == LOST and i not in self._lost:
                self._lost.add(i)
                self._add(step, "lost", f"{short_task(tasks[i])} lost")
        return before != self._found

    def all(self) -> list[Mark]:
        """Return the marks in the order of their steps; a schedule's many rates are left out."""
        rates = sum(mark.kind == "rate" for mark in self._found)
        return [mark for mark in self._found if mark.kind != "rate" or rates <= MOST_RATES]

    def _add(self, step: int, kind: MarkKind, text: str) -> None:
        if len(self._found) < MOST:
            self._found.append(Mark(step, kind, text))
