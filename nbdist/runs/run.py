"""A run: one body on several tasks, followed from the client until its results are home."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from nbdist.errors import FailedPreconditionError, NbdistError
from nbdist.metrics.runfile import RunFile, sync_run, write_run
from nbdist.metrics.store import RunStore
from nbdist.metrics.table import every_point, table
from nbdist.metrics.timeline import Timeline
from nbdist.runs import parcel
from nbdist.runs.controlling import KEPT_SECONDS, Controls
from nbdist.runs.options import Options
from nbdist.runs.outcomefile import keep_light
from nbdist.runs.pause import Pause
from nbdist.runs.progress import Standing, Tally
from nbdist.runs.reach import Calls, Tasks
from nbdist.runs.timeline import collect, steps_of
from nbdist.runs.watch import Watch
from nbdist.runtime.task import TaskInfo
from nbdist.train.callbacks import History
from nbdist.wire.frames import Frame

FIRST_PAUSE, SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.001, 0.05  # seconds; an outcome ends a pause early
CALMER = 1.5  # from one pause to the next
WRITE_SECONDS = 1.0
STANDING_SECONDS = 0.09  # between two looks at how far the run is, for the view: it draws ten times a second
RESTART_SECONDS = 0.25  # within which the word follows an interrupt that the kernel is being restarted
ENDED = ("done", "stopped", "failed")


class View(Protocol):
    """What shows a run; every call comes from the thread that follows it."""

    def tick(self) -> None:
        """Show what is new; called many times a second."""

    def progress(self, standing: Standing) -> None:
        """Take note of how far the run is."""

    def output(self, task: str, text: str) -> None:
        """Append what a task printed."""

    def end(self, run: Run) -> None:
        """Show the run's end for good."""


