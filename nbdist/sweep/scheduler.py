"""What to do next in a sweep. Pure: it looks at the ledger, and answers with events still to be written.

The driver writes each event into the log, applies it to the ledger, and only then acts on it: `Started` is
sent to its ranks, `Pruned` and `Stopped` make the ranks of a running trial end it. So whatever dies, the
log knows at least as much as the engines.

>>> from nbdist.sweep.start import open_sweep
>>> from nbdist.sweep.space import Space
>>> ledger = Ledger(open_sweep(Space({"width": [32, 64]}), metric="accuracy", sampler="grid", now=0.0))
>>> scheduler = Scheduler(ledger)
>>> asked = scheduler.next(free={0, 1}, alive=2, now=1.0)
>>> asked.number, asked.parameters, ledger.apply(asked)
(0, {'width': 32}, True)
>>> scheduler.next(free={0, 1}, alive=2, now=1.0)
Started(time=1.0, number=0, attempt=1, ranks=(0,))
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from nbdist.sweep.events import (
    LONGEST_ERROR,
    Asked,
    Ended,
    EndState,
    Pruned,
    Reason,
    Reported,
    Retried,
    Started,
)
from nbdist.sweep.parameters import is_number
from nbdist.sweep.pruners import make_pruner
from nbdist.sweep.sampler import Sampler, trial_seed
from nbdist.sweep.samplers import make_sampler
from nbdist.sweep.space import Space
from nbdist.sweep.state import Ledger, Trial

RETRIES = 1
"""How often a trial whose engine or driver died is retried automatically."""


BY_USERS = ("", "stopped")
"""The close reasons of a sweep that a user stopped; other reasons mean a failed sweep."""


class Scheduler:
    """Decides for one sweep; keeps nothing that is not in the ledger, but for what its sampler remembers."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.pruner = make_pruner(ledger.created.pruner, ledger.created.settings.get("pruner"))
        self._sampler: Sampler | None = None
        self._edits = 0
        self._exhausted = False

    def next(
        self, free: Collection[int], alive: int, now: float, still: Collection[int] = ()
    ) -> Asked | Started | None:
        """Return the next event, or None if there is nothing to do until something happens.

        ``free`` are the ranks of engines that have no trial, ``alive`` is how many engines there are in all.
        ``still`` are trials of which an earlier attempt is only being ended: they wait for that. Call
        it until it returns None, with fewer ranks free after each `Started`.
        """
        ledger = self.ledger
        if ledger.paused or ledger.closed:
            return None
        again: Started | None = None
        for number in ledger.waiting:
            if number in still:
                continue
            trial = ledger.trials[number]
            need = self.need(trial)
            ranks = place(free, need, trial.avoid)
            if ranks is None:
                if ledger.created.per_trial < need <= alive:
                    return None  # it would wait for ever if smaller trials took each engine that gets free
                continue
            started = Started(now, number, trial.attempt + 1, ranks)
            if not set(ranks) & set(trial.avoid):
                return started
            again = again or started  # where it died: only if that engine has nothing else to do
        if ledger.left and len(free) >= ledger.created.per_trial:
            asked = self._ask(now)
            if asked is not None:
                return asked
        return again

    def judge(self, event: Reported, now: float) -> Pruned | None:
        """Return whether a trial is to be pruned after a report that the ledger has taken."""
        trial = self.ledger.at_work(event.number, event.attempt)
        if trial is None or trial.stopping or trial.promotion:
            return None
        decision = self.pruner.decide(self.ledger.reports, event.number, event.step)
        return Pruned(now, event.number, event.attempt, event.step) if decision == "prune" else None

    def end(
        self,
        number: int,
        attempt: int,
        state: EndState,
        now: float,
        values: Mapping[str, object] | None = None,
        error: str = "",
    ) -> Ended | None:
        """Return how a trial ended, from what its engines say; None if that attempt is no longer theirs.

        ``values`` are its last metrics; entries that are not numbers are left out. A text in place of the
        sweep's metric says what it is. A trial that was ordered to stop ends with the state of that order. A
        finished trial without its metric, or with one that is not a number, has failed: the error gives the
        reason.
        """
        trial = self.ledger.at_work(number, attempt)
        if trial is None:
            return None
        metric = self.ledger.created.metric
        found, wrong = numbers_in(values or {})
        value = found.get(metric, trial.value)
        if state in ("stopped", "pruned"):
            state = trial.stopping or state
        if state == "finished" and value is None:
            there = f"; it reported {', '.join(found)}" if found else ""
            state, error = "failed", f"the trial never reported {metric!r}{there}: report it, or name another"
            if metric in wrong:
                error = f"{metric!r} is {wrong[metric]}, and not one number: report one, such as a mean"
        elif state == "finished" and value is not None and math.isnan(value):
            state, error = "failed", f"{metric!r} is not a number at the end (NaN): the training diverged"
        return Ended(now, number, attempt, state, value, found, error[-LONGEST_ERROR:])

    def died(self, ranks: Collection[int], now: float, error: str = "") -> list[Retried | Ended]:
        """Return the decision on each trial whose engines are lost: retry it, or count it as failed."""
        lost = set(ranks)
        running = [self.ledger.trials[number] for number in self.ledger.running]
        return [
            self._lost(
                trial, "death", error or f"the engine of rank {min(lost & set(trial.ranks))} died", now
            )
            for trial in running
            if lost & set(trial.ranks)
        ]

    def recover(
        self, at_work: Mapping[tuple[int, int], tuple[int, ...]], now: float
    ) -> tuple[list[Started | Retried | Ended], list[tuple[int, int]]]:
        """Return (events, strays) for a driver that takes over, given what engines are at work on.

        ``at_work`` has the ranks for each (number, attempt) that engines still run, or whose end they
        have yet to report. Present attempts are adopted, also if the record of their start is lost; others
        are strays, to be stopped. A trial that runs in the log and on no engine is retried,
        or failed. So none is left running, and none is run twice.
        """
        ledger = self.ledger
        running = {(number, ledger.trials[number].attempt) for number in ledger.running}
        waiting = {(number, ledger.trials[number].attempt + 1) for number in ledger.waiting}
        events: list[Started | Retried | Ended] = [
            Started(now, number, attempt, tuple(at_work[number, attempt]))
            for number, attempt in sorted(waiting & at_work.keys())
        ]
        for number, _ in sorted(running - at_work.keys()):
            trial = ledger.trials[number]
            events.append(self._lost(trial, "recovery", "the driver died and nothing runs it", now))
        strays = sorted(at_work.keys() - running - waiting)
        for number, _ in strays:
            ledger.reserve(number)
        return events, strays

    def need(self, trial: Trial) -> int:
        """Return how many engines a trial takes."""
        promoted = trial.promotion.per_trial if trial.promotion else None
        return promoted or self.ledger.created.per_trial

    @property
    def done(self) -> bool:
        """Whether every trial that was wanted is over, and no more are to be had."""
        ledger = self.ledger
        return not (ledger.waiting or ledger.running) and (not ledger.left or self._over())

    def trouble(self, alive: int) -> str | None:
        """Return why nothing runs although there is work, or None."""
        ledger = self.ledger
        if ledger.running or ledger.paused or ledger.closed or self.done:
            return None
        needs = [self.need(ledger.trials[number]) for number in ledger.waiting]
        least = min([*needs, ledger.created.per_trial] if ledger.left else needs)
        if least > alive:
            return (
                f"a trial needs {least} engine{'s' if least > 1 else ''} and {alive} are alive: bring "
                "back the others (%cluster restart), or stop the sweep"
            )
        return None

    @property
    def sampler(self) -> Sampler:
        """The sampler for the space as it is now."""
        edits = len(self.ledger.spaces)
        if self._sampler is None or self._edits != edits:
            self._sampler = sampler_of(self.ledger, self.ledger.space)
            self._edits, self._exhausted = edits, False
        return self._sampler

    def _over(self) -> bool:
        if self.sampler.size is None:
            return False
        return self._exhausted or self._ask(0.0) is None

    def _ask(self, now: float) -> Asked | None:
        number = self.ledger.next_number
        parameters = self.sampler.ask(self.ledger.history, number)
        self._exhausted = parameters is None
        if parameters is None:
            return None
        return Asked(now, number, parameters, trial_seed(self.ledger.created.seed, number))

    def _lost(self, trial: Trial, reason: Reason, error: str, now: float) -> Retried | Ended:
        if trial.stopping or self.ledger.closed:
            return Ended(
                now, trial.number, trial.attempt, trial.stopping or "stopped", trial.value, {}, error
            )
        if trial.lost < RETRIES:
            return Retried(now, trial.number, reason, error, trial.ranks)
        why = f"lost {trial.lost + 1} times; the last time {error}"
        return Ended(now, trial.number, trial.attempt, "failed", None, {}, why)


