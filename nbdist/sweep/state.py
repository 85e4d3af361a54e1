"""The state of a sweep, worked out from its events one by one. Pure.

>>> from nbdist.sweep.events import Asked, Created, Ended, Reported, Started
>>> from nbdist.sweep.space import Space
>>> ledger = Ledger(Created(0, Space({"width": [32, 64]}), trials=2, seed=7, metric="accuracy"))
>>> for event in (Asked(1, 0, {"width": 32}, 5), Started(2, 0, 1, (0,)), Reported(0, 1, 10, 0.8, 3)):
...     _ = ledger.apply(event)
>>> ledger.apply(Ended(4, 0, 1, "finished", 0.9)), ledger.best
(True, <Trial 0 finished width=32 value=0.9>)
>>> ledger.counts["finished"], ledger.left
(1, 1)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

from nbdist.errors import DataLossError
from nbdist.sweep.events import (
    Added,
    Asked,
    Cloned,
    Closed,
    Created,
    Ended,
    EndState,
    Event,
    Paused,
    Promoted,
    Pruned,
    Reported,
    Resumed,
    Retried,
    SpaceEdited,
    Started,
    Stopped,
)
from nbdist.sweep.reports import Curve, Reports
from nbdist.sweep.sampler import Ask, Tell
from nbdist.sweep.space import Parameters

PROMOTION_ENDS = {"failed": "failed", "stopped": "was stopped", "pruned": "was stopped"}


class Improvement(NamedTuple):
    """The best trial from a time on, and its value: less than before if a promotion made it worse."""

    time: float
    number: int
    value: float


class Ledger:
    """Everything known of a sweep; `apply` takes one event more.

    ``history`` is what samplers are asked with, ``reports`` what pruners look at, ``spans`` which trial ran
    where and when, ``improvements`` the value of `best` by time. `elapsed` leaves idle time out. ``late``
    counts what came for an attempt that was given up already, or for a trial that is not known (its record
    was damaged).
    """

    def __init__(self, created: Created) -> None:
        self.created = created
        self.space = created.space
        self.spaces = [created.space]
        self.trials: dict[int, Trial] = {}
        self.history: list[Ask | Tell] = []
        self.reports = Reports(created.direction)
        self.spans: list[AttemptSpan] = []
        self.improvements: list[Improvement] = []
        self._finals: dict[int, float] = {}  # the current value of each finished trial
        self._best: int | None = None
        self.counts: dict[State, int] = dict.fromkeys(STATES, 0)
        self.waiting: dict[int, None] = {}  # numbers in the order in which they are to start
        self.running: dict[int, None] = {}
        self.wanted = created.trials
        self.next_number = 0
        self.sampled = 0
        self.paused = False
        self.closed = False
        self.late = 0
        self._idle: list[tuple[float, float]] = []  # from when to when there was nothing to do
        self._idle_since: float | None = None
        self._take: dict[type, Callable[[Any], bool]] = {
            Asked: self._asked, Cloned: self._asked, Started: self._started, Reported: self._reported,
            Pruned: self._stopped, Stopped: self._stopped, Ended: self._ended, Retried: self._retried,
            Promoted: self._promoted, SpaceEdited: self._space_edited, Added: self._added,
            Paused: self._paused, Resumed: self._paused, Closed: self._closed, Created: self._again,
        }  # fmt: skip

    @classmethod
    def of(cls, events: Iterable[Event]) -> Ledger:
        """Return the ledger of a log's events; raises `DataLossError` if the first does not make a sweep."""
        events = iter(events)
        first = next(events, None)
        if not isinstance(first, Created):
            raise DataLossError(
                "the log does not say what was swept: its first record is lost, and nothing can be made of "
                "the others; start a new sweep"
            )
        ledger = cls(first)
        for event in events:
            ledger.apply(event)
        return ledger

    def apply(self, event: Event) -> bool:
        """Take one event; False if it came too late and changed nothing."""
        taken = self._take[type(event)](event)
        if not self.running or self._idle_since is not None:
            self._note_idle(event.time)
        if not taken:
            self.late += 1
            self.reserve(getattr(event, "number", -1))
        return taken

    def reserve(self, number: int) -> None:
        """Reserve this number: a trial had it whose record is lost."""
        self.next_number = max(self.next_number, number + 1)

    def elapsed(self, time: float) -> float:
        """Return the seconds from the start to ``time`` (since 1970) in which there was something to do.

        A sweep that is finished, or paused without a running trial, is idle until it continues.
        """
        idle = sum(max(0.0, min(end, time) - start) for start, end in self._idle if start < time)
        if self._idle_since is not None:
            idle += max(0.0, time - self._idle_since)
        return time - self.created.time - idle

    def _note_idle(self, time: float) -> None:
        idle = not self.running and (self.paused or not (self.waiting or self.left))
        if idle and self._idle_since is None:
            self._idle_since = time
        elif not idle and self._idle_since is not None:
            self._idle.append((self._idle_since, time))
            self._idle_since = None

    @property
    def best(self) -> Trial | None:
        """The finished trial with the best value (the first of equals), None while there is none.

        What a trial has after a promotion counts, not what it once had; until that ends, it is what it was.
        """
        return None if self._best is None else self.trials[self._best]

    @property
    def best_value(self) -> float | None:
        """The value of `best`; values that are not finite do not count."""
        return None if self._best is None else self._finals[self._best]

    @property
    def left(self) -> int:
        """How many trials are still to be asked for."""
        return 0 if self.closed else max(0, self.wanted - self.sampled)

    @property
    def parameter_names(self) -> list[str]:
        """The names of all parameters that trials had, or may have, those of the present space first."""
        trials = (name for one in self.trials.values() for name in one.parameters)
        spaces = (name for space in reversed(self.spaces) for name in space)
        return list(dict.fromkeys([*spaces, *trials]))

    def curve(self, number: int) -> Curve | None:
        """Return what a trial reported, None if nothing."""
        return self.reports.curves.get(number)

    def _again(self, event: Created) -> bool:
        return False

    def _asked(self, event: Asked | Cloned) -> bool:
        number = event.number
        if number in self.trials:
            return False
        parent = event.parent if isinstance(event, Cloned) else None
        trial = self.trials[number] = Trial(number, event.parameters, event.seed, event.time, parent)
        self.sampled += trial.sampled
        self.next_number = max(self.next_number, number + 1)
        self.counts["waiting"] += 1
        self.waiting[number] = None
        self.history.append(Ask(number, trial.parameters, trial.sampled))
        return True

    def _started(self, event: Started) -> bool:
        trial = self.trials.get(event.number)
        if trial is None or trial.state != "waiting" or event.attempt != trial.attempt + 1:
            return False
        self._move(trial, "running")
        trial.attempt, trial.ranks, trial.stopping = event.attempt, event.ranks, None
        trial.started_at, trial.ended_at = event.time, None
        return True

    def at_work(self, number: int, attempt: int) -> Trial | None:
        """Return a trial if this attempt at it runs."""
        trial = self.trials.get(number)
        return trial if trial and trial.state == "running" and trial.attempt == attempt else None

    def _reported(self, event: Reported) -> bool:
        number, attempt, step, value, _ = event
        trial = self.trials.get(number)
        if trial is None or trial.attempt != attempt or trial.state != "running":
            trial = self._current(event)
            if trial is None:
                return False
        self.reports.add(number, step, value)
        if trial.step is None or step >= trial.step:
            trial.step, trial.value = step, value
        return True

    def _stopped(self, event: Pruned | Stopped) -> bool:
        trial = self._current(event)
        if trial is None or trial.stopping:
            return False
        trial.stopping = "pruned" if isinstance(event, Pruned) else "stopped"
        return True

    def _ended(self, event: Ended) -> bool:
        trial = self._current(event)
        if trial is None:  # one that waits can only be given up
            trial = self.trials.get(event.number)
            if trial is None or trial.state != "waiting" or event.state not in ("stopped", "failed"):
                return False
        else:
            self._span(trial, event.time, event.state)
        before, trial.before, trial.promotion, trial.stopping = trial.before, None, None, None
        if before is not None and event.state != "finished":
            self._promotion_failed(trial, before, event)
            return True
        self._move(trial, event.state)
        trial.ended_at, trial.values, trial.error = event.time, event.values, event.error
        trial.value = trial.value if event.value is None else event.value
        self._keep_better(trial)
        if event.state == "finished":
            self.reports.finish(trial.number)
            self._consider(trial, event.time)
        elif self._finals.get(trial.number) != trial.value:  # it was promoted, and has trained on
            self._worth(trial.number, None)
        self.history.append(Tell(trial.number, event.state, trial.value, trial.step))
        return True

    def _promotion_failed(self, trial: Trial, before: Result, event: Ended) -> None:
        """Restore the result of a finished trial after its promotion failed or was stopped."""
        self._move(trial, "finished")
        trial.value, trial.values, trial.step, trial.ended_at, trial.parameters = before
        why = f" ({cause(event.error)})" if event.error else ""
        trial.error = f"its promotion {PROMOTION_ENDS[event.state]}{why}: its result is that from before"
        if event.error:
            trial.error += f"\n{event.error}"

    def _keep_better(self, trial: Trial) -> None:
        """Keep the result of the attempt before a retry, if the retried one has ended with less."""
        former, trial.former, value = trial.former, None, trial.value
        if former is None or former.result.value is None:
            return
        score = self.reports.score
        if value is not None and score(value) >= score(former.result.value):
            return
        shown = "no value" if value is None else f"{value:.6g}"
        note = (
            f"attempt {trial.attempt} ended as {trial.state} with {shown}: kept is attempt {former.attempt}, "
            f"{former.state} with {former.result.value:.6g}"
        )
        trial.error = f"{note}\n{trial.error}" if trial.error else note
        if trial.state != "finished":
            self._move(trial, former.state)
        trial.value, trial.values, trial.step, _, _ = former.result
        trial.trainings = former.trainings
        if former.curve is not None:
            self.reports.restore(trial.number, former.curve)

    def _retried(self, event: Retried) -> bool:
        trial = self.trials.get(event.number)
        if trial is None or trial.state in ("waiting", "finished"):
            return False
        if trial.state == "running":
            self._span(trial, event.time, "lost")
            trial.lost += 1
        trial.avoid, trial.error = event.avoid, event.error
        step, values = trial.step, trial.values
        trial.stopping, trial.step, trial.values = None, None, {}
        # The reports of a promoted trial from before its promotion stay: it continues from there again.
        if trial.promotion is None:
            if event.reason == "asked" and trial.value is not None and math.isfinite(trial.value):
                result = trial.value, values, step, trial.ended_at, trial.parameters
                curve = self.reports.curves.get(trial.number)
                trial.former = Former(Result(*result), trial.state, trial.attempt, trial.trainings, curve)
            trial.trainings += event.reason == "asked"
            self.reports.forget(trial.number)
            self._worth(trial.number, None)
        trial.value = self._finals.get(trial.number)
        self._move(trial, "waiting")
        return True

    def _promoted(self, event: Promoted) -> bool:
        trial = self.trials.get(event.number)
        if trial is None or not trial.over:
            return False
        if trial.state == "finished":
            trial.before = Result(trial.value, trial.values, trial.step, trial.ended_at, trial.parameters)
        trial.parameters = {**trial.parameters, **event.changes}
        trial.promotion, trial.lost, trial.avoid, trial.error = event, 0, (), ""
        self._move(trial, "waiting")
        return True

    def _current(self, event: Reported | Pruned | Stopped | Ended) -> Trial | None:
        """Return the trial if it runs and this is its present attempt."""
        trial = self.trials.get(event.number)
        if trial is None or trial.over:
            return None
        if trial.state == "waiting" and event.attempt == trial.attempt + 1:
            # Damage took the record of its start, because the log has no event of an attempt before it.
            self._started(Started(event.time, event.number, event.attempt, ()))
        return trial if trial.state == "running" and trial.attempt == event.attempt else None

    def _space_edited(self, event: SpaceEdited) -> bool:
        self.space = event.space
        self.spaces.append(event.space)
        return True

    def _added(self, event: Added) -> bool:
        self.wanted += event.trials
        return True

    def _paused(self, event: Paused | Resumed) -> bool:
        self.paused = isinstance(event, Paused)
        return True

    def _closed(self, event: Closed) -> bool:
        self.closed = True
        return True

    def _move(self, trial: Trial, state: State) -> None:
        self.counts[trial.state] -= 1
        self.counts[state] += 1
        self.waiting.pop(trial.number, None)
        self.running.pop(trial.number, None)
        if state == "waiting":
            self.waiting[trial.number] = None
        elif state == "running":
            self.running[trial.number] = None
        trial.state = state

    def _span(self, trial: Trial, end: float, how: str) -> None:
        start = end if trial.started_at is None else trial.started_at
        self.spans.append(AttemptSpan(trial.number, trial.attempt, trial.ranks, start, end, how))

    def _consider(self, trial: Trial, time: float) -> None:
        value = trial.value
        # A training that diverged is never the best.
        self._worth(trial.number, value if value is not None and math.isfinite(value) else None)
        best, last = self._best, self.improvements[-1] if self.improvements else None
        if best is not None and (last is None or (best, self._finals[best]) != last[1:]):
            self.improvements.append(Improvement(time, best, self._finals[best]))

    def _worth(self, number: int, value: float | None) -> None:
        score, finals = self.reports.score, self._finals
        if value is None:
            finals.pop(number, None)
        else:
            finals[number] = value
        if number == self._best:  # others may be better now
            self._best = max(finals, key=lambda one: score(finals[one]), default=None)
        elif value is not None and (self._best is None or score(value) > score(finals[self._best])):
            self._best = number


