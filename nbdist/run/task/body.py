"""Runs a body on one task: code or a function, under a strategy, with its output and points sent off.

This is the part of a run that happens on the engine's main thread, or on a thread of the notebook.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from nbdist.checkpoint.manager import parse_interval
from nbdist.cluster.code_origin import BODY, NBDIST, NOTEBOOK, OF_BODY, origin
from nbdist.cluster.folder import busy_with
from nbdist.cluster.post_mortem import keeping_failure
from nbdist.cluster.supervisor.engine import replies_only
from nbdist.cluster.time_limits import SAVE_AT_VARIABLE
from nbdist.distribute.registry import make_strategy
from nbdist.errors import (
    AbortedError,
    InvalidArgumentError,
    NbdistError,
    ResourceExhaustedError,
    UnavailableError,
)
from nbdist.frameworks.environment import framework_environment
from nbdist.frameworks.patches import Patches
from nbdist.frameworks.registry import FRAMEWORKS, SPECS, framework_of, model_types, unwrapped
from nbdist.frameworks.steering import seeding, seen_and_steered, seen_in_plain_cell
from nbdist.graph.gpu_errors import GPU_LOST_STATUS, lost_gpu
from nbdist.metrics.event_file import events_folder
from nbdist.metrics.log import log_path
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.run_events import EventLog, events_path
from nbdist.metrics.run_folder import duration
from nbdist.nn import Model
from nbdist.run.files.place import RunPlace
from nbdist.run.files.states import states_of_others
from nbdist.run.options import Options, words_of
from nbdist.run.task.agent import Agent, agent
from nbdist.run.task.data_reader import DataReader
from nbdist.run.task.edited_modules import settle_edits
from nbdist.run.task.event_loop import EventLoop, no_running_loop
from nbdist.run.task.reporting import ActiveRun, Output, displaying_to, printing_to
from nbdist.run.task.signals import bodies_only, interruptible
from nbdist.run.task.spawned import sent_by_value
from nbdist.run.task.terminal import without_terminal
from nbdist.run.values.delivery import Given, Pushed, names_added, with_closure
from nbdist.run.values.outcome import is_data, pack
from nbdist.runtime.groups import World
from nbdist.runtime.task import Task, current
from nbdist.text import cut_middle
from nbdist.train import context as contexts
from nbdist.train.artifacts import Artifacts
from nbdist.train.callbacks import History
from nbdist.train.context import Checkpoints
from nbdist.train.custom.api import end_loops
from nbdist.train.replica import ReplicaLeft
from nbdist.train.resume import TrainingStates
from nbdist.train.step_timing import StepLog
from nbdist.train.summaries import RunSummaries
from nbdist.wire.hosts import host_identity

OWN_FILES = (__file__,)  # which no traceback has to show
PASSED = {file for one in SPECS.values() for file in one.inner_files}
CUT_OFF = (AbortedError, UnavailableError)  # what a replica receives from another that has stopped
COMMANDS_SECONDS = 2.0  # for another task to say which commands the run has received
RETRY_SECONDS = 0.05  # until a task that did not answer is called again
MOST_MESSAGE, MOST_TRACEBACK = 2_000, 20_000  # characters of an error that are sent to the client


@dataclass(frozen=True)
class RunSpec:
    """What a task has to run: plain values that are sent with the call."""

    run: str
    place: RunPlace
    """Where its files are."""
    ranks: tuple[int, ...]
    """Of the replicas; the chief's first."""
    options: Options
    """What the user has asked for, resolved, with the run's seed."""
    strategy: str
    """That of the replicas, also where the options name none."""
    awaits: bool = False
    """Whether a step that needs a lost worker waits for its new process, which the run starts."""
    names: dict[str, Any] | None = None
    """Variables of a text, in a namespace of its own, or arguments of a function."""
    pushed: Given | Pushed = field(default_factory=Given)
    """Arguments and pushed values from the client."""
    first_line: int = 1
    """The number of a text's first line in its cell."""
    states: tuple[str, ...] = ()
    """The states of an earlier run, the newest first, of which the training continues one."""
    rejoins: bool = False
    """Whether the task's process joins a run that is under way: as a replacement, or as a new worker."""
    numbers: tuple[int, ...] = ()
    """The numbers of the replicas in the run, where some were added or have left; else their places."""
    began_with: int | None = None
    """How many replicas the run began with, if there may be another number now."""
    framework_port: int | None = None
    """The port of a framework's rendezvous, on the first worker; None if the workers agree on one."""
    origin: tuple[str, float] | None = None
    """The client's host, and its time of day less its clock at the run's begin: one for all tasks there."""
    autoreload: tuple[str, ...] = ()
    """Which modules are reloaded before the body if they were edited, as `autoreloaded` names them."""
    generators: int | None = None
    """What the global generators of NumPy, Python and PyTorch begin with; None leaves them as they are."""
    connection: Mapping[str, Any] | None = field(default=None, repr=False)
    """How workers connect to the controller, with its keys, if they send datasets to data tasks."""


