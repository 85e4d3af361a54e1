"""Where an engine takes trials in: on its Server's thread, while the main thread runs the one before.

driver                                  engine
trial.enlist  sweep, token ────────►    the driver is there: what is free is kept for it, and it hears of all
trial.start   sweep, a TrialOrder ──►   waits for the main thread
trial.leave   sweep, token ────────►    nothing follows: the main thread is free for others
              ◄── trial.standing        whether it serves, what it is at, how the last trial ended, who has it
              ◄── trial.over            a trial's end; kept until the next one ends, for a driver that is late

A driver that says nothing for half a minute has died: then an engine with nothing to do leaves as well. Only
the driver that enlisted last is listened to, and what it says twice is done once.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from nbdist.errors import NbdistError
from nbdist.runs.agent import Agent, agent
from nbdist.trials.live import Reports
from nbdist.trials.order import SweepOrder, TrialOrder, run_name
from nbdist.wire.frames import Frame, encode
from nbdist.wire.peers import Sender

SILENT_SECONDS = 30.0  # of a driver, after which it counts as gone
LOOK_SECONDS = 2.0
KEPT = 8  # sweeps whose last end here is kept


class Desk:
    """The trials that one engine has: the present one, and how the last one ended."""

    def __init__(self, here: Agent) -> None:
        self.agent = here
        self.sweep = ""
        self._serving = self._leaving = False
        self._left = ""  # the token of the driver that has left last
        self._lock = threading.Lock()
        self._present: TrialOrder | None = None
        self._over: dict[str, dict[str, Any]] = {}  # the last end, by sweep
        self._begun: dict[str, dict[int, int]] = {}  # the last attempt at each trial, by sweep
        self._reported: dict[tuple[str, int, int], Reports] = {}  # of the present trial, and of those ends
        self._line: queue.SimpleQueue[TrialOrder | None] = queue.SimpleQueue()
        self._driver: Sender | None = None
        self._enlisted = ("", "")  # the driver's sweep and token
        self._heard = 0.0
        server = here.task.server
        server.on("trial.enlist", self._enlist)
        server.on("trial.start", self._start)
        server.on("trial.leave", self._leave)

    # The engine's main thread.

    def open(self, order: SweepOrder, token: str) -> None:
        """Begin to serve a sweep for the driver of a token, which is told that trials can come."""
        with self._lock:
            self.sweep, self._serving, self._heard = order.sweep, True, time.monotonic()
            self._line = queue.SimpleQueue()
            self._present, self._leaving = None, token == self._left
            if self._leaving:  # before the main thread was free
                self._line.put(None)
        self.agent.hold(order.sweep)
        self._tell(lambda: self._standing(order.sweep))

    def next(self) -> TrialOrder | None:
        """Wait for a trial; None if none follows."""
        while True:
            try:
                return self._line.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if time.monotonic() - self._heard > SILENT_SECONDS:
                    return None

    def begin(self, trial: TrialOrder) -> Reports:
        """Return where the reports of a trial are kept, for a driver that comes late."""
        with self._lock:
            ends = {(sweep, one["number"], one["attempt"]) for sweep, one in self._over.items()}
            self._reported = {key: one for key, one in self._reported.items() if key in ends}
            return self._reported.setdefault((self.sweep, trial.number, trial.attempt), Reports())

    def end(self, trial: TrialOrder, over: dict[str, Any]) -> None:
        """Take note of how a trial has ended, and tell the driver."""
        sweep, run = self.sweep, run_name(self.sweep, trial.number, trial.attempt)
        told = {**trial.to_meta(), **over, "sweep": sweep, "rank": self.agent.task.rank}
        try:
            encode(Frame("trial.over", told))
        except NbdistError as error:  # names of metrics that are no text, or very long
            told |= {"state": "failed", "values": {}, "error": f"what the trial ended with is lost: {error}"}
        with self._lock:
            self._present = None
            self._over.pop(sweep, None)
            self._over[sweep] = told
            while len(self._over) > KEPT:
                oldest = next(iter(self._over))
                del self._over[oldest]
                self._begun.pop(oldest, None)

        def frame() -> Frame:
            self.agent.unwatch(run)
            return Frame("trial.over", told)

        self._tell(frame)

    def close(self) -> None:
        """Serve no more; how the last trial ended is kept."""
        sweep = self.sweep
        with self._lock:
            self._serving, self._present = False, None
        self.agent.let_go(sweep)
        self._tell(lambda: self._standing(sweep))

    # The Server's thread.

    def _enlist(self, frame: Frame, sender: Sender) -> None:
        sweep, token = frame.meta["sweep"], frame.meta["token"]
        heard = time.monotonic() - self._heard < SILENT_SECONDS
        if heard and self._enlisted[0] == sweep and token < self._enlisted[1]:
            return  # of a driver that has died since
        with self._lock:
            present = self._present if self.sweep == sweep else None
            over = self._over.get(sweep)
        held = self.agent.claim(sweep)
        if sender != self._driver:  # it may have missed some
            self._tell_reports(sweep, over, sender)
            self._tell_reports(sweep, None if present is None else present.to_meta(), sender)
        if not held:
            self._driver, self._heard = sender, time.monotonic()
            self._enlisted = sweep, token
        if present is not None:
            self.agent.watch(run_name(sweep, present.number, present.attempt), sender)
        sender.push(self._standing(sweep, held))

    def _tell_reports(self, sweep: str, trial: Mapping[str, Any] | None, sender: Sender) -> None:
        """Push what a trial has reported so far."""
        if trial is None:
            return
        meta = {"sweep": sweep, "rank": self.agent.task.rank}
        meta |= {name: trial[name] for name in ("number", "attempt")}
        reported = self._reported.get((sweep, trial["number"], trial["attempt"]))
        frame = None if reported is None else reported.frame(meta)
        if frame is not None:
            sender.push(frame)

    def _start(self, frame: Frame, sender: Sender) -> None:
        if sender != self._driver:
            return  # of a driver that has died since
        self._heard = time.monotonic()
        sweep, trial = frame.meta["sweep"], TrialOrder.from_meta(frame.meta)
        with self._lock:
            mine = self._serving and not self._leaving and self.sweep == sweep
            over = self._over.get(sweep, {"number": -1, "attempt": -1})
            begun = self._begun.setdefault(sweep, {})
            again = trial.attempt <= begun.get(trial.number, 0) and trial != self._present
            if (trial.number, trial.attempt) == (over["number"], over["attempt"]):
                mine = again = False
            elif mine and self._present is None and not again:
                run = run_name(sweep, trial.number, trial.attempt)
                self._present, begun[trial.number] = trial, trial.attempt
                self.agent.control(run)  # a word may come before the body
                self.agent.watch(run, sender)
                self._line.put(trial)
            mine = mine and trial == self._present
        if again:  # the log has lost that it was begun; an attempt of no ranks is one that cannot be made
            refused = {**trial.to_meta(), "ranks": [], "sweep": sweep, "rank": self.agent.task.rank}
            sender.push(Frame("trial.over", {**refused, "state": "failed", "values": {}, "error": ""}))
        elif not mine:
            sender.push(self._standing(sweep))

    def _leave(self, frame: Frame, sender: Sender) -> Frame:
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

    def _standing(self, sweep: str, held: str = "") -> Frame:
        with self._lock:
            mine = self.sweep == sweep and self._serving
            present = self._present.to_meta() if mine and self._present is not None else None
            meta = {
                "sweep": sweep,
                "rank": self.agent.task.rank,
                "serving": mine and not self._leaving,
                "present": present,
                "over": self._over.get(sweep),
                "held": held,
            }
        return Frame("trial.standing", meta)

    def _tell(self, frame: Callable[[], Frame]) -> None:
        """Push a frame to the driver, from any thread."""

        def push() -> None:
            told = frame()
            if self._driver is not None:
                with suppress(ConnectionError):  # it went away; another will ask
                    self._driver.push(told)

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
