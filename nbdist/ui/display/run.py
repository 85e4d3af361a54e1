"""Shows a run: a live widget that freezes at its end, or lines in a terminal.

shown = LiveDisplay(store, tasks, "mnist", total_steps=500)
shown.show()
...                              # shown.tick(now), shown.progress(...), shown.output(...) while it runs
shown.finish(summary)            # the notebook keeps a picture, a table and the data, but no widget
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from IPython import display as ipython
from IPython.core.getipython import get_ipython

from nbdist.errors import NbdistError, WorkerError
from nbdist.metrics.names import EPOCH
from nbdist.metrics.run_folder import duration
from nbdist.metrics.store import RunStore
from nbdist.run.devices import ReplicaDevice, device_warning, trained_on
from nbdist.run.displays import Displayed
from nbdist.run.progress import (
    ABSENT,
    LEFT,
    LOST,
    RESTARTING,
    RUNNING,
    SILENT,
    ReplicaStanding,
    Standing,
    first_not_finite,
    uneven_data,
)
from nbdist.run.run import Run
from nbdist.run.stack_look import StepWatch
from nbdist.runtime.task import TaskInfo
from nbdist.terminal.ansi import OWN, is_stderr, marked
from nbdist.terminal.transcript import Transcript
from nbdist.text import clip, measured, rate
from nbdist.ui.display.objects import DisplayedObjects
from nbdist.ui.frozen.render import text
from nbdist.ui.frozen.run import ALONE, frozen
from nbdist.ui.frozen.summary import (
    Part,
    Summary,
    last_and_best,
    marks_of,
    number,
    of_last_epoch,
    short_task,
    with_short_tasks,
)
from nbdist.ui.gpus import Gpus, gpus_over_time
from nbdist.ui.input_pipeline import input_shown
from nbdist.ui.pictures import entries_of
from nbdist.ui.widgets.controls import KINDS, Callback, PageControls
from nbdist.ui.widgets.run_feed import NOT_CURVES, plan_charts

if TYPE_CHECKING:
    from nbdist.ui.widgets.run import LiveView

Place = Literal["page", "batch", "terminal"]
LATE = 0.5  # seconds without a tick, after which a cell is assumed to block the main thread
LINE_EVERY = 2.0  # seconds between progress lines in a terminal


def place() -> Place:
    """Return the kind of output: a notebook's page, a batch (`nbconvert --execute`), or a terminal."""
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        # marimo has no IPython; it shows what IPython's `display` is given, and widgets of anywidget.
        marimo = sys.modules.get("marimo")
        return "page" if marimo is not None and marimo.running_in_notebook() else "terminal"
    # A front end without input is a batch. nbclient and papermill would save the live widget's state in the
    # notebook, because they never drop a closed widget.
    request = kernel.get_parent("shell")
    return "page" if request.get("content", {}).get("allow_stdin", True) else "batch"


