"""Runs a body on one task: code or a function, under a strategy, with its output and points sent off.

This is the part of a run that happens on the engine's main thread, or on a thread of the notebook.
"""

from __future__ import annotations

import linecache
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from nbdist.cluster.folder import busy_with, clusters_folder
from nbdist.errors import (
    AbortedError,
    InvalidArgumentError,
    NbdistError,
    ResourceExhaustedError,
    UnavailableError,
)
from nbdist.home import private_folder
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.tensorboard import events_folder
from nbdist.nn import Model
from nbdist.runs import bodycode, parcel
from nbdist.runs.agent import Agent, agent
from nbdist.runs.bodycode import Code
from nbdist.runs.delivery import Given, Pushed, lent, with_closure
from nbdist.runs.live import Live
from nbdist.runs.output import Output, displaying_to, printing_to
from nbdist.runs.signals import bodies_only, interruptible
from nbdist.runs.strategies import strategy_of
from nbdist.runs.tracebacks import shown
from nbdist.runtime.groups import World
from nbdist.runtime.task import Task, current
from nbdist.train import context as contexts
from nbdist.train.callbacks import History
from nbdist.train.context import Checkpoints
from nbdist.train.custom.api import end_loops
from nbdist.train.step_timing import StepLog

OWN_FILES = (__file__, bodycode.__file__)  # which no traceback has to show
CUT_OFF = (AbortedError, UnavailableError)  # what a replica is told by another that has stopped
MOST_MESSAGE, MOST_TRACEBACK = 2_000, 20_000  # characters of an error that travel home


@dataclass(frozen=True)
class Order:
    """What a task is asked to run; plain values, so that it can be shipped."""

    run: str
    folder: str
    ranks: tuple[int, ...]
    strategy: str
    synchronous: bool
    transport: str
    seed: int
    epochs: int | None
    fetch: tuple[str, ...]
    data: str = "client"
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the strategy, by the names of Options."""
    tensorboard: bool = False
    timeline: bool = True
    """Whether what the task did when is written into the folder."""
    names: dict[str, Any] | None = None
    """What the body is given: a text its variables, in a namespace of their own, a function its arguments."""
    pushed: Given | Pushed = field(default_factory=Given)
    """Its arguments and pushed values, from the client."""
    first_line: int = 1
    """The number of a text's first line in its cell."""


def run_body(order: Order, body: str | Callable[[], Any]) -> dict[str, Any]:
    """Run a body on this engine; return its outcome as plain data, what it raises too."""
    task, here = current(), agent()
    with busy_with(clusters_folder() / task.cluster_id, order.run), bodies_only():
        live = live_of(order, task, here)
        try:
            outcome = perform(order, body, task, here, live, around(live), partial(_packed, task))
            here.kept.put(order.run, order.folder, outcome)
        finally:
            here.kept.drop(order.run)
    return outcome


