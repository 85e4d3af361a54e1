"""Between a run and what shows it: the live display, fed with the run's standing and its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from html import escape
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import publish_display_data

from nbdist.errors import NbdistError, WorkerError
from nbdist.metrics.run_folder import duration
from nbdist.runs.progress import LOST, PAUSED, SILENT, ReplicaStanding, Standing
from nbdist.runs.run import Run, training_seconds
from nbdist.runs.task.reporting import Displayed
from nbdist.ui.display import LiveDisplay
from nbdist.ui.shorten import clip
from nbdist.ui.summary import Mark, MarkKind, Summary, of_last_epoch, short_task

SHORT = 0.1  # seconds; what is over by then needs no live view, which costs more than the cell itself
MOST_MARKS = 100  # of a run
MOST_RATES = 12  # changes of the learning rate that are drawn; more are a schedule's
MOST_NAMED = 4  # replicas that are lost; more are counted


class RunView:
    """Shows one run: live while it goes on, frozen at its end."""

    def __init__(self, run: Run, *, display: bool = True, raises: bool = False) -> None:
        self._run, self._raises = run, raises  # whether the cell raises the run's error below the view
        self._tasks = run.tasks
        self._unit = unit_of(run)
        self._marks = Marks()
        self._thread: int | None = None  # the thread that shows the run, if another one follows it
        self._display = LiveDisplay(
            run.store, run.tasks, run.options.name, run_id=run.id, charts=run.options.live, again=again(run)
        )
        self._display.on_control(partial(act, run))
        if display:
            # In the background the cell is over at once, and what it shows should be there by then.
            self._display.show(after=0.0 if run.options.background else SHORT)

    def tick(self) -> None:
        """Send what is new."""
        if self._thread in (None, threading.get_ident()):
            self._display.tick(time.monotonic())
        else:
            self._display.tick_meanwhile()

    @property
    def on_page(self) -> bool:
        """Whether it is shown on a page."""
        return self._display.where == "page"

    def shown_by_this_thread(self) -> None:
        """Show the run on this thread, by `tick` and `freeze`, while another thread follows it."""
        self._thread = threading.get_ident()

    def progress(self, standing: Standing) -> None:
        """Take note of how far the run is."""
        if self._marks.see(standing, self._tasks, time.monotonic()):
            self._display.mark(self._marks.all())
        self._display.progress(
            {
                "state": standing.state,
                "step": standing.step if self._run.trains else None,  # a plain cell has none
                "total": standing.total,
                "unit": self._unit,
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
                        "state": replica.state,
                        "step": replica.step,
                        "steps_per_second": replica.steps_per_second or None,
                        "staleness": replica.staleness,
                        "spent": replica.spent,
                        "dropped": replica.dropped or None,
                        "skipped": replica.skipped or None,
                    }
                    for i, replica in enumerate(standing.replicas)
                },
                "note": note_on(standing.replicas, self._tasks),
            }
        )

    def output(self, task: str, text: str) -> None:
        """Append what a task printed."""
        self._display.output(task, text)

    def display(self, task: str, shown: Displayed) -> None:
        """Show an object that a task displayed, below the view."""
        show_displayed(task, shown)

    def end(self, run: Run) -> None:
        """Freeze the view, unless another thread shows the run: then that thread does it."""
        if self._thread in (None, threading.get_ident()):
            self.freeze(run)

    def freeze(self, run: Run) -> None:
        """Put the picture and the tables into the view's place."""
        summary = self._summary_of(run)
        self._display.finish(replace(summary, error=None) if self._raises else summary)

    def show_again(self, run: Run) -> None:
        """Show the run in this cell as well; when it is over, its curves to be looked at closely."""
        self.progress(run.standing())
        self._display.show_again(self._summary_of(run) if run.over else None)

    def _summary_of(self, run: Run) -> Summary:
        return replace(summary_of(run), marks=self._marks.all())


def again(run: Run) -> str:
    """Return how to follow a run from a new kernel; "" if the run ends with its kernel."""
    in_graph = run.options.replication == "in-graph"
    return "" if in_graph else f"to reconnect, run nb.attach({run.id!r})"


def act(run: Run, kind: str, rate: float | None) -> None:
    """Do what the page wants of a run."""
    if kind == "stop":
        run.interrupt()
    else:
        run.controls.act(kind, rate)


