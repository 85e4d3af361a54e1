"""A run: one body on several tasks, followed from the client until its results are home."""

from __future__ import annotations

import asyncio
import atexit
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
)
from nbdist.metrics.run_folder import RunFile
from nbdist.metrics.store import RunStore
from nbdist.metrics.table import every_point, table
from nbdist.metrics.timeline import Timeline
from nbdist.runs import finish
from nbdist.runs.backfill import collect, steps_of
from nbdist.runs.control import KEPT_SECONDS, Controls
from nbdist.runs.follow import Following, Leaving, View
from nbdist.runs.history import Labelled
from nbdist.runs.monitor import Hint, Watch
from nbdist.runs.options import Options
from nbdist.runs.progress import Standing, Tally
from nbdist.runs.protocols import Calls, Tasks
from nbdist.runtime.task import TaskInfo
from nbdist.train.callbacks import History
from nbdist.wire.rpc.frame import Frame

FOLLOWED_SECONDS = 0.05  # between two checks for the end of the thread that follows a run
LEAVE_SECONDS = 2.0  # limit for that thread to end at the end of this process

# What a run came to, in numbers: from what its bodies returned, and the points that they logged.


class Totals(ABC):
    """What all replicas came to together. ``outcomes`` are what bodies returned, by rank; it grows.

    ``tally`` has the progress of the replicas.
    """

    def __init__(self, outcomes: dict[int, dict[str, Any]], store: RunStore, tally: Tally) -> None:
        self.outcomes, self.store, self.tally = outcomes, store, tally

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
    def seconds(self) -> float:
        """Seconds of training, from the first point of a loss to the last, without pauses."""
        return training_seconds(self.store, self.tally)

    @property
    def steps_per_second(self) -> float:
        """Updates of the parameters per second of wall time, without pauses; 0.0 if nothing was trained.

        Synchronous replicas make one update together, others one each. The live view shows the same figure:
        the rate over the last seconds while the run is under way, over the whole run afterwards.
        """
        if not self.over:
            return self.standing().steps_per_second
        return self._updates / self.seconds if self.seconds > 0 else 0.0

    @property
    def examples_per_second(self) -> float:
        """Examples that all replicas together train on per second, without pauses; see `steps_per_second`."""
        if not self.over:
            return self.standing().examples_per_second
        return self.tally.examples / self.seconds if self.seconds > 0 else 0.0

    @property
    def _updates(self) -> int:
        last = [self.store.last(i, "loss") for i in self.store.replicas if "loss" in self.store.series]
        steps = [int(one.step) for one in last if one is not None]
        return (max(steps) if self.tally.synchronous else sum(steps)) if steps else 0

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether the run has ended."""

    @abstractmethod
    def standing(self) -> Standing:
        """Return the progress of the run now."""


def training_seconds(store: RunStore, tally: Tally) -> float:
    """Return the seconds of training between the first and the last point of a loss, without pauses."""
    spans = [store.points(i, "loss")[2] for i in store.replicas if "loss" in store.series]
    longest = max((float(times[-1] - times[0]) for times in spans if len(times) > 1), default=0.0)
    return max(0.0, longest - tally.rested)


class Run(Labelled, Totals):
    """Handle on a run. ``status`` is "running", then "finished", "stopped" or "failed".

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
        hint: Hint | None = None,
    ) -> None:
        self.id, self.folder, self.options = record.id, folder, options
        self.tasks = [info.name for info in towers or workers]
        self.status = "running"
        self.history: History | None = None
        self.model: Any = None
        self.results: dict[str, Any] = {}
        self.notes: list[str] = []
        self.tally = Tally(len(self.tasks), bool(options.synchronous))
        self.seed = record.seed
        self._cluster, self._record, self._workers = cluster, record, workers
        self._towers, self._at_end = list(towers), at_end
        self._servers = [info for info in cluster.tasks if info.job == "ps" and options.uses_servers]
        store = RunStore()
        self._watch = Watch(
            record.id, folder, cluster, workers, self._servers, calls, towers=self._towers,
            store=store, tally=self.tally,
            least=options.least(len(workers), len(self._servers)), trains=options.wants_training,
            printed=lambda task, text: self._following.show(lambda view: view.output(task, text)),
            hint=hint,
            displayed=lambda task, shown: self._following.show(lambda view: view.display(task, shown)),
            noted=self.notes.append,
        )  # fmt: skip
        super().__init__(self._watch.outcomes, store, self.tally)
        self.controls = Controls(self)
        self._following = Following(self._watch, self.controls, view, self.notes)
        self._leaving = Leaving(record.id)
        self.timeline_type: type[Timeline] = Timeline
        """What `timeline` returns; the user interface puts one here that shows itself."""
        self.shown_by: Callable[[Run], object] = print
        """What `show` calls; the user interface puts a view here."""
        self.deliver: Callable[[Run], object] = lambda run: None
        """Called once with the fetched results, before ``over`` is true, on the following thread."""
        self._last: Standing | None = None
        self._follower: threading.Thread | None = None
        self._left, self._has_ended = threading.Event(), threading.Event()
        self._told, self._is_to_train = 0, options.wants_training

    @property
    def view(self) -> View | None:
        """What shows the run, if anything does."""
        return self._following.view

    def show_in(self, view: View) -> None:
        """Show the run in a view from now on."""
        self._following.view = view

    @property
    def leaving(self) -> Callable[[], bool] | None:
        """Whether this process is ending; the user interface puts here what asks its kernel."""
        return self._leaving.asked

    @leaving.setter
    def leaving(self, asked: Callable[[], bool] | None) -> None:
        self._leaving.asked = asked

    # What users call.

    def metrics(self) -> Any:
        """Return all points so far: a DataFrame if pandas is installed, else a dict of NumPy columns.

        The columns are ``replica``, ``series`` (the name), ``step``, ``value`` and ``time`` (seconds since
        1970). Every point comes from the logs in the run's folder; of a replica that wrote its log on another
        machine there is what came to this one: spikes, first and last, and up to 2,048 points a series all.
        """
        return table(every_point(self.folder, self.store))

    def timeline(self, step: int | None = None, steps: int = 1) -> Timeline:
        """Return a timeline of every task in one training step, or in ``steps`` of them up to ``step``.

        Without ``step`` a single step is the latest with a duration near the median of the recorded steps
        (the title gives its number); several steps are the latest ones.

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
            self._leaving.stay()
            try:
                self._look_and_rest()
            except KeyboardInterrupt:
                self.signalled()
        while not self.settled:
            self._has_ended.wait(FOLLOWED_SECONDS)
        return self._conclude()

    def wait_until(self, step: int, timeout: float | None = None) -> Run:
        """Wait until the run has made so many updates, and return it; the run continues.

        ``step`` counts as the live view does: synchronous replicas make one update together, others one each.
        ``timeout`` is in seconds; None waits for as long as the run trains. An interrupt ends the wait, not
        the run. Raises DeadlineExceededError after ``timeout``, FailedPreconditionError if the run ends
        before that step, the error of the run if it fails, InvalidArgumentError for an invalid step.

            run = nb.launch(body, background=True)
            run.wait_until(step=1_000).set(learning_rate=0.001)
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise InvalidArgumentError(f"step is a whole number of 0 or more, got {step!r}")
        if timeout is not None and not 0 <= timeout < math.inf:
            raise InvalidArgumentError(
                f"timeout is a number of seconds of 0 or more, or None, got {timeout!r}"
            )
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while self.standing().step < step:
            if self.over:
                if self.error is not None:
                    raise self.error
                made = f"after {self.standing().step} updates, before step {step}"
                raise FailedPreconditionError(f"run {self.id} ended ({self.status}) {made}")
            if time.monotonic() >= deadline:
                now = self.standing().step
                raise DeadlineExceededError(
                    f"run {self.id} is at step {now} after {timeout:g} s, before step {step}: it continues; "
                    "wait longer with a larger timeout"
                )
            self._leaving.stay()
            self._look_and_rest()
        return self

    def _look_and_rest(self) -> None:
        """Poll the run once, then wait a moment; if a thread follows the run, only wait."""
        if self._is_followed_elsewhere():
            self._has_ended.wait(FOLLOWED_SECONDS)
        elif not self.pump():
            self._following.rest()

    async def follow(self) -> Run:
        """Wait like :meth:`wait`, while the event loop goes on."""
        while not self.over:
            self._leaving.stay()
            try:
                await self.followed()
            except (KeyboardInterrupt, asyncio.CancelledError):
                self.signalled()
        return self._conclude()

    async def followed(self) -> None:
        """Look at the run until it is over, while the event loop goes on; raises nothing of the run's.

        Returns as well when this process ends, and the run goes on.
        """
        while not (self.pump() or self._leaving.now):
            await self._following.rest_on_loop()

    def follow_on_thread(self) -> None:
        """Follow the run from a separate thread until it ends, for a script without an event loop.

        ``over``, ``status`` and ``standing`` then advance by themselves, and ``wait`` only waits. If this
        process ends first, the run continues on its tasks.
        """
        if self.over or self._follower is not None:
            return
        name = f"nbdist follows run {self.id}"
        self._follower = threading.Thread(target=self._follow_alone, name=name, daemon=True)
        atexit.register(self._leave)
        self._follower.start()

    def _follow_alone(self) -> None:
        self._watch.subscribe_anew()  # each connection belongs to one thread
        while not (self.pump() or self._left.is_set() or self._leaving.now):
            self._following.rest()
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        """End the thread before the process ends, which closes the connections that the thread uses."""
        self._left.set()
        self.wake()
        if self._follower is not None:
            self._follower.join(LEAVE_SECONDS)

    def _is_followed_elsewhere(self) -> bool:
        """Whether another thread follows the run."""
        follower = self._follower
        return follower not in (None, threading.current_thread()) and follower.is_alive()

    def wake(self) -> None:
        """Have the next look come at once, for there is something to see; from any thread."""
        self._following.wake()

    def show(self) -> None:
        """Show the run here: live while it goes on; afterwards too, to look at its curves closely."""
        self.shown_by(self)

    @property
    def name(self) -> str:
        """The name that the user has given it, else the one that it was started with."""
        return self.labels.name or self.options.name

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.status != "running"

    @property
    def settled(self) -> bool:
        """Whether the run has ended, and the thread that follows it has fetched and shown the results."""
        return self.over and (self._has_ended.is_set() or not self._is_followed_elsewhere())

    @property
    def trains(self) -> bool:
        """Whether it trains, or is meant to."""
        return self._is_to_train or self._watch.has_trained

    def send(self, word: dict[str, Any]) -> None:
        """Have a word for all replicas sent at the next look; see :mod:`nbdist.runs.control`."""
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
        if self._leaving.signalled(again=self._watch.interrupted):
            self.interrupt()

    # Joining one that is under way. Before it is followed.

    def join(self, info: TaskInfo, answer: Frame) -> None:
        """Take in what a worker has answered to "run.watch"; its news follow."""
        self._watch.join(info, answer)

    def hear_text(self, info: TaskInfo, text: str) -> None:
        """Take in what a worker had printed."""
        if text:
            self._following.show(lambda view: view.output(info.name, text))

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
        if self._is_followed_elsewhere():
            return False
        if self._leaving.passed():
            self.interrupt()
        if self._following.look():
            self._finish()
        return self.over

    # The end.

    def _finish(self) -> None:
        if self.over:
            return
        chief = self._workers[0]
        found, left = finish.brought_home(self.outcomes.get(chief.rank) or {}, chief.name)
        self.results.update(found)
        self.notes.extend(left)
        self.history, self.model = self.results.get("history"), self.results.get("model")
        self.deliver(self)  # before `over` is true: a cell that waits for `over` then finds the results
        self._watch.error, self.status = finish.verdict(
            self._record, self.outcomes, self.error, self._watch.interrupted, self._is_to_train
        )
        self._last = self._standing_at_end()
        finish.release(self._watch, self._cluster.tasks)
        self._at_end()
        if self._watch.stuck and str(self.error) != self._watch.stuck:
            self.notes.append(self._watch.stuck)
        if self._record.status not in finish.ENDED:
            try:
                finish.write(self._record, self.status, self.error, self._watch)
            except OSError as error:
                self.notes.append(f"run.json could not be written: {error}")
        self._following.show(lambda view: view.progress(self.standing()))
        self._following.show(lambda view: view.end(self))
        self._has_ended.set()

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
        """Return the progress of the run now; for a run that has ended, its last progress and its outcome."""
        return self._last or self._following.standing()

    def _standing_at_end(self) -> Standing:
        """Return the final progress: its state is the run's, and its clock has stopped."""
        found = self._following.standing()
        ended = finish.ended_at(self._record, self.outcomes)
        paused = self.tally.paused(time.monotonic())
        elapsed = max(0.0, min(found.elapsed, ended - self._record.created - paused))
        return replace(found, state=self.status, seconds_left=None, elapsed=elapsed)

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.status}, {len(self.tasks)} replicas>"
