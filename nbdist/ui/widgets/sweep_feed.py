"""`SweepFeed`: the content of a sweep's frames, a snapshot first and then the changes.

    feed = SweepFeed(sweep)
    content, points = feed.everything(now)     # a snapshot
    content, points = feed.news(now)           # the changes since then; content is empty if there are none

``points`` are pairs of float32, step and value, trial after trial; ``content["points"]`` has the trials and
their numbers of points. A curve that cannot be extended is listed in ``content["replaced"]`` and sent from
its first point.

Long curves are thinned in a way that depends only on the curve, so a page that has applied all changes has
the same points as a page that has received a snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from nbdist.errors import NbdistError
from nbdist.metrics.series import keep_shape
from nbdist.sweep.parameters import Choice, Fixed, Integer, Parameter, Real, jsonable, literal
from nbdist.sweep.reports import Curve
from nbdist.sweep.space import Space
from nbdist.sweep.state import STATES, AttemptSpan, Ledger, Trial, cause
from nbdist.text import clip

if TYPE_CHECKING:
    from nbdist.trials.workers import EngineStatus

MANY = 500  # trials above which each gets fewer points and a shorter error
MOST_POINTS = {False: 256, True: 64}  # of a curve on the page, by whether there are many trials
LONGEST_ERROR = {False: 400, True: 120}
STATUS_EVERY = 1.0  # seconds after which the status is sent even if only its time has changed
TIME_DEPENDENT = ("now", "seconds_left", "trials_per_second")  # keys of a status that change without events
INDEX = {state: index for index, state in enumerate(STATES)}


class SweepUpdate(NamedTuple):
    """One frame: its content, which is plain JSON, and its points."""

    content: dict[str, Any]
    points: bytes


class SentCurve(NamedTuple):
    """The part of a curve that the page has."""

    curve: Curve
    points: int
    thinned: int  # number of points at its start that were thinned
    reports: int
    last: int  # step


class SweepFeed:
    """Tracks what the page has of a sweep. The caller must hold the sweep's lock."""

    def __init__(self, sweep: SweepSeen) -> None:
        self.sweep = sweep
        self.many = False
        self._touched = self._spans = self._best = 0
        self._head: dict[str, Any] = {}
        self._status: dict[str, Any] = {}
        self._curves: dict[int, SentCurve] = {}
        self._metrics: dict[str, None] = {}
        self._names: dict[int, str] = {}

    def everything(self, now: float) -> SweepUpdate:
        """Return a snapshot and record it as sent; ``now`` in seconds since 1970."""
        ledger = self.sweep.ledger
        self.many = len(ledger.trials) > MANY
        self._touched, self._spans, self._best = len(self.sweep.touched), 0, 0
        self._names = names_of(self.sweep, ledger.spans, self._names)
        self._head, self._status = head(self.sweep, self._names), status(self.sweep, now)
        self._curves, self._metrics = {}, {}
        content = {
            "snapshot": True,
            "head": self._head,
            "status": self._status,
            "trials": self._rows(sorted(ledger.trials)),
        }
        return self._update(content, ledger.reports.curves)

    def news(self, now: float) -> SweepUpdate:
        """Return the changes and record them as sent; a snapshot if the number of trials crosses `MANY`."""
        ledger = self.sweep.ledger
        if (len(ledger.trials) > MANY) != self.many:
            return self.everything(now)
        touched = sorted(set(self.sweep.touched[self._touched :]) & ledger.trials.keys())
        self._touched = len(self.sweep.touched)
        content: dict[str, Any] = {"snapshot": False}
        self._names = names_of(self.sweep, ledger.spans[self._spans :], self._names)
        if (latest := head(self.sweep, self._names)) != self._head:
            self._head = content["head"] = latest
        latest_status = status(self.sweep, now)
        if self._differs(latest_status):
            self._status = content["status"] = latest_status
        if touched:
            content["trials"] = self._rows(touched)
        update = self._update(content, touched)
        return update if len(content) > 1 else SweepUpdate({}, b"")

    def _differs(self, latest: Mapping[str, Any]) -> bool:
        if not self.sweep.over and latest["now"] - self._status["now"] >= STATUS_EVERY:
            return True
        return any(latest[key] != self._status[key] for key in latest if key not in TIME_DEPENDENT)

    def _rows(self, numbers: Sequence[int]) -> dict[str, Any]:
        trials = [self.sweep.ledger.trials[number] for number in numbers]
        for trial in trials:
            self._metrics.update(dict.fromkeys(trial.values))
        self._metrics.pop(self.sweep.ledger.created.metric, None)
        return rows(self.sweep.ledger, trials, self._metrics, LONGEST_ERROR[self.many])

    def _update(self, content: dict[str, Any], numbers: Iterable[int]) -> SweepUpdate:
        """Add the curves of these trials, and the spans and improvements that the page does not have."""
        ledger = self.sweep.ledger
        replaced, steps, values = [], list[int](), list[float]()
        curves: dict[str, list[int]] = {"number": [], "count": []}
        for number in numbers:
            before, curve = self._curves.get(number), ledger.curve(number)
            if curve is None:
                if before is not None:
                    replaced.append(number)
                    del self._curves[number]
                continue
            after = self._of(curve)
            if before is not None and is_extended(before, after):
                new = curve.steps[before.points :], curve.values[before.points :]
            else:
                if before is not None:
                    replaced.append(number)
                new = thinned(curve, after.thinned, MOST_POINTS[self.many])
            self._curves[number] = after
            if new[0]:
                curves["number"].append(number)
                curves["count"].append(len(new[0]))
                steps += new[0]
                values += new[1]
        spans, improvements = ledger.spans[self._spans :], ledger.improvements[self._best :]
        self._spans, self._best = len(ledger.spans), len(ledger.improvements)
        if steps:
            content["points"] = curves
        if replaced:
            content["replaced"] = replaced
        if spans:
            content["spans"] = [span_row(ledger, span) for span in spans]
        if improvements:
            content["best"] = [[since(ledger, at), number, plain(best)] for at, number, best in improvements]
        return SweepUpdate(content, pairs(steps, values))

    def _of(self, curve: Curve) -> SentCurve:
        points = len(curve.steps)
        most = MOST_POINTS[self.many]
        # The start is thinned to half of `most`, and again after each further half of `most` points.
        whole = 0 if points <= most else points // (most // 2) * (most // 2)
        return SentCurve(curve, points, whole, curve.count, curve.steps[-1] if points else -1)


