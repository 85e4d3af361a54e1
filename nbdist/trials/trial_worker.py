"""An engine's side of a sweep: `TrialServer` receives trials, `serve` is the loop that runs them.

The trial server runs on the thread of the engine's Server, so it accepts trials and answers while the main
thread runs a body.

    driver                                   engine
    trial.register  sweep, token ────────►   reserves the engine for the sweep, and subscribes the driver
    trial.start     sweep, a TrialSpec ──►   queues the trial for the main thread
    trial.leave     sweep, token ────────►   the loop ends after the present trial
                    ◄──── trial.status       whether it serves, its trial, the last result
                    ◄──── trial.reports      values of the sweep's metric
                    ◄──── trial.result       how a trial ended; kept for a driver that registers later

A driver that is silent for 30 s counts as dead: an idle engine then leaves the sweep. Only the driver that
registered last is obeyed, and a repeated message has no further effect.
"""

from __future__ import annotations

import linecache
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nbdist.cluster.folder import busy_with
from nbdist.errors import NbdistError
from nbdist.metrics.log import Batch
from nbdist.metrics.recorder import Recorder
from nbdist.run.files.place import RunPlace
from nbdist.run.progress import trained_apart
from nbdist.run.task.agent import Agent, agent
from nbdist.run.task.body import body_environment, filename, opened, perform
from nbdist.run.task.reporting import SEND_SECONDS, ActiveRun, Output
from nbdist.run.task.signals import bodies_only, forget
from nbdist.runtime.task import Task, current
from nbdist.train.callbacks import History
from nbdist.train.context import Context
from nbdist.train.resume import TrainingStates
from nbdist.trials.protocol import SweepSpec, TrialSpec, run_name, run_spec
from nbdist.wire.rpc.client import Caller
from nbdist.wire.rpc.frame import Frame, encode

SILENT_SECONDS = 30.0  # of a driver; then it counts as dead
LOOK_SECONDS = 2.0
KEPT_SWEEPS = 8  # sweeps whose last end here is kept