class Run:
    """Handle on a run. ``status`` is "running", then "done", "stopped" or "failed".

    ``history`` and ``model`` are what the body left under these names on the chief; ``results`` has all
    that came home, ``run.metrics()`` the points of every replica.

    Bodies run on ``workers``, a replica each; or one in the notebook itself drives ``towers``, its replicas.
    """

    def __init__(
        self,
        cluster: Tasks,
        record: RunFile,
        folder: Path,
        workers: list[TaskInfo],
        options: Options,
        calls: Calls,
        view: View | None,
        *,
        towers: Sequence[TaskInfo] = (),
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        self.id, self.folder, self.options = record.id, folder, options
        self.tasks = [info.name for info in towers or workers]
        self.status = "running"
        self.history: History | None = None
        self.model: Any = None
        self.results: dict[str, Any] = {}
        self.notes: list[str] = []
        self.store = RunStore()
        self.tally = Tally(len(self.tasks), bool(options.synchronous))
        self.seed = record.seed
        self._cluster, self._record, self._workers = cluster, record, workers
        self._towers, self._at_end = list(towers), at_end
        self._view = view
        self._servers = [info for info in cluster.tasks if info.job == "ps" and options.uses_servers]
        self._watch = Watch(
            record.id, folder, cluster, workers, self._servers, calls, towers=self._towers,
            store=self.store, tally=self.tally,
            least=options.least(len(workers), len(self._servers)), trains=options.wants_training,
            printed=lambda task, text: self._show(lambda view: view.output(task, text)),
        )  # fmt: skip
        self.outcomes = self._watch.outcomes
        self.controls = Controls(self)
        self.timeline_type: type[Timeline] = Timeline
        """What `timeline` returns; the user interface puts one here that shows itself."""
        self.shown_by: Callable[[Run], object] = print
        """What `show` calls; the user interface puts a view here."""
        self.leaving: Callable[[], bool] | None = None
        """Whether this process is ending; the user interface puts here what asks its kernel."""
        self._stop_at: float | None = None
        self._settled = record.status in ENDED
        self._told = 0
        self._pause, self._seconds = Pause(), FIRST_PAUSE
        self._shown_news, self._show_after = 0, 0.0
        self._secured, self._is_to_train = False, options.wants_training

    @property
    def view(self) -> View | None:
        """What shows the run, if anything does."""
        return self._view

    def show_in(self, view: View) -> None:
        """Show the run in a view from now on."""
        self._view = view

    # What users call.

    def metrics(self) -> Any:
        """Return all points so far: a DataFrame if pandas is installed, else a dict of NumPy columns.

        The columns are ``replica``, ``series`` (the name), ``step``, ``value`` and ``time`` (seconds since
        1970). Every point comes from the logs in the run's folder; of a replica that wrote its log on another
        machine there is what came to this one: spikes, first and last, and up to 2,048 points a series all.
        """
        return table(every_point(self.folder, self.store))

    def timeline(self, step: int | None = None, steps: int = 1) -> Timeline:
        """Return what every task did when in its last training step, or in ``steps`` of them up to ``step``.

        It shows itself as a chart; ``save("step.png")`` writes that, ``save("step.json")`` a Chrome trace.
        While the run goes on its tasks are asked, afterwards it comes from the run's folder. Raises
        FailedPreconditionError if nothing was trained, InvalidArgumentError for a step that is not on record.
        """
        tasks = [*self._workers, *self._towers, *self._servers]
        found = collect(self.id, self.folder, self._cluster, tasks, self.over)
        name = self.options.name
        return steps_of(found, self.timeline_type, self.id, name, step, steps, self.over)

    def stop(self) -> None:
        """Ask all replicas to stop after their current step; what was trained is kept.

        A body that does not look is signalled, as by an interrupt. May be called from any thread.
        """
        if self.over:
            return
        self._watch.ask_to_stop()

    def pause(self) -> None:
        """Have all replicas rest between two steps. May be called from any thread, like the next three."""
        self.controls.pause()

    def resume(self) -> None:
        """Let paused replicas go on."""
        self.controls.ask("resume")

    def set(self, **settings: float) -> None:
        """Change the training from the next step on: ``run.set(learning_rate=0.01)``."""
        self.controls.set(settings)

    def checkpoint(self, timeout: float = KEPT_SECONDS) -> Path:
        """Have the chief write the model as it is now; returns the file's path there, for ``nb.nn.load``.

        A loop without a model leaves its variables in a safetensors file. Raises DeadlineExceededError if no
        step ends within ``timeout`` seconds, ResourceExhaustedError if the disk is full; the run goes on.
        """
        return self.controls.checkpoint(timeout)

    def wait(self) -> Run:
        """Wait until the run is over; raises what went wrong. An interrupt stops the run."""
        while not self.over:
            self._stay()
            try:
                if self.pump():
                    break
                self._pause.rest(self._seconds)
            except KeyboardInterrupt:
                self.signalled()
        return self._conclude()

    async def follow(self) -> Run:
        """Wait like :meth:`wait`, while the event loop goes on."""
        while not self.over:
            self._stay()
            try:
                await self.followed()
            except (KeyboardInterrupt, asyncio.CancelledError):
                self.signalled()
        return self._conclude()

    async def followed(self) -> None:
        """Look at the run until it is over, while the event loop goes on; raises nothing of the run's.

        Returns as well when this process ends, and the run goes on.
        """
        while not (self.pump() or self._leaves()):
            await self._pause.rest_on_loop(self._seconds)

    def wake(self) -> None:
        """Have the next look come at once, for there is something to see; from any thread."""
        self._pause.wake()

    def show(self) -> None:
        """Show the run here: live while it goes on; afterwards too, to look at its curves closely."""
        self.shown_by(self)

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.status != "running"

    @property
    def trains(self) -> bool:
        """Whether it trains, or is meant to."""
        return self._is_to_train or self._watch.has_trained

    def send(self, word: dict[str, Any]) -> None:
        """Have a word for all replicas sent at the next look; see :mod:`nbdist.runs.controlling`."""
        self._watch.asked.append(word)

    @property
    def error(self) -> NbdistError | None:
        """What went wrong first, if anything did."""
        return self._watch.error

    def interrupt(self) -> None:
        """Stop at a step boundary; a task that does not is signalled, and ended and replaced after 4 s."""
        self._watch.interrupted = True
        if self._watch.ladder.first():
            self.stop()

    def signalled(self) -> None:
        """Interrupt the run in a moment, unless this process ends: Jupyter says so just after its signal."""
        if self.leaving is None or self._stop_at is not None or self._watch.interrupted:
            self._stop_at = None
            self.interrupt()
        else:
            self._stop_at = time.monotonic() + RESTART_SECONDS

    def _leaves(self) -> bool:
        return self.leaving is not None and self.leaving()

    def _stay(self) -> None:
        """Raise KeyboardInterrupt if this process ends: the run goes on without it."""
        if self._leaves():
            error = KeyboardInterrupt(f"the kernel ends; run {self.id} goes on: nb.attach({self.id!r})")
            # A whole traceback takes IPython a second, and Jupyter waits little longer for the kernel's end.
            error._render_traceback_ = lambda: [f"KeyboardInterrupt: {error}"]  # type: ignore[attr-defined]
            raise error

    # Joining one that is under way. Before it is followed.

    def join(self, info: TaskInfo, answer: Frame) -> None:
        """Take in what a worker has answered to "run.watch"; its news follow."""
        self._watch.join(info, answer)

    def hear_text(self, info: TaskInfo, text: str) -> None:
        """Take in what a worker had printed."""
        if text:
            self._show(lambda view: view.output(info.name, text))

    def began(self, when: float) -> None:
        """Take note that the run began then, on the clock of ``time.monotonic``."""
        self.tally.began(when)

    @property
    def through(self) -> Collection[int]:
        """The ranks that have said that their bodies are over; it grows."""
        return self._watch.through

    # Following. All from one thread.

    def pump(self) -> bool:
        """Look once at everything that may have changed; whether the run is over."""
        if self.over:
            return True
        if self._stop_at is not None and time.monotonic() >= self._stop_at and not self._leaves():
            self._stop_at = None
            self.interrupt()
        with self.controls.looking():
            self._watch.look()
        self._secure()
        # A short cell is followed closely, a long one calmly: looking costs the tasks' own cores time.
        ending = bool(self._watch.calls.ready_ranks())
        self._seconds = SHORTEST_PAUSE if ending else min(self._seconds * CALMER, LONGEST_PAUSE)
        now = time.monotonic()
        if self.tally.news != self._shown_news and now >= self._show_after:
            self._shown_news, self._show_after = self.tally.news, now + STANDING_SECONDS
            self._show(lambda view: view.progress(self.standing()))
        self._show(lambda view: view.tick())
        if self._watch.complete():
            self._finish()
        return self.over

    def _secure(self) -> None:
        """See to it that run.json outlives a power failure, once there is something in its logs."""
        if self._secured or not self.store.series:
            return
        self._secured = True
        try:
            sync_run(self.id)
        except OSError as error:
            self.notes.append(f"run.json could not be brought to the disk: {error}")

    def _show(self, tell: Callable[[View], object]) -> None:
        """Tell the view; one that fails is left out, for the run matters more than how it is shown."""
        if self._view is not None:
            try:
                tell(self._view)
            except Exception as error:
                self.notes.append(f"the view of run {self.id} failed: {type(error).__name__}: {error}")
                self._view = None

    # The end.

    def _finish(self) -> None:
        if self.over:
            return
        self._bring_home()
        trained = any(outcome.get("trainings") for outcome in self.outcomes.values())
        stopped = any(outcome.get("stopped") for outcome in self.outcomes.values())  # by another client too
        interrupted = self._watch.interrupted or stopped
        if self._settled:
            self._recall()
        elif self.error is None and self.options.wants_training and not trained and not interrupted:
            self._watch.error = FailedPreconditionError(
                "the body never trained: a strategy or epochs were asked for, but no model.fit(...) ran on "
                "any worker. Call fit in the body, or drop the flags to run it as a plain cell on each worker"
            )
        if not self._settled:
            self.status = "failed" if self.error is not None else "stopped" if interrupted else "done"
        for info in self._cluster.tasks:
            # A server writes its part of the timeline then, and the next line may be cluster.stop().
            wait = WRITE_SECONDS if trained and info in self._servers else 0.0
            self._watch.tell(info, "run.release", {"run": self.id, "folder": str(self.folder)}, wait)
        self._at_end()
        if self._watch.stuck and str(self.error) != self._watch.stuck:
            self.notes.append(self._watch.stuck)
        if not self._settled:
            self._write(trained)
        self._show(lambda view: view.progress(self.standing()))
        self._show(lambda view: view.end(self))

    def _recall(self) -> None:
        """End as run.json says that the run has ended long ago."""
        self.status = self._record.status
        if self.status != "failed":
            self._watch.error = None
        elif self.error is None:
            self._watch.error = NbdistError(
                self._record.error or "it failed, and its run.json does not say why"
            )

    def _write(self, trained: bool) -> None:
        ends = [outcome.get("ended", 0.0) for outcome in self.outcomes.values()]  # it may have been long ago
        ended = max(ends) if ends and all(ends) else time.time()
        self._record = dataclasses.replace(
            self._record, status=self.status, ended=ended, error=str(self.error or "")
        )
        try:
            write_run(self._record, wait=bool(self.store.series))  # a plain cell does not wait for the disk
            if trained:
                keep_light(self.folder, self.outcomes)
        except OSError as error:
            self.notes.append(f"run.json could not be written: {error}")

    def _bring_home(self) -> None:
        outcome = self.outcomes.get(self._workers[0].rank) or {}
        for name, packed in outcome.get("results", {}).items():
            try:
                self.results[name] = parcel.unpack(packed)
            except NbdistError as error:  # a layer of a kind that only the tasks know
                self.notes.append(f"{name} stayed on {self._workers[0].name}: {error}")
        self.results.update(outcome.get("values", {}))  # of a body in this process
        self.notes.extend(outcome.get("left", ()))
        self.history, self.model = self.results.get("history"), self.results.get("model")

    def untold(self) -> list[str]:
        """Return the notes that were not yet asked for."""
        news = self.notes[self._told :]
        self._told = len(self.notes)
        return news

    def _conclude(self) -> Run:
        for note in self.untold():
            print(note)
        if self.error is not None:
            raise self.error
        return self

    def standing(self) -> Standing:
        """Return how far the run is now."""
        return self.tally.standing(time.monotonic(), self.store)

    @property
    def global_step(self) -> int:
        """Updates of the parameters by all replicas together."""
        return max((outcome.get("global_step", 0) for outcome in self.outcomes.values()), default=0)

    @property
    def dropped(self) -> int:
        """Gradients of all replicas that came too late for their synchronous step and were not applied."""
        return sum(outcome.get("dropped", 0) for outcome in self.outcomes.values())

    @property
    def skipped(self) -> int:
        """Gradients of all replicas that were no numbers, and left out as ``fit(nan="skip")`` asks."""
        return sum(outcome.get("skipped", 0) for outcome in self.outcomes.values())

    def last_epoch(self, replica: int) -> dict[str, float]:
        """Return a replica's mean loss and metrics over its last epoch."""
        for outcome in self.outcomes.values():
            if replica in outcome.get("last_epochs", ()):
                return dict(outcome["last_epochs"][replica])
        return {}

    @property
    def steps_per_second(self) -> float:
        """Steps of all replicas together per second of training; 0.0 if nothing was trained."""
        spans = [self.store.points(i, "loss") for i in self.store.replicas if "loss" in self.store.series]
        spans = [span for span in spans if len(span[0]) > 1]
        if not spans:
            return 0.0
        seconds = max(times[-1] for _, _, times in spans) - min(times[0] for _, _, times in spans)
        return float(sum(int(steps[-1]) for steps, _, _ in spans) / seconds) if seconds > 0 else 0.0

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.status}, {len(self.tasks)} replicas>"