class LiveDisplay:
    """One run's output. Any thread may call `progress`, `put`, `output` and `tick_from_any_thread`; only the
    kernel's main thread may call the other methods.

    ``report`` takes the lines if there is no page (default: print); ``again`` is the command that follows the
    run after the kernel has ended.
    """

    def __init__(
        self,
        store: RunStore,
        tasks: Sequence[str],
        title: str = "run",
        total_steps: int | None = None,
        *,
        run_id: str = "",
        charts: Iterable[str] | None = None,
        again: str = "",
        report: Callable[[str], None] = print,
        where: Place | None = None,
    ) -> None:
        self.store, self.tasks, self.title, self.run_id = store, list(tasks), title, run_id
        self.total_steps = total_steps
        self.charts, self.again = None if charts is None else list(charts), again
        self.report = report
        self.where: Place = where or place()
        self.display_id = uuid.uuid4().hex
        self.view: LiveView | None = None
        self.lock = threading.RLock()
        self.ticked = float("-inf")
        self.transcripts = {task: Transcript() for task in tasks}
        self.status: Mapping[str, Any] = {}
        self.beside: dict[Part, Sequence[Any]] = {}
        self.controls = PageControls()
        self.line_due = float("-inf")
        self.show_due: float | None = None

    def show(self, after: float = 0.0) -> None:
        """Show the run on the page; a batch shows a line of text, a terminal nothing yet.

        A run that ends within ``after`` seconds is shown once, at its end.
        """
        if self.where == "terminal":
            return
        self.show_due = time.monotonic() + after if after else None
        if after:
            return
        if self.where == "batch":
            ipython.display({"text/plain": f"{self.title}: running"}, raw=True, display_id=self.display_id)
            return
        self.view = self._make_view()
        self.view.progress(self.status)
        for part, value in self.beside.items():
            self.view.put(part, value)
        ipython.display(self.view, display_id=self.display_id)

    def _make_view(self) -> LiveView:
        from nbdist.ui.widgets.run import LiveView

        return LiveView(
            self.store, self.tasks, self.title, self.total_steps, self.charts, self.transcripts, self.run_id,
            self.controls, self.again, self.lock,
        )  # fmt: skip

    def show_again(self, summary: Summary | None) -> None:
        """Show the run in another cell; with a summary it has ended, and the view has all its points."""
        if self.where != "page":
            if summary is not None and self.where == "terminal":
                self.report(text(replace(summary, outputs={}), ALONE))
            return
        if self.view is not None:
            ipython.display(self.view, display_id=self.display_id)  # the picture replaces both at the end
        elif self.show_due is not None:
            self.show()
        elif summary is not None:
            view = self._make_view()
            ipython.display(view)
            view.progress(self.status)
            view.put("marks", summary.marks)
            view.put("gpus", list(map(dict, summary.gpus)))
            view.put("pictures", list(map(dict, summary.pictures)))
            view.finish(summary.state)
            view.close_when_left()  # the output itself, so that a slow page needs no further message

    def tick(self, now: float | None = None) -> None:
        """Send new points and output, about ten times a second; ``now`` in seconds on a monotonic clock."""
        with self.lock:
            self.ticked = time.monotonic()
            now = self.ticked if now is None else now
            if self.show_due is not None and now >= self.show_due:
                self.show()
            if self.view is not None:
                self.view.tick(now)
            elif self.where == "terminal" and self.status and now >= self.line_due:
                self.line_due = now + LINE_EVERY
                self.report(progress_line(self.title, self.status, latest_values(self.store, self.charts)))

    def tick_from_any_thread(self) -> None:
        """Update the view while the main thread is busy."""
        now = time.monotonic()
        with self.lock:
            if self.view is not None and now - self.ticked > LATE:
                self.view.tick_unacknowledged(now)

    def progress(self, status: Mapping[str, Any]) -> None:
        """Set the run's progress (see `LiveView.progress`)."""
        with self.lock:
            self.status = {**self.status, **status}
            if self.view is not None:
                self.view.progress(status)

    def set_tasks(self, tasks: Sequence[str]) -> None:
        """Take the tasks of the replicas, to which workers may have been added."""
        with self.lock:
            if len(tasks) == len(self.tasks):
                return
            self.tasks = list(tasks)
            if self.view is not None:
                self.view.set_tasks(tasks)

    def put(self, part: Part, value: Sequence[Any]) -> None:
        """Set what is shown beside the curves (see `LiveView.put`)."""
        with self.lock:
            self.beside[part] = value
            if self.view is not None:
                self.view.put(part, value)

    def output(self, task: str, printed: str) -> None:
        """Append what a task printed."""
        with self.lock:
            transcript = self.transcripts.setdefault(task, Transcript())
            before = transcript.position
            transcript.append(printed)
            if self.where == "terminal":
                for line in marked(transcript.since(before).text).splitlines():
                    self.report(f"[{short_task(task)}] {line}")

    def on_control(self, callback: Callback, kinds: Sequence[str] = KINDS) -> None:
        """Set the callback for the page's commands (see `LiveView.on_control`), before `show`."""
        self.controls.on(callback, kinds)

    def finish(self, summary: Summary) -> None:
        """Replace the widget by a picture and a table, and close it."""
        with self.lock:
            if not summary.outputs:
                summary = replace(summary, outputs={t: log.text() for t, log in self.transcripts.items()})
            if self.where == "terminal":
                for task, log in self.transcripts.items():
                    for line in marked(log.open).splitlines():
                        self.report(f"[{short_task(task)}] {line}")
                self.report(text(replace(summary, outputs={}), ALONE))
                return
            if self.view is not None:
                self.view.finish(summary.state)  # first, because drawing the picture takes time
            put = ipython.update_display if self.show_due is None else ipython.display
            self.show_due = None
            # The charts that were shown last.
            wanted = self.charts if self.view is None else self.view.feed.wanted
            put(frozen(self.store, summary, wanted), raw=True, display_id=self.display_id)
            if self.view is not None:
                self.view.close_unseen()
                self.view = None