class TrialServer:
    """The trials of one engine: the present one, and the last result of each sweep."""

    def __init__(self, here: Agent) -> None:
        self.agent = here
        self.sweep = ""
        self._serving = self._leaving = False
        self._shared = True
        """Whether this engine sees the folder of the sweep that it serves."""
        self._left = ""  # the token of the driver that has left last
        self._lock = threading.Lock()
        self._present: TrialSpec | None = None
        self._results: dict[str, dict[str, Any]] = {}  # the last end, by sweep
        self._begun: dict[str, dict[int, int]] = {}  # the last attempt at each trial, by sweep
        # Reports of the present trial, and of the trials in _results.
        self._reported: dict[tuple[str, int, int], TrialReports] = {}
        self._line: queue.SimpleQueue[TrialSpec | None] = queue.SimpleQueue()
        self._driver: Caller | None = None
        self._registered = ("", "")  # the driver's sweep and token
        self._received_at = 0.0
        server = here.task.server
        server.on("trial.register", self._register)
        server.on("trial.start", self._start)
        server.on("trial.leave", self._leave)

    # The engine's main thread.

    def open(self, spec: SweepSpec, token: str) -> None:
        """Begin to serve a sweep for the driver with this token; send it the status."""
        with self._lock:
            self.sweep, self._serving, self._received_at = spec.sweep, True, time.monotonic()
            self._shared = RunPlace(spec.folder, spec.token).is_shared
            self._line = queue.SimpleQueue()
            self._present, self._leaving = None, token == self._left
            if self._leaving:  # before the main thread was free
                self._line.put(None)
        self.agent.hold(spec.sweep)
        self._send_to_driver(lambda: self._status(spec.sweep))

    def next(self) -> TrialSpec | None:
        """Wait for a trial; None if none follows."""
        while True:
            try:
                return self._line.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if time.monotonic() - self._received_at > SILENT_SECONDS:
                    return None

    def begin(self, trial: TrialSpec) -> TrialReports:
        """Return where the reports of a trial are kept, for a driver that registers later."""
        with self._lock:
            ends = {(sweep, one["number"], one["attempt"]) for sweep, one in self._results.items()}
            self._reported = {key: one for key, one in self._reported.items() if key in ends}
            return self._reported.setdefault((self.sweep, trial.number, trial.attempt), TrialReports())

    def end(self, trial: TrialSpec, result: dict[str, Any]) -> None:
        """Keep the result of a trial, and send it to the driver."""
        sweep, run = self.sweep, run_name(self.sweep, trial.number, trial.attempt)
        meta = {**trial.to_meta(), **result, "sweep": sweep, "rank": self.agent.task.rank}
        try:
            encode(Frame("trial.result", meta))
        except NbdistError as error:  # names of metrics that are not text, or very long
            meta |= {
                "state": "failed",
                "values": {},
                "error": f"the result of the trial cannot be sent: {error}",
            }
        with self._lock:
            self._present = None
            self._results.pop(sweep, None)
            self._results[sweep] = meta
            while len(self._results) > KEPT_SWEEPS:
                oldest = next(iter(self._results))
                del self._results[oldest]
                self._begun.pop(oldest, None)

        def frame() -> Frame:
            self.agent.subscribers.take(run)
            return Frame("trial.result", meta)

        self._send_to_driver(frame)

    def close(self) -> None:
        """End serving; the last result is kept."""
        sweep = self.sweep
        with self._lock:
            self._serving, self._present = False, None
        self.agent.let_go(sweep)
        self._send_to_driver(lambda: self._status(sweep))

    # The Server's thread.

    def _register(self, frame: Frame, sender: Caller) -> None:
        sweep, token = frame.meta["sweep"], frame.meta["token"]
        connected = time.monotonic() - self._received_at < SILENT_SECONDS
        if connected and self._registered[0] == sweep and token < self._registered[1]:
            return  # of a driver that has died since
        with self._lock:
            present = self._present if self.sweep == sweep else None
            result = self._results.get(sweep)
        held = self.agent.claim(sweep)
        if sender != self._driver:  # it may have missed some
            self._push_reports(sweep, result, sender)
            self._push_reports(sweep, None if present is None else present.to_meta(), sender)
        if not held:
            self._driver, self._received_at = sender, time.monotonic()
            self._registered = sweep, token
        if present is not None:
            self.agent.subscribers.add(run_name(sweep, present.number, present.attempt), sender)
        sender.push(self._status(sweep, held))

    def _push_reports(self, sweep: str, trial: Mapping[str, Any] | None, sender: Caller) -> None:
        """Push what a trial has reported so far."""
        if trial is None:
            return
        meta = {"sweep": sweep, "rank": self.agent.task.rank}
        meta |= {name: trial[name] for name in ("number", "attempt")}
        reported = self._reported.get((sweep, trial["number"], trial["attempt"]))
        frame = None if reported is None else reported.frame(meta)
        if frame is not None:
            sender.push(frame)

    def _start(self, frame: Frame, sender: Caller) -> None:
        if sender != self._driver:
            return  # of a driver that has died since
        self._received_at = time.monotonic()
        sweep, trial = frame.meta["sweep"], TrialSpec.from_meta(frame.meta)
        with self._lock:
            mine = self._serving and not self._leaving and self.sweep == sweep
            result = self._results.get(sweep, {"number": -1, "attempt": -1})
            begun = self._begun.setdefault(sweep, {})
            again = trial.attempt <= begun.get(trial.number, 0) and trial != self._present
            if (trial.number, trial.attempt) == (result["number"], result["attempt"]):
                mine = again = False
            elif mine and self._present is None and not again:
                run = run_name(sweep, trial.number, trial.attempt)
                self._present, begun[trial.number] = trial, trial.attempt
                self.agent.control(run)  # a word may come before the body
                self.agent.subscribers.add(run, sender)
                self._line.put(trial)
            mine = mine and trial == self._present
        if again:  # the log has lost that it was begun; an attempt of no ranks is one that cannot be made
            refused = {**trial.to_meta(), "ranks": [], "sweep": sweep, "rank": self.agent.task.rank}
            sender.push(Frame("trial.result", {**refused, "state": "failed", "values": {}, "error": ""}))
        elif not mine:
            sender.push(self._status(sweep))

    def _leave(self, frame: Frame, sender: Caller) -> Frame:
        left = Frame("trial.left")
        if sender != self._driver:
            return left
        with self._lock:
            self._left = frame.meta["token"]
            if self._serving and self.sweep == frame.meta["sweep"]:
                self._leaving = True
                self._line.put(None)
                return left
        self.agent.let_go(frame.meta["sweep"])
        return left

    def _status(self, sweep: str, held: str = "") -> Frame:
        with self._lock:
            mine = self.sweep == sweep and self._serving
            present = self._present.to_meta() if mine and self._present is not None else None
            meta = {
                "sweep": sweep,
                "rank": self.agent.task.rank,
                "serving": mine and not self._leaving,
                "shared": self._shared,
                "present": present,
                "result": self._results.get(sweep),
                "held": held,
            }
        return Frame("trial.status", meta)

    def _send_to_driver(self, frame: Callable[[], Frame]) -> None:
        """Push a frame to the driver, from any thread."""

        def push() -> None:
            message = frame()
            if self._driver is not None:
                with suppress(ConnectionError):  # it went away; another will ask
                    self._driver.push(message)

        self.agent.task.server.post(push)


