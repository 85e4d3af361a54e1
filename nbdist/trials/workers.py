"""The engines of a sweep, seen from its driver: which are free, busy or dead, and their messages.

    joining ──► free ◄──► busy          an engine that no other run has serves the sweep until it is released
       │          └────────┴──► gone    dead, frozen or disconnected; an engine that returns joins again

Nothing here waits for an engine. Its state follows from its messages (`take`); the driver registers every few
seconds, and the engine's answer repairs what a lost message has left out.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from nbdist.cluster.calls import Calls
from nbdist.cluster.cluster import Cluster
from nbdist.errors import InvalidArgumentError, NbdistError, TaskDiedError, UnavailableError
from nbdist.run.files.mirror import Mirror, Watch
from nbdist.run.files.place import RunPlace
from nbdist.run.values.delivery import Delivery
from nbdist.runtime.task import TaskInfo
from nbdist.trials.protocol import SweepSpec, TrialSpec, run_name, trial_place
from nbdist.trials.trial_worker import open_trial_server, serve
from nbdist.wire.rpc.client import wait_any
from nbdist.wire.rpc.frame import Frame

REGISTER_SECONDS = (
    5.0  # between two registrations; an engine answers with its status, which repairs lost messages
)
RESEND_SECONDS = 2.0  # then a trial that an engine does not know was lost and is sent again
JOIN_SECONDS = 1.0  # between two attempts to get an engine that another run has, or to reach a lost one
LOST_SECONDS = 10.0  # of silence after its connection broke; then the engine counts as dead
MOST_FAILURES = 3  # of the worker loop on one engine; then the engine is not used any more
Attempt = tuple[int, int]
"""A trial's number, and which attempt at it."""


_with_server: set[int] = set()
"""Incarnations of the engines on which `open_trial_server` was called."""


class EngineStatus(NamedTuple):
    """An engine and what it is at: the number of a trial, or None."""

    rank: int
    name: str
    state: Literal["busy", "free", "gone"]  # saved notebooks contain these values
    number: int | None


@dataclass
class Engine:
    """One engine: what it was given, and what it is believed to be at."""

    info: TaskInfo
    gone: bool = False
    serving: bool = False
    trial: TrialSpec | None = None
    """What it was given."""
    present: Attempt | None = None
    """What it is at: if that is not what it was given, an attempt that the sweep has given up."""
    claimed: bool = False
    """Whether it is reserved for this sweep and does not serve yet."""
    held: str = ""
    """The run of others that has it."""
    setup: Calls | None = None
    calls: Calls | None = None
    due: float = 0.0
    sent: float = 0.0
    lost: float | None = None
    """Since when its connection is broken."""
    failures: int = 0
    wrong: NbdistError | None = None
    shared: bool = True
    """Whether it sees the sweep's folder; else its files are copied."""

    @property
    def state(self) -> Literal["joining", "free", "busy", "gone"]:
        """Where it stands."""
        if self.gone:
            return "gone"
        if self.trial is not None or self.present is not None:
            return "busy"
        return "free" if self.serving else "joining"


