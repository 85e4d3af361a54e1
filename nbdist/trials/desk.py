"""Where an engine takes trials in: on its Server's thread, while the main thread runs the one before.

driver                                  engine
trial.enlist  sweep ───────────────►    the driver is there, and hears of everything from now on
trial.start   sweep, a TrialOrder ──►   waits in line for the main thread
trial.leave   sweep ───────────────►    nothing follows: the main thread is free for others
              ◄── trial.standing        whether it serves, what it is at, and how the last trial ended
              ◄── trial.over            a trial's end; kept until the next one ends, for a driver that is late

A driver that says nothing for half a minute has died: then an engine with nothing to do leaves as well.
"""

from __future__ import annotations

import queue
import threading
import time
from contextlib import suppress
from typing import Any

from nbdist.runs.agent import Agent, agent
from nbdist.trials.order import SweepOrder, TrialOrder, run_name
from nbdist.wire.frames import Frame
from nbdist.wire.peers import Sender

SILENT_SECONDS = 30.0  # of a driver, after which it counts as gone
LOOK_SECONDS = 2.0


class Desk:
    """The trials that one engine has: the present one, and how the last one ended."""

    def __init__(self, here: Agent) -> None:
        self.agent = here
        self.sweep = ""
        self._serving = False
        self._lock = threading.Lock()
        self._present: TrialOrder | None = None
        self._over: dict[str, Any] | None = None
        self._line: queue.SimpleQueue[TrialOrder | None] = queue.SimpleQueue()
        self._driver: Sender | None = None
        self._heard = 0.0
        server = here.task.server
        server.on("trial.enlist", self._enlist)
        server.on("trial.start", self._start)
        server.on("trial.leave", self._leave)

    # The engine's main thread.

    def open(self, order: SweepOrder) -> None:
        """Begin to serve a sweep; the driver is told that trials can come."""
        with self._lock:
            if self.sweep != order.sweep:
                self._over = None
            self.sweep, self._serving, self._heard = order.sweep, True, time.monotonic()
            self._line = queue.SimpleQueue()
            self._present = None
        self.agent.hold(order.sweep)
        self._tell(self._standing)

    def next(self) -> TrialOrder | None:
        """Wait for a trial; None if none follows."""
        while True:
            try:
                return self._line.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if time.monotonic() - self._heard > SILENT_SECONDS:
                    return None
            except KeyboardInterrupt:  # for a trial that ended by itself just before
                continue

    def end(self, trial: TrialOrder, over: dict[str, Any]) -> None:
        """Take note of how a trial has ended, and tell the driver."""
        with self._lock:
            self._present = None
            self._over = {**trial.to_meta(), **over, "sweep": self.sweep, "rank": self.agent.task.rank}
            frame = Frame("trial.over", self._over)
        self._tell(lambda: frame)

    def close(self) -> None:
        """Serve no more; how the last trial ended is kept."""
        with self._lock:
            self._serving, self._present = False, None
        self.agent.let_go(self.sweep)
        self._tell(self._standing)

    # The Server's thread.

    def _enlist(self, frame: Frame, sender: Sender) -> None:
        self._driver, self._heard = sender, time.monotonic()
        with self._lock:
            present = self._present
        if present is not None and frame.meta["sweep"] == self.sweep:
            self.agent.watch(run_name(self.sweep, present.number, present.attempt), sender)
        sender.push(self._standing())

    def _start(self, frame: Frame, sender: Sender) -> None:
        self._driver, self._heard = sender, time.monotonic()
        trial = TrialOrder.from_meta(frame.meta)
        with self._lock:
            mine = self._serving and self.sweep == frame.meta["sweep"]
            over = self._over or {"number": -1, "attempt": -1}
            if mine and (
                trial == self._present or (trial.number, trial.attempt) == (over["number"], over["attempt"])
            ):
                return  # it came twice: the driver thought that it had gone lost
            if mine:
                self._present = trial
                run = run_name(self.sweep, trial.number, trial.attempt)
                self.agent.control(run)  # a word may come before the body
                self.agent.watch(run, sender)
                self._line.put(trial)
        if not mine:
            sender.push(self._standing())

    def _leave(self, frame: Frame, sender: Sender) -> None:
        if frame.meta["sweep"] == self.sweep:
            self._line.put(None)

    def _standing(self) -> Frame:
        with self._lock:
            present = None if self._present is None else self._present.to_meta()
            meta = {
                "sweep": self.sweep,
                "rank": self.agent.task.rank,
                "serving": self._serving,
                "present": present,
                "over": self._over,
            }
        return Frame("trial.standing", meta)

    def _tell(self, frame: Any) -> None:
        """Push a frame to the driver, from any thread."""

        def push() -> None:
            if self._driver is not None:
                with suppress(ConnectionError):  # it went away; another will ask
                    self._driver.push(frame())

        self.agent.task.server.post(push)


_desk: Desk | None = None


def desk() -> Desk:
    """Return this engine's desk, made at the first use."""
    global _desk
    here = agent()
    if _desk is None or _desk.agent is not here:
        _desk = Desk(here)
    return _desk


def open_desk() -> None:
    """Give this engine its desk; submitted before its first sweep. Runs on the main thread."""
    desk()