# The live display of a run.

SHORT = 0.1  # seconds; a shorter run has no live view, which would cost more than the cell itself
EVENTS_EVERY = 0.5  # seconds between two looks at the run's events
GPUS_EVERY = 1.0  # seconds between two updates of the GPUs' curves
PICTURES_EVERY = 1.0  # and of the histograms and images
INPUT_EVERY = 1.0  # and of the input pipeline
MOST_NAMED = 4  # lost replicas that are named; more are counted


class RunView:
    """Shows one run: live while it runs, frozen at its end."""

    def __init__(self, run: Run, *, display: bool = True, raises: bool = False) -> None:
        self._run, self._raises = run, raises  # whether the cell raises the run's error below the view
        self._tasks = run.tasks
        self._events_due = float("-inf")
        self._objects, self._steps = DisplayedObjects(run.folder), StepWatch()
        self._gpus: list[object] = []  # the samples of the GPUs that the view has
        self._gpus_due = self._pictures_due = self._input_due = float("-inf")
        self._pictures = 0  # the version of the summaries' pictures that the view has
        self._input: dict[str, Any] | None = None
        self._thread: int | None = None  # the thread that shows the run, if another thread follows it
        name, resumed = run.options.name, run.options.resume
        title = name if resumed is None else f"{name}, continues {resumed}"
        self._display = LiveDisplay(
            run.store, run.tasks, title, run_id=run.id, charts=run.options.live, again=again(run)
        )
        self._display.on_control(partial(act, run))
        if display:
            # A background cell ends immediately and must show its output before that.
            self._display.show(after=0.0 if run.options.background else SHORT)

    def tick(self) -> None:
        """Send new points and output."""
        if self._thread in (None, threading.get_ident()):
            self._display.tick(time.monotonic())
        else:
            self._display.tick_from_any_thread()

    @property
    def on_page(self) -> bool:
        """Return whether a page shows the run."""
        return self._display.where == "page"

    def shown_by_this_thread(self) -> None:
        """Show the run on this thread, by `tick` and `freeze`, while another thread follows it."""
        self._thread = threading.get_ident()

    def progress(self, standing: Standing) -> None:
        """Update the view with the run's progress."""
        self._display.set_tasks(self._tasks)
        now = time.monotonic()
        if now >= self._events_due:
            self._events_due = now + EVENTS_EVERY
            if self._run.event_reader.poll():
                self._display.put("marks", marks_of(self._run.event_reader.events))
        samples: list[object] = [replica.gpu for replica in standing.replicas]
        if samples != self._gpus and now >= self._gpus_due:  # each task measures at a time of its own
            self._gpus, self._gpus_due = samples, now + GPUS_EVERY
            self._display.put("gpus", gpus_of(self._run, standing))
        if self._run.gallery.version != self._pictures and now >= self._pictures_due:
            self._pictures, self._pictures_due = self._run.gallery.version, now + PICTURES_EVERY
            self._display.put("pictures", entries_of(self._run.gallery))
        if now >= self._input_due:
            self._input, self._input_due = input_of(standing, self._tasks), now + INPUT_EVERY
        devices = self._run.replica_devices(standing)
        nodes = nodes_of(self._tasks, self._run.members.infos)
        self._display.progress(
            {
                "state": with_short_tasks(standing.state),
                "step": standing.step
                if standing.step or self._run.trains or self._run.has_session
                else None,  # a cell without a loop has none
                "in_session": self._run.has_session and not self._run.trains,
                "total": standing.total,
                "unit": unit_of(self._run),
                "epoch": standing.epoch,
                "epochs": standing.epochs,
                "steps_per_second": standing.steps_per_second or None,  # none is known at first
                "examples_per_second": standing.examples_per_second or None,
                "seconds_left": standing.seconds_left,
                "elapsed": standing.elapsed,
                "learning_rate": standing.learning_rate,
                "checkpoint": standing.checkpoint,
                "per_replica": {
                    i: {
                        "state": with_short_tasks(replica.state),
                        "host": nodes[i] if i < len(nodes) else None,
                        "step": replica.step,
                        "steps_per_second": replica.steps_per_second or None,
                        "staleness": replica.staleness,
                        "spent": replica.spent,
                        "dropped": replica.dropped or None,
                        "skipped": replica.skipped or None,
                        "restart": replica.restart or replica.change or None,
                    }
                    for i, replica in enumerate(standing.replicas)
                },
                "note": self._note(standing, nodes),
                "trained_on": trained_on(devices),
                "warning": warning_of(standing, devices, self._tasks),
                "input": self._input,
            }
        )

    def _note(self, standing: Standing, nodes: Sequence[str | None]) -> str:
        """Return the note on lost, silent and slow replicas, with where the silent ones are."""
        silent = {
            task for task, one in zip(self._tasks, standing.replicas, strict=False) if one.state == SILENT
        }
        tasks = {info.rank: info.name for info in self._run.members.infos if info.name in silent}
        found = self._run.silent.places(set(tasks))
        places = [f"{short_task(tasks[rank])} is {place}" for rank, place in sorted(found.items())]
        trains = standing.state == RUNNING and any(one.body.in_fit for one in self._run.members.workers)
        stalled = self._steps.stalled(sum(one.step for one in standing.replicas), trains)
        return "; ".join(filter(None, [note_on(standing.replicas, self._tasks, nodes), *places, stalled]))

    def output(self, task: str, text: str) -> None:
        """Append what a task printed."""
        self._display.output(task, text)

    def display(self, task: str, shown: Displayed) -> None:
        """Show an object that a task displayed, below the view."""
        self._objects.show(task, shown)

    def end(self, run: Run) -> None:
        """Freeze the view, or leave that to the thread that shows the run."""
        if self._thread in (None, threading.get_ident()):
            self.freeze(run)

    def freeze(self, run: Run) -> None:
        """Replace the view by the picture and the tables."""
        summary = self._summary_of(run)
        self._display.finish(replace(summary, error=None) if self._raises else summary)

    def show_again(self, run: Run) -> None:
        """Show the run in this cell as well; if it has ended, with all its points."""
        self.progress(run.standing())
        self._display.show_again(self._summary_of(run) if run.over else None)
        if run.over and self._display.where != "terminal":
            objects = DisplayedObjects(run.folder)
            for shown in run.displays():
                objects.show(run.task_of(shown), shown)

    def _summary_of(self, run: Run) -> Summary:
        return replace(summary_of(run), pictures=entries_of(run.gallery))