class PrintedView:
    """Shows nothing of a run but what its tasks print, line by line: for ``--no-live``."""

    def __init__(self, run: Run) -> None:
        self._open: dict[str, str] = {}

    def tick(self) -> None:
        """Do nothing."""

    def progress(self, standing: Standing) -> None:
        """Do nothing."""

    def output(self, task: str, text: str) -> None:
        """Print the whole lines of what a task has printed."""
        *lines, self._open[task] = (self._open.get(task, "") + text).split("\n")
        for line in lines:
            print(f"[{short_task(task)}] {line}")

    def display(self, task: str, shown: Displayed) -> None:
        """Show an object that a task displayed."""
        show_displayed(task, shown)

    def end(self, run: Run) -> None:
        """Print the lines that were not ended."""
        for task, line in self._open.items():
            if line:
                print(f"[{short_task(task)}] {line}")


def show_displayed(task: str, shown: Displayed) -> None:
    """Show an object of a task in this cell, under the task's name; the front end's rules for HTML apply.

    Outside of a notebook its text is printed.
    """
    label = short_task(task)
    if getattr(get_ipython(), "kernel", None) is None:
        print(f"[{label}] {shown.data.get('text/plain', '')}")
        return
    transient = {"display_id": shown.name} if shown.name else {}
    if not shown.update:
        publish_display_data({"text/plain": f"{label}:", "text/html": f"<small>{escape(label)}</small>"})
    publish_display_data(shown.data, transient=transient, update=shown.update)


def summary_of(run: Run) -> Summary:
    """Return what a run came to."""
    trained = {i: run.store.last(i, "loss") for i in range(len(run.tasks)) if "loss" in run.store.series}
    whole = run.tally.standing(time.monotonic(), run.store)
    standing = whole.replicas
    lost = {i for i, replica in enumerate(standing) if replica.state == LOST}
    rows: list[dict[str, Any]] = []
    steps: list[int] = []
    for i, task in enumerate(run.tasks):
        last = trained.get(i)
        if last is None and not (i in lost and any(trained.values())):
            continue
        # With backups the points of a late replica stand at the steps of all, and its own batches are fewer.
        own = standing[i].step if has_quorum(run) else 0
        step = own or (int(last.step) if last is not None else 0)
        row: dict[str, Any] = {"task": short_task(task)}
        if lost:
            row["state"] = LOST if i in lost else run.status
        row["batches" if has_quorum(run) else "steps"] = (
            f"≥ {step:,}" if i in lost else step
        )  # its last words were up to 0.1 s old
        for name in ("dropped", "skipped"):  # where they are not zero, and early: a table has few columns
            if any(getattr(replica, name) for replica in standing):
                row[name] = getattr(standing[i], name)
        row |= {of_last_epoch(name): round(value, 4) for name, value in run.last_epoch(i).items()}
        if "staleness" in run.store.series and run.store.last(i, "staleness") is not None:
            row["mean staleness"] = round(float(run.store.trend(i, "staleness")[1].mean()), 2)
        rows.append(row)
        steps.append(step)
    seconds = training_seconds(run.store, run.tally)
    metrics = {name: values[-1] for name, values in run.history.history.items()} if run.history else {}
    # Synchronous replicas make each step together; all others make their own.
    total = 0 if not steps else max(steps) if run.options.synchronous else sum(steps)
    return Summary(
        run_id=run.id,
        title=run.options.name,
        state=run.status,
        tasks=run.tasks,
        step=total if rows else None,
        seconds=seconds if rows else None,
        steps_per_second=total / seconds if seconds and rows else None,
        unit=unit_of(run),
        total=whole.total if rows else None,
        checkpoint=(run.tally.checkpoint or {}).get("path"),
        metrics=metrics,
        error=in_a_line(run.error) if run.error else None,
        rows=rows,
        remarks=remarks_on(run, standing),
    )


def remarks_on(run: Run, replicas: Sequence[ReplicaStanding]) -> list[str]:
    """Return remarks on lost replicas and on gradients that were dropped or left out."""
    lost = lost_among(replicas, run.tasks)
    remarks = [lost] if lost else []
    if has_quorum(run) and run.global_step:
        remarks.append(f"{run.global_step:,} updates")
    dropped = sum(replica.dropped for replica in replicas)
    skipped = sum(replica.skipped for replica in replicas)
    if dropped:
        remarks.append(f"{dropped:,} {'gradient' if dropped == 1 else 'gradients'} dropped")
    if skipped:
        remarks.append(f"{skipped:,} {'gradient' if skipped == 1 else 'gradients'} left out")
    return remarks


