"""`Run`: one body on several tasks, followed from the client until its results are fetched.

Whatever follows a run (``wait``, ``follow``, the user interface, a thread) calls ``poll`` repeatedly, from
one thread at a time, and sleeps between two calls. `RunMonitor` does the work of a poll. At the end, in this
order: results are fetched, ``deliver`` puts them into the namespace, ``status`` changes, the tasks are
released, run.json is written, the view shows the end. A cell that waits for ``over`` therefore finds the
results.
"""

from __future__ import annotations

import asyncio
import atexit
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from nbdist.data import InputPipeline
from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
)
from nbdist.interrupts import HeldInterrupts
from nbdist.metrics.run_events import EventReader
from nbdist.metrics.run_folder import RunFile, read_run, write_run
from nbdist.metrics.store import RunStore, training_seconds
from nbdist.metrics.table import every_point, table
from nbdist.metrics.timeline import Timeline
from nbdist.numbers import is_whole
from nbdist.run import finish
from nbdist.run.body_error import Hint
from nbdist.run.control import KEPT_SECONDS, RunControls
from nbdist.run.devices import ReplicaDevice, replica_devices, trained_on
from nbdist.run.displays import Displayed, stored
from nbdist.run.export.export import interruptible
from nbdist.run.files.mirror import Mirror
from nbdist.run.files.place import RunPlace
from nbdist.run.follow import InterruptDebounce, RunFollower, View
from nbdist.run.followed import FollowedRun, RunEvents
from nbdist.run.history import TASK, EventList, Labelled, error_line
from nbdist.run.membership import MembershipRules
from nbdist.run.monitor import RunMonitor
from nbdist.run.notify import Notice, NoticeEvent, Notifier, ended_text, target_of
from nbdist.run.progress import ProgressTracker, Standing, first_not_finite, uneven_data
from nbdist.run.progress_file import progress_path, read_input
from nbdist.run.protocols import RunCalls, RunTasks
from nbdist.run.recovery.member import Members, State
from nbdist.run.recovery.ownership import RunOwnership
from nbdist.run.recovery.replacement import BodyLauncher, CallsByRank, Restart, RestartBudget, WorkerRecovery
from nbdist.run.recovery.resizing import Resize, WorkerGrowth
from nbdist.run.recovery.server_recovery import Replaced
from nbdist.run.stack_look import SilentTasks
from nbdist.run.values.backfill import collect, steps_of
from nbdist.runtime.task import TaskInfo
from nbdist.train.callbacks import History
from nbdist.wire.rpc.frame import Frame

END_SECONDS = 0.05  # between two checks for the end of the thread that follows a run
COPY_SECONDS = 5.0  # for the logs of tasks on other hosts, as far as they are written
JOIN_SECONDS = 2.0  # limit for that thread to end at the end of this process