def again(run: Run) -> str:
    """Return the hint on how to follow a run from a new kernel; "" if the run ends with its kernel."""
    return "" if run.options.replicated.in_client else f"to reconnect, run nb.attach({run.id!r})"


def act(run: Run, kind: str, rate: float | None) -> None:
    """Execute a page's command to a run."""
    if kind == "stop":
        run.interrupt()
    else:
        run.controls.act(kind, rate)


PRINTED_LIMIT = 2 << 20  # characters that one message may have


class PrintedView:
    """Prints the output of a run's tasks line by line, for ``--no-live``: each line to its own stream."""

    def __init__(self, run: Run) -> None:
        self._transcripts: dict[str, Transcript] = {}
        self._objects = DisplayedObjects(run.folder)

    def tick(self) -> None:
        """Do nothing."""

    def progress(self, standing: Standing) -> None:
        """Do nothing."""

    def output(self, task: str, text: str) -> None:
        """Print the complete lines of a task's output; of a progress bar, its last state."""
        log = self._transcripts.setdefault(task, Transcript(limit=PRINTED_LIMIT))
        before = log.position
        log.append(text)
        self._print(task, log.since(before).text)

    def display(self, task: str, shown: Displayed) -> None:
        """Show an object that a task displayed."""
        self._objects.show(task, shown)

    def end(self, run: Run) -> None:
        """Print the remaining incomplete lines."""
        for task, log in self._transcripts.items():
            self._print(task, log.open)

    def _print(self, task: str, text: str) -> None:
        for line in text.splitlines():
            stream = sys.stderr if is_stderr(line) else sys.stdout
            print(f"[{short_task(task)}] {OWN.sub('', line)}", file=stream)