def sampler_of(ledger: Ledger, space: Space) -> Sampler:
    """Return a sweep's sampler for a space."""
    created = ledger.created
    return make_sampler(
        created.sampler, space, created.seed, created.direction, created.settings.get("sampler")
    )


def state_of(ledger: Ledger, driven: bool, reason: str) -> str:
    """Return a sweep's state from its log: running, paused, finished, stopped, failed, or lost.

    ``driven`` is whether a process drives it (without one it is lost, unless it has ended), ``reason`` is the
    reason for its end.
    """
    if is_over(ledger):
        if not ledger.closed:
            return "finished"
        return "stopped" if reason in BY_USERS else "failed"
    if ledger.paused and not ledger.closed:
        return "paused"
    return "running" if driven else "lost"


def is_over(ledger: Ledger) -> bool:
    """Return whether all work is done and no trial runs; the sweep's driver uses the same rule."""
    if ledger.closed:
        return not ledger.running
    if ledger.waiting or ledger.running:
        return False
    # Only the points of a grid can run out.
    return not ledger.left or (ledger.created.sampler == "grid" and Scheduler(ledger).done)


def numbers_in(values: Mapping[str, object]) -> tuple[dict[str, float], dict[str, object]]:
    """Return (what is a number, what is not); a NumPy scalar is one, text and truth values are not.

    >>> numbers_in({"loss": 1, "accuracy": "high"})
    ({'loss': 1.0}, {'accuracy': 'high'})
    """
    found: dict[str, float] = {}
    wrong: dict[str, object] = {}
    for name, value in values.items():
        item = getattr(value, "item", None)
        one = item() if item is not None and getattr(value, "shape", None) == () else value
        if is_number(one):
            found[str(name)] = float(one)
        else:
            wrong[str(name)] = value
    return found, wrong


# Placement of trials on free engines. Pure.


def place(free: Collection[int], need: int, avoid: Collection[int] = ()) -> tuple[int, ...] | None:
    """Return ``need`` of the free ranks, or None if there are too few.

    Ranks in ``avoid`` only if there is no other way; neighbours if there are any, since engines of one host
    have neighbouring ranks.

    >>> place({0, 2, 3, 5}, 2), place({0, 1}, 1, avoid=[0]), place({0}, 1, avoid=[0]), place({0}, 2)
    ((2, 3), (1,), (0,), None)
    """
    liked = sorted(set(free) - set(avoid))
    if len(liked) < need:
        rest = sorted(set(free) & set(avoid))
        return tuple(sorted([*liked, *rest[: need - len(liked)]])) if len(free) >= need else None
    for start in range(len(liked) - need + 1):
        if liked[start + need - 1] - liked[start] == need - 1:
            return tuple(liked[start : start + need])
    return tuple(liked[:need])