class Run(Labelled):
    """Handle on a run. ``status`` is "running", then "finished", "stopped" or "failed".

    ``history`` is what a ``fit`` on the chief has returned, under the name `history` or another one.
    ``model`` is its `model`, or else the one model that it has trained, whatever its name, which ``notes``
    says. ``results`` has all fetched values by name, ``run.metrics()`` the points of every replica.

    The body runs on ``workers``, a replica each; or in the notebook's own process, which drives ``towers``.
    ``rules`` has the run's options. ``launcher`` starts the body again on the new process of a worker that is
    lost. ``ownership`` says whether this client replaces lost tasks; ``takes_over`` is set for a client that
    did not start the run. ``mirror`` copies the files of tasks on other hosts; None where all are here.
    """

    def __init__(
        self,
        cluster: RunTasks,
        record: RunFile,
        folder: Path,
        workers: list[TaskInfo],
        rules: MembershipRules,
        calls: RunCalls,
        *,
        towers: Sequence[TaskInfo] = (),
        at_end: Callable[[], object] = lambda: None,
        hint: Hint | None = None,
        launcher: BodyLauncher | None = None,
        ownership: RunOwnership | None = None,
        takes_over: TakeOver | None = None,
        mirror: Mirror | None = None,
    ) -> None:
        self.id, self.folder, self.options = record.id, folder, rules.options
        self.tasks = [info.name for info in towers or workers]
        self.status = "running"
        self.history: History | None = None
        self.unfetched: list[str] = []
        """Names that the body has bound to data which cannot be fetched."""
        self.model: Any = None
        self.results: dict[str, Any] = {}
        self.notes: list[str] = []
        self.members = Members(workers, rules.servers(cluster.tasks), towers)
        """The tasks that the run needs, with the state of each."""
        each = [] if towers else self.members.workers
        self.tally = ProgressTracker(len(self.tasks), bool(rules.options.synchronous), each)
        self.seed = record.seed
        self._cluster, self._record, self._at_end = cluster, record, at_end
        self.silent = SilentTasks(cluster)
        """Where its tasks are that send nothing."""
        self._ownership, self._takes_over = ownership, takes_over
        recovery, growth, prepare = None, None, None
        budget = RestartBudget(rules.most_restarts, restarts_in(record))
        if launcher is not None or takes_over is not None:
            recovery = WorkerRecovery(cluster, launcher, budget)
        if launcher is not None:
            prepare, growth = launcher.install_agent, WorkerGrowth(cluster, launcher)
        if takes_over is not None:
            prepare = takes_over.install_agent
        events = RunEvents(
            printed=lambda task, text: self._follower.show(lambda view: view.output(task, text)),
            displayed=lambda task, shown: self._follower.show(lambda view: view.display(task, shown)),
            noted=self.notes.append, restarted=self._record_restart, placed=self._place,
            resized=self._record_resize, happened=self._record_loss, hint=hint,
        )  # fmt: skip
        self._notifier: Notifier | None = None
        if rules.options.notify is not None:
            self._notifier = Notifier(target_of(rules.options.notify), self.notes.append)
        self.store = RunStore()
        self._followed = FollowedRun(
            record.id, folder, cluster, self.members, CallsByRank(calls), rules, self.store, self.tally,
            events, decides=takes_over is None, mirror=mirror or Mirror.of(RunPlace(str(folder)), cluster),
        )  # fmt: skip
        self._recovery, self._budget = recovery, budget
        self._monitor = RunMonitor(
            self._followed, budget, recovery=recovery, growth=growth, prepare=prepare,
            renewed=None if takes_over is None else takes_over.expect,
        )  # fmt: skip
        self.gallery = self._monitor.inbox.gallery
        self.event_reader = EventReader(folder)
        """Reads the events of the run, for views that follow it."""
        self.controls = RunControls(self)
        self._follower = RunFollower(self._monitor, self.controls, self.notes)
        self._debounce = InterruptDebounce(record.id)
        self.timeline_type: type[Timeline] = Timeline
        """The type that `timeline` returns; the user interface puts one here that shows itself."""
        self.shown_by: Callable[[Run], object] = print
        """Called by `show`; the user interface puts a view here."""
        self.resumed_by: Callable[[Run], Run]
        """Starts the run again, for `resume`; set by the module that makes runs, as it makes another one."""
        self.deliver: Callable[[Run], object] = lambda run: None
        """Called once with the fetched results, before ``over`` is true, on the following thread."""
        self._last: Standing | None = None
        self._thread: threading.Thread | None = None
        self._left, self._has_ended = threading.Event(), threading.Event()
        self._shown_notes, self._is_to_train = 0, rules.trains
        self._failed_step: Exception | None = None
        self._has_seen_end = False  # first of all clients
        # The steps of the end, each of which is begun once. `over` is true between the two lists: a cell that
        # waits for it finds the results.
        self._steps_before: list[Callable[[], object]] = [
            self._take_results,
            lambda: self.deliver(self),
        ]
        self._steps_after: list[Callable[[], object]] = [
            self._note_end,
            lambda: finish.release(self._followed, self._cluster.tasks),
            self._at_end,
            self._write_end,
            self._show_end,
            self._log_to,
            self._tell_end,
        ]

    @property
    def outcomes(self) -> dict[int, dict[str, Any]]:
        """What the bodies have returned, by rank; {} for those of which nothing is expected any more."""
        return self.members.outcomes

    @property
    def view(self) -> View | None:
        """The view that shows the run, None if there is none."""
        return self._follower.view

    def show_in(self, view: View) -> None:
        """Show the run in a view from now on."""
        self._follower.view = view

    @property
    def process_ends(self) -> Callable[[], bool] | None:
        """Returns whether this process is ending; the user interface sets one that asks the kernel."""
        return self._debounce.process_ends

    @process_ends.setter
    def process_ends(self, asked: Callable[[], bool] | None) -> None:
        self._debounce.process_ends = asked

    # For users.

    def displays(self) -> list[Displayed]:
        """Return the objects that the bodies have displayed so far, in order: figures, tables, HTML.

        They come from the run's folder, also after the kernel and the cluster have ended. Each one displays
        itself; its ``data`` has its form in each media type, images in base64, and its ``rank`` is that of
        its task::

            run = nb.attach("261120-091512-mnist")
            display(*run.displays()[-2:])
        """
        return stored(self.folder)

    def metrics(self) -> Any:
        """Return all points so far: a DataFrame if pandas is installed, else a dict of NumPy columns.

        The columns are ``replica``, ``series`` (the name), ``step``, ``value`` and ``time`` (seconds since
        1970). All points come from the logs in the run's folder, with those of other hosts, which are copied.
        Where a log is missing there are the points that were sent to this process: all of a series up to
        2,048 points, above that a sample with the first, the last and all spikes.
        """
        self._followed.mirror.catch_up(COPY_SECONDS)
        return table(every_point(self.folder, self.store))

    @property
    def events(self) -> EventList:
        """What happened in the run so far, by time; those of other hosts are copied first.

        See ``nb.runs()[0].events``.
        """
        self._followed.mirror.catch_up(COPY_SECONDS)
        return super().events

    def input_pipeline(self, replica: int | None = None) -> InputPipeline:
        """Return the stages of the dataset that the run trains on, with the one that is the bottleneck.

        - ``replica``: whose, from 0 on; None for the one that waits longest for its data

        It shows itself as a table: where each stage runs, its elements/s, the share of the time for which it
        works, how full its queue is; then the bottleneck, and what to do about it. It is about the last
        training of the run, by ``fit`` or a loop over ``strategy.distribute_dataset``. Raises
        FailedPreconditionError if no dataset was read, InvalidArgumentError for another replica.
        ``dataset.profile()`` does the same without a run.
        """
        said = [one.input for one in self.standing().replicas]
        if not any(said):  # none has told this client
            said = [read_input(progress_path(self.folder, number)) for number in range(len(said))]
        if replica is not None and not 0 <= replica < len(said):
            raise InvalidArgumentError(
                f"input_pipeline: replica is {replica}; expected a number from 0 to {len(said) - 1}"
            )
        chosen = said if replica is None else [said[replica]]
        found = [pipeline for one in chosen if one and (pipeline := InputPipeline.from_config(one)).elements]
        if not found:
            raise FailedPreconditionError(
                f"run {self.id} has read no dataset so far: it measures what fit and distribute_dataset read"
            )
        return max(found, key=lambda one: one.waits)

    def timeline(self, step: int | None = None, steps: int = 1) -> Timeline:
        """Return a timeline of all tasks in one training step, or in several.

        - ``step``: the last step shown, from 1 on; None for a recent one: of a single step the latest whose
          duration is near the median (the title has its number), of several the latest ones
        - ``steps``: how many, from 1 on

        It shows itself as a chart; ``save("step.png")`` writes that, ``save("step.json")`` a Chrome trace.
        While the run is under way the tasks are asked; afterwards it is read from the run's folder. Raises
        FailedPreconditionError if nothing was trained, InvalidArgumentError for a step that was not recorded.
        """
        members = self.members
        tasks = [one.info for one in (*members.workers, *members.towers, *members.servers)]
        found = collect(self.id, self.folder, self._cluster, tasks, self.over)
        name = self.options.name
        return steps_of(found, self.timeline_type, self.id, name, step, steps, self.over)

    def stop(self) -> None:
        """Ask all replicas to stop after their current step; the model keeps what it has learned.

        A body that does not stop is signalled after 1.5 s, and its process is replaced after 4 s. May be
        called from any thread.
        """
        if self.over:
            return
        self._monitor.request_stop()

    def pause(self) -> None:
        """Pause all replicas before their next step. May be called from any thread.

        Raises FailedPreconditionError if the run has ended or does not train.
        """
        self.controls.pause()

    def resume(self) -> Run:
        """Continue a run that is paused, or start one that has ended again from its newest state; return it.

        A run with ``checkpoint_every`` that has failed, was stopped, or has lost its tasks starts again as a
        new run, which is returned and followed in the background: with its body, its inputs and its options,
        on the current cluster (without one, on a new one of the same size), which may have another number of
        workers, and whose dead tasks are restarted. Names that its body takes from earlier cells must be on
        the tasks.

        May be called from any thread while the run is under way; raises as `pause` does then. Raises
        FailedPreconditionError if the run has finished, has left no state, or its body was not recorded::

            nb.attach("261123-091512-mnist").resume().wait().model
        """
        if not self.over:
            self.controls.ask("resume")
            return self
        return self.resumed_by(self)

    def set(self, **settings: float) -> None:
        """Change settings of the training from the next step on: ``run.set(learning_rate=0.01)``.

        - ``learning_rate``: a finite number of 0 or more

        May be called from any thread. Raises InvalidArgumentError for another name or value, else as `pause`.
        """
        self.controls.set(settings)

    def checkpoint(self, timeout: float = KEPT_SECONDS) -> Path:
        """Have the chief write a checkpoint of the model; return the file's path, for ``nb.nn.load``.

        - ``timeout``: seconds to wait for the end of a step, above 0

        It is in the run's folder: of a chief on another host, a copy of what that has written. A loop
        without a model writes its variables to a safetensors file. May be called from any thread. Raises
        DeadlineExceededError after ``timeout``, ResourceExhaustedError if the disk is full, else as `pause`;
        the run continues in all cases.
        """
        return self.controls.checkpoint(timeout)

    def await_file(self, path: Path, seconds: float) -> None:
        """Wait until a file that a task has written is here; DeadlineExceededError after so many seconds."""
        if not self._followed.mirror.arrived(path, seconds):
            raise DeadlineExceededError(
                f"{path} is written on another host, and was not copied in time: wait until it is here, or "
                "give it more time with checkpoint(timeout=...)"
            )

    def wait(self) -> Run:
        """Wait until the run has ended and return it; an interrupt stops it. Raises the run's error.

        An interrupt while the results of a run that has ended are fetched ends the wait. One that comes too
        late to stop the run is raised at its end.
        """
        interrupt: BaseException | None = None
        with HeldInterrupts() as held:
            while not self.settled:
                try:
                    if not self.over:
                        self._debounce.raise_if_ending()
                    self._sleep_and_poll()
                    held.deliver()
                except KeyboardInterrupt as error:
                    interrupt = self._take(error)
        return self._conclude(interrupt)

    def _take(self, interrupt: BaseException) -> BaseException:
        """Have an interrupt of a wait stop the run, or raise it where it ends the wait; return it."""
        self._debounce.raise_if_ending()
        if self.over and not self.settled:
            raise KeyboardInterrupt(
                f"run {self.id} has ended ({self.status}), and its results are still being fetched: "
                "wait() waits for them"
            )
        if not self.over and self._debounce.interrupt(again=self._followed.interrupted):
            self.interrupt()  # unless this process turns out to be ending
            self.wake()
        return interrupt

    def wait_until(self, step: int, timeout: float | None = None) -> Run:
        """Wait until the run has made so many updates, and return it; the run continues.

        ``step`` counts as the live view does: synchronous replicas make one update together, others one each.
        ``timeout`` is in seconds; None waits for as long as the run trains. An interrupt ends the wait, not
        the run. Raises DeadlineExceededError after ``timeout``, FailedPreconditionError if the run ends
        before that step, the error of the run if it fails, InvalidArgumentError for an invalid step.

            run = nb.launch(body, background=True)
            run.wait_until(step=1_000).set(learning_rate=0.001)
        """
        if not is_whole(step, 0):
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
            self._debounce.raise_if_ending()
            self._sleep_and_poll()
        return self

    def _sleep_and_poll(self) -> None:
        """Wait a moment, then poll the run once; if a thread follows the run, only wait."""
        if self._is_followed_elsewhere():
            self._has_ended.wait(END_SECONDS)
        else:
            self._follower.sleep()
            self.poll()

    async def follow(self) -> Run:
        """Wait like :meth:`wait`, on the event loop."""
        interrupt: BaseException | None = None
        while not self.settled:
            self._debounce.raise_if_ending()
            try:
                await self.follow_quietly()
            except (KeyboardInterrupt, asyncio.CancelledError) as error:
                interrupt = self._take(error)
        return self._conclude(interrupt)

    async def follow_quietly(self) -> None:
        """Poll on the event loop until the run has ended or this process ends; does not raise its error."""
        while not (self.settled or self._debounce.is_ending):
            await self._follower.sleep_on_loop()
            self.poll()

    def follow_on_thread(self) -> None:
        """Follow the run from a separate thread until it ends, for a script without an event loop.

        ``over``, ``status`` and ``standing`` then advance by themselves, and ``wait`` only waits. If this
        process ends first, the run continues on its tasks.
        """
        if self.over or self._thread is not None:
            return
        name = f"nbdist follows run {self.id}"
        self._thread = threading.Thread(target=self._follow_alone, name=name, daemon=True)
        atexit.register(self._leave)
        self._thread.start()

    def _follow_alone(self) -> None:
        self._monitor.inbox.resubscribe()  # each connection belongs to one thread
        while not (self.poll() or self._left.is_set() or self._debounce.is_ending):
            self._follower.sleep()
        atexit.unregister(self._leave)

    def _leave(self) -> None:
        """End the thread before the process ends, which closes the connections that the thread uses."""
        self._left.set()
        self.wake()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def _is_followed_elsewhere(self) -> bool:
        """Whether another thread follows the run."""
        thread = self._thread
        return thread not in (None, threading.current_thread()) and thread.is_alive()

    def wake(self) -> None:
        """Make the next poll due now; from any thread."""
        self._follower.wake()

    def show(self) -> None:
        """Show the run in this cell: live while it is under way, with its final curves afterwards."""
        self.shown_by(self)

    @property
    def name(self) -> str:
        """The name that the user gave it with `rename`, else the one that it was started with."""
        return self.labels.name or self.options.name

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.status != "running"

    @property
    def settled(self) -> bool:
        """Whether the run has ended and its results are fetched and shown."""
        return self._has_ended.is_set()

    @property
    def trains(self) -> bool:
        """Whether the body trains, or was started with options of a training."""
        return self._is_to_train or self.members.have_trained

    @property
    def has_session(self) -> bool:
        """Whether a body drives a monitored session, or has driven one."""
        return self.members.have_sessions

    def send(self, command: dict[str, Any]) -> None:
        """Have a command sent to all replicas at the next poll; see :mod:`nbdist.run.control`."""
        self._monitor.commands.append(command)

    @property
    def error(self) -> NbdistError | None:
        """The first failure, None if there was none."""
        return self._followed.error

    def interrupt(self) -> None:
        """Stop the run, as an interrupt in the notebook does; a second call hurries to the signal."""
        if self.members.all_ended:  # only files of other hosts are missing
            self._followed.mirror.give_up()
        self._followed.interrupted = True
        if self._followed.escalation.interrupt():
            self.stop()

    # Its numbers: from the outcomes, and from the points that the bodies have logged.

    @property
    def global_step(self) -> int:
        """Updates of the parameters by all replicas together.

        While the run is under way, and where its tasks have died before they could tell, the number that
        the live view shows: updates that a task had not logged yet are missing in it.
        """
        told = max((outcome.get("global_step", 0) for outcome in self.outcomes.values()), default=0)
        return told or self.standing().step

    @property
    def dropped(self) -> int:
        """Gradients of all replicas that were not applied by every parameter server.

        They arrived too late for their synchronous step, or were on their way to a server that died.
        """
        return sum(outcome.get("dropped", 0) for outcome in self.outcomes.values())

    @property
    def skipped(self) -> int:
        """Gradients of all replicas that were left out: NaN (``fit(nan="skip")``), or with a loss scale."""
        return sum(outcome.get("skipped", 0) for outcome in self.outcomes.values())

    def last_epoch(self, replica: int) -> dict[str, float]:
        """Return a replica's mean loss and metrics over its last epoch, {} if it has ended none."""
        for outcome in self.outcomes.values():
            if replica in outcome.get("last_epochs", ()):
                return dict(outcome["last_epochs"][replica])
        return {}

    @property
    def devices(self) -> dict[str, list[str]]:
        """The devices on which each replica has trained, by its task's name: where its arrays were.

        Such as {"/job:worker/task:0": ["GPU:0"]}; replicas that have not trained are left out. `trained_on`
        says the same in one line, with the names of the GPUs.
        """
        return {one.task: list(one.devices) for one in self.replica_devices() if one.devices}

    @property
    def trained_on(self) -> str:
        """The devices on which the replicas have trained, in one line; empty if none has trained.

        Such as "2 workers on CPU (8 cores)", or "worker 0: NVIDIA H100 80GB HBM3 GPU-8f3a… (GPU:0)".
        """
        return trained_on(self.replica_devices())

    def replica_devices(self, standing: Standing | None = None) -> list[ReplicaDevice]:
        """Return where each replica trains, or has trained, as of a standing of this run; None for now.

        From run.json if no replica has told this client.
        """
        standing = standing or self.standing()
        towers = [one.info for one in self.members.towers]
        found = replica_devices(self.tasks, [*self.members.infos, *towers], standing.replicas)
        if any(one.devices for one in found):
            return found
        recorded = map(ReplicaDevice.from_config, self._record.devices)
        return [one for one in recorded if one is not None]

    @property
    def seconds(self) -> float:
        """Seconds of training, without the start and pauses.

        They are those from the first point of a loss to the last; with ``--framework``, whose loops log what
        and when they like, those of all steps, of the worker that has spent most.
        """
        if self.options.framework is not None:
            return self.tally.stepped
        return training_seconds(self.store, self.tally.rested)

    @property
    def steps_per_second(self) -> float:
        """Updates of the parameters per second of training (`seconds`); 0.0 if nothing was trained.

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
        standing = self.standing().replicas
        last = [self.store.last(i, "loss") for i in self.store.replicas if "loss" in self.store.series]
        steps = [int(one.step) for one in last if one is not None]
        if self.options.framework is not None or not self.trains:  # the loop numbers its points itself
            steps = [replica.step for replica in standing]
        begun = sum(replica.begun for replica in standing)
        made = (max(steps) if self.tally.synchronous else sum(steps) - begun) if steps else 0
        return max(0, made - self.tally.resumed_steps)

    # Attaching to a run that another process has started; before it is followed.

    def apply_backfill(self, info: TaskInfo, answer: Frame) -> None:
        """Apply a worker's answer to the subscription; its later messages follow."""
        self._monitor.inbox.apply_backfill(self.members.worker(info.rank), answer)

    def show_printed(self, info: TaskInfo, text: str) -> None:
        """Show output that a worker has printed before."""
        if text:
            self._follower.show(lambda view: view.output(info.name, text))

    def show_displays(self) -> None:
        """Show the objects that the run's bodies have displayed so far, from its folder."""
        for shown in self.displays():
            self._follower.show(lambda view: view.display(self.task_of(shown), shown))  # noqa: B023

    def task_of(self, shown: Displayed) -> str:
        """Return the name of the task that displayed an object."""
        names = {one.info.rank: one.info.name for one in self.members.workers}
        return names.get(shown.rank, f"/job:worker/task:{shown.rank}")

    def show_restarts(self) -> None:
        """Show the replacements of tasks that run.json has, as if they had been observed here.

        Workers that have left the run are shown so, too.
        """
        members = self.members
        now = {one.info.name: one.info for one in members.servers}
        last = {entries["task"]: entries for entries in self._record.restarts}
        for name, entries in last.items():
            member = next((one for one in members.workers if one.info.name == name), None)
            if name in now:
                one = Replaced.from_config(entries, now[name])
                self.tally.replace_server(f"{name} was {one.text}")
            elif member is not None and self._recovery is not None and self._takes_over is not None:
                calls, place = self._takes_over.expect(member.rank), members.number(member)
                restart = Restart.from_config(entries, member.info, calls)
                self._recovery.restarts.append(restart)
                if restart.problem:
                    self._monitor.changes.leave_out(member)
                elif restart.step is None:
                    member.move(State.LOST)
                    member.renew(member.info, State.JOINING, restart)
                    self.tally.restart(place)
                else:
                    self.tally.join(place, restart.text)
        for info, entries in left_workers(self._record, members.infos):
            step, member = entries.get("step"), members.worker(info.rank)
            self._monitor.changes.leave_out(member, "left" if step is None else f"left at step {step:,}")

    # Polling, from one thread.

    def poll(self) -> bool:
        """Receive, send and check everything once, without waiting; return whether the run has ended.

        An interrupt is handled when that is done.
        """
        if self.settled or self._is_followed_elsewhere():
            return self.over
        with HeldInterrupts():
            if self.over:  # an interrupt has cut off its end
                self._finish()
                return True
            if self._debounce.is_due():
                self.interrupt()
            self.becomes_owner()
            if self._follower.poll() and self._is_end_known():
                self._finish()
        return self.over

    def _is_end_known(self) -> bool:
        """Whether this client knows how the run has ended, or its owner has written that into run.json."""
        if self._monitor.is_unclear:
            try:
                written = read_run(self.id)
            except NbdistError:
                return True
            if written.status not in finish.ENDED:
                return False
            self._record = written
        return True

    def becomes_owner(self) -> bool:
        """Become the owner if no other client is; return whether only the body is missing for that."""
        ownership, takes_over = self._ownership, self._takes_over
        if ownership is None or takes_over is None:
            return False
        if ownership.poll():
            self._take_over(ownership, takes_over)
        return ownership.is_pending

    def _take_over(self, ownership: RunOwnership, takes_over: TakeOver) -> None:
        """Replace lost tasks from now on: the client that did has ended."""
        with suppress(NbdistError):
            self._record = read_run(self.id)
        self._budget.spent = max(self._budget.spent, restarts_in(self._record))
        growth = None
        if self._recovery is not None:
            launcher = self._recovery.launcher = takes_over.launcher(self.members.infos)
            if launcher is not None:
                begun = max((int(one.get("number", 0)) for one in self._record.resizes), default=0)
                growth = WorkerGrowth(self._cluster, launcher, begun)
            if ownership.handover is not None:
                self._recovery.problem = ownership.handover.problem
        self._monitor.take_over(growth)

    # The end.

    def _finish(self) -> None:
        """End the run. Where an interrupt cuts off a step that hangs, the next call makes the rest."""
        self._make(self._steps_before)
        if not self.over:
            self._followed.error, self.status = finish.verdict(
                self._record, self.outcomes, self.error, self._followed.interrupted, self._is_to_train
            )
        self._make(self._steps_after)

    def _make(self, steps: list[Callable[[], object]]) -> None:
        """Make steps of the end, also after one that fails: the view shows the end, and ``wait`` raises."""
        while steps:
            try:
                steps.pop(0)()
            except Exception as error:
                self._failed_step = self._failed_step or error
                self.notes.append(f"the end of run {self.id} failed: {type(error).__name__}: {error}")

    def _take_results(self) -> None:
        chief = finish.chief_of(self.members.infos, self.outcomes)
        found, left = finish.fetched(self.outcomes.get(chief.rank) or {}, chief.name)
        self.results.update(found)
        self.notes.extend(left)
        self.unfetched = list((self.outcomes.get(chief.rank) or {}).get("unfetched", ()))
        self.history = finish.history_of(self.results)
        self.model, said = finish.model_of(self.outcomes.get(chief.rank) or {}, self.results)
        self.notes += filter(None, [said])

    def _note_end(self) -> None:
        self._last = self._standing_at_end()
        uneven = uneven_data(self._last.replicas, self.tasks, self.status)
        differ = finish.differing_weights(self.outcomes) if self.status == "finished" else ""
        unused = finish.unused_flags(self.options, self.outcomes) if self.status == "finished" else ""
        wrong = first_not_finite(self._last.replicas, self.tasks)
        self.notes += filter(None, [self._last.apart, wrong, uneven, differ, unused])

    def _write_end(self) -> None:
        if self._monitor.stuck and str(self.error) != self._monitor.stuck:
            self.notes.append(self._monitor.stuck)
        # A run behind a broken tunnel goes on: a client that attaches to it writes its end.
        if self._record.status not in finish.ENDED and not self._cluster.is_cut_off():
            try:
                self._has_seen_end = finish.write(
                    self._record, self.status, self.error, self._followed, self.replica_devices()
                )
            except OSError as error:
                self._has_seen_end = True
                self.notes.append(
                    f"run.json, and how the run has ended, could not be written: {error.strerror or error}; "
                    f"make room, and nb.attach({self.id!r}) writes it"
                )
        if self._ownership is not None:
            self._ownership.end()

    def _show_end(self) -> None:
        if self._takes_over is not None:  # of what other hosts had when it was opened, files came later
            self.show_displays()
        self._follower.show(lambda view: view.progress(self.standing()))
        self._follower.show(lambda view: view.end(self))

    def _tell_end(self) -> None:
        """Tell ``--notify`` of the end; the run is settled when that was told."""
        if self._notifier is None:
            self._has_ended.set()
            return
        try:
            if self._has_seen_end:
                self._notifier.tell(self._notice(self.status))  # type: ignore[arg-type]
        finally:
            self._notifier.close(self._has_ended.set)

    def _record_loss(self, kind: str, how: str, info: TaskInfo | None) -> None:
        """Write a task that was lost, while the run continues, into run.json, and tell ``--notify`` of it."""
        if kind != "lost" or info is None or self._followed.error is not None:
            return
        loss = {"task": info.name, "how": how, "at": time.time()}
        self._write_change(None, losses=[*self._record.losses, loss])
        if self._notifier is not None:
            how = TASK.sub(r"\1 \2", how)
            text = f"run {self.name} has lost a task, and continues: {how}"
            self._notifier.tell(replace(self._notice("lost"), text=text, tasks=(info.name,)))

    def _notice(self, event: NoticeEvent) -> Notice:
        """Return what ``--notify`` is told now."""
        standing = self.standing()
        error = error_line(str(self.error)) if self.error is not None else ""
        metrics = self.last_epoch(0)
        return Notice(
            event, "run", self.id, self.name,
            ended_text("run", self.name, event, standing.elapsed, standing.step, metrics, error),
            str(self.folder), standing.step, standing.elapsed, metrics, error,
        )  # fmt: skip

    def _log_to(self) -> None:
        """Export the run as ``--log-to`` says; of several clients the one that has written its end does.

        An error, or an interrupt, does not change the run: it is a note.
        """
        for to in self.options.log_to if self._has_seen_end else ():
            try:
                with interruptible():
                    self.notes.append(str(self.export(to=to)))
            except (Exception, KeyboardInterrupt) as error:
                why = "it was interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
                self.notes.append(f"--log-to {to}: {why}. run.export(to={to!r}) exports the run later")

    def _fetch_files(self) -> None:
        self._followed.mirror.catch_up(COPY_SECONDS)

    def _place(self, info: TaskInfo) -> None:
        """Count a worker that was added among the run's tasks."""
        if info.name not in self.tasks:
            self.tasks.append(info.name)

    def _record_restart(self, restart: Restart | Replaced) -> None:
        """Write a replacement into run.json, with the new process, so that other clients find it."""
        others = [one for one in self._record.restarts if one.get("number") != restart.number]
        restarts = [*others, {"number": restart.number, **restart.to_config()}]
        self._write_change(restart.new, restarts=restarts)

    def _record_resize(self, resize: Resize) -> None:
        """Write a worker that was added, or has left, into run.json."""
        # A client that adds no workers numbers none: each worker that leaves is one more.
        number = resize.number or 1 + max((int(one["number"]) for one in self._record.resizes), default=0)
        others = [one for one in self._record.resizes if one["number"] != number]
        resizes = sorted([*others, resize.to_config() | {"number": number}], key=lambda one: one["number"])
        self._write_change(resize.new, resizes=resizes)

    def _write_change(self, new: TaskInfo | None, **changes: Any) -> None:
        """Write changes into run.json, and the process that a task has now; the owner of the run does."""
        if not self._followed.decides:
            return
        cluster = self._record.cluster
        members = {one["rank"]: one for one in cluster.get("members", ())}
        workers = list(cluster.get("workers", ()))
        if new is not None:
            members[new.rank] = new.to_dict()
            if new.name in self.tasks and new.rank not in workers:
                workers.append(new.rank)
        changed = {**cluster, "members": list(members.values()), "workers": workers}
        self._record = replace(self._record, cluster=changed, **changes)
        try:
            write_run(self._record, wait=False)
        except OSError as error:
            self.notes.append(f"run.json could not be written: {error}")

    def new_notes(self) -> list[str]:
        """Return the notes that were added since the last call."""
        new = self.notes[self._shown_notes :]
        self._shown_notes = len(self.notes)
        return new

    def _conclude(self, interrupt: BaseException | None) -> Run:
        for note in self.new_notes():
            print(note)
        for error in filter(None, (self.error, self._failed_step)):
            raise error
        if interrupt is not None and self.status != "stopped":
            raise interrupt
        return self

    def standing(self) -> Standing:
        """Return the progress of the run now; for a run that has ended, its last progress and its outcome."""
        return self._last or self._follower.standing()

    def _standing_at_end(self) -> Standing:
        """Return the final progress: its state is the run's, and its clock has stopped."""
        found = self._follower.standing()
        ended = finish.ended_at(self._record, self.outcomes)
        paused = self.tally.paused(time.monotonic())
        elapsed = max(0.0, min(found.elapsed, ended - self._record.created - paused))
        return replace(found, state=self.status, seconds_left=None, elapsed=elapsed)

    def __repr__(self) -> str:
        where = f"; trained on {self.trained_on}" if self.trained_on else ""
        return f"<Run {self.id}: {self.status}, {len(self.tasks)} replicas{where}>"


class TakeOver(Protocol):
    """What a client that did not start a run uses as its owner, and while it observes the owner."""

    def launcher(self, workers: Sequence[TaskInfo]) -> BodyLauncher | None:
        """Return what starts the body of workers on new processes, None if no task has handed it over."""

    def install_agent(self, info: TaskInfo) -> RunCalls:
        """Begin to create the agent of a task that runs no body."""

    def expect(self, rank: int) -> RunCalls:
        """Return the call that knows the outcome of a rank's new process."""


def restarts_in(record: RunFile) -> int:
    """Return how many replacements of tasks a run.json has counted."""
    return max((int(one.get("number", 0)) for one in record.restarts), default=0)


def left_workers(record: RunFile, workers: Sequence[TaskInfo]) -> list[tuple[TaskInfo, Mapping[str, Any]]]:
    """Return the workers that have left a run and have not been added again, each with its entry."""
    last = {str(entries["task"]): entries for entries in record.resizes}
    found = ((info, last.get(info.name, {})) for info in workers)
    return [(info, entries) for info, entries in found if entries.get("change") == "shrunk"]
