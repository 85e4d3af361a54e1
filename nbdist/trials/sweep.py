"""A sweep, as its user holds it: where it stands, who drives it, and how to wait for it."""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NbdistError, UnavailableError
from nbdist.metrics.table import table
from nbdist.runs.delivery import Delivery, Given, missing_name
from nbdist.runs.options import select
from nbdist.runs.start import check_given
from nbdist.runtime.task import TaskInfo, segment_prefix
from nbdist.sweep import commands
from nbdist.sweep.events import Event
from nbdist.sweep.export import columns, write_csv
from nbdist.sweep.parse import read_space
from nbdist.sweep.space import Space
from nbdist.sweep.state import Trial
from nbdist.trials.driver import Driver
from nbdist.trials.protocol import SweepOrder, trial_folder
from nbdist.trials.requests import Listening
from nbdist.trials.store import Record
from nbdist.trials.workers import Engines, EngineStanding

TROUBLE_SECONDS = 5.0  # for which nothing runs although there is work, until `wait` says so

# What is known of a sweep: its trials, and what they have left.

LONGEST_OUTPUT = 200_000  # characters of a trial's output that are read


class Known:
    """A sweep's trials, also while they run; all of it may be called from any thread."""

    def __init__(self, record: Record, name: str) -> None:
        self.id, self.name, self.folder = record.id, name, record.folder
        self.lock, self.ledger, self.touched = record.lock, record.ledger, record.touched
        self._record = record

    @property
    def space(self) -> Space:
        """What is searched, as it is now."""
        return self.ledger.space

    @property
    def metric(self) -> str:
        """The name of what counts."""
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
        """Return a trial; raises `NotFoundError` if there is none of this number."""
        with self.lock:
            return commands.known(self.ledger, number)

    def table(self) -> Any:
        """Return a row per trial: a DataFrame if pandas is installed, else a dict of NumPy columns.

        The columns are trial, state, value, step, seconds, attempts, seed, parent, error, then the parameters
        and the other metrics.
        """
        with self.lock:
            found = columns(self.ledger)
        return table(found)

    def to_csv(self, path: str | Path) -> Path:
        """Write the table into a CSV file; returns its path."""
        with self.lock:
            return write_csv(self.ledger, Path(path))

    def to_optuna(self, storage: str | Path, name: str | None = None) -> Any:
        """Write the trials into an Optuna study and return it; ``optuna-dashboard sweep.journal`` shows it.

        ``storage`` is a file ("sweep.journal", "sweep.db") or an URL that Optuna knows; needs
        `pip install nbdist[sweep]`.
        """
        from nbdist.sweep.optuna import export_study

        with self.lock:
            return export_study(self.ledger, storage, name or self.id)

    def checkpoint(self, number: int | None = None) -> Path:
        """Return the file with what a trial (without a number the best) has trained, for ``nb.nn.load``.

        Raises FailedPreconditionError if it has left none: its body calls no ``fit``, or it is on another
        machine.
        """
        trial = self._chosen(number)
        path = self._record.checkpoint(trial.number)
        if not path.exists():
            raise FailedPreconditionError(
                f"trial {trial.number} has no checkpoint at {path}: its body called no fit(), or it has not "
                "ended, or its folder is on another machine"
            )
        return path

    def has_trained(self, number: int) -> bool:
        """Whether a trial has left what it has trained, here."""
        return self._record.checkpoint(number).exists()

    def model(self, number: int | None = None) -> Any:
        """Return the model that a trial (without a number the best) has trained."""
        from nbdist.nn import load

        return load(self.checkpoint(number))

    def output(self, number: int) -> str:
        """Return what a trial has printed so far, its end if that is long."""
        self.trial(number)
        texts = []
        for path in sorted(trial_folder(self.folder, number).glob("output-*.log")):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LONGEST_OUTPUT))
                texts.append(file.read(LONGEST_OUTPUT).decode("utf-8", "replace"))
        return "\n".join(text for text in texts if text)

    def as_code(self, number: int | None = None) -> str:
        """Return a cell's text with the parameters of a trial (without a number the best).

        ``"# trial 7 of 261120-090000-digits: val_accuracy 0.9531\\nlr = 0.01\\nhidden = 64\\n"``
        """
        trial = self._chosen(number)
        value = "" if trial.value is None else f": {self.metric} {trial.value:.6g}"
        lines = [f"# trial {trial.number} of {self.id}{value}"]
        return "\n".join([*lines, *(f"{name} = {one!r}" for name, one in trial.parameters.items())]) + "\n"

    def _chosen(self, number: int | None) -> Trial:
        if number is not None:
            return self.trial(number)
        best = self.best
        if best is None:
            raise FailedPreconditionError("no trial has finished yet: name one by its number")
        return best