def summary_of(run: Run) -> Summary:
    """Return the summary of a finished run."""
    shown = "loss" if "loss" in run.store.series else next(iter(logged_series(run)), "")
    trained = {i: run.store.last(i, shown) for i in range(len(run.tasks)) if shown in run.store.series}
    whole = run.tally.standing(time.monotonic(), run.store)
    standing, devices = whole.replicas, run.replica_devices(whole)
    # No step of a loop of JAX can be seen: the steps that it logs number its points, and do not count them.
    counted = run.options.framework is None or any(one.step for one in standing)
    lost = {i for i, replica in enumerate(standing) if replica.state == LOST}
    left = {i for i, replica in enumerate(standing) if replica.state == LEFT}
    nodes = nodes_of(run.tasks, run.members.infos)
    rows: list[dict[str, Any]] = []
    steps: list[int] = []
    for i, task in enumerate(run.tasks):
        last = trained.get(i)
        if last is None and not (i in lost and any(trained.values())):
            continue
        # With backups, a late replica's points have the steps of the whole run, which exceed its own batches.
        # A loop that nbdist does not make numbers its points itself, from 0 on.
        own = standing[i].step if has_quorum(run) or not run.trains or run.options.framework else 0
        step = own or (int(last.step) if last is not None else 0)
        row: dict[str, Any] = {"task": short_task(task)} | ({"host": nodes[i]} if any(nodes) else {})
        if lost or left:
            row["state"] = LOST if i in lost else LEFT if i in left else run.status
        # The last report of a lost replica was up to 0.1 s old.
        row["batches" if has_quorum(run) else "steps" if counted else "last step"] = (
            f"≥ {step:,}" if i in lost else step
        )
        for name in ("dropped", "skipped"):  # only nonzero ones, and early, because a table shows few columns
            if any(getattr(replica, name) for replica in standing):
                row[name] = getattr(standing[i], name)
        row |= {of_last_epoch(name): float(measured(value)) for name, value in run.last_epoch(i).items()}
        if "staleness" in run.store.series and run.store.last(i, "staleness") is not None:
            row["mean staleness"] = round(float(run.store.trend(i, "staleness")[1].mean()), 2)
        rows.append(row)
        steps.append(step)
    seconds = run.seconds
    metrics = {name: values[-1] for name, values in run.history.history.items()} if run.history else {}
    # Synchronous replicas step together; others step independently.
    begun = sum(replica.begun for replica in standing)
    total = 0 if not steps else max(steps) if steps_together(run) else sum(steps) - begun
    return Summary(
        run_id=run.id,
        title=run.options.name,
        state=run.status,
        tasks=run.tasks,
        step=total if rows and counted else None,
        epoch=whole.epoch if rows else None,
        seconds=seconds or None if rows else None,
        elapsed=run.standing().elapsed if rows else None,
        steps_per_second=max(0, total - run.tally.resumed_steps) / seconds if seconds and rows else None,
        unit=unit_of(run),
        total=whole.total if rows else None,
        checkpoint=(run.tally.checkpoint or {}).get("path"),
        marks=marks_of(run.events),
        metrics=metrics,
        logged=logged_values(run),
        error=in_a_line(run.error) if run.error else None,
        rows=rows,
        remarks=[*remarks_on(run, standing), *map(with_short_tasks, whole.servers)],
        replicas=[
            {"state": one.state, "step": one.step} | ({"host": node} if node else {})
            for one, node in zip(standing, nodes, strict=False)
        ]
        if rows
        else [],
        ended_replicas=lost | left,
        trained_on=trained_on(devices),
        warning=warning_of(
            whole,
            devices,
            run.tasks,
            uneven_data(standing, list(map(short_task, run.tasks)), run.status),
        ),
        gpus=gpus_of(run, whole),
        input=input_of(whole, run.tasks),
    )