# The state of one trial in the ledger.

State: TypeAlias = Literal["waiting", "running"] | EndState
STATES: tuple[State, ...] = ("waiting", "running", "finished", "pruned", "stopped", "failed")


class AttemptSpan(NamedTuple):
    """One attempt at a trial, on the engines that it had; ``how`` it ended: a state, or "lost"."""

    number: int
    attempt: int
    ranks: tuple[int, ...]
    start: float
    end: float
    how: str


class Result(NamedTuple):
    """The result of a finished trial."""

    value: float | None
    values: dict[str, float]
    step: int | None
    ended_at: float | None
    parameters: Parameters


class Former(NamedTuple):
    """The result of a trial before a user has retried it: kept if the retried attempt is worse."""

    result: Result
    state: State
    attempt: int
    trainings: int
    curve: Curve | None


class Trial:
    """A trial's parameters, where it stands, and how it got there; read it, do not write it.

    ``parameters`` are those of its latest training: what a promotion has changed is in them, the number of
    epochs too; ``drawn`` are those that it began with. ``attempt`` counts its starts, ``lost`` how many of
    them ended with their engine or driver, ``stopping`` is "pruned" or "stopped" if a running trial has been
    ordered to end as such. ``trainings`` counts how often a user had it begin anew; a worse result than the
    ``former`` one is not kept. ``before`` is the result of a promoted trial before the promotion: it is
    restored if the promotion fails or is stopped. Times are seconds since 1970.
    """

    __slots__ = (
        "asked_at", "attempt", "avoid", "before", "drawn", "ended_at", "error", "former", "lost", "number",
        "parameters", "parent", "promotion", "ranks", "sampled", "seed", "started_at", "state", "step",
        "stopping", "trainings", "value", "values",
    )  # fmt: skip

    def __init__(
        self, number: int, parameters: Parameters, seed: int, asked_at: float, parent: int | None = None
    ) -> None:
        self.number, self.seed, self.parent = number, seed, parent
        self.parameters: dict[str, Any] = parameters
        self.drawn, self.asked_at = parameters, asked_at
        self.sampled = parent is None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.state: State = "waiting"
        self.attempt = 0
        self.lost = 0
        self.ranks: tuple[int, ...] = ()
        self.avoid: tuple[int, ...] = ()
        self.stopping: Literal["pruned", "stopped"] | None = None
        self.promotion: Promoted | None = None
        self.before: Result | None = None
        self.former: Former | None = None
        self.trainings = 0
        self.step: int | None = None
        self.value: float | None = None
        self.values: dict[str, float] = {}
        self.error = ""

    @property
    def given(self) -> Parameters:
        """The parameters that its body receives: without a number of epochs that only a promotion has set."""
        return {n: one for n, one in self.parameters.items() if n in self.drawn or n != "epochs"}

    @property
    def began_with(self) -> str:
        """What a promotion has changed of its parameters, as it was before: ``epochs = 2``; empty if nothing.

        A parameter that the promotion has added is ``not given``.
        """
        return ", ".join(
            f"{name} = {self.drawn[name]!r}" if name in self.drawn else f"{name} not given"
            for name, one in self.parameters.items()
            if name not in self.drawn or one != self.drawn[name]
        )

    @property
    def epochs(self) -> int | None:
        """The number of epochs that a promotion has set, which overrides that of its body; None without.

        A body with a parameter `epochs` is given the number, and need not give it to a ``fit``.
        """
        value = self.parameters.get("epochs")
        return value if isinstance(value, int) and "epochs" not in self.drawn else None

    @property
    def over(self) -> bool:
        """Whether it is neither waiting nor running."""
        return self.state not in ("waiting", "running")

    @property
    def seconds(self) -> float | None:
        """How long its last attempt took, None while it has not ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.started_at

    def __repr__(self) -> str:
        given = " ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        return f"<Trial {self.number} {self.state} {given} value={self.value}>"


def cause(error: str) -> str:
    """Return an error in one line: the last line of a traceback, the first line of other texts.

    >>> cause("Traceback (most recent call last):" + chr(10) + "  ..." + chr(10) + "ValueError: 7")
    'ValueError: 7'
    """
    lines = [line for line in error.splitlines() if line.strip()]
    if not lines:
        return ""
    last = next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1])
    return last if lines[0].startswith("Traceback") else lines[0]