@replies_only
def run_body(spec: RunSpec, body: str | Callable[[], Any]) -> dict[str, Any]:
    """Run a body on this engine; return its outcome as plain data, what it raises too."""
    here = agent()
    with busy_with(spec.run), bodies_only():
        try:
            # Before the run begins: a client that finds it under way may ask for its body at once.
            here.body = spec, body
            with opened(spec, here) as live:
                outcome = perform(
                    spec, body, live, here,
                    debuggable(body_environment(live, spec), spec.run),
                    partial(_pack_results, live.context),
                )  # fmt: skip
                live.small = is_small(outcome)
            try:
                here.cached_outcome.put(spec.run, str(live.recorder.path.parent), outcome)
            except BaseException:
                here.send_left(live)
                raise
        finally:
            here.body = None
            here.cached_outcome.drop(spec.run)
    if live.unsent is not None:
        outcome = {**outcome, "last": live.unsent}
    return SmallOutcome(outcome) if is_small(outcome) else outcome


def is_small(outcome: Mapping[str, Any]) -> bool:
    """Return whether an outcome has neither results nor a model, of which each may be large."""
    return not (outcome.get("results") or outcome.get("model"))


class SmallOutcome(dict[str, Any]):
    """An outcome that is pickled as a whole: ipyparallel looks for large arrays in each value of a dict."""


def end_without_gpu(task: str, error: BaseException) -> None:
    """End this engine's process if an error says that its GPU is lost, as a death would end it.

    It ends at once: the driver answers no call for a lost GPU, so that a regular end could wait for ever, and
    the other replicas have to find a process that is gone, not a replica that has failed.
    """
    if reason := lost_gpu(error):
        print(f"{task}: its GPU is lost: {reason}", file=sys.__stderr__, flush=True)  # the engine's log
        os._exit(GPU_LOST_STATUS)


