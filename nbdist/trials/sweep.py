"""`Sweep`: the handle of a sweep. Its state, its trials, the commands on it, and how to wait for it.

Commands are rows of `nbdist.sweep.commands.COMMANDS`. A command becomes events in the sweep's log; the driver
(`nbdist.trials.driver`, a thread) reads the state that follows from the log and acts on it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError, NbdistError, UnavailableError
from nbdist.frameworks.registry import SPECS, StateDict
from nbdist.frameworks.trainable import weights_in
from nbdist.metrics.table import table
from nbdist.run.files.place import mark
from nbdist.run.history import error_line
from nbdist.run.notify import Notice, NoticeEvent, Target, ended_text, tell
from nbdist.run.options import select
from nbdist.run.start import check_given
from nbdist.run.values.delivery import Delivery, Given, missing_name
from nbdist.runtime.task import TaskInfo, segment_prefix
from nbdist.sweep import commands
from nbdist.sweep.events import Event, Promoted, SpaceEdited
from nbdist.sweep.export import columns, write_csv
from nbdist.sweep.space import Space
from nbdist.sweep.start import check_changes, check_edit
from nbdist.sweep.state import Trial
from nbdist.terminal.ansi import OWN
from nbdist.train.resume import trainings_in
from nbdist.trials.command_file import CommandFile
from nbdist.trials.driver import Driver
from nbdist.trials.protocol import SweepSpec, trial_folder
from nbdist.trials.store import Record
from nbdist.trials.workers import Engines, EngineStatus

TROUBLE_SECONDS = 5.0  # for which nothing runs although there is work, until `wait` says so
LONGEST_OUTPUT = 200_000  # characters of a trial's output that are read


class Sweep:
    """A sweep: its state, its results and commands to it; ``nb.run_sweep`` and ``nb.attach`` return it.

    All methods may be called from any thread, while trials run.
    ``state`` is "running", "paused", and at the end "finished", "stopped" or "failed"; a finished sweep
    continues when trials are added, retried, cloned or promoted. `best` is its best trial, `table` has all.
    """

    def __init__(
        self,
        record: Record,
        spec: SweepSpec,
        body: str | Callable[..., Any] | None,
        ranks: list[int] | None,
        name: str,
        taken_over: bool = False,
        everyone: bool = False,
        push: Mapping[str, Any] | None = None,
        pushes: Sequence[str] = (),
    ) -> None:
        self.id, self.name, self.folder = record.id, name, record.folder
        self.lock, self.ledger, self.touched = record.lock, record.ledger, record.touched
        self._record = record
        self._push, self._pushes = push, tuple(pushes)
        self._delivery: Delivery | None = None
        self.error: NbdistError | None = None
        """What ended it, if it failed."""
        self.shown_by: Callable[[Sweep], object] = print
        """What `show` calls; the user interface puts the grid here."""
        self.looking: Callable[[], object] = lambda: None
        """What `wait` calls ten times a second and at the end; the user interface keeps its grid moving."""
        self.continued: Callable[[], object] = lambda: None
        """Called when a driver starts, from any thread; the user interface shows the sweep again."""
        self.rerun_by: Callable[[Sweep, Trial], Any] | None = None
        self.notify: Target | None = None
        """What this process notifies when the sweep ends or loses an engine."""
        self.engine_names: dict[int, str] = {}
        """What its engines are called, by rank; empty in a process that has not driven it."""
        self.spec, self._body, self._ranks = spec, body, ranks
        self._taken_over, self._everyone = taken_over, everyone
        self._driver: Driver | None = None
        self._command_file: CommandFile | None = None
        self._changed = threading.Condition()
        self.left = False
        """Whether this process has given up driving it."""
        weakref.finalize(self, record.log.close)  # another process may take over

    # Where it stands.

    @property
    def state(self) -> Literal["running", "paused", "finished", "stopped", "failed"]:
        """Its state: "running", "paused", "finished", "stopped" or "failed"."""
        with self.lock:
            if self.error is not None:
                return "failed"
            if self._record.over and self._driver is None:
                return "stopped" if self.ledger.closed else "finished"
            return "paused" if self.ledger.paused and not self.ledger.closed else "running"

    @property
    def over(self) -> bool:
        """Whether nothing runs, and nothing more is to be done."""
        return self.state in ("finished", "stopped", "failed")

    @property
    def driven(self) -> bool:
        """Whether its trials are being run from here."""
        return self._driver is not None

    @property
    def trouble(self) -> str | None:
        """Why nothing runs although there is work, or why the log cannot be written; None otherwise."""
        driver = self._driver
        return None if driver is None or self.over else driver.trouble

    @property
    def cluster(self) -> Cluster:
        """The cluster that it runs on: its own, or the current one if that has ended."""
        if self._record.cluster is not None and self._record.cluster.stopped:
            self._record.cluster = self._ranks = None
        if self._record.cluster is None or self._ranks is None:
            self._record.cluster = self._record.cluster or Cluster.current()
            self._ranks = [info.rank for info in select(tuple(self._record.cluster.tasks), None)]
        return self._record.cluster

    @property
    def body(self) -> str | Callable[..., Any]:
        """The body of a trial; raises FailedPreconditionError for a function that this process lacks."""
        if self._body is None:
            raise FailedPreconditionError(
                f"the trial of sweep {self.id} is a function, which its log cannot bring back: "
                f"nb.attach({self.id!r}, trial=function)"
            )
        return self._body

    @property
    def given(self) -> Given:
        """The pushed values; raises FailedPreconditionError if this process does not have them."""
        if self._push is None and self._pushes:
            names = ", ".join(f"{name!r}: {name}" for name in self._pushes)
            raise FailedPreconditionError(
                f"the trials of sweep {self.id} use values that were pushed from the notebook, which its log "
                f"does not keep: nb.attach({self.id!r}, push={{{names}}})"
            )
        return Given(dict(self._push or {}))

    def continue_with(self, trial: Callable[..., Any] | None, push: Mapping[str, Any] | None) -> None:
        """Run later trials with this function and these pushed values; None keeps what there is.

        Raises FailedPreconditionError while trials run.
        """
        if trial is None and push is None:
            return
        with self.lock:
            if self._driver is not None:
                raise FailedPreconditionError(
                    f"this process runs trials of sweep {self.id} with what it has: wait for its end "
                    f"(sweep.wait()) before you give it another; nb.attach({self.id!r}) returns it"
                )
            self._body = self._body if trial is None else trial
            self._push = self._push if push is None else push

    def engines(self) -> list[EngineStatus]:
        """Return what each engine does; none while no process drives the sweep."""
        driver = self._driver
        return [] if driver is None or not driver.alive else driver.engines.status()

    def rerun(self, number: int | None = None) -> Any:
        """Run a trial once more as a run of its own, with its parameters and seed; returns the finished run.

        ``number`` is the trial's; None is the best one. On the same kind of device its losses are the
        trial's; of a promoted trial if the promotion has changed nothing but the number of epochs. The sweep
        does not change. Raises FailedPreconditionError if too few engines are free (pause
        the sweep, or wait for its end), NotFoundError for an unknown trial.
        """
        if self.rerun_by is None:
            raise FailedPreconditionError("a trial is run again from a notebook: use nb.run_sweep or %%sweep")
        return self.rerun_by(self, self._chosen(number))

    # Trials and their results.

    @property
    def space(self) -> Space:
        """The current search space."""
        return self.ledger.space

    @property
    def metric(self) -> str:
        """The name of the metric that is optimized."""
        return self.ledger.created.metric

    @property
    def best(self) -> Trial | None:
        """The finished trial with the best value; None while there is none."""
        with self.lock:
            return self.ledger.best

    @property
    def trials(self) -> list[Trial]:
        """All trials by number."""
        with self.lock:
            return [self.ledger.trials[number] for number in sorted(self.ledger.trials)]

    def trial(self, number: int) -> Trial:
        """Return trial ``number``; raises `NotFoundError` if there is none."""
        with self.lock:
            return commands.trial_of(self.ledger, number)

    def table(self) -> Any:
        """Return a row per trial: a DataFrame if pandas is installed, else a dict of NumPy columns.

        The columns are trial, state, value, step, seconds, attempts, seed, parent, error, then the parameters
        and the other metrics.
        """
        with self.lock:
            found = columns(self.ledger)
        return table(found)

    def to_csv(self, path: str | Path) -> Path:
        """Write the table into a CSV file at ``path``; returns the path."""
        with self.lock:
            return write_csv(self.ledger, Path(path))

    def to_optuna(self, storage: str | Path, name: str | None = None) -> Any:
        """Write the trials into an Optuna study and return it; ``optuna-dashboard sweep.journal`` shows it.

        ``storage`` is a file ("sweep.journal", "sweep.db") or an URL that Optuna knows, ``name`` the
        study's, None for the sweep's id. Raises MissingExtra without ``pip install nbdist[sweep]``.
        """
        from nbdist.sweep.optuna import export_study

        with self.lock:
            return export_study(self.ledger, storage, name or self.id)

    def to_tensorboard(self, folder: str | Path | None = None) -> Path:
        """Write the sweep for TensorBoard's HParams page; returns the folder, for ``tensorboard --logdir``.

        ``folder`` is made if it is missing; None for ``tensorboard`` in the sweep's own. It has the search
        space with its domains, and for each trial that has begun its parameters, reports, metrics and end.
        A second call replaces what an earlier one has written. Raises StorageError if it cannot be written.
        """
        from nbdist.sweep.tensorboard import write_hparams

        where = self._record.folder / "tensorboard" if folder is None else Path(folder).expanduser()
        with self.lock:
            return write_hparams(self.ledger, where)

    def checkpoint(self, number: int | None = None) -> Path:
        """Return the checkpoint of trial ``number`` (None: the best), for ``nb.nn.load``.

        With ``framework="torch"`` it is a safetensors file with the weights as ``model.0.NAME``.

        Raises FailedPreconditionError if there is none: its body calls no ``fit``, or makes no optimizer, or
        its host has died before it was copied.
        """
        trial = self._chosen(number)
        path = self._record.checkpoint(trial.number)
        if not path.exists():
            framework = self.spec.options.framework
            lacks = f"made no optimizer of {framework}" if framework else "called no fit()"
            raise FailedPreconditionError(
                f"trial {trial.number} has no checkpoint at {path}: its body {lacks}, or it has not ended, "
                "or its host has died before it was copied"
            )
        return path

    def _continued(self, number: int) -> Path:
        """Return the checkpoint from which a promotion continues trial ``number``; raises as `checkpoint`.

        FailedPreconditionError also if its loop would begin anew, on the trained weights.
        """
        path = self.checkpoint(number)
        framework = self.spec.options.framework
        if framework and not SPECS[framework].can_promote(path):
            raise FailedPreconditionError(
                f"trial {number} cannot be promoted: its loop is not over nb.train.epochs(...), so it would "
                "begin anew on the trained weights and count from 1. Write `for epoch in "
                "nb.train.epochs(epochs):` in the trial, or clone it with more epochs"
            )
        return path

    def has_trained(self, number: int) -> bool:
        """Whether trial ``number`` has left a checkpoint on this machine."""
        return self._record.checkpoint(number).exists()

    def model(self, number: int | None = None) -> Any:
        """Return the trained model of trial ``number`` (None: the best); raises what `checkpoint` raises.

        Of a module of PyTorch, a function of JAX or a model of Keras these are the weights, arrays by name: a
        ``StateDict``, as of a run, which ``module.load_state_dict`` takes.
        """
        from nbdist.nn import load

        path = self.checkpoint(number)
        if self.spec.options.framework:
            return StateDict(SPECS[self.spec.options.framework].read_trial(path))
        weights = weights_in(path)
        return load(path) if weights is None else StateDict(weights)

    def output(self, number: int) -> str:
        """Return what trial ``number`` has printed so far; of a long text the end."""
        self.trial(number)
        texts = []
        for path in sorted(trial_folder(self.folder, number).glob("output-*.log")):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LONGEST_OUTPUT))
                texts.append(OWN.sub("", file.read(LONGEST_OUTPUT).decode("utf-8", "replace")))
        return "\n".join(text for text in texts if text)

    def as_code(self, number: int | None = None) -> str:
        """Return a cell's text with the parameters of trial ``number`` (None: the best).

        ``"# trial 7 of 261120-090000-digits: val_accuracy 0.9531\\nlr = 0.01\\nhidden = 64\\n"``; a comment
        lists the parameters that a promotion has changed, as they were before.
        """
        trial = self._chosen(number)
        value = "" if trial.value is None else f": {self.metric} {trial.value:.6g}"
        lines = [f"# trial {trial.number} of {self.id}{value}"]
        if began := trial.began_with:
            lines.append(f"# it was promoted; before, {began}")
        return "\n".join([*lines, *(f"{name} = {one!r}" for name, one in trial.parameters.items())]) + "\n"

    def _chosen(self, number: int | None) -> Trial:
        if number is not None:
            return self.trial(number)
        best = self.best
        if best is None:
            raise FailedPreconditionError("no trial has finished yet: name one by its number")
        return best

    # Commands. Each method is a row of `nbdist.sweep.commands.COMMANDS`, called by its name.

    def command(self, name: str, /, **arguments: object) -> list[Event]:
        """Execute a command, from any thread; ``sweep.command("stop", number=7)`` is ``sweep.stop(7)``.

        - ``name``: a command of `nbdist.sweep.commands.COMMANDS`.
        - ``arguments``: the arguments that its row lists.

        Returns the events that were written to the log; the driver acts on them afterwards. Raises
        InvalidArgumentError for an unknown command or an invalid argument, NotFoundError for an unknown
        trial, FailedPreconditionError if the state of the sweep or of the trial does not allow the command,
        and ResourceExhaustedError if the log cannot be written. Of a command that raises nothing is written.
        """
        row = commands.command_named(name)
        checked = row.checked(arguments)
        with self.lock:
            if self.left:
                raise FailedPreconditionError(
                    f"this process no longer drives sweep {self.id}; nb.attach({self.id!r}) takes it over"
                )
            context = commands.CommandContext(self.ledger, time.time(), self._continued, self._engine_count)
            try:
                events = row.events(context, **checked)
                self._check_names(events)
            except NbdistError as error:  # the frames of the command's table say nothing more
                raise error.with_traceback(None) from None
            if self._driver is None and commands.starts_trials(self.ledger, events):
                self._driven_with()  # what cannot run is not written
            self._record.write(*events)
        self.begin()
        if (driver := self._driver) is not None:
            driver.wake()
        with self._changed:
            self._changed.notify_all()
        return events

    def _check_names(self, events: Sequence[Event]) -> None:
        """Raise InvalidArgumentError for names that the trial's body does not have."""
        for event in events:
            if isinstance(event, SpaceEdited):
                check_edit(self._body, self.ledger.space, event.space)
            elif isinstance(event, Promoted):
                trial = self.ledger.trials[event.number]
                check_changes(self._body, [*trial.given, "epochs"], event.changes)
                if "epochs" in event.changes and "epochs" not in trial.drawn:
                    self._check_fits(event.number)

    def _check_fits(self, number: int) -> None:
        """Raise FailedPreconditionError if a trial trains several times, each with its own epochs."""
        if self.spec.options.framework is None and (count := trainings_in(self.checkpoint(number))) > 1:
            raise FailedPreconditionError(
                f"trial {number} cannot be promoted with epochs=: it trains {count} times, each time so "
                "many epochs. Give the sweep a parameter epochs that the trial's loop uses, or "
                "clone the trial"
            )

    def pause(self) -> None:
        """Start no more trials; when the running ones have ended, other cells can use the cluster."""
        self.command("pause")

    def resume(self) -> None:
        """Start trials again, after a pause or after the notebook's kernel died."""
        self.command("resume")

    def close(self) -> None:
        """Stop the sweep: running trials stop and keep their checkpoints, and no further trial starts."""
        self.command("close")

    def add(self, trials: int) -> None:
        """Add ``trials`` (at least 1) to the number of trials that the sweep runs."""
        self.command("add", trials=trials)

    def edit(
        self,
        space: Space | Mapping[str, object] | str | None = None,
        *,
        outside: Literal["finish", "stop"] = "finish",
        **changes: object,
    ) -> None:
        """Draw further trials from another space.

        - ``space``: the new space (a `Space`, a mapping, or text as in ``%%sweep``); None is the present one.
        - ``outside``: running trials outside of the new space "finish" or "stop".
        - ``changes``: parameters that are replaced or added, by name.

        Raises InvalidArgumentError if the sampler cannot search the space, or if the trial does not have its
        parameters.
        """
        self.command("edit", space=space, outside=outside, changes=changes)

    def stop(self, number: int | None = None) -> None:
        """Stop trial ``number``, and keep its reports and checkpoint; None stops the sweep, as `close`."""
        if number is None:
            self.close()
        else:
            self.command("stop", number=number)

    def retry(self, number: int) -> None:
        """Start trial ``number``, which did not finish, again with its parameters and its seed."""
        self.command("retry", number=number)

    def clone(self, number: int, /, **changes: object) -> int:
        """Add a trial with the parameters of trial ``number`` and ``changes``; returns its number."""
        events = self.command("clone", number=number, changes=changes)
        return int(getattr(events[0], "number", -1))

    def promote(
        self,
        number: int | None = None,
        /,
        *,
        epochs: int | None = None,
        per_trial: int | None = None,
        **changes: object,
    ) -> None:
        """Continue a trial that has ended exactly from where its training ended.

        - ``number``: the trial; None is the best one.
        - ``epochs``: the number of epochs in all (at least 1); None leaves it as it is. A trial with a
          parameter of this name is given it, others train as many epochs in their one ``fit``.
        - ``per_trial``: the number of engines (at least 1); None is as many as the sweep's other trials have.
        - ``changes``: further variables of its body, by name.

        Raises FailedPreconditionError if the trial runs, or has left no checkpoint, InvalidArgumentError if
        its body does not have such a variable.
        """
        trial = self._chosen(number)
        self.command("promote", number=trial.number, epochs=epochs, per_trial=per_trial, changes=changes)

    # Waiting, showing.

    def wait(self, timeout: float | None = None) -> Sweep:
        """Wait until the sweep is over, also while it is paused; raises the error that made it fail.

        ``timeout`` is the longest wait in seconds, None for no limit; see ``over``. Raises UnavailableError
        if there is work and no engine is alive; the sweep continues when one joins.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        still_hope = self.patience()
        while not self.over:
            self.looking()
            if deadline is not None and time.monotonic() >= deadline:
                return self
            still_hope()
            with self._changed:
                self._changed.wait(0.1)
        self.looking()
        return self.conclude()

    def patience(self) -> Callable[[], None]:
        """Return a check to call repeatedly while waiting: it raises UnavailableError without engines."""
        since: float | None = None

        def still_hope() -> None:
            nonlocal since
            driver, trouble, now = self._driver, self.trouble, time.monotonic()
            hopeless = driver is not None and driver.hopeless and trouble is not None
            since = (since or now) if hopeless else None
            if since is not None and now - since > TROUBLE_SECONDS:
                raise UnavailableError(f"sweep {self.id} waits: {trouble}")

        return still_hope

    def conclude(self) -> Sweep:
        """Return the sweep; raises the error that made it fail."""
        if self.error is not None:
            raise self.error
        return self

    def show(self) -> None:
        """Show its grid here."""
        self.shown_by(self)

    # Driving.

    def begin(self) -> None:
        """Start to drive the sweep from this process, if there is anything to run."""
        with self.lock:
            self._watch_command_file()
            if self.left or not self._record.has_work or self._driver is not None:
                return
            text = isinstance(self.body, str)
            body, packed, cluster = self._driven_with()
            self.error = None
            self.engine_names = {info.rank: info.name for info in cluster.tasks}
            if self._everyone:  # workers may have come or left since it was driven last
                self._ranks = [info.rank for info in select(tuple(cluster.tasks), None)]
            if packed is not None:
                self._delivery = Delivery(self.id, packed, cluster, segment_prefix(cluster.id))
            spec = replace(self.spec, token=mark(self.folder).token)
            engines = Engines(cluster, spec, body, self._ranks or [], self._everyone, self._delivery)
            engines.joined = self._engine_joined
            hint = partial(missing_name, names=self._pushes, by_flag=text and self.spec.first_line > 1)
            self._driver = Driver(self._record, engines, self._taken_over, self._driver_ended, hint)
            self._driver.lost = self._tell_lost
            self._taken_over = True  # the next driver asks what engines are at
            cluster.active_runs.add(self.id)
            self._driver.start()
            self.continued()

    def _driven_with(self) -> tuple[Any, Any, Cluster]:
        """Return (body, packed values, cluster) for a driver; raises NbdistError if one is missing."""
        body, _, packed = check_given(self.body, self.given, True, self.spec.first_line)
        return body, packed, self.cluster

    def leave(self) -> None:
        """Stop driving it, and let others write its log; `nb.attach` takes it over. May be called twice."""
        with self.lock:
            self.left, driver = True, self._driver
            self._watch_command_file()
        if driver is not None:
            driver.leave()
        self._record.log.close()

    def _watch_command_file(self) -> None:
        """Read the command file while the sweep accepts commands. The caller holds the lock."""
        wanted = not self.left and not self._record.over
        if wanted and self._command_file is None:
            self._command_file = CommandFile(self, self._record.folder)
        elif not wanted and self._command_file is not None:
            self._command_file.close()
            self._command_file = None

    def _engine_count(self) -> int:
        if self._everyone:
            return len(select(tuple(self.cluster.tasks), None))
        return len(self._ranks or self.cluster.tasks)

    def _engine_joined(self, info: TaskInfo) -> None:
        self.engine_names = {**self.engine_names, info.rank: info.name}

    def _driver_ended(self) -> None:
        """Take note that the driver has ended. On its thread."""
        with self.lock:
            driver = self._driver
            if self._delivery is not None:
                self._delivery.close()
                self._delivery = None
            if driver is not None:
                self.error = driver.error
                if not self.ledger.running:  # else it outlives this process, for trials that continue
                    driver.engines.cluster.active_runs.discard(self.id)
            self._driver = None
            self._watch_command_file()
            again = self.error is None and not self.left and self._record.has_work
        if again:  # a command came after the driver's last look
            self.begin()
        elif not self.left and self.over:
            self._tell_end()
        with self._changed:
            self._changed.notify_all()

    def _tell_end(self) -> None:
        with self.lock:
            best, ledger = self.ledger.best, self.ledger
            metrics = {} if best is None else {f"best {self.metric}": float(ledger.best_value or 0.0)}
            seconds = max(0.0, ledger.elapsed(time.time()))
        state, error = self.state, error_line(str(self.error)) if self.error is not None else ""
        if state in ("finished", "stopped", "failed"):
            text = ended_text("sweep", self.name, state, seconds, None, metrics, error)
            self._tell(state, text, seconds=seconds, metrics=metrics, error=error)

    def _tell_lost(self, ranks: set[int]) -> None:
        names = tuple(self.engine_names.get(rank, f"engine {rank}") for rank in sorted(ranks))
        if not self.ledger.closed:
            self._tell("lost", f"sweep {self.name} has lost {', '.join(names)}, and continues", tasks=names)

    def _tell(self, event: NoticeEvent, text: str, **more: Any) -> None:
        if self.notify is not None:
            tell(
                self.notify, Notice(event, "sweep", self.id, self.name, text, str(self.folder), **more), print
            )

    def __repr__(self) -> str:
        with self.lock:
            counts = ", ".join(f"{n} {state}" for state, n in self.ledger.counts.items() if n)
            best = self.ledger.best
        value = (
            "" if best is None else f"; best {self.metric} {self.ledger.best_value:.6g} (trial {best.number})"
        )
        return f"<Sweep {self.id}: {self.state}, {counts or 'no trial yet'}{value}>"