_trial_server: TrialServer | None = None


def trial_server() -> TrialServer:
    """Return this engine's trial server; it is made at the first use."""
    global _trial_server
    here = agent()
    if _trial_server is None or _trial_server.agent is not here:
        _trial_server = TrialServer(here)
    return _trial_server


def open_trial_server() -> None:
    """Make this engine's trial server. Called before its first sweep, on the main thread."""
    trial_server()


# The worker loop: the engine's main thread runs one trial after another, until the driver sends no more.

Body: TypeAlias = str | Callable[..., Any]


def serve(spec: SweepSpec, body: Body, token: str) -> None:
    """Run the trials of a sweep that this engine receives; submitted once, on the main thread."""
    task, here = current(), trial_server()
    with busy_with(spec.sweep), bodies_only():
        spec.pushed.hold(task.info.host)  # before the first trial: the client may end first
        here.open(spec, token)
        try:
            while (trial := here.next()) is not None:
                forget()  # a signal for the trial before
                # However it ends, its result is sent to the driver.
                here.end(trial, run_trial(spec, trial, body, task, here.agent, here.begin(trial)))
        finally:
            here.close()


def run_trial(
    sweep: SweepSpec, trial: TrialSpec, body: Body, task: Task, here: Agent, reported: TrialReports
) -> dict[str, Any]:
    """Run one trial and return how it ended: state, values, error."""
    spec = run_spec(sweep, trial)
    try:
        states = TrainingStates(
            write=spec.place.folder() / trial.state,
            read=spec.place.received(trial.resume) if trial.resume else None,
        )
        kind = partial(TrialLive, sweep=sweep, trial=trial, reported=reported)
        collect = lambda fetch, found: {"metrics": metrics_of(found, sweep.metric)}
        with (
            opened(spec, here, kind, states=states, ends_in_log=True) as live,
            surroundings_restored(),
            defaults_restored(body),
        ):
            environment = body_environment(live, spec)
            outcome = perform(spec, body, live, here, environment, collect)
    except Exception as error:  # a full disk, say: this trial cannot be run here
        return {"state": "failed", "values": {}, "error": plain(f"{type(error).__name__}: {error}")}
    finally:
        linecache.cache.pop(filename(spec.run), None)  # there may be thousands
        if len(trial.ranks) > 1 or sweep.options.framework is not None:
            task.server.post(lambda: here.drop_groups(spec.run))
    return ending(outcome)


@contextmanager
def surroundings_restored() -> Iterator[None]:
    """Give the next trial the folder and environment of this one, and close its figures, after a ``with``."""
    folder, environment, figures = os.getcwd(), dict(os.environ), open_figures()
    try:
        yield
    finally:
        with suppress(OSError):  # the folder is deleted
            os.chdir(folder)
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)
        for number in open_figures() - figures:
            sys.modules["matplotlib.pyplot"].close(number)