def logged_series(run: Run) -> list[str]:
    """Return the series with charts that a body has logged itself, and not the loop of a ``fit``."""
    fitted = {name for i in range(len(run.tasks)) for name in run.last_epoch(i)}
    fitted |= set(run.history.history if run.history else ())
    return [name for name in run.store.series if name not in (EPOCH, *NOT_CURVES) and name not in fitted]


def logged_values(run: Run) -> dict[str, float]:
    """Return the last and the best value of these series by label: a mean, and the best of all replicas."""
    found: dict[str, float] = {}
    for name in logged_series(run):
        points = [run.store.points(i, name)[1] for i in run.store.replicas]
        finite = [values[np.isfinite(values)] for values in points]
        lasts = [float(values[-1]) for values in points if len(values)]
        if any(map(len, finite)):
            every = np.concatenate(finite)
            found |= last_and_best(name, sum(lasts) / len(lasts), float(every.min()), float(every.max()))
    return found


def warning_of(
    standing: Standing, devices: Sequence[ReplicaDevice], tasks: Sequence[str], data: str = ""
) -> str:
    """Return what a user should change.

    These are ranks that train a model each, a loss that is not finite, uneven ``data`` and a GPU not in use.
    """
    wrong = first_not_finite(standing.replicas, list(map(short_task, tasks)))
    return "; ".join(filter(None, [standing.apart, wrong, data, device_warning(devices)]))


def input_of(standing: Standing, tasks: Sequence[str]) -> dict[str, Any] | None:
    """Return the input pipeline to show, of the replica that waits longest for its data."""
    return input_shown({i: replica.input for i, replica in enumerate(standing.replicas)}, tasks)


def gpus_of(run: Run, standing: Standing) -> Gpus:
    """Return the GPUs of a run's replicas over time; those of run.json if no replica has told its own."""
    said = {i: dict(replica.gpu) for i, replica in enumerate(standing.replicas) if replica.gpu}
    recorded = enumerate(run.replica_devices(standing))
    return gpus_over_time(run.store, said or {i: one.known_gpu for i, one in recorded})


