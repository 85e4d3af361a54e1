"""Commands on a sweep: pause, resume, stop, promote, add, clone, retry, edit. Pure.

A command is one row of `COMMANDS`: its name, its arguments with their checks, and the function that returns
the events for the sweep's log. Every way to send a command is derived from the table:

    Sweep.command(name, **arguments)   the handle, `nbdist.trials.sweep`; pause(), clone(), ... call it
    {"kind": name, ...}                messages from the page, `nbdist.ui.widgets.sweep`
    command.json                       `nbdist.trials.command_file`; rows with a ``remote`` name
    POST sweeps/ID/NAME                `nbdist.lab`; rows with a ``remote`` name

>>> from nbdist.sweep.start import open_sweep
>>> from nbdist.sweep.space import Space
>>> ledger = Ledger(open_sweep(Space({"width": [32, 64]}), metric="accuracy", sampler="grid", now=0.0))
>>> row = command_named("pause")
>>> row.events(CommandContext(ledger, now=1.0), **row.checked({}))
[Paused(time=1.0)]
>>> stop(ledger, 5, now=1.0)
Traceback (most recent call last):
nbdist.errors.NotFoundError: no trial 5; the sweep has no trials yet
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.numbers import is_whole
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
from nbdist.sweep.parse import as_space
from nbdist.sweep.sampler import trial_seed
from nbdist.sweep.scheduler import sampler_of
from nbdist.sweep.space import Parameters, Space
from nbdist.sweep.start import MOST_TRIALS, check_per_trial
from nbdist.sweep.state import Ledger, Trial


def _no_checkpoint(number: int) -> Path:
    raise FailedPreconditionError(f"no checkpoint of trial {number} is known here")


@dataclass(frozen=True)
class CommandContext:
    """What a command's function may read.

    ``checkpoint`` returns the checkpoint file of a trial (or raises FailedPreconditionError), ``engines``
    the number of engines that the sweep may use; None if that is not known.
    """

    ledger: Ledger
    now: float
    """Seconds since 1970."""
    checkpoint: Callable[[int], Path] = _no_checkpoint
    engines: Callable[[], int | None] = lambda: None


@dataclass(frozen=True)
class Argument:
    """An argument of a command. ``check`` returns the value to use, or raises InvalidArgumentError.

    An argument that is not required may be missing or None; it is then ``default``, unchecked.
    """

    name: str
    check: Callable[[Any], Any]
    required: bool = True
    default: Any = None


@dataclass(frozen=True)
class SweepCommand:
    """A row of `COMMANDS`."""

    name: str
    events: Callable[..., list[Event]]
    """Called with a `CommandContext` and the checked arguments by name; returns the events to write."""
    done: str
    """The answer after success: a template with the arguments, and ``new``, the number of a new trial."""
    arguments: tuple[Argument, ...] = ()
    remote: str = ""
    """The name in the command file and in the server's route; empty if other processes cannot send it."""
    needs: Literal["", "running", "paused"] = ""
    """The state without which the command has no effect: the sidebar disables its button."""

    def checked(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Return all arguments; raises InvalidArgumentError for an invalid, missing or unknown one."""
        names = [one.name for one in self.arguments]
        if unknown := [name for name in given if name not in names]:
            raise InvalidArgumentError(
                f"{self.name} takes {', '.join(names) or 'no arguments'}, not {', '.join(unknown)}"
            )
        found = {}
        for one in self.arguments:
            value = given.get(one.name)
            if value is None and one.required:
                raise InvalidArgumentError(f"{self.name} needs the argument {one.name}")
            found[one.name] = one.default if value is None else one.check(value)
        return found

    def from_message(self, message: Mapping[str, object]) -> dict[str, Any]:
        """Return the checked arguments from a message, which has other keys as well."""
        return self.checked({one.name: message[one.name] for one in self.arguments if one.name in message})

    def answer(self, arguments: Mapping[str, object], events: list[Event]) -> dict[str, Any]:
        """Return the answer after success: ``message``, and the ``number`` of a new trial if there is one."""
        new = next((event.number for event in events if isinstance(event, Cloned)), None)
        number = {} if new is None else {"number": new}
        return {"message": self.done.format(**{**arguments, "new": new}), **number}


def positive(what: str) -> Callable[[object], int]:
    """Return a check for a whole number of at least 1."""

    def check(value: object) -> int:
        if not is_whole(value, 1):
            raise InvalidArgumentError(f"{what} must be a whole number of at least 1, got {value!r:.80}")
        return value

    return check


def names_and_values(value: object) -> dict[str, Any]:
    """Check changes of parameters."""
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(f"changes must be a mapping of names to values, got {value!r:.80}")
    return {str(name): one for name, one in value.items()}


def what_outside(value: object) -> Literal["finish", "stop"]:
    """Check what happens to running trials outside of an edited space."""
    if value == "finish":
        return "finish"
    if value == "stop":
        return "stop"
    raise InvalidArgumentError(f"trials outside of the new space can finish or stop, not {value!r:.80}")


NUMBER = Argument("number", lambda value: whole(value, "number of a trial"))
CHANGES = Argument("changes", names_and_values, required=False, default={})

COMMANDS: dict[str, SweepCommand] = {
    row.name: row
    for row in (
        SweepCommand(
            "pause",
            lambda at: pause(at.ledger, at.now),
            "paused: running trials continue, no new one starts",
            remote="pause",
            needs="running",
        ),
        SweepCommand(
            "resume", lambda at: resume(at.ledger, at.now), "resumed", remote="resume", needs="paused"
        ),
        SweepCommand(
            "close", lambda at: close(at.ledger, at.now), "the sweep is being stopped", remote="stop"
        ),
        SweepCommand(
            "add",
            lambda at, trials: add(at.ledger, trials, at.now),
            "trials added: {trials:,}",
            (Argument("trials", lambda value: whole(value, "number of trials")),),
        ),
        SweepCommand(
            "edit",
            lambda at, space, changes, outside: edit(
                at.ledger, as_space(space, at.ledger.space).with_changes(changes), at.now, outside
            ),
            "new trials are drawn from the edited space",
            (
                Argument("space", as_space, required=False),
                CHANGES,
                Argument("outside", what_outside, required=False, default="finish"),
            ),
        ),
        SweepCommand(
            "stop",
            lambda at, number: stop(at.ledger, number, at.now),
            "trial {number} is being stopped",
            (NUMBER,),
        ),
        SweepCommand(
            "retry",
            lambda at, number: retry(at.ledger, number, at.now),
            "trial {number} starts again",
            (NUMBER,),
        ),
        SweepCommand(
            "clone",
            lambda at, number, changes: clone(at.ledger, number, changes, at.now),
            "trial {new} is a clone of trial {number}",
            (NUMBER, CHANGES),
        ),
        SweepCommand(
            "promote",
            lambda at, number, epochs, per_trial, changes: promote(
                at.ledger,
                number,
                at.now,
                checkpoint=str(at.checkpoint(number)),
                per_trial=per_trial,
                engines=at.engines(),
                changes={**changes, **({} if epochs is None else {"epochs": epochs})},
            ),
            "trial {number} is promoted",
            (
                NUMBER,
                Argument("epochs", positive("epochs"), required=False),
                Argument(
                    "per_trial", lambda value: whole(value, "number of engines a trial"), required=False
                ),
                CHANGES,
            ),
        ),
    )
}
"""The commands by name."""

REMOTE: dict[str, SweepCommand] = {row.remote: row for row in COMMANDS.values() if row.remote}
"""The commands that other processes can send, by their remote name. They have no required arguments."""


def command_named(name: object, table: Mapping[str, SweepCommand] = COMMANDS) -> SweepCommand:
    """Return the row of a command; raises InvalidArgumentError with the names that there are."""
    row = table.get(name) if isinstance(name, str) else None
    if row is None:
        raise InvalidArgumentError(f"no sweep command {name!r:.80}; choose from {', '.join(table)}")
    return row


def stop(ledger: Ledger, number: int, now: float) -> list[Event]:
    """Stop a trial; its reports are kept. No events for a trial that has ended or is stopping already."""
    trial = trial_of(ledger, number)
    if trial.state == "waiting":
        return [_dropped(trial, "stopped before it started", now)]
    if trial.over or trial.stopping:
        return []
    return [Stopped(now, number, trial.attempt)]


def retry(ledger: Ledger, number: int, now: float) -> list[Event]:
    """Start a trial that did not finish again from its beginning, with its parameters and its seed."""
    _check_not_closed(ledger)
    trial = trial_of(ledger, number)
    if not trial.over:
        raise FailedPreconditionError(f"trial {number} is {trial.state}; stop it before you retry it")
    if trial.state == "finished":
        raise FailedPreconditionError(
            f"trial {number} is finished; clone it to run its parameters again, or promote it to train on"
        )
    return [Retried(now, number, "asked")]


def clone(ledger: Ledger, number: int, changes: Mapping[str, object], now: float) -> list[Event]:
    """Add a trial with the parameters of another one, some of them changed.

    A changed value may lie outside of the space.

    A conditional parameter is dropped, or must be given, if the changes demand it.
    """
    _check_not_closed(ledger)
    parent = trial_of(ledger, number)
    parameters = cloned_parameters(ledger.space, parent.given, changes)
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
    """Continue a trial that has ended from its checkpoint, on ``per_trial`` engines if that is given.

    ``changes`` are further variables of its body, such as more epochs. A promoted trial is not pruned again.
    """
    _check_not_closed(ledger)
    trial = trial_of(ledger, number)
    if not trial.over:
        raise FailedPreconditionError(
            f"trial {number} is {trial.state}; only a trial that has ended can be promoted"
        )
    if per_trial is not None:
        check_per_trial(per_trial, engines)
    given = {name: plain(value) for name, value in (changes or {}).items()}
    return [Promoted(now, number, checkpoint, per_trial, given)]


def pause(ledger: Ledger, now: float) -> list[Event]:
    """Start no more trials; running ones continue."""
    _check_not_closed(ledger)
    return [] if ledger.paused else [Paused(now)]


def resume(ledger: Ledger, now: float) -> list[Event]:
    """Start trials again."""
    _check_not_closed(ledger)
    return [Resumed(now)] if ledger.paused else []


def add(ledger: Ledger, trials: int, now: float) -> list[Event]:
    """Have the sweep run more trials; raises FailedPreconditionError if a grid has no point left."""
    _check_not_closed(ledger)
    more = whole(trials, "number of trials")
    if more < 1 or ledger.wanted + more > MOST_TRIALS:
        raise InvalidArgumentError(
            f"{trials} more trials: add at least 1, up to {MOST_TRIALS:,} in all; the sweep has "
            f"{ledger.wanted:,}"
        )
    made = sampler_of(ledger, ledger.space)
    if made.size is not None and made.ask(ledger.history, ledger.next_number) is None:
        raise FailedPreconditionError(
            f"each of the {made.size:,} points of the {ledger.created.sampler} has its trial: edit the space "
            "first to get more points, or clone a trial"
        )
    return [Added(now, more)]


def edit(
    ledger: Ledger, space: Space, now: float, outside: Literal["finish", "stop"] = "finish"
) -> list[Event]:
    """Draw further trials from another space.

    Running trials outside of it "finish" (a sampler of the new space does not learn from them), or "stop". A
    drawn trial outside of it that has not started yet is dropped. Clones, retried and promoted trials
    stay, because a user chose them. Raises InvalidArgumentError if the sampler cannot search the space.
    """
    _check_not_closed(ledger)
    what_outside(outside)
    if space == ledger.space:
        return []
    sampler_of(ledger, space)
    events: list[Event] = [SpaceEdited(now, space)]
    for trial in outside_of(ledger, space):
        if trial.state == "running" and outside == "stop" and not trial.stopping:
            events.append(Stopped(now, trial.number, trial.attempt))
        elif trial.state == "waiting" and trial.sampled and not trial.attempt:
            events.append(_dropped(trial, "the space was edited, and this is outside of it", now))
    return events


def outside_of(ledger: Ledger, space: Space) -> list[Trial]:
    """Return the waiting and running trials that a space does not contain: those that an edit affects."""
    trials = [ledger.trials[number] for number in (*ledger.running, *ledger.waiting)]
    return [trial for trial in trials if not space.contains(trial.drawn)]


def close(ledger: Ledger, now: float, reason: str = "stopped") -> list[Event]:
    """End the sweep: stop running trials, drop waiting ones, start no more."""
    if ledger.closed:
        return []
    running = [ledger.trials[number] for number in ledger.running]
    waiting = [ledger.trials[number] for number in ledger.waiting]
    return [
        *(Stopped(now, trial.number, trial.attempt) for trial in running if not trial.stopping),
        *(_dropped(trial, "the sweep was stopped before it started", now) for trial in waiting),
        Closed(now, reason),
    ]


def starts_trials(ledger: Ledger, events: Iterable[Event]) -> bool:
    """Whether trials start because of a command's events, if no driver is at work.

    >>> from nbdist.sweep.start import open_sweep
    >>> ledger = Ledger(open_sweep(Space({"width": [32, 64]}), metric="accuracy", sampler="grid", now=0.0))
    >>> starts_trials(ledger, [Added(1.0, 2)]), starts_trials(ledger, [Paused(1.0)])
    (True, False)
    """
    kinds = {type(event) for event in events}
    if ledger.closed or Closed in kinds or Paused in kinds or (ledger.paused and Resumed not in kinds):
        return False
    if SpaceEdited in kinds and ledger.left:
        return True
    return bool(kinds & {Added, Cloned, Retried, Promoted, Resumed})


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
                raise InvalidArgumentError(f"{name} does not exist with these values: it is {space[name]}")
        elif name in merged:
            found[name] = merged[name]
        else:
            raise InvalidArgumentError(f"say which {name} the new trial has; it may be {space[name]}")
    return {name: found[name] for name in (*space, *parameters) if name in found}


def trial_of(ledger: Ledger, number: int) -> Trial:
    """Return a trial; raises NotFoundError if no trial has this number."""
    if number not in ledger.trials:
        there = f"the sweep has 0 to {max(ledger.trials)}" if ledger.trials else "the sweep has no trials yet"
        raise NotFoundError(f"no trial {number}; {there}")
    return ledger.trials[number]


def _dropped(trial: Trial, why: str, now: float) -> Ended:
    return Ended(now, trial.number, trial.attempt, "stopped", trial.value, {}, why)


def _check_not_closed(ledger: Ledger) -> None:
    if ledger.closed:
        raise FailedPreconditionError("the sweep is over; start another one, its log keeps this one")