def open_figures() -> set[int]:
    """Return the numbers of pyplot's figures; it is not imported for that."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    return set() if pyplot is None else set(pyplot.get_fignums())


@contextmanager
def defaults_restored(body: Body) -> Iterator[None]:
    """Give the next trial the lists, dicts and sets that are default values of a function as they are now."""
    where = [
        values
        for values in (getattr(body, "__defaults__", None), getattr(body, "__kwdefaults__", None))
        if values
    ]
    found = [one for each in where for one in (each.values() if isinstance(each, dict) else each)]
    mutable = [one for one in found if type(one) in (list, dict, set)]
    kept = [type(one)(one) for one in mutable]
    try:
        yield
    finally:
        for one, before in zip(mutable, kept, strict=True):
            one.clear()
            getattr(one, "extend" if isinstance(one, list) else "update")(before)


def ending(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return how a trial ended, from the outcome of its body.

    >>> ending({"metrics": {"accuracy": 0.9}, "stopped": False})
    {'state': 'finished', 'values': {'accuracy': 0.9}, 'error': ''}
    """
    wrong, values = outcome.get("error"), outcome.get("metrics", {})
    stopped = bool(outcome["stopped"])
    if wrong and not (stopped and (wrong["aborted"] or wrong["interrupted"])):
        failure = {"state": "failed", "values": values, "error": plain(str(wrong["traceback"])).rstrip()}
        failure["undefined"] = plain(str(wrong.get("undefined", "")))
        return failure | {how: True for how in ("aborted", "interrupted") if wrong[how]}
    return {"state": "stopped" if stopped else "finished", "values": values, "error": ""}


def plain(text: str) -> str:
    r"""Return a text that can travel, without halves of characters.

    >>> plain("no file \udcff")
    'no file ?'
    """
    return text.encode("utf-8", "replace").decode()


# One trial on one engine while its body runs: what it reports of the sweep's metric goes to the driver.

FIRST_SECONDS = 0.004  # until the first poll of a trial's reports
MOST_STEPS = 1024  # reports of a trial
MOST = 32  # reports at once; of a series with a point for every step so many are enough


class TrialReports:
    """What a trial has reported so far, for a driver that comes late; of very many reports some."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []
        self._lock = threading.Lock()  # the body's thread adds the last ones

    def add(self, steps: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Take in reports, both (n,). From any thread."""
        with self._lock:
            self._steps += steps.tolist()
            self._values += values.tolist()
            while len(self._steps) > MOST_STEPS:  # every second one, and the last
                self._steps = self._steps[-1::-2][::-1]
                self._values = self._values[-1::-2][::-1]

    def frame(self, meta: Mapping[str, Any]) -> Frame | None:
        """Return them as news that may be known in part, None if there are none."""
        with self._lock:
            arrays = np.array(self._steps, np.int64), np.array(self._values, np.float64)
        if not len(arrays[0]):
            return None
        return Frame("trial.reports", {**meta, "again": True}, arrays)


class TrialLive(ActiveRun):
    """A trial, as its engine knows it. Points of all series stay in its own log."""

    has_timeline = False

    def __init__(
        self,
        run: str,
        context: Context,
        recorder: Recorder,
        output: Output,
        *,
        sweep: SweepSpec,
        trial: TrialSpec,
        reported: TrialReports,
    ) -> None:
        super().__init__(run, context, recorder, output)
        self._reported = reported
        self._metric = sweep.metric
        self._meta = {"sweep": sweep.sweep, "number": trial.number, "attempt": trial.attempt}

    def intervals(self) -> Iterator[float]:
        """Yield short intervals at first: a trial that takes less than `SEND_SECONDS` can be pruned, too."""
        return growing(FIRST_SECONDS, SEND_SECONDS)

    def messages(self, rank: int, ended: bool) -> Iterator[Frame]:
        """Yield what was reported since the last time, if anything was."""
        for shown in self.output.take_displays():  # a trial has no cell: its file has the texts
            self.output.write(f"{shown.data['text/plain']}\n")
        if ended and self.context.is_chief and (remedy := self.context.progress.apart):
            self.output.write(f"{trained_apart([remedy] * self.context.world.size)}\n")
        self.output.take()  # into its file
        batch = self.recorder.flush()
        if batch is None or not self.context.is_chief:
            return
        steps, values = reports(batch, self._metric)
        if len(steps):
            self._reported.add(steps, values)
            yield Frame("trial.reports", {**self._meta, "rank": rank}, (steps, values))