def perform(
    order: Order,
    body: str | Callable[..., Any],
    task: Task,
    here: Agent,
    live: Live,
    surrounding: AbstractContextManager[object],
    brought: Callable[[Order, dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    """Run a body as ``live`` on a task, inside ``surrounding``, and return its outcome.

    ``brought`` makes the part of the outcome that holds the results, from what the body has defined.
    """
    here.begin(live)
    outcome: dict[str, Any] = {"rank": task.rank, "task": task.name}
    code, control = (
        Code(order.run, order.fetch, body, order.names, order.first_line) if isinstance(body, str) else None,
        live.context.control,
    )
    lending = ExitStack()
    try:
        with surrounding:
            control.check()  # another call had the task until now, and the run has failed meanwhile
            live.context.progress.state = "running"
            given = order.pushed.open(task.info.host)
            if code is not None:
                lending.enter_context(code.lent(given.names))
                found = code.run()
            else:
                lending.enter_context(lent(getattr(body, "__globals__", {}), given.names))
                found = _call(with_closure(body, given.closure), given, order.names or {})
            end_loops(live.context, whole=True)
            outcome |= brought(order, found)
    except BaseException as error:
        outcome["error"] = describe_error(error, control)
        cut_off = isinstance(error, (KeyboardInterrupt, *CUT_OFF)) and control.stop_requested
        if code is not None and cut_off:
            # It was stopped between two looks at the control: what was trained is kept all the same.
            outcome |= brought(replace(order, fetch=()), code.bound())
    finally:
        lending.close()
        end_loops(live.context, whole=False)
        live.context.progress.state = "finished"
        stopped = control.stop_requested  # what is asked for later has stopped nothing
        here.end(live)
        live.context.world.end()
        live.close()
    if order.timeline:
        here.recorded.write(order.run, order.folder)
    outcome |= {
        "stopped": stopped,
        "ended": time.time(),
        "trainings": live.context.trainings,
        "last_epochs": live.last_epochs(),
        "global_step": live.context.progress.global_step,
        "step": live.context.progress.step,
        "dropped": live.context.progress.dropped,
        "skipped": live.context.progress.skipped,
    }
    return outcome


@contextmanager
def around(live: Live) -> Iterator[None]:
    """Give the whole process to a body: an engine has nothing else to do. It alone is interrupted."""
    output = live.output
    with contexts.use(live.context), printing_to(output), displaying_to(output), interruptible():
        yield


def live_of(order: Order, task: Task, here: Agent, kind: Callable[..., Live] = Live) -> Live:
    """Return what a body on this task has around it; ``kind`` makes it of its parts."""
    folder = private_folder(Path(order.folder))
    recorder = Recorder(
        folder / f"metrics-{task.rank:04d}.log",
        replica=order.ranks.index(task.rank),
        events=events_folder(folder, task.name) if order.tensorboard else None,
    )
    control = here.control(order.run)
    settings = order.settings
    world = World(
        task, order.ranks, order.run, control.check,
        kind=settings.get("collective", "auto"), least=settings.get("min_workers", 1),
    )  # fmt: skip
    context = contexts.Context(
        strategy=strategy_of(order, world, here.prefix),
        world=world,
        recorder=recorder,
        step_log=StepLog(task.device),
        control=control,
        checkpoints=Checkpoints(folder / "checkpoints") if task.rank == order.ranks[0] else None,
        is_chief=task.rank == order.ranks[0],
        device=task.device,
        seed=order.seed,
        quiet=True,
        epochs=order.epochs,
        end_everywhere=lambda number: _end_everywhere(order, task, number),
        rest_everywhere=lambda number: _rest_everywhere(order, task, number),
    )
    return kind(order.run, context, recorder, Output(folder / f"output-{task.rank:04d}.log"))


def _end_everywhere(order: Order, task: Task, number: int) -> None:
    """Tell the other replicas that a callback of the chief has ended a training."""
    for rank in order.ranks:
        if rank != task.rank:
            task.peer(rank).send("run.end_training", {"run": order.run, "number": number})


def _rest_everywhere(order: Order, task: Task, number: int) -> None:
    """Tell the other replicas that the chief rests."""
    for rank in order.ranks:
        if rank != task.rank:
            with suppress(NbdistError):  # it is gone, which others notice
                task.peer(rank).send("run.control", {"run": order.run, "do": "rest", "number": number})


def _call(body: Any, given: Given, names: dict[str, Any]) -> dict[str, Any]:
    """Run a function; return what it returned, and the model and the history in it, by name."""
    if getattr(body, "__module__", "") == "__main__":  # typed by the user, who knows nbdist as nb
        getattr(body, "__globals__", {}).setdefault("nb", import_module("nbdist"))
    value = body(*given.args, **{**given.kwargs, **names})
    return {"result": value, **_named(value)}


def _named(value: Any) -> dict[str, Any]:
    """Find the model and the history in what a function returned."""
    parts = (
        value if isinstance(value, (tuple, list)) else value.values() if isinstance(value, dict) else [value]
    )
    found: dict[str, Any] = dict(value) if isinstance(value, dict) else {}
    for part in parts:
        if isinstance(part, Model):
            found.setdefault("model", part)
        elif isinstance(part, History):
            found.setdefault("history", part)
    return {name: v for name, v in found.items() if isinstance(name, str)}


def _packed(task: Task, order: Order, found: dict[str, Any]) -> dict[str, Any]:
    """Pack what comes home. Only the chief's does; names asked for must be there."""
    if task.rank != order.ranks[0]:
        return {}
    results, left = {}, []
    check_fetched(order, found)
    for name, value in found.items():
        try:
            results[name] = parcel.pack(value)
        except (InvalidArgumentError, ResourceExhaustedError) as error:
            if name in order.fetch:
                raise InvalidArgumentError(f"--fetch {name}: {error}") from None
            if isinstance(error, ResourceExhaustedError):
                left.append(f"{name} stayed on {task.name}: {error}")
    return {"results": results, "left": left}


def check_fetched(order: Order, found: dict[str, Any]) -> None:
    """Raise unless the body has defined all names that were asked for."""
    for name in order.fetch:
        if name not in found:
            raise InvalidArgumentError(f"--fetch {name}: the body defined no {name!r}")


def describe_error(error: BaseException, control: contexts.Control) -> dict[str, Any]:
    """Return an error as plain data, with the part of its traceback that is the user's."""
    first = error.__traceback__
    while first is not None and not first.tb_frame.f_code.co_filename.startswith("<distribute "):
        first = first.tb_next
    if first is None and isinstance(error, SyntaxError):  # it names the user's line itself
        if error.text is None and error.filename and error.lineno:
            error.text = linecache.getline(error.filename, error.lineno) or None
        lines = traceback.format_exception_only(error)
    else:
        first = first or error.__traceback__
        while first is not None and first.tb_frame.f_code.co_filename in OWN_FILES:
            first = first.tb_next
        lines = [shown(error, first)]
    cut_off = control.aborted is not None or control.stop_requested
    try:
        message = str(error)
    except Exception as unprintable:
        message = f"(its message cannot be printed: {type(unprintable).__name__})"
    return {
        "type": type(error).__name__,
        "message": _cut(message, MOST_MESSAGE),
        "traceback": _cut("".join(lines), MOST_TRACEBACK),
        "aborted": isinstance(error, CUT_OFF) and cut_off,
        "interrupted": isinstance(error, KeyboardInterrupt),
        "undefined": (getattr(error, "name", None) or "") if isinstance(error, NameError) else "",
    }


def _cut(text: str, most: int) -> str:
    """Leave the middle out of a text that is too long."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"