def remarks_on(run: Run, replicas: Sequence[ReplicaStanding]) -> list[str]:
    """Return remarks on lost and replaced replicas, and on gradients that were dropped or left out."""
    lost = those("was", LOST, replicas, run.tasks)
    remarks = [lost] if lost else []
    if run.options.resume is not None:
        remarks.append(f"continues run {run.options.resume}")
    remarks += [
        f"{short_task(run.tasks[i])} was {replica.restart}"
        + (f" (its last of {replica.restarts} replacements)" if replica.restarts > 1 else "")
        for i, replica in enumerate(replicas)
        if replica.restart
    ]
    remarks += [
        f"{short_task(run.tasks[i])} {'' if replica.change.startswith(LEFT) else 'was '}{replica.change}"
        for i, replica in enumerate(replicas)
        if replica.change
    ]
    if run.history is not None and run.history.share:
        remarks.append(f"loss and metrics in history are of {run.history.share}")
    if has_quorum(run) and run.global_step:
        remarks.append(f"{run.global_step:,} updates")
    dropped = sum(replica.dropped for replica in replicas)
    skipped = sum(replica.skipped for replica in replicas)
    if dropped:
        remarks.append(f"{dropped:,} {'gradient' if dropped == 1 else 'gradients'} dropped")
    if skipped:
        remarks.append(f"{skipped:,} {'gradient' if skipped == 1 else 'gradients'} left out")
    return remarks


def nodes_of(tasks: Sequence[str], infos: Iterable[TaskInfo]) -> list[str | None]:
    """Return the name of the host of each task, by its place; none for a run on one host.

    >>> infos = [TaskInfo("worker", n, n, "", 7, "", "CPU:0", 1, node="ab"[n]) for n in (0, 1)]
    >>> nodes_of(["/job:worker/task:1", "/job:worker/task:0"], infos), nodes_of(["/job:worker/task:0"], infos)
    (['b', 'a'], [None])
    """
    named = {info.name: info.node for info in infos}
    nodes = [named.get(task) or None for task in tasks]
    return nodes if len(set(nodes)) > 1 else [None] * len(nodes)


def note_on(
    replicas: Sequence[ReplicaStanding], tasks: Sequence[str], nodes: Sequence[str | None] = ()
) -> str:
    """Return a message that names the lost, unresponsive and slow replicas, these with their ``nodes``."""
    slow = sorted(
        ((replica.slowness, i) for i, replica in enumerate(replicas) if replica.slowness), reverse=True
    )
    on = [f" on {node}" if node else "" for node in nodes]
    parts = [
        f"{short_task(tasks[i])}{on[i] if i < len(on) else ''} is slow: {times:.1f}x the others' step"
        for times, i in slow[:MOST_NAMED]
    ]
    more = [f"{len(slow) - MOST_NAMED} more are slow"] if len(slow) > MOST_NAMED else []
    lost = those("was", LOST, replicas, tasks)
    left = sum(replica.state not in ABSENT for replica in replicas)
    restarting = those("is", RESTARTING, replicas, tasks)
    if lost and left:
        lost += f"; training continues on {left} {'replica' if left == 1 else 'replicas'}"
    return "; ".join(filter(None, [lost, restarting, those("is", SILENT, replicas, tasks), *parts, *more]))


def those(verb: str, state: str, replicas: Sequence[ReplicaStanding], tasks: Sequence[str]) -> str:
    """Return a message that names the replicas in a state, with "is" or "was"; empty if there are none."""
    found = [i for i, replica in enumerate(replicas) if replica.state == state]
    named = ", ".join(short_task(tasks[i]) for i in found[:MOST_NAMED])
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return (
        f"{named}{more} {verb if len(found) == 1 else {'is': 'are', 'was': 'were'}[verb]} {state}"
        if found
        else ""
    )


def unit_of(run: Run) -> str:
    """Return the unit of the run's count: updates if several replicas each make their own, else steps.

    If a step does not take one gradient of each replica, it is batches, of the replica with the most.
    """
    if has_quorum(run):
        return "batches"
    return "updates" if len(run.tasks) > 1 and not steps_together(run) else "steps"


def steps_together(run: Run) -> bool:
    """Return whether the replicas make each step together, as they do in a process group of a framework."""
    return bool(run.options.synchronous) or run.tally.synchronous


