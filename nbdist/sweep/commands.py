"""What somebody may wish of a sweep while it runs: each wish as the events to be written for it. Pure.

>>> from nbdist.sweep.start import open_sweep
>>> from nbdist.sweep.space import Space
>>> ledger = Ledger(open_sweep(Space({"width": [32, 64]}), metric="accuracy", sampler="grid", now=0.0))
>>> add(ledger, 8, now=1.0)
[Added(time=1.0, trials=8)]
>>> stop(ledger, 5, now=1.0)
Traceback (most recent call last):
nbdist.errors.NotFoundError: no trial 5; none was asked for yet
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.sweep.events import (
    Added,
    Cloned,
    Closed,
    Ended,
    Event,
    Paused,
    Promoted,
    Resumed,
    Retried,
    SpaceEdited,
    Stopped,
)
from nbdist.sweep.parameters import plain, whole
from nbdist.sweep.samplers import Sampler, make_sampler, trial_seed
from nbdist.sweep.space import Parameters, Space
from nbdist.sweep.start import MOST_TRIALS, check_per_trial
from nbdist.sweep.state import Ledger, Trial


def stop(ledger: Ledger, number: int, now: float) -> list[Event]:
    """Stop a trial; what it reported is kept. One that is over, or stopping already, stays as it is."""
    trial = known(ledger, number)
    if trial.state == "waiting":
        return [_given_up(trial, "stopped before it started", now)]
    if trial.over or trial.stopping:
        return []
    return [Stopped(now, number, trial.attempt)]


def retry(ledger: Ledger, number: int, now: float) -> list[Event]:
    """Start a trial that did not finish again from its beginning, with its parameters and seed."""
    _open(ledger)
    trial = known(ledger, number)
    if not trial.over:
        raise FailedPreconditionError(f"trial {number} is {trial.state}; stop it before it is tried again")
    if trial.state == "finished":
        raise FailedPreconditionError(
            f"trial {number} is finished; clone it to run its parameters again, or promote it to train on"
        )
    return [Retried(now, number, "asked")]


def clone(ledger: Ledger, number: int, changes: Mapping[str, object], now: float) -> list[Event]:
    """Ask for a new trial with the parameters of another, some changed; they may lie outside of the space.

    A parameter that exists only under a condition is dropped, or has to be given, as the changes demand.
    """
    _open(ledger)
    parent = known(ledger, number)
    parameters = cloned_parameters(ledger.space, parent.parameters, changes)
    new = ledger.next_number
    return [Cloned(now, new, parameters, trial_seed(ledger.created.seed, new), number)]


def promote(
    ledger: Ledger,
    number: int,
    now: float,
    *,
    checkpoint: str = "",
    per_trial: int | None = None,
    engines: int | None = None,
    changes: Mapping[str, object] | None = None,
) -> list[Event]:
    """Let a trial that is over go on from its checkpoint, on ``per_trial`` engines if that is given.

    ``changes`` is what its body gets beside its parameters, such as more epochs. It is not pruned again.
    """
    _open(ledger)
    trial = known(ledger, number)
    if not trial.over:
        raise FailedPreconditionError(f"trial {number} is {trial.state}; only one that is over is promoted")
    if per_trial is not None:
        check_per_trial(per_trial, engines)
    given = {name: plain(value) for name, value in (changes or {}).items()}
    return [Promoted(now, number, checkpoint, per_trial, given)]


def pause(ledger: Ledger, now: float) -> list[Event]:
    """Start no more trials; those running go on."""
    _open(ledger)
    return [] if ledger.paused else [Paused(now)]


def resume(ledger: Ledger, now: float) -> list[Event]:
    """Start trials again."""
    _open(ledger)
    return [Resumed(now)] if ledger.paused else []


def add(ledger: Ledger, trials: int, now: float) -> list[Event]:
    """Want so many trials more; raises `FailedPreconditionError` if a grid has no point left for them."""
    _open(ledger)
    more = whole(trials, "number of trials")
    if more < 1 or ledger.wanted + more > MOST_TRIALS:
        raise InvalidArgumentError(
            f"{trials} more trials: at least 1, and {MOST_TRIALS:,} in all; "
            f"{ledger.wanted:,} are wanted so far"
        )
    made = _sampler(ledger, ledger.space)
    if made.size is not None and made.ask(ledger.history, ledger.next_number) is None:
        raise FailedPreconditionError(
            f"each of the {made.size:,} points of the {ledger.created.sampler} has its trial: edit the space "
            "first, so that there are more, or clone a trial"
        )
    return [Added(now, more)]


def edit(
    ledger: Ledger, space: Space, now: float, outside: Literal["finish", "stop"] = "finish"
) -> list[Event]:
    """Ask for trials from another space from here on.

    Running trials outside of it "finish" (a sampler of the new space does not learn from them), or "stop". A
    new one outside of it that waits for its first start is given up. Clones, retried and promoted trials
    stay: somebody chose them. Raises `InvalidArgumentError` if the sampler cannot search the space.
    """
    _open(ledger)
    if outside not in ("finish", "stop"):
        raise InvalidArgumentError(f"trials outside of the new space can finish or stop, not {outside!r}")
    if space == ledger.space:
        return []
    _sampler(ledger, space)
    events: list[Event] = [SpaceEdited(now, space)]
    for trial in outside_of(ledger, space):
        if trial.state == "running" and outside == "stop" and not trial.stopping:
            events.append(Stopped(now, trial.number, trial.attempt))
        elif trial.state == "waiting" and trial.sampled and not trial.attempt:
            events.append(_given_up(trial, "the space was edited, and this is outside of it", now))
    return events


def outside_of(ledger: Ledger, space: Space) -> list[Trial]:
    """Return the trials, waiting or running, that a space does not contain: those an edit touches."""
    trials = [ledger.trials[number] for number in (*ledger.running, *ledger.waiting)]
    return [trial for trial in trials if not space.contains(trial.parameters)]


def close(ledger: Ledger, now: float, reason: str = "stopped") -> list[Event]:
    """End the sweep: running trials are stopped, waiting ones given up, nothing more is started."""
    if ledger.closed:
        return []
    running = [ledger.trials[number] for number in ledger.running]
    waiting = [ledger.trials[number] for number in ledger.waiting]
    return [
        *(Stopped(now, trial.number, trial.attempt) for trial in running if not trial.stopping),
        *(_given_up(trial, "the sweep was stopped before it started", now) for trial in waiting),
        Closed(now, reason),
    ]


def cloned_parameters(space: Space, parameters: Parameters, changes: Mapping[str, object]) -> Parameters:
    """Return the parameters with changes; raises `InvalidArgumentError` for unknown or missing names.

    >>> from nbdist.sweep.space import when
    >>> space = Space({"opt": ["sgd", "adam"], "momentum": when([0.0, 0.9], opt="sgd")})
    >>> cloned_parameters(space, {"opt": "sgd", "momentum": 0.9}, {"opt": "adam"})
    {'opt': 'adam'}
    """
    for name in changes:
        if name not in space and name not in parameters:
            raise InvalidArgumentError(f"there is no parameter {name}; there are {', '.join(space)}")
    merged = {**parameters, **{name: plain(value) for name, value in changes.items()}}
    found: Parameters = {name: value for name, value in merged.items() if name not in space}
    for name in space.order:
        if not space.exists(name, found):
            if name in changes:
                raise InvalidArgumentError(f"{name} has no place here: it is {space[name]}")
        elif name in merged:
            found[name] = merged[name]
        else:
            raise InvalidArgumentError(f"say which {name} the new trial has; it may be {space[name]}")
    return {name: found[name] for name in (*space, *parameters) if name in found}


def known(ledger: Ledger, number: int) -> Trial:
    """Return a trial; raises `NotFoundError` if there is none of this number."""
    if number not in ledger.trials:
        there = f"0 to {max(ledger.trials)}" if ledger.trials else "none was asked for yet"
        raise NotFoundError(f"no trial {number}; {there}")
    return ledger.trials[number]


def _given_up(trial: Trial, why: str, now: float) -> Ended:
    return Ended(now, trial.number, trial.attempt, "stopped", trial.value, {}, why)


def _sampler(ledger: Ledger, space: Space) -> Sampler:
    created = ledger.created
    return make_sampler(
        created.sampler, space, created.seed, created.direction, created.settings.get("sampler")
    )


def _open(ledger: Ledger) -> None:
    if ledger.closed:
        raise FailedPreconditionError("the sweep is over; start another, its log keeps this one")