def perform(
    spec: RunSpec,
    body: str | Callable[..., Any],
    live: ActiveRun,
    here: Agent,
    environment: AbstractContextManager[object],
    collect: Callable[[Sequence[str], dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    """Run a body as ``live``, inside ``environment``, and return its outcome.

    ``collect`` makes the part of the outcome that holds the results, from the names to fetch and what the
    body has defined.
    """
    context, control = live.context, live.context.control
    progress, fetch = context.progress, spec.options.fetch
    outcome: dict[str, Any] = {"rank": here.task.rank, "task": here.task.name}
    code = Code(context, fetch, body, spec.names, spec.first_line) if isinstance(body, str) else None
    stack = ExitStack()
    try:
        with environment:
            control.check()  # another call had the task until now, and the run may have failed
            progress.state = "running"
            given = spec.pushed.open(here.task.info.host)
            if spec.options.argv is not None:
                stack.enter_context(arguments(spec.options.name, words_of(spec.options.argv)))
            if code is not None:
                stack.enter_context(names_added(code.namespace, given.names))  # parameters override them
                found = code.run()
            else:
                stack.enter_context(names_added(getattr(body, "__globals__", {}), given.names))
                found = _call(with_closure(body, given.closure), given, spec.names or {})
            end_loops(context, whole=True)
            outcome |= collect(fetch, found)
    except ReplicaLeft:
        outcome["left_at"] = progress.left_at
    except BaseException as error:
        context.on_error(error)
        outcome["error"] = describe_error(error, control)
        cut_off = isinstance(error, (KeyboardInterrupt, *CUT_OFF)) and control.stop_requested
        if code is not None and cut_off:
            # It was stopped between two looks at the control: what was trained is kept all the same.
            outcome |= collect((), code.bound())
    finally:
        stack.close()
        end_loops(context, whole=False)
        progress.state = "finished"
        stopped = control.stop_requested  # what is asked for later has stopped nothing
    return outcome | {
        "stopped": stopped,
        "ended": time.time(),
        "trainings": context.trainings,
        "own_loops": context.own_loops,
        "computed_in": context.has_computed_in,
        "monitored": progress.sessions,
        "joined": progress.joined,
        "last_epochs": live.last_epochs(),
        "global_step": progress.global_step,
        "step": progress.step,
        "dropped": progress.dropped,
        "skipped": progress.skipped,
    }


@contextmanager
def arguments(name: str, words: list[str]) -> Iterator[None]:
    """Have a body find these words in ``sys.argv``."""
    before, sys.argv = sys.argv, [name, *words]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def body_environment(live: ActiveRun, spec: RunSpec) -> Iterator[None]:
    """Give the whole process to a body: an engine has nothing else to do. It alone is interrupted."""
    context, output, framework = live.context, live.output, live.context.framework
    inner = interruptible()
    if framework is not None:
        inner = framework_environment(
            FRAMEWORKS[framework](), context.world, context.control, spec.framework_port, interruptible
        )
    with (
        contexts.use(context),
        printing_to(output),
        displaying_to(output),
        without_terminal(),
        no_running_loop(),
        sent_by_value(),
        ExitStack() as steered,
        inner,
    ):
        if spec.generators is not None:
            np.random.seed(spec.generators % 2**32)
            random.seed(spec.generators)
            steered.enter_context(Patches(seeding(spec.generators), context.note))
        if framework is not None:  # ends after `inner`, so that no interrupt cuts its end off
            steered.enter_context(seen_and_steered(framework, context))
        else:
            steered.enter_context(seen_in_plain_cell(context))
        settle_edits(spec.autoreload, context.note)
        yield


@contextmanager
def debuggable(environment: AbstractContextManager[object], run: str) -> Iterator[None]:
    """Keep the frames of what a body raises inside an environment, for a look into them afterwards."""
    with environment, keeping_failure(run):
        yield


@contextmanager
def opened(
    spec: RunSpec, here: Agent, kind: Callable[..., ActiveRun] = ActiveRun, **own: Any
) -> Iterator[ActiveRun]:
    """Open a run on this task, inside a ``with``: its context, its logs and its output; ``kind`` makes it.

    ``own`` are fields of the context that differ for this kind.
    """
    folder, options, task = spec.place.folder(), spec.options, here.task
    control, events = here.control(spec.run), events_folder(folder, task.name)
    recorder = Recorder(
        log_path(folder, task.rank),
        replica=(spec.numbers or range(len(spec.ranks)))[spec.ranks.index(task.rank)],
        events=events if options.tensorboard else None,
        rejoins=spec.rejoins,
        origin=spec.origin[1] if spec.origin and spec.origin[0] == host_identity() else None,
    )
    world = World(
        task, spec.ranks, spec.run, control.check,
        kind=options.collective, least=options.min_workers or 1, rejoins=spec.rejoins,
        coordinator=here.groups, numbers=spec.numbers, began_with=spec.began_with,
    )  # fmt: skip
    others = OtherReplicas(spec.run, spec.ranks, here, control)
    if spec.rejoins:
        others.take_commands()
    context = make_context(
        spec, folder, task, control,
        world=world,
        strategy=make_strategy(
            spec.strategy, options, world,
            synchronous=bool(options.synchronous), awaits=spec.awaits, prefix=here.prefix,
        ),
        recorder=recorder,
        events=EventLog(events_path(folder, task.rank), recorder.say),
        serve=DataReader(task, spec.run, control.check, options.transport, spec.connection or {}).served
        if options.data == "service"
        else None,
        on_error=partial(end_without_gpu, task.name),
        end_everywhere=others.end_training,
        rest_everywhere=others.rest,
        plan_everywhere=others.plan,
        **own,
    )  # fmt: skip
    context.summaries = RunSummaries(recorder, events, context.step, spec.rejoins)
    live = kind(spec.run, context, recorder, Output(folder / f"output-{task.rank:04d}.log"))
    with under_way(live, here):
        yield live


@contextmanager
def under_way(live: ActiveRun, here: Agent) -> Iterator[None]:
    """Report a run on this task to its clients, inside a ``with``; then end it and close its logs."""
    here.begin(live)
    try:
        yield
    finally:
        if live.context.summaries is not None:
            live.context.summaries.flush()  # the last messages have the last pictures
        here.end(live)
        live.context.world.end()
        live.close()
    if live.has_timeline:
        here.traces.write(live.run, live.recorder.path.parent)


def make_context(
    spec: RunSpec, folder: Path, task: Task, control: contexts.Control, **own: Any
) -> contexts.Context:
    """Return the context of a body on a task, with its files in a folder.

    ``own`` are the fields of this kind of run.
    """
    options, states = spec.options, None
    every, at = options.checkpoint_every, os.environ.get(SAVE_AT_VARIABLE)
    if every is not None or spec.states or at is not None:
        interval = None if every is None else parse_interval(every)
        last = None if at is None else float(at) - time.monotonic()
        read = [spec.place.received(one) for one in spec.states]
        states = TrainingStates(folder, interval, read=read, last=last)
        states.others = partial(states_of_others, spec.place, task, spec.ranks)
    common: dict[str, Any] = {
        "step_log": StepLog(task.device),
        "artifacts": Artifacts(
            folder / "artifacts",
            "" if task.rank == spec.ranks[0] else f"{task.job}-{task.index}",
            options.artifact_quota,
        ),
        "checkpoints": Checkpoints(folder / "checkpoints"),
        "states": states,
        "is_chief": task.rank == spec.ranks[0],
        "framework": options.framework,
        # Such a body trains by calls of its own, between which nothing looks for a stop.
        "ends_in_log": options.framework is not None,
    }
    context = contexts.Context(
        run=spec.run, device=task.device, options=options, seed=options.seed, quiet=True,
        control=control, **{**common, **own},
    )  # fmt: skip
    if states is not None:
        states.written = context.note_state
    return context


class OtherReplicas:
    """Messages to the other replicas of a run, which began with ``ranks``."""

    def __init__(self, run: str, ranks: Sequence[int], here: Agent, control: contexts.Control) -> None:
        self._run, self._here, self._control = run, here, control
        self._ranks = [rank for rank in ranks if rank != here.task.rank]

    def end_training(self, number: int) -> None:
        """Notify them that a callback of the chief has ended a training."""
        self._send("run.end_training", {"number": number})

    def rest(self, number: int) -> None:
        """Notify them that the chief rests."""
        self._send("run.control", {"do": "rest", "number": number})

    def _send(self, kind: str, meta: dict[str, Any]) -> None:
        """Send a message to all, also to those that were added since."""
        for rank in sorted({*self._ranks, *self._here.added(self._run)} - {self._here.task.rank}):
            with suppress(NbdistError):  # it has ended, which the failure detector reports, or has left
                self._here.task.peer(rank).send(kind, {"run": self._run, **meta})

    def plan(self, plan: contexts.StepPlan) -> None:
        """Give them a plan for a step; return when each has it, or has ended.

        Raises AbortedError if the run is aborted, as it is when one of them is lost.
        """
        message = {"run": self._run, "do": "plan", **asdict(plan)}
        for rank in self._ranks:
            while True:
                try:
                    self._here.task.peer(rank).call("run.control", message, timeout=COMMANDS_SECONDS)
                    break
                except NbdistError:  # it is lost or slow; a plan that it has twice changes nothing
                    self._control.check()
                    time.sleep(RETRY_SECONDS)

    def take_commands(self) -> None:
        """Take over the commands that they have received: a pause, or the end of a training."""
        for rank in self._ranks:
            try:
                peer = self._here.task.peer(rank)
                meta = peer.call("run.commands", {"run": self._run}, timeout=COMMANDS_SECONDS).meta
            except NbdistError:  # it has ended or is frozen: the next one
                continue
            if meta["running"]:
                self._control.ended_training = int(meta["ended_training"])
                if meta["paused"]:
                    self._control.pause(int(meta["pause_number"]))
                return


def _call(body: Any, given: Given, names: dict[str, Any]) -> dict[str, Any]:
    """Run a function; return what it returned under `RETURNED`, and by name the parts that have one."""
    if getattr(body, "__module__", "") == "__main__":  # typed by the user, as nb
        getattr(body, "__globals__", {}).setdefault("nb", import_module("nbdist"))
    with EventLoop() as loop:
        value = loop.result(body(*given.args, **{**given.kwargs, **names}))
    return {RETURNED: value, **_named(value)}


RETURNED = "result"


def _named(value: Any) -> dict[str, Any]:
    """Return the parts of what a function returned: a dict's values, and the first model and history."""
    parts = value.values() if isinstance(value, dict) else _parts(value)
    found: dict[str, Any] = dict(value) if isinstance(value, dict) else {}
    for part in parts:
        if _is_model(part):
            found.setdefault("model", part)
        elif isinstance(part, History):
            found.setdefault("history", part)
    return {name: v for name, v in found.items() if isinstance(name, str)}


def _parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else [value]


def _needed(found: Mapping[str, Any]) -> set[str]:
    """Return the names of which the user should know if they cannot be fetched.

    Those are modules, and all parts of what a function returned: values of a dict by their own names, and the
    rest as a whole, unless it is models and histories only, which have names.
    """
    needed = {name for name, value in found.items() if framework_of(value) and name != RETURNED}
    returned = found.get(RETURNED)
    if isinstance(returned, dict):
        return needed | {name for name in returned if isinstance(name, str)}
    unnamed = any(
        part is not None and part is not found.get("model") and not isinstance(part, History)
        for part in _parts(returned)
    )
    return needed | {RETURNED} if unnamed else needed


def _pack_results(context: contexts.Context, fetch: Sequence[str], found: dict[str, Any]) -> dict[str, Any]:
    """Pack the results to be fetched: the chief's only; names in ``fetch`` must be defined."""
    weights = [] if context.weights is None else context.weights()
    if not context.is_chief:
        return {"weights": weights}
    results, left, unfetched = {}, [], []
    check_fetched(fetch, found)
    needed = _needed(found)
    for name, value in found.items():
        try:
            results[name] = pack(value)
        except (InvalidArgumentError, ResourceExhaustedError) as error:
            if name in fetch:
                raise InvalidArgumentError(f"--fetch {name}: {error}") from None
            if isinstance(error, ResourceExhaustedError) or name in needed:
                left.append(f"{name} stayed on {current().name}: {error}")
            elif is_data(value):
                unfetched.append(name)
    return {
        "results": results, "left": left, "unfetched": unfetched, "weights": weights,
        "model": trained_model(context, found),
    }  # fmt: skip


def trained_model(context: contexts.Context, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return which model a body has trained that calls none `model`: its name there, or what it is.

    The names of several; None if it has trained none.
    """
    if _is_model(found.get("model")):
        return None
    modules = list(context.trained()) if context.trained is not None else []
    names = {
        name: value
        for name, value in found.items()
        if _is_model(value)
        and (context.has_fitted(value) or any(unwrapped(value) is module for module in modules))
    }
    firsts: dict[int, str] = {}
    for name, value in names.items():
        firsts.setdefault(id(unwrapped(value)), name)
    if len({*map(id, modules), *firsts}) != 1:
        return {"several": [*firsts.values()]} if len(firsts) > 1 else None
    if names:  # the module itself rather than what wraps it
        return {"name": min(names, key=lambda name: names[name] is not unwrapped(names[name]))}
    try:
        return {"name": "", "class": type(modules[0]).__name__, "packed": pack(modules[0])}
    except (InvalidArgumentError, ResourceExhaustedError):
        return None


def _is_model(value: Any) -> bool:
    return issubclass(type(value), (Model, *model_types()))


def check_fetched(fetch: Sequence[str], found: dict[str, Any]) -> None:
    """Raise unless the body has defined all names that were asked for."""
    for name in fetch:
        if name not in found:
            raise InvalidArgumentError(f"--fetch {name}: the body defined no {name!r}")


def describe_error(error: BaseException, control: contexts.Control) -> dict[str, Any]:
    """Return an error as plain data, with the part of its traceback that is the user's."""
    first = error.__traceback__
    while first is not None and not first.tb_frame.f_code.co_filename.startswith(OF_BODY):
        first = first.tb_next
    if first is None and isinstance(error, SyntaxError):  # it names the user's line itself
        if error.text is None and error.filename and error.lineno:
            error.text = linecache.getline(error.filename, error.lineno) or None
        lines = traceback.format_exception_only(error)
    else:
        first = first or error.__traceback__
        while first is not None and first.tb_frame.f_code.co_filename in OWN_FILES:
            first = first.tb_next
        lines = [shown(error, first), launcher_advice(error), environment_advice(error), exit_advice(error)]
    cut_off = control.aborted is not None or control.stop_requested
    try:
        message = str(error)
    except Exception as unprintable:
        message = f"(its message cannot be printed: {type(unprintable).__name__})"
    return {
        "type": type(error).__name__,
        "message": cut_middle(message, MOST_MESSAGE),
        "traceback": cut_middle("".join(lines), MOST_TRACEBACK),
        "aborted": isinstance(error, CUT_OFF) and cut_off,
        "interrupted": isinstance(error, KeyboardInterrupt),
        "undefined": (getattr(error, "name", None) or "") if isinstance(error, NameError) else "",
    }


# Bodies given as source text: executed in the namespace of the notebook or the engine.
#
# Names that it has bound and models that it has trained are distinguished from earlier ones.

USUAL_NAMES = ("history", "model")


class Code:
    """A body that is source text, run in the task's namespace; with ``names`` in a copy that has these."""

    def __init__(
        self,
        context: contexts.Context,
        fetch: Sequence[str],
        source: str,
        names: Mapping[str, Any] | None = None,
        first_line: int = 1,
    ) -> None:
        self._context, self._fetch, self._source, self._names = context, fetch, source, names
        self._first_line = first_line
        shell = _shell()
        self.namespace: dict[str, Any] = {"__name__": "__main__"} if shell is None else shell.user_ns
        if names is not None:
            self.namespace = dict(self.namespace)
        self._before: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        """Run it; return what it defined, by name."""
        self.namespace.update(self._names or {})
        namespace, file = self.namespace, filename(self._context.run)
        source = as_python(self._source, self._first_line)
        # With the body's lines, tracebacks show them.
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        namespace.setdefault("nb", import_module("nbdist"))  # the name that bodies know it by
        tree = ast.parse(source, file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        self._before = {name: namespace.get(name) for name in assigned_names(tree)}
        wanted = {*self._fetch, *(certain_names(tree) | set(USUAL_NAMES)) & set(self._before)}
        began = time.perf_counter()
        with EventLoop() as loop:
            loop.execute(compile(tree, file, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
            if isinstance(last, ast.Expr):
                expression = ast.Expression(last.value)
                value = loop.execute(
                    compile(expression, file, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace
                )
                if value is not None:
                    _show(value)
        if first_magic(self._source) == TIME:
            print(f"Wall time: {duration(time.perf_counter() - began)}")
        return self.bound() | {name: namespace[name] for name in wanted if name in namespace}

    def bound(self) -> dict[str, Any]:
        """Return the names that it has bound to another value than before, so far, and models it has trained.

        A model of an earlier body, or of an earlier cell, is not what it was once it has been trained.
        """
        there = {name: self.namespace[name] for name in self._before if name in self.namespace}
        found = {name: value for name, value in there.items() if value is not self._before[name]}
        trained = {n: model for n, model in models_in(self.namespace) if self._context.has_fitted(model)}
        return found | trained


TIME = "%%time"
OUTSIDE = ("%%capture", "%%prun", "%%memit", "%%pyinstrument", "%%scalene")
"""Magics that would execute a body as a cell of the engine, where its names do not belong to the run."""


def first_magic(source: str) -> str:
    """Return the cell magic that a body begins with, without its options; empty without one.

    >>> first_magic("%%time\\nx = 1"), first_magic("x = 1")
    ('%%time', '')
    """
    word = source.split(maxsplit=1)[0] if source.strip() else ""
    return word if word.startswith("%%") else ""


def as_python(source: str, first_line: int = 1) -> str:
    """Return a body as Python alone, IPython's own lines translated, each line under its number in the cell.

    >>> as_python("x = 1\\n", 3)
    '\\n\\nx = 1\\n'
    """
    from IPython.core.inputtransformer2 import TransformerManager

    if first_magic(source) == TIME:
        source = source.replace(TIME, "", 1)
    shell = _shell()
    translated: str = shell.transform_cell(source) if shell is not None else source
    if shell is None and any(line.lstrip()[:1] in ("%", "!") for line in source.splitlines()):
        translated = TransformerManager().transform_cell(source)
    lines = source.splitlines(keepends=True)
    dropped = 0 if translated == source else next((i for i, line in enumerate(lines) if line.strip()), 0)
    return "\n" * (first_line - 1 + dropped) + translated


def check_source(source: str, first_line: int = 1) -> None:
    """Raise InvalidArgumentError, with the line in the cell, for a body that is not Python.

    >>> check_source("x = (", first_line=2)
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: SyntaxError in line 2 of the cell: '(' was never closed
        x = (
            ^
    """
    if (magic := first_magic(source)) in OUTSIDE:
        raise InvalidArgumentError(
            f"{magic} in the body would keep the names of the body to itself, and the notebook would get no "
            f"model: write {magic} above %%distribute"
        )
    if magic != TIME:
        with suppress(SyntaxError):  # mostly Python alone, which IPython has not to translate
            _check("\n" * (first_line - 1) + source)
            return
    translated = as_python(source, first_line)
    try:
        _check(translated)
    except SyntaxError as error:
        lines = translated.splitlines()
        known = error.lineno is not None and 0 < error.lineno <= len(lines)
        line = error.text or (lines[error.lineno - 1] if known and error.lineno else "")
        line = line.rstrip("\n")
        shown = f"\n    {line}\n    {' ' * ((error.offset or 1) - 1)}^" if line.strip() else ""
        where = f"line {error.lineno} of the {'cell' if first_line > 1 else 'body'}"
        raise InvalidArgumentError(f"SyntaxError in {where}: {error.msg}{shown}") from None


def _check(source: str) -> None:
    compile(source, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _show(value: Any) -> None:
    """Display the value of a body's last line, as a cell does, if it has more than a text form."""
    shell = _shell()
    data, metadata = ({}, {}) if shell is None else shell.display_formatter.format(value)
    if data.keys() - {"text/plain"}:
        shell.display_pub.publish(data, metadata)
    elif data or shell is None:  # such an object has displayed itself
        print(repr(value))


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    return get_ipython()


def models_in(namespace: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the models, and modules of PyTorch, in a namespace by name, without IPython's own (``_``)."""
    kinds = (Model, *model_types())
    # By type(): isinstance asks the value for its class, and a lazy module would be loaded for that.
    return [
        (name, value)
        for name, value in list(namespace.items())
        if issubclass(type(value), kinds) and not name.startswith("_")
    ]


def filename(run: str) -> str:
    """Return what the body of a run is called in tracebacks."""
    return f"{OF_BODY}{run}>"


def assigned_names(tree: ast.Module) -> list[str]:
    """Return the names that a body binds at its top level, in order."""
    names: dict[str, None] = {}
    for node in _top_level(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
    return [name for name in names if not name.startswith("_")]


def certain_names(tree: ast.Module) -> set[str]:
    """Return the names that a body binds in any case: by assignments in no branch and no loop.

    Other names count as bound only if they have a new value, and equal small numbers are one object.
    """
    kinds = (ast.Assign, ast.AnnAssign, ast.AugAssign)
    plain: list[ast.stmt] = [s for s in tree.body if isinstance(s, kinds) and s.value is not None]
    return set(assigned_names(ast.Module(plain, [])))


def _top_level(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _top_level(child)


# Tracebacks for users: their own lines, without nbdist's frames.
#
# The message of an nbdist error gives the cause and the remedy, and a MemoryError is not a bug in a line of
# nbdist: the frames below the user's last line are left out. Any other error keeps them, because it may be a
# bug of nbdist. Frames of nbdist between two frames of the user, as where a loop calls a step function, are
# always left out.


def shown(error: BaseException, first: TracebackType | None) -> str:
    """Return an error as Python prints it, from the frame ``first`` on, without frames of nbdist."""
    report = traceback.TracebackException(type(error), error, first)
    _trim(report, error)
    return "".join(report.format())


def launcher_advice(error: BaseException) -> str:
    """Return what to do about an error of a framework that has found no launcher; empty for any other error.

    >>> launcher_advice(ValueError("environment variable RANK expected, but not set"))
    'the ranks of a cell have these variables with --framework torch (framework="torch" in nb.launch)\\n'
    """
    found = []
    if isinstance(error, ValueError):
        with suppress(Exception):  # its message cannot be printed
            text = str(error)
            found = [one for one in SPECS.values() if any(part in text for part in one.launcher_errors)]
    if not found:
        return ""
    name = found[0].name
    flag = f'--framework {name} (framework="{name}" in nb.launch)'
    return f"the ranks of a cell have these variables with {flag}\n"


def environment_advice(error: BaseException) -> str:
    """Return what to do about a variable that ``os.environ`` lacks; empty for any other error.

    >>> try:  # doctest: +ELLIPSIS
    ...     os.environ["MY_TOKEN"]
    ... except KeyError as error:
    ...     print(environment_advice(error), end="")
    a worker has the variables that were set when the cluster began: set MY_TOKEN before `%cluster start`, ...
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    if not isinstance(error, KeyError) or not frames or frames[-1][0].f_globals is not vars(os):
        return ""
    return (
        "a worker has the variables that were set when the cluster began: "
        f"set {error.args[0]} before `%cluster start`, or by os.environ in a cell of the workers\n"
    )


def exit_advice(error: BaseException) -> str:
    """Return what to do about the end of a script in a body; empty for any other error.

    >>> exit_advice(SystemExit(0)).partition(":")[0]
    'a body ends with its last line, and sys.exit() is an error in it'
    """
    if not isinstance(error, SystemExit):
        return ""
    return (
        "a body ends with its last line, and sys.exit() is an error in it: leave it out, or return from a "
        "function. argparse calls it for arguments that it does not know; give it yours: parse_args([...])\n"
    )


def _trim(report: traceback.TracebackException, error: BaseException) -> None:
    """Remove uninformative nbdist frames from an error and its causes."""
    last = max((n for n, frame in enumerate(report.stack) if _is_users(frame)), default=0)
    report.stack[:last] = [frame for frame in report.stack[:last] if not _is_own(frame)]
    report.stack[last:] = [frame for frame in report.stack[last:] if frame.filename not in PASSED]
    if launcher_advice(error):  # the frames of the framework's rendezvous say nothing to a user
        del report.stack[last + 1 :]
    if isinstance(error, (NbdistError, MemoryError)):
        while report.stack and _is_own(report.stack[-1]):
            report.stack.pop()
        # What nbdist met with on its way to the message; a cause that is named is part of what it says.
        if report.__context__ is not None and all(map(_is_own, report.__context__.stack)):
            report.__context__ = None
    for part, cause in ((report.__cause__, error.__cause__), (report.__context__, error.__context__)):
        if part is not None and cause is not None:
            _trim(part, cause)


def _is_users(frame: traceback.FrameSummary) -> bool:
    return origin(frame.filename) in (BODY, NOTEBOOK)


def _is_own(frame: traceback.FrameSummary) -> bool:
    # contextlib has a frame between two of nbdist's where a context manager adds to the message.
    return origin(frame.filename) == NBDIST or frame.filename == contextlib.__file__