def has_quorum(run: Run) -> bool:
    """Return whether a step takes the first R gradients of any replicas, so that batches are not steps."""
    return run.options.backups is not None or run.options.aggregate is not None


def in_a_line(error: NbdistError) -> str:
    """Return the error and its task in one line; the cell shows the whole traceback.

    >>> error = WorkerError("Traceback (most recent call last): ...")
    >>> error.task, error.ename, error.evalue = "/job:worker/task:1", "ZeroDivisionError", "division by zero"
    >>> in_a_line(error)
    'ZeroDivisionError on /job:worker/task:1: division by zero'
    """
    where = type(error).__name__
    what = str(error)
    if isinstance(error, WorkerError) and error.ename:
        where, what = f"{error.ename} on {error.task}", error.evalue
    first = next((line.strip() for line in what.splitlines() if line.strip()), "")
    return clip(f"{where}: {first}" if first else where, 300)


# ``run.show()``: another live view, in the calling cell.


def show(run: Run) -> None:
    """Show a run in this cell: the same view while it runs, a separate one afterwards.

    The view of a finished run has all its curves, to zoom, smooth and compare. It exists until the page
    closes and is not saved with the notebook, unlike the frozen picture below the run's own cell.
    """
    view = run.view
    if isinstance(view, RunView):
        view.show_again(run)
        return
    view = RunView(run, display=not run.over)  # there is no display, as with --no-live
    if run.over:
        view.show_again(run)
    else:
        run.show_in(view)


# A run's progress as a line of text, if there is no page.

MOST_METRICS = 3  # metrics in a progress line


def progress_line(title: str, status: Mapping[str, Any], latest: Mapping[str, float] | None = None) -> str:
    """Return one line about a running run; ``latest`` are the newest values of its metrics.

    >>> status = {"state": "running", "epoch": 3, "epochs": 8, "step": 120, "total": 320}
    >>> progress_line("mnist", status, {"loss": 0.25, "accuracy": 0.9375})
    'mnist: running · epoch 3 / 8 · 120 / 320 steps · loss 0.25 · accuracy 0.9375'
    """
    parts = [str(status.get("state") or "running")]
    if (epoch := status.get("epoch")) is not None:
        parts.append(
            f"epoch {epoch:,} / {status['epochs']:,}" if status.get("epochs") else f"epoch {epoch:,}"
        )
    step, total, unit = status.get("step"), status.get("total"), status.get("unit") or "steps"
    if step is not None:
        parts.append(f"{step:,} / {total:,} {unit}" if total else f"{step:,} {unit}")
    parts += [f"{clip(name, 40)} {number(value)}" for name, value in (latest or {}).items()]
    if (speed := status.get("steps_per_second")) is not None:
        parts.append(f"{rate(speed)} {unit}/s")
    if (examples := status.get("examples_per_second")) is not None:
        parts.append(f"{rate(examples)} examples/s")
    if (left := status.get("seconds_left")) is not None:
        parts.append(f"{duration(left)} left")
    parts += [clip(status[name], 120) for name in ("note", "warning") if status.get(name)]
    return f"{clip(title)}: {' · '.join(parts)}"


def latest_values(store: RunStore, wanted: Sequence[str] | None = None) -> dict[str, float]:
    """Return the newest values of the first charts' series, each a mean over the replicas' last points.

    >>> from nbdist.metrics.store import RunStore
    >>> store = RunStore()
    >>> store.extend(0, "loss", [1], [0.5], [1e9]); store.extend(1, "loss", [1], [0.25], [1e9])
    >>> latest_values(store)
    {'loss': 0.375}
    """
    found = {}
    for chart in plan_charts(store.series, wanted)[:MOST_METRICS]:
        name = chart.train or chart.names[0]
        lasts = [store.last(replica, name) for replica in store.replicas]
        values = [last.value for last in lasts if last is not None]
        if values:
            found[name] = sum(values) / len(values)
    return found
