"""What a training finds around it: the strategy, where points go, and whether it should stop.

In the notebook there is a default context (one device, nothing recorded). A distributed body runs inside
one that the run made for its task.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from nbdist.metrics.recorder import Recorder
from nbdist.runtime.groups import World
from nbdist.train.checkpoints import Checkpoints
from nbdist.train.control import Control as Control
from nbdist.train.resume import TrainingStates
from nbdist.train.steplog import StepLog
from nbdist.train.strategy import OneDeviceStrategy, Strategy

SPENT = ("data", "compute", "exchange", "wait")


@dataclass
class Progress:
    """How far a training is; written by the training thread, read by others."""

    step: int = 0
    total: int | None = None
    epoch: int | None = None
    """The current epoch of ``fit``, from 1 on; None in custom loops."""
    epochs: int | None = None
    """The number of epochs of ``fit``."""
    examples: int = 0
    global_step: int = 0
    """Updates by all replicas together, over all trainings of the run."""
    by_updates: bool = False
    """Whether curves are drawn over ``global_step``, and not over this replica's own steps."""
    state: str = "starting"
    trainings: int = 0
    """Trainings begun so far: replicas that share parameters have to begin the same number."""
    skipped: int = 0
    """Steps that this replica had no part in, because its gradient was no number."""
    dropped: int = 0
    """Gradients of this replica that came too late for their step."""
    lost: list[int] = field(default_factory=list)
    """Ranks of tasks that the others have gone on without."""
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))
    """Seconds so far by part of a step: getting data, computing, exchanging, waiting. Pauses are in none."""
    rested: float = 0.0
    """Seconds of pauses between two steps so far."""
    last_rest: tuple[int, float] = (0, 0.0)
    """A pause that a stop ended: its step and its seconds. It counts only if a step follows."""
    learning_rate: float | None = None
    """The rate of the next update; None where this replica knows of none, or of several."""
    checkpoint: dict[str, Any] | None = None
    """The last checkpoint that was asked for: its number, step, path (None if it failed) and error."""


@dataclass
class Context:
    """The surroundings of a training on one replica."""

    strategy: Strategy = field(default_factory=OneDeviceStrategy)
    recorder: Recorder | None = None
    step_log: StepLog | None = None
    """Takes note of when each step did what, for the run's timeline."""
    control: Control = field(default_factory=Control)
    progress: Progress = field(default_factory=Progress)
    is_chief: bool = True
    device: str = "CPU:0"
    seed: int | None = None
    quiet: bool = False
    """Whether progress is shown elsewhere, so that ``fit`` prints nothing."""
    epochs: int | None = None
    """What ``--epochs`` says; it wins over ``fit(epochs=...)``."""
    end_everywhere: Callable[[int], None] | None = None
    """Tells the other replicas that a callback of the chief has ended a training, by its number."""
    rest_everywhere: Callable[[int], None] | None = None
    """Tells the other replicas that the chief rests, in a pause of a number."""
    checkpoints: Checkpoints | None = None
    """Where checkpoints go that are asked for while this replica trains; the chief has it."""
    states: TrainingStates | None = None
    """Where the state of each training goes at its end, and the one to go on from."""
    ends_in_log: bool = False
    """Whether ``nb.log`` ends a body that was asked to stop, for there may be no step that would."""
    fitting: bool = False
    """Whether a ``fit`` is under way, which ends by itself when it is asked to stop."""
    rates_heard: int = 0
    """How many of the control's learning rates this replica has taken in."""
    towers: Callable[[int], Context] | None = None
    """In an in-graph run, the context of a tower by its number: for towers that go their own ways, each on a
    thread of its own. The same number gives the same context throughout a run. Of towers that step together
    the strategy's ``on_tower`` tells instead, and this context's own recorder takes validation only."""
    world: World = field(default_factory=World)
    """All replicas of the run."""
    metric_names: list[str] = field(default_factory=list)
    """What the model that is trained measures beside its loss."""
    trainings: int = 0
    logged: dict[str, int] = field(default_factory=dict)
    """The last step of each series that ``nb.log`` has counted itself."""
    last_epoch: dict[str, float] = field(default_factory=dict)
    """Means of the last epoch of the last training."""


_current: Context | None = None
_here: ContextVar[Context | None] = ContextVar("nbdist's context of this thread", default=None)
_lock = threading.Lock()


def current() -> Context:
    """Return the context of this thread, or of the run in this process, or a new one without a run.

    Steps count from 0 in a new one.
    """
    return _here.get() or _current or Context()


@contextlib.contextmanager
def use(context: Context) -> Iterator[Context]:
    """Make ``context`` this process's current one, inside a ``with``."""
    global _current
    with _lock:
        outer, _current = _current, context
    try:
        yield context
    finally:
        with _lock:
            _current = outer


@contextlib.contextmanager
def use_here(context: Context) -> Iterator[Context]:
    """Make ``context`` the current one of this thread alone, inside a ``with``."""
    token = _here.set(context)
    try:
        yield context
    finally:
        _here.reset(token)


def get_strategy() -> Strategy:
    """Return the strategy that training here would use.

    >>> get_strategy().name
    'one_device'
    """
    return current().strategy