# What may be wished of a sweep: each wish is written down, and done from then on.


class Wishing(Known, ABC):
    """A sweep of which something may be wished, from any thread; what is refused raises an `NbdistError`."""

    @abstractmethod
    def _wish(self, wish: Callable[[float], list[Event]]) -> list[Event]:
        """Write down the events of a wish, given the time, and have them acted on."""

    @abstractmethod
    def _most(self) -> int:
        """Return how many engines there are for a trial."""

    def pause(self) -> None:
        """Start no more trials; those running go on, and then the cluster is free for other cells."""
        self._wish(lambda now: commands.pause(self.ledger, now))

    def resume(self) -> None:
        """Go on, after a pause or with what a dead kernel has left."""
        self._wish(lambda now: commands.resume(self.ledger, now))

    def close(self) -> None:
        """Stop the sweep: running trials stop and keep their checkpoints, and no further trial starts."""
        self._wish(lambda now: commands.close(self.ledger, now))

    def add(self, trials: int) -> None:
        """Want so many trials more."""
        self._wish(lambda now: commands.add(self.ledger, trials, now))

    def edit(
        self,
        space: Space | Mapping[str, object] | str | None = None,
        *,
        outside: Literal["finish", "stop"] = "finish",
        **changes: object,
    ) -> None:
        """Ask for trials from another space from here on; ``changes`` are parameters that change.

        Running trials outside of it "finish", or "stop".
        """

        def wished(now: float) -> list[Event]:
            new = as_space(space, self.ledger.space)
            new = new.with_changes(changes) if changes else new
            return commands.edit(self.ledger, new, now, outside)

        self._wish(wished)

    def stop(self, number: int | None = None) -> None:
        """Stop a trial; its reports and checkpoint are kept. Without a number stop the sweep, as `close`."""
        if number is None:
            self.close()
        else:
            self._wish(lambda now: commands.stop(self.ledger, number, now))

    def retry(self, number: int) -> None:
        """Start a trial that did not finish again, with its parameters and its seed."""
        self._wish(lambda now: commands.retry(self.ledger, number, now))

    def clone(self, number: int, /, **changes: object) -> int:
        """Ask for a new trial with the parameters of another, some changed; returns its number."""
        events = self._wish(lambda now: commands.clone(self.ledger, number, changes, now))
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
        """Let a trial that is over (without a number the best) go on from where its training ended.

        ``epochs`` is how many there are to be in all, ``per_trial`` on how many engines, ``changes`` are
        other names for its body. It goes on exactly: a pruned trial reports what it would have reported.
        """
        trial = self._chosen(number)
        path = self.checkpoint(trial.number)
        engines = self._most()
        if epochs is not None:
            if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
                raise InvalidArgumentError(f"epochs is a whole number above 0, not {epochs!r}")
            changes["epochs"] = epochs
        self._wish(
            lambda now: commands.promote(
                self.ledger,
                trial.number,
                now,
                checkpoint=str(path),
                per_trial=per_trial,
                engines=engines,
                changes=changes,
            )
        )


