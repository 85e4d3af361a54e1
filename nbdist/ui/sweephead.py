"""What a page is told of a sweep as a whole: what it searches, and where it stands. Pure.

>>> from nbdist.sweep.space import log, when
>>> space = Space({"lr": log(1e-4, 1e-1), "opt": ["sgd", "adam"], "momentum": when([0.0, 0.9], opt="sgd")})
>>> for one in parameters(space):
...     print(one["name"], one["kind"], one["text"], one["when"])
lr log log(0.0001, 0.1) None
opt choice ['sgd', 'adam'] None
momentum choice [0.0, 0.9] opt is 'sgd'
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from nbdist.errors import NbdistError
from nbdist.sweep.parameters import Choice, Fixed, Integer, Parameter, Real, jsonable, literal
from nbdist.sweep.space import Space
from nbdist.sweep.state import Ledger, Span
from nbdist.ui.shorten import clip

LONGEST_REASON = 400  # characters
RECENT = 64  # attempts whose ends tell how fast trials end


class EngineSeen(Protocol):
    """One engine of a sweep: busy with trial ``number``, free, or gone."""

    @property
    def rank(self) -> int:
        """Its rank in the cluster."""

    @property
    def name(self) -> str:
        """Its task name."""

    @property
    def state(self) -> Literal["busy", "free", "gone"]:
        """Whether it has a trial, waits for one, or is not there any more."""

    @property
    def number(self) -> int | None:
        """The trial that it runs."""


class SweepSeen(Protocol):
    """A sweep as those see it who only show it; ``lock`` is held while ledger and touched are read."""

    @property
    def id(self) -> str:
        """What it is attached to by."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def state(self) -> str:
        """running, paused, done, stopped or failed."""

    @property
    def over(self) -> bool:
        """Whether nothing happens any more."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held by whoever writes the ledger."""

    @property
    def ledger(self) -> Ledger:
        """Everything known of its trials."""

    @property
    def touched(self) -> Sequence[int]:
        """The trial of each event that said something of one; only grows."""

    @property
    def trouble(self) -> str | None:
        """Why nothing runs although there is work."""

    @property
    def error(self) -> NbdistError | None:
        """What ended it, if something did."""

    @property
    def engine_names(self) -> Mapping[int, str]:
        """What engines are called, by rank, as far as that is known; also when the sweep is over."""

    def engines(self) -> Sequence[EngineSeen]:
        """Return the engines, by rank."""


def head(sweep: SweepSeen, names: Mapping[int, str]) -> dict[str, Any]:
    """Return what stays until the space is edited or an engine comes; ``names`` are the engines' by rank."""
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


def names_of(sweep: SweepSeen, spans: Iterable[Span], known: Mapping[int, str]) -> dict[int, str]:
    """Return the names of the engines that there are, or were, by rank.

    Of a sweep that is over, and was driven elsewhere, nobody says what its engines were called.
    """
    named = sweep.engine_names
    ran = {rank: named.get(rank, f"rank {rank}") for span in spans for rank in span.ranks}
    return {**ran, **known, **{engine.rank: engine.name for engine in sweep.engines()}}


def parameters(space: Space) -> list[dict[str, Any]]:
    """Return each parameter with its kind, its bounds or values, and the condition under which it exists."""
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
    said = [f"{on} is {' or '.join(map(literal, values))}" for on, values in one.conditions.items()]
    return " and ".join(said) or None


def status(sweep: SweepSeen, now: float) -> dict[str, Any]:
    """Return where it stands; ``now`` in seconds since 1970 does not count once it is over."""
    ledger = sweep.ledger
    end = ended_at(ledger) if sweep.over else now
    speed = trials_per_second(ledger, end, RECENT)
    left = max(0, ledger.left) + ledger.counts["waiting"] + ledger.counts["running"]
    moves = bool(speed) and sweep.state == "running"
    return {
        "state": sweep.state,
        "now": since(ledger, end),
        "wanted": ledger.wanted + len(ledger.trials) - ledger.sampled,  # clones are wanted as well
        "counts": dict(ledger.counts),
        "engines": [[engine.rank, engine.state, engine.number] for engine in sweep.engines()],
        "trouble": sweep.trouble or reason(sweep.error),
        "best": ledger.best.number if ledger.best else None,
        "trials_per_second": float(f"{speed:.3g}") if speed else None,
        "seconds_left": math.ceil(left / speed) if speed and moves else None,
        "closed": ledger.closed,
    }


def reason(error: NbdistError | None) -> str | None:
    """Return the reason for a sweep's failure in one line: the first, and of a traceback in it the last.

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
    """Return how many trials end in a second, the ``recent`` ones or all; None while that is not known."""
    spans = ledger.spans if recent is None else ledger.spans[-recent:]
    ended = sum(span.how != "lost" for span in spans)
    first = ledger.created.time if len(spans) == len(ledger.spans) else ledger.spans[-len(spans) - 1].end
    return ended / (now - first) if ended and now > first else None


def since(ledger: Ledger, time: float | None) -> float | None:
    """Return seconds since the sweep started, for a time in seconds since 1970."""
    return None if time is None else round(time - ledger.created.time, 3)
