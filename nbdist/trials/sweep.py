"""A sweep, as its user holds it: where it stands, who drives it, and how to wait for it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError, NbdistError, UnavailableError
from nbdist.runs.delivery import Delivery, Given, missing_name
from nbdist.runs.options import select
from nbdist.runs.start import check_given
from nbdist.runtime.task import TaskInfo, segment_prefix
from nbdist.sweep.events import Event
from nbdist.sweep.trial import Trial
from nbdist.trials.driver import Driver
from nbdist.trials.engines import Engines, EngineStanding
from nbdist.trials.order import SweepOrder
from nbdist.trials.record import Record
from nbdist.trials.wishfile import Listening
from nbdist.trials.wishing import Wishing

TROUBLE_SECONDS = 5.0  # for which nothing runs although there is work, until `wait` says so


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