def growing(first: float, last: float) -> Iterator[float]:
    """Yield intervals from ``first`` to ``last``, each longer by a fifth than the one before; without end.

    >>> from itertools import islice
    >>> [round(one, 3) for one in islice(growing(0.05, 0.1), 5)]
    [0.05, 0.06, 0.072, 0.086, 0.1]
    """
    while True:
        yield first
        first = min(1.2 * first, last)


def reports(batch: Batch, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the steps and values of a metric in a batch, both (n,); of very many some, and the last."""
    series = next((series for series, name in batch.names.items() if name == metric), None)
    if series is None:
        return np.empty(0, np.int64), np.empty(0, np.float64)
    points = batch.points[batch.points["series"] == series]
    if len(points) > MOST:
        points = points[np.linspace(0, len(points) - 1, MOST).astype(np.intp)]
    return points["step"].astype(np.int64), points["value"].astype(np.float64)


# The metrics that a trial's body leaves: what it returned, or the names that it has bound. Pure.

MOST_METRICS = 50


def metrics_of(found: Mapping[str, Any], metric: str) -> dict[str, float | str]:
    """Return a trial's final metrics by name, from what its body has defined, or returned as "result".

    A single number that a function returned is the sweep's ``metric``. Of a history the last epoch counts,
    below what the body says itself. A ``metric`` that is not one number is a text that says what it is.

    >>> metrics_of({"result": 0.9}, "accuracy")
    {'accuracy': 0.9}
    >>> metrics_of({"result": {"accuracy": 0.9, "loss": 0.3, "model": None}}, "accuracy")
    {'accuracy': 0.9, 'loss': 0.3}
    >>> metrics_of({"accuracy": 0.8, "width": 32}, "accuracy")
    {'accuracy': 0.8}
    >>> metrics_of({"accuracy": np.ones(3)}, "accuracy")
    {'accuracy': 'of type ndarray and shape (3,)'}
    """
    history = next((one for one in found.values() if isinstance(one, History)), None)
    values: dict[str, Any] = {}
    if history is not None:
        values.update({name: row[-1] for name, row in history.history.items() if row})
    result = found.get("result")
    if isinstance(result, Mapping):
        values.update({str(name): one for name, one in result.items() if is_metric(one)})
    elif result is not None and is_metric(result):
        values[metric] = result
    if is_metric(found.get(metric)):
        values[metric] = found[metric]
    numbers = {
        name: float(one.item() if hasattr(one, "item") else one)
        for name, one in values.items()
        if is_metric(one)
    }
    kept: dict[str, float | str] = dict(list(numbers.items())[:MOST_METRICS])
    if metric in numbers:
        return {**kept, metric: numbers[metric]}
    other = (result if isinstance(result, Mapping) else found).get(metric)
    return kept if other is None else {**kept, metric: _no_number(other)}


def _no_number(value: Any) -> str:
    if isinstance(value, (bool, str, bytes)):
        return plain(f"{value!r:.80}")
    shape = getattr(value, "shape", None)
    return f"of type {type(value).__name__}" + (f" and shape {tuple(shape)}" if shape else "")


def is_metric(value: Any) -> bool:
    """Return whether a value is one number: Python's, an array's, or a tensor's.

    >>> import numpy as np
    >>> [is_metric(one) for one in (1, 0.5, np.float32(2), np.zeros(1), True, "high", np.zeros(2), None)]
    [True, True, True, True, False, False, False, False]
    >>> metrics_of({"accuracy": np.ones((1, 1)), "result": {"loss": np.array(0.5)}}, "accuracy")
    {'loss': 0.5, 'accuracy': 1.0}
    """
    if isinstance(value, (bool, str, bytes)) or value is None:
        return False
    size = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)  # of torch, of others
    dtype = str(getattr(value, "dtype", "float"))
    if size != 1 or not ("int" in dtype or "float" in dtype):
        return False
    return hasattr(value, "__float__") or hasattr(value, "__index__")