def is_extended(before: SentCurve, after: SentCurve) -> bool:
    """Whether a curve has only grown at its end."""
    return (
        before.curve is after.curve
        and before.thinned == after.thinned
        and after.points - before.points == after.reports - before.reports
        and (before.points == 0 or after.curve.steps[before.points - 1] == before.last)
    )


def thinned(curve: Curve, whole: int, most: int) -> tuple[list[int], list[float]]:
    """Return a curve's points; the first ``whole`` of them are thinned to at most half of ``most``."""
    if not whole:
        return curve.steps, curve.values
    kept = keep_shape(curve.steps[:whole], curve.values[:whole], most // 2).tolist()
    return (
        [*(curve.steps[index] for index in kept), *curve.steps[whole:]],
        [*(curve.values[index] for index in kept), *curve.values[whole:]],
    )


def pairs(steps: Sequence[int], values: Sequence[float]) -> bytes:
    """Return points as bytes: float32 pairs of step and value, little-endian.

    >>> pairs([1, 2], [0.5, 1.0]).hex(" ", 4)
    '0000803f 0000003f 00000040 0000803f'
    """
    made = np.empty((len(steps), 2), "<f4")
    with np.errstate(over="ignore", invalid="ignore"):  # values beyond single precision become inf
        made[:, 0], made[:, 1] = steps, values
    return made.tobytes()


def rows(
    ledger: Ledger, trials: Sequence[Trial], metrics: Iterable[str], longest_error: int
) -> dict[str, Any]:
    """Return trials as columns of JSON values; a parameter that a trial does not have is None in its row."""
    names = dict.fromkeys(name for trial in trials for name in trial.parameters)
    return {
        "number": [trial.number for trial in trials],
        "state": [INDEX[trial.state] for trial in trials],
        "value": [plain(trial.value) for trial in trials],
        "step": [trial.step for trial in trials],
        "attempt": [trial.attempt for trial in trials],
        "parent": [-1 if trial.parent is None else trial.parent for trial in trials],
        "asked": [since(ledger, trial.asked_at) for trial in trials],
        "started": [since(ledger, trial.started_at) for trial in trials],
        "ended": [since(ledger, trial.ended_at) for trial in trials],
        "stopping": [trial.stopping for trial in trials],
        "promoted": [trial.promotion is not None for trial in trials],
        "ranks": [list(trial.ranks) for trial in trials],
        "error": [clip(cause(trial.error), longest_error) for trial in trials],
        "seed": [str(trial.seed) for trial in trials],
        "parameters": {name: [jsonable(one.parameters.get(name)) for one in trials] for name in names},
        "metrics": {name: [plain(trial.values.get(name)) for trial in trials] for name in metrics},
    }


def span_row(ledger: Ledger, span: AttemptSpan) -> list[Any]:
    """Return a span as a row of JSON values."""
    start, end = since(ledger, span.start), since(ledger, span.end)
    return [span.number, span.attempt, list(span.ranks), start, end, span.how]


def plain(value: float | None) -> float | str | None:
    """Return a number as a JSON value; NaN and the infinities, which JSON lacks, as text.

    >>> plain(0.5), plain(float("nan")), plain(float("-inf")), plain(None)
    (0.5, 'NaN', '-Infinity', None)
    """
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# The head and the status of a sweep's page.
#
# >>> from nbdist.sweep.space import log, when
# >>> space = Space({"lr": log(1e-4, 1e-1), "opt": ["sgd", "adam"], "momentum": when([0.0, 0.9], opt="sgd")})
# >>> for one in parameters(space):
# ...     print(one["name"], one["kind"], one["text"], one["when"])
# lr log log(0.0001, 0.1) None
# opt choice ['sgd', 'adam'] None
# momentum choice [0.0, 0.9] opt is 'sgd'

LONGEST_REASON = 400  # characters
RECENT = 64  # latest attempts that count for the rate of ended trials


class SweepSeen(Protocol):
    """The read-only interface of a sweep for its displays; hold ``lock`` to read ledger and touched."""

    @property
    def id(self) -> str:
        """The id that `nb.attach` takes."""

    @property
    def name(self) -> str:
        """The sweep's display name."""

    @property
    def state(self) -> str:
        """running, paused, done, stopped or failed."""

    @property
    def over(self) -> bool:
        """Whether the sweep has ended."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock that a thread holds while it writes the ledger."""

    @property
    def ledger(self) -> Ledger:
        """The state of the trials."""

    @property
    def touched(self) -> Sequence[int]:
        """The trial number of each event about a trial, in the order of the log; it only grows."""

    @property
    def trouble(self) -> str | None:
        """The reason why no trial runs although some are waiting; None if there is no such reason."""

    @property
    def error(self) -> NbdistError | None:
        """The error that ended the sweep; None if there is none."""

    @property
    def engine_names(self) -> Mapping[int, str]:
        """The known task names of engines, by rank; also available after the sweep has ended."""

    def engines(self) -> Sequence[EngineStatus]:
        """Return the engines, by rank."""


def head(sweep: SweepSeen, names: Mapping[int, str]) -> dict[str, Any]:
    """Return the data that changes only with the space or the engines; ``names`` are engine names by rank."""
    created = sweep.ledger.created
    return {
        "id": sweep.id,
        "name": sweep.name,
        "metric": created.metric,
        "direction": created.direction,
        "began": created.time,
        "sampler": created.sampler,
        "pruner": created.pruner,
        "per_trial": created.per_trial,
        "seed": str(created.seed),  # JavaScript would round it
        "space": str(sweep.ledger.space),
        "again": f"to reconnect, run nb.attach({sweep.id!r})",
        "engines": [[rank, names[rank]] for rank in sorted(names)],
        "parameters": parameters(sweep.ledger.space),
    }


def names_of(sweep: SweepSeen, spans: Iterable[AttemptSpan], known: Mapping[int, str]) -> dict[int, str]:
    """Return the names of current and former engines, by rank.

    After a sweep that another process has driven, the task names are not known; "rank N" stands for them.
    """
    named = sweep.engine_names
    ran = {rank: named.get(rank, f"rank {rank}") for span in spans for rank in span.ranks}
    return {**ran, **known, **{engine.rank: engine.name for engine in sweep.engines()}}


def parameters(space: Space) -> list[dict[str, Any]]:
    """Return each parameter with its kind, its bounds or values, and its condition."""
    return [
        {"name": name, **_range(one.kind), "text": str(one.kind), "when": _condition(one)}
        for name, one in space.items()
    ]


def _range(kind: Parameter) -> dict[str, Any]:
    match kind:
        case Real(low=low, high=high, log=log):
            return {"kind": "log" if log else "uniform", "low": low, "high": high, "step": None}
        case Integer(low=low, high=high, log=log, step=step):
            return {"kind": "int", "low": low, "high": high, "step": step, "log": log}
        case Choice(values=values):
            return {"kind": "choice", "values": [jsonable(value) for value in values]}
        case Fixed(value=value):
            return {"kind": "fixed", "values": [jsonable(value)]}
    raise AssertionError(f"{type(kind).__name__} is a parameter that the grid does not know")


def _condition(one: Parameter) -> str | None:
    terms = [f"{on} is {' or '.join(map(literal, values))}" for on, values in one.conditions.items()]
    return " and ".join(terms) or None


def status(sweep: SweepSeen, now: float) -> dict[str, Any]:
    """Return the sweep's progress; ``now``, in seconds since 1970, is ignored once the sweep has ended."""
    ledger = sweep.ledger
    end = ended_at(ledger) if sweep.over else now
    speed = trials_per_second(ledger, end, RECENT)
    left = max(0, ledger.left) + ledger.counts["waiting"] + ledger.counts["running"]
    estimates = bool(speed) and sweep.state == "running"
    return {
        "state": sweep.state,
        "now": since(ledger, end),
        "wanted": ledger.wanted + len(ledger.trials) - ledger.sampled,  # clones count as well
        "counts": dict(ledger.counts),
        "engines": [[engine.rank, engine.state, engine.number] for engine in sweep.engines()],
        "trouble": sweep.trouble or reason(sweep.error),
        "best": ledger.best.number if ledger.best else None,
        "trials_per_second": float(f"{speed:.3g}") if speed else None,
        "seconds_left": math.ceil(left / speed) if speed and estimates else None,
        "closed": ledger.closed,
    }


def reason(error: NbdistError | None) -> str | None:
    """Return the reason for a sweep's failure in one line: the first and the last line of its text.

    >>> from nbdist.errors import AbortedError
    >>> reason(AbortedError("all of the first 4 trials failed. Trial 0:\\nTraceback:\\n  x\\nValueError: 7"))
    'all of the first 4 trials failed. Trial 0: ValueError: 7'
    """
    lines = [] if error is None else [line for line in str(error).splitlines() if line.strip()]
    if not lines:
        return None if error is None else type(error).__name__
    return clip(" ".join(dict.fromkeys((lines[0], lines[-1]))), LONGEST_REASON)


def ended_at(ledger: Ledger) -> float:
    """Return when the last trial ended, in seconds since 1970."""
    return ledger.spans[-1].end if ledger.spans else ledger.created.time


def trials_per_second(ledger: Ledger, now: float, recent: int | None = None) -> float | None:
    """Return the rate of ended trials per second, over the ``recent`` ones or all; None if not yet known."""
    spans = ledger.spans if recent is None else ledger.spans[-recent:]
    ended = sum(span.how != "lost" for span in spans)
    first = ledger.created.time if len(spans) == len(ledger.spans) else ledger.spans[-len(spans) - 1].end
    took = ledger.elapsed(now) - ledger.elapsed(first)
    return ended / took if ended and took > 0 else None


def since(ledger: Ledger, time: float | None) -> float | None:
    """Convert a time in seconds since 1970 to seconds since the start of the sweep, without idle time."""
    return None if time is None else round(ledger.elapsed(time), 3)