class Engines:
    """The engines of one sweep; all from the driver's thread, but `status`."""

    def __init__(
        self,
        cluster: Cluster,
        spec: SweepSpec,
        body: Any,
        ranks: Iterable[int],
        everyone: bool = False,
        delivery: Delivery | None = None,
    ) -> None:
        self.cluster = cluster
        self.mirror = Mirror.of(RunPlace(spec.folder, spec.token), cluster)
        """Copies the files of engines on other hosts."""
        self.missing = ""
        """What could not be copied, if that is so."""
        self._delivery = delivery
        self.joined: Callable[[TaskInfo], object] = lambda info: None
        """Called when a worker that joined the cluster later becomes an engine: with ``everyone``."""
        self.wake: Callable[[], object] = lambda: None
        """Called, on any thread, when a call to an engine has ended."""
        self._spec, self._body = spec, body
        infos = {info.rank: info for info in cluster.tasks}
        self._all = {rank: Engine(infos[rank]) for rank in ranks if rank in infos}
        self._everyone = everyone
        self._token = f"{time.time_ns():020}-{secrets.token_hex(4)}"  # a later driver has a higher one
        self._leaving = False

    @property
    def free(self) -> set[int]:
        """The ranks that have no trial."""
        return {rank for rank, one in self._all.items() if one.state == "free"}

    @property
    def alive(self) -> int:
        """How many are not lost."""
        return sum(not one.gone for one in self._all.values())

    @property
    def held(self) -> str:
        """A run of others that has one of them, empty if none has."""
        return next((one.held for one in self._all.values() if one.held and not one.gone), "")

    @property
    def wrong(self) -> NbdistError | None:
        """Why no engine can serve, if it is not that all are dead."""
        errors = [one.wrong for one in self._all.values() if one.wrong is not None]
        return errors[0] if errors and not self.alive else None

    def strays(self) -> set[Attempt]:
        """Return the attempts that engines run although the sweep has given them up."""
        return {
            one.present
            for one in self._all.values()
            if one.present is not None
            and not one.gone
            and (one.trial is None or key_of(one.trial) != one.present)
        }

    def at(self, number: int, attempt: int) -> list[int]:
        """Return the ranks that have an attempt at a trial."""
        key = (number, attempt)
        return [
            rank
            for rank, one in self._all.items()
            if one.present == key or (one.trial is not None and key_of(one.trial) == key)
        ]

    def status(self) -> list[EngineStatus]:
        """Return what each is at. May be called from any thread."""
        found = []
        for rank, one in list(self._all.items()):
            trial, present = one.trial, one.present
            number = trial.number if trial is not None else present[0] if present is not None else None
            state: Literal["busy", "free"] = "free" if number is None else "busy"
            found.append(EngineStatus(rank, one.info.name, "gone" if one.gone else state, number))
        return found

    def look(self, now: float) -> tuple[list[Frame], set[int]]:
        """Return what engines have said, and the ranks that have died since the last look.

        Raises UnavailableError if the cluster's controller has ended.
        """
        if (how := self.cluster.controller_died()) is not None:
            raise UnavailableError(
                f"the controller of cluster {self.cluster.id} has ended ({how}), and its engines with it; "
                f"start another with %cluster start, then nb.attach({self._spec.sweep!r}) continues there"
            )
        while self.mirror.news:
            self.missing = self.mirror.news.popleft()
        frames = self._receive(now)  # before deaths: what one has said last counts
        died = self._note_deaths(now)
        if not self._leaving:
            self._join(now)
        return frames, died

    def take(self, frame: Frame, now: float, wanted: bool = False) -> None:
        """Take note of what an engine says of itself; ``wanted``: what it is at is an attempt that runs."""
        one = self._all[int(frame.meta["rank"])]
        if one.gone and one.lost is None:
            return  # from before its death
        one.gone, one.lost = False, None
        if frame.kind == "trial.result":
            key = (int(frame.meta["number"]), int(frame.meta["attempt"]))
            if one.trial is not None and key_of(one.trial) == key:
                one.trial = None
            if one.present == key:
                one.present = None
            return
        meta = frame.meta
        _with_server.add(one.info.incarnation)
        one.serving, one.held = bool(meta["serving"]), str(meta["held"])
        one.shared = bool(meta.get("shared", True))
        one.claimed = not one.serving and not one.held
        present = None if meta["present"] is None else TrialSpec.from_meta(meta["present"])
        one.present = None if present is None else key_of(present)
        if present is not None and wanted and one.trial is None:
            one.trial = present
            if not one.shared:
                self._watch(one.info.rank, present.number)
        if one.held:
            one.due = min(one.due, now + JOIN_SECONDS)
        if one.trial is None or present is not None:
            return
        if not one.serving:  # it had left before the trial came: it is sent again as soon as it serves
            one.sent = now - 2 * RESEND_SECONDS
        elif now - one.sent > RESEND_SECONDS:
            self._start(one, now)

    def start(self, trial: TrialSpec, now: float) -> None:
        """Send a trial to its ranks."""
        for rank in trial.ranks:
            one = self._all[rank]
            one.trial, one.present = trial, key_of(trial)
            if not one.shared:
                self._watch(rank, trial.number)
                self._send_state(one, trial)
            self._start(one, now)

    def awaits_files(self, frame: Frame) -> bool:
        """Whether a message is of the end of a trial whose files are still to be copied."""
        result = frame.meta if frame.kind == "trial.result" else frame.meta.get("result")
        rank = int(frame.meta["rank"])
        if result is None or rank not in self._all:
            return False
        shared = frame.meta["shared"] if "shared" in frame.meta else self._all[rank].shared
        if shared or self._leaving:
            return False
        watch = self._watch(rank, int(result["number"]))
        if not self.mirror.settle(watch):
            return True
        self.mirror.remove(watch)
        return False

    def _watch(self, rank: int, number: int) -> Watch:
        return self.mirror.add(rank, trial_place(self._spec, number).under, shared=False)

    def _send_state(self, one: Engine, trial: TrialSpec) -> None:
        """Send the state that a trial continues to an engine on another host."""
        try:
            self.mirror.send(one.info.rank, [trial.resume] if trial.resume else [])
        except (NbdistError, OSError) as error:  # the trial fails there, for it finds no state
            self.missing = f"the state of trial {trial.number} was not sent to {one.info.name}: {error}"

    def disown(self, number: int, attempt: int) -> None:
        """Give up an attempt; it is a stray while engines run it."""
        for rank in self.at(number, attempt):
            self._all[rank].trial = None

    def stop(self, number: int, attempt: int, reason: str = "") -> None:
        """Have an attempt at a trial end at its next step; with a reason it is aborted."""
        run = run_name(self._spec.sweep, number, attempt)
        for rank in self.at(number, attempt):
            if reason:
                self._send(rank, "run.abort", {"run": run, "reason": reason})
            else:
                self._send(rank, "run.stop", {"run": run})

    def interrupt(self, number: int, attempt: int) -> None:
        """Signal the engines that are still at a trial."""
        for rank in self.at(number, attempt):
            self.cluster.signal(rank, 2)

    def infos(self, number: int, attempt: int) -> list[TaskInfo]:
        """Return the engines that are still at a trial."""
        return [self._all[rank].info for rank in self.at(number, attempt)]

    def leave(self) -> None:
        """Give all engines free for others; those that are at a trial leave after it."""
        self._leaving = True
        given = {"sweep": self._spec.sweep, "token": self._token}
        for rank, one in self._all.items():
            if one.wrong is not None:  # it does not serve, so this is the only sign that it is free
                with suppress(NbdistError):
                    self.cluster.peer(rank).call("trial.leave", given, timeout=1.0)
            elif not one.gone:
                self._send(rank, "trial.leave", given)

    def have_left(self) -> bool:
        """Whether all that have nothing to do serve no more, and others can have them."""
        idle = [
            one for one in self._all.values() if one.trial is None and one.present is None and not one.gone
        ]
        return not any(
            one.serving or (one.calls is not None and one.info.rank not in one.calls.ready_ranks())
            for one in idle
        )

    def wait(self, wake: int, seconds: float) -> None:
        """Wait until an engine says something, ``wake`` becomes readable, or so many seconds are over."""
        peers = []
        for rank, one in self._all.items():
            if not one.gone or one.lost is not None:
                with suppress(InvalidArgumentError):  # it has left the cluster just now
                    peers.append(self.cluster.peer(rank))
        wait_any(peers, seconds, wake)

    def _receive(self, now: float) -> list[Frame]:
        frames: list[Frame] = []
        infos = {info.rank: info for info in self.cluster.tasks}
        for rank, one in self._all.items():
            info = infos.get(rank)
            if (one.gone and one.lost is None) or info is None or info.incarnation != one.info.incarnation:
                continue
            try:
                peer = self.cluster.peer(rank)
                if now >= one.due and not self._leaving:
                    one.due = now + REGISTER_SECONDS
                    peer.send("trial.register", {"sweep": self._spec.sweep, "token": self._token})
                while (frame := peer.receive(0)) is not None:
                    if frame.kind.startswith("trial.") and frame.meta.get("sweep") == self._spec.sweep:
                        one.lost = None if not one.gone else one.lost
                        frames.append(frame)
            except UnavailableError:  # it died, or was cut off: lost messages are requested again
                one.lost = now if one.lost is None else one.lost
                one.due = min(one.due, now + JOIN_SECONDS)
        return frames

    def _note_deaths(self, now: float) -> set[int]:
        """Note which engines have died or are lost, and which have come, or come back; return the former."""
        dead = {info.incarnation for info in self.cluster.dead()}
        infos = {info.rank: info for info in self.cluster.tasks}
        died = set()
        for rank, one in list(self._all.items()):
            info = infos.get(rank)
            dies = info is None or one.info.incarnation in dead or info.incarnation != one.info.incarnation
            lost = one.lost is not None and now - one.lost > LOST_SECONDS
            if (dies or lost or one.wrong is not None) and not one.gone:
                one.gone, one.trial, one.present, one.serving, one.held = True, None, None, False, ""
                one.calls = one.setup = None
                died.add(rank)
            if dies:
                one.lost = None
            if info is None or info.incarnation in dead:
                continue
            if one.gone and info.incarnation != one.info.incarnation:
                self._all[rank] = Engine(info)
        new = infos.keys() - self._all.keys() if self._everyone and not self._leaving else set()
        for info in map(infos.__getitem__, sorted(new)):
            if info.job == "worker" and info.incarnation not in dead:
                self._all[info.rank] = Engine(info)
                self.joined(info)
        return died

    def _join(self, now: float) -> None:
        """Open the trial server on new engines; start the worker loop on those that no other run has."""
        fresh, idle = [], []
        for rank, one in self._all.items():
            if one.gone:
                continue
            if one.info.incarnation not in _with_server:
                if one.setup is None:
                    fresh.append(rank)
                elif rank in one.setup.ready_ranks():
                    if self._note(one, one.setup.outcome(rank)):
                        _with_server.add(one.info.incarnation)
                    one.setup, one.due = None, 0.0
            elif one.calls is not None and rank in one.calls.ready_ranks():
                self._note(one, one.calls.outcome(rank))
                one.calls, one.serving, one.due = None, False, 0.0  # it says next what it is at
            elif one.calls is None and one.claimed:
                one.claimed = False
                idle.append(rank)
        for ranks, function, name in ((fresh, open_trial_server, "setup"), (idle, serve, "calls")):
            if ranks:
                given = (
                    () if function is open_trial_server else (self._spec_for(ranks), self._body, self._token)
                )
                calls = self.cluster.submit(function, *given, on=ranks)
                calls.add_done_callback(lambda: self.wake())
                for rank in ranks:
                    setattr(self._all[rank], name, calls)

    def _spec_for(self, ranks: list[int]) -> SweepSpec:
        """Send the pushed arrays to the engines' hosts; return the specification for the engines."""
        if self._delivery is None:
            return self._spec
        return replace(self._spec, pushed=self._delivery.send(self._all[rank].info for rank in ranks))

    def _note(self, one: Engine, outcome: object) -> bool:
        """Take note of how a call has ended; whether all is well. An engine that fails often is given up."""
        if not isinstance(outcome, Exception):
            return True
        one.failures += not isinstance(outcome, TaskDiedError)
        if one.failures >= MOST_FAILURES:
            one.wrong = outcome if isinstance(outcome, NbdistError) else UnavailableError(str(outcome))
        return False

    def _start(self, one: Engine, now: float) -> None:
        assert one.trial is not None
        one.sent = now
        self._send(one.info.rank, "trial.start", {**one.trial.to_meta(), "sweep": self._spec.sweep})

    def _send(self, rank: int, kind: str, meta: dict[str, Any]) -> None:
        try:
            self.cluster.peer(rank).send(kind, meta)
        except (UnavailableError, InvalidArgumentError):
            # It has ended or is cut off: the driver polls and notifies it again.
            self._all[rank].due = 0.0


def key_of(trial: TrialSpec) -> Attempt:
    """Return which attempt this is."""
    return trial.number, trial.attempt