def note_on(replicas: Sequence[ReplicaStanding], tasks: Sequence[str]) -> str:
    """Return a message that names the lost, the silent and the slow replicas."""
    slow = sorted(
        ((replica.slowness, i) for i, replica in enumerate(replicas) if replica.slowness), reverse=True
    )
    said = [
        f"{short_task(tasks[i])} is slow: {times:.1f}x the others' step" for times, i in slow[:MOST_NAMED]
    ]
    more = [f"{len(slow) - MOST_NAMED} more are slow"] if len(slow) > MOST_NAMED else []
    lost = lost_among(replicas, tasks)
    left = sum(replica.state != LOST for replica in replicas)
    if lost and left:
        lost += f"; training continues on {left} {'replica' if left == 1 else 'replicas'}"
    return "; ".join(filter(None, [lost, those("is", SILENT, replicas, tasks), *said, *more]))


def lost_among(replicas: Sequence[ReplicaStanding], tasks: Sequence[str]) -> str:
    """Return a message that names the lost replicas; empty if there are none."""
    return those("was", LOST, replicas, tasks)


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
    """Return what the run counts: updates, where several replicas each make their own, else steps.

    Where a step is not made of one gradient of each replica it is the batches of the one that is furthest.
    """
    if has_quorum(run):
        return "batches"
    return "updates" if len(run.tasks) > 1 and not run.options.synchronous else "steps"


def has_quorum(run: Run) -> bool:
    """Whether steps are made of some gradients, whoever gave them: then a replica's batches are no steps."""
    return run.options.backups is not None or run.options.aggregate is not None


def in_a_line(error: NbdistError) -> str:
    """Return what went wrong and where, in a line; the cell shows the whole traceback.

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


class Marks:
    """Finds the marks of steering and faults on a run, by comparing each standing with the one before.

    It is pure: the clock is an argument.

    >>> marks, tasks = Marks(), ["/job:worker/task:0"]
    >>> def standing(step, rate, state="running"):
    ...     return Standing(state, step, None, 0.0, 0.0, None, 0.0, [], learning_rate=rate)
    >>> for now, one in enumerate([standing(1, 0.1), standing(8, 0.01), standing(9, 0.01, "paused")]):
    ...     _ = marks.see(one, tasks, float(now))
    >>> [(mark.step, mark.text) for mark in marks.all()]
    [(8, 'learning rate 0.1 → 0.01'), (9, 'paused')]
    """

    def __init__(self) -> None:
        self._found: list[Mark] = []
        self._rate: float | None = None
        self._checkpoint: int | None = None
        self._lost: set[int] = set()
        self._paused: tuple[int, float] | None = None  # the mark of the pause under way, and since when

    def see(self, standing: Standing, tasks: Sequence[str], now: float) -> bool:
        """Compare the progress with the last call; return whether the marks changed. ``now`` in seconds."""
        before = list(self._found)
        step = max((replica.step for replica in standing.replicas), default=standing.step)
        rate = standing.learning_rate
        if rate is not None:
            if self._rate is not None and rate != self._rate:
                self._add(step, "rate", f"learning rate {self._rate:.4g} → {rate:.4g}")
            self._rate = rate
        if standing.state == PAUSED and self._paused is None:
            self._paused = len(self._found), now
            self._add(step, "pause", "paused")
        elif standing.state != PAUSED and self._paused is not None:
            place, since = self._paused
            self._paused = None
            if place < len(self._found):
                self._found[place] = replace(self._found[place], text=f"paused for {duration(now - since)}")
        saved = standing.checkpoint
        if saved is not None and saved["number"] != self._checkpoint:
            self._checkpoint = saved["number"]
            if not saved.get("error"):
                self._add(step, "checkpoint", f"checkpoint at step {saved['step']:,}")
        for i, replica in enumerate(standing.replicas):
            if replica.state == LOST and i not in self._lost:
                self._lost.add(i)
                self._add(step, "lost", f"{short_task(tasks[i])} lost")
        return before != self._found

    def all(self) -> list[Mark]:
        """Return the marks in the order of their steps; a schedule's many rates are left out."""
        rates = sum(mark.kind == "rate" for mark in self._found)
        return [mark for mark in self._found if mark.kind != "rate" or rates <= MOST_RATES]

    def _add(self, step: int, kind: MarkKind, text: str) -> None:
        if len(self._found) < MOST_MARKS:
            self._found.append(Mark(step, kind, text))