def as_space(space: Space | Mapping[str, object] | str | None, now: Space | None = None) -> Space:
    """Return a space given as one, as text, or as a mapping; None is the one there is ``now``.

    >>> print(as_space("lr=log(1e-4, 1e-1) width=[32, 64]"))
    lr=log(0.0001, 0.1) width=[32, 64]
    """
    if space is None and now is not None:
        return now
    if isinstance(space, Space):
        return space
    if isinstance(space, str):
        return read_space(space)
    found = getattr(space, "space", None)  # of an editor
    if isinstance(found, Space):
        return found
    if isinstance(space, Mapping):
        return Space(space)
    raise InvalidArgumentError(
        f"a space is text such as 'lr=log(1e-4, 1e-1)', a dict, or an nbdist.sweep.Space, not {space!r:.80}"
    )


class Sweep(Wishing):
    """Handle on a sweep; all of it may be called from any thread, while trials run.

    ``state`` is "running", "paused", and at the end "finished", "stopped" or "failed"; a finished sweep
    continues when trials are added, retried, cloned or promoted. `best` is its best trial, `table` has all.
    """

    def __init__(
        self,
        record: Record,
        order: SweepOrder,
        body: str | Callable[..., Any] | None,
        ranks: list[int] | None,
        name: str,
        taken_over: bool = False,
        everyone: bool = False,
        push: Mapping[str, Any] | None = None,
        pushes: Sequence[str] = (),
    ) -> None:
        super().__init__(record, name)
        self._push, self._pushes = push, tuple(pushes)
        self._delivery: Delivery | None = None
        self.error: NbdistError | None = None
        """What ended it, if it failed."""
        self.shown_by: Callable[[Sweep], object] = print
        """What `show` calls; the user interface puts the grid here."""
        self.looking: Callable[[], object] = lambda: None
        """What `wait` calls ten times a second and at the end; the user interface keeps its grid moving."""
        self.goes_on: Callable[[], object] = lambda: None
        """What is called when it goes on, from any thread; the user interface shows it again."""
        self.rerun_by: Callable[[Sweep, Trial], Any] | None = None
        self.engine_names: dict[int, str] = {}
        """What its engines are called, by rank; empty in a process that has not driven it."""
        self._order, self._body, self._ranks = order, body, ranks
        self._taken_over, self._everyone = taken_over, everyone
        self._driver: Driver | None = None
        self._listening: Listening | None = None
        self._changed = threading.Condition()
        self._closed = False
        weakref.finalize(self, record.log.close)  # others may take over what nobody here holds any more

    # Where it stands.

    @property
    def state(self) -> Literal["running", "paused", "finished", "stopped", "failed"]:
        """Where it stands."""
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
    def left(self) -> bool:
        """Whether it is driven from here no more, and cannot be."""
        return self._closed

    @property
    def trouble(self) -> str | None:
        """Why nothing runs although there is work, or why nothing can be written; None if all is well."""
        driver = self._driver
        return None if driver is None or self.over else driver.trouble

    @property
    def cluster(self) -> Cluster:
        """The cluster that it runs on: its own, or if that is gone the present one."""
        if self._record.cluster is not None and self._record.cluster.stopped:
            self._record.cluster = self._ranks = None
        if self._record.cluster is None or self._ranks is None:
            self._record.cluster = self._record.cluster or Cluster.current()
            self._ranks = [info.rank for info in select(tuple(self._record.cluster.tasks), None)]
        return self._record.cluster

    @property
    def body(self) -> str | Callable[..., Any]:
        """What one trial does; raises FailedPreconditionError for a function that is not there any more."""
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

    @property
    def order(self) -> SweepOrder:
        """What engines are told of all its trials."""
        return self._order

    def engines(self) -> list[EngineStanding]:
        """Return what each engine is at; none while nobody drives the sweep."""
        driver = self._driver
        return [] if driver is None or not driver.alive else driver.engines.standing()

    def rerun(self, number: int | None = None) -> Any:
        """Run a trial once more as a run of its own, with its parameters and seed; returns the finished run.

        On the same kind of device its losses are the trial's. The sweep itself hears nothing of it; it needs
        an engine that is free: pause the sweep, or wait for its end.
        """
        if self.rerun_by is None:
            raise FailedPreconditionError("a trial is run again from a notebook: use nb.run_sweep or %%sweep")
        return self.rerun_by(self, self._chosen(number))

    # Waiting, showing.

    def wait(self, timeout: float | None = None) -> Sweep:
        """Wait until it is over; raises what made it fail.

        With a ``timeout`` in seconds it returns then at the latest; see ``over``. A paused sweep is waited
        for too. Raises UnavailableError if it has work and no engine lives: it goes on when there is one.
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
        """Return what to call again and again while waiting: it raises UnavailableError when that is vain."""
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
        """Return the sweep; raises what made it fail."""
        if self.error is not None:
            raise self.error
        return self

    def show(self) -> None:
        """Show its grid here."""
        self.shown_by(self)

    # Driving.

    def begin(self) -> None:
        """Have trials run from here on, if there is anything to run."""
        with self.lock:
            self._listen()
            if self._closed or not self._record.goes_on or self._driver is not None:
                return
            text = isinstance(self.body, str)
            body, _, packed = check_given(self.body, self.given, True, self._order.first_line)
            cluster = self.cluster
            self.error = None
            self.engine_names = {info.rank: info.name for info in cluster.tasks}
            if self._everyone:  # workers may have come or left since it was driven last
                self._ranks = [info.rank for info in select(tuple(cluster.tasks), None)]
            if packed is not None:
                self._delivery = Delivery(self.id, packed, cluster, segment_prefix(cluster.id))
            engines = Engines(cluster, self._order, body, self._ranks or [], self._everyone, self._delivery)
            engines.joined = self._name
            hint = partial(missing_name, names=self._pushes, by_flag=text and self._order.first_line > 1)
            self._driver = Driver(self._record, engines, self._taken_over, self._ended, hint)
            self._taken_over = True  # whoever drives it next asks what engines are at
            cluster.going_on.add(self.id)
            self._driver.start()
            self.goes_on()

    def leave(self) -> None:
        """Drive it no more and let others write its log; `nb.attach` takes it over. May be called twice."""
        with self.lock:
            self._closed, driver = True, self._driver
            self._listen()
        if driver is not None:
            driver.leave()
        self._record.log.close()

    def _listen(self) -> None:
        """Hear what other processes wish, while there is something to be wished; the lock is held."""
        wanted = not self._closed and not self._record.over
        if wanted and self._listening is None:
            self._listening = Listening(self, self._record.folder)
        elif not wanted and self._listening is not None:
            self._listening.end()
            self._listening = None

    def _most(self) -> int:
        if self._everyone:
            return len(select(tuple(self.cluster.tasks), None))
        return len(self._ranks or self.cluster.tasks)

    def _name(self, info: TaskInfo) -> None:
        self.engine_names = {**self.engine_names, info.rank: info.name}

    def _wish(self, wish: Callable[[float], list[Event]]) -> list[Event]:
        with self.lock:
            if self._closed:
                raise FailedPreconditionError(
                    f"sweep {self.id} is driven from here no more; nb.attach({self.id!r}) takes it over"
                )
            events = wish(time.time())
            self._record.write(*events)
        self.begin()
        if (driver := self._driver) is not None:
            driver.wake()
        with self._changed:
            self._changed.notify_all()
        return events

    def _ended(self) -> None:
        """Take note that the driver has ended. On its thread."""
        with self.lock:
            driver = self._driver
            if self._delivery is not None:
                self._delivery.close()
                self._delivery = None
            if driver is not None:
                self.error = driver.error
                if not self.ledger.running:  # else it outlives this process, for trials that go on
                    driver.engines.cluster.going_on.discard(self.id)
            self._driver = None
            self._listen()
            again = self.error is None and not self._closed and self._record.goes_on
        if again:  # somebody wished something in the last moment
            self.begin()
        with self._changed:
            self._changed.notify_all()

    def __repr__(self) -> str:
        with self.lock:
            counts = ", ".join(f"{n} {state}" for state, n in self.ledger.counts.items() if n)
            best = self.ledger.best
        value = (
            "" if best is None else f"; best {self.metric} {self.ledger.best_value:.6g} (trial {best.number})"
        )
        return f"<Sweep {self.id}: {self.state}, {counts or 'no trial yet'}{value}>"
