"""The engines of a sweep, seen from its driver: which are free, busy or gone, and what they say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import zmq

from nbdist.cluster.calls import Calls
from nbdist.cluster.handle import Cluster
from nbdist.errors import FailedPreconditionError, NbdistError, TaskDiedError, UnavailableError
from nbdist.runs.start import prepare
from nbdist.runtime.task import TaskInfo
from nbdist.trials.desk import open_desk
from nbdist.trials.order import SweepOrder, TrialOrder, run_name
from nbdist.trials.serving import serve
from nbdist.wire.frames import Frame

ENLIST_SECONDS = 5.0  # between two words that the driver is there; what was lost meanwhile comes up then
RESEND_SECONDS = 2.0  # after which a trial that an engine knows nothing of has gone lost
JOIN_SECONDS = 1.0  # between two attempts to win an engine that another run has

State: TypeAlias = Literal["joining", "free", "busy", "gone"]


class EngineStanding(NamedTuple):
    """An engine and what it is at: the number of a trial, or None."""

    rank: int
    name: str
    state: Literal["busy", "free", "gone"]
    number: int | None


@dataclass
class Engine:
    """One engine; ``wrong`` says why it cannot serve."""

    info: TaskInfo
    state: State = "joining"
    trial: TrialOrder | None = None
    calls: Calls | None = None
    due: float = 0.0
    sent: float = 0.0
    wrong: NbdistError | None = None


class Engines:
    """The engines of one sweep; all from the driver's thread, but `standing`."""

    def __init__(self, cluster: Cluster, order: SweepOrder, body: Any, ranks: Iterable[int]) -> None:
        self.cluster = cluster
        self._order, self._body = order, body
        infos = {info.rank: info for info in cluster.tasks}
        self._all = {rank: Engine(infos[rank]) for rank in ranks}
        self._poller = zmq.Poller()
        self._polled: dict[int, int] = {}  # incarnations whose connections the poller knows

    @property
    def free(self) -> set[int]:
        """The ranks that have no trial."""
        return {rank for rank, one in self._all.items() if one.state == "free"}

    @property
    def alive(self) -> int:
        """How many there are that are not gone."""
        return sum(one.state != "gone" for one in self._all.values())

    @property
    def wrong(self) -> NbdistError | None:
        """Why no engine can serve, if none can."""
        errors = [one.wrong for one in self._all.values()]
        return errors[0] if errors and all(errors) else None

    def at(self, number: int, attempt: int) -> list[int]:
        """Return the ranks that are busy with an attempt at a trial."""
        return [
            rank
            for rank, one in self._all.items()
            if one.trial is not None and (one.trial.number, one.trial.attempt) == (number, attempt)
        ]

    def standing(self) -> list[EngineStanding]:
        """Return what each is at. May be called from any thread."""
        return [
            EngineStanding(
                rank,
                one.info.name,
                "gone" if one.state == "gone" else "busy" if one.trial is not None else "free",
                None if (trial := one.trial) is None else trial.number,
            )
            for rank, one in list(self._all.items())
        ]

    def join(self) -> None:
        """Have all engines serve the sweep; raises what keeps one from it: it is busy with a run, say."""
        prepare(self.cluster)
        living = self._living()
        self.cluster.submit(open_desk, on=living).results(timeout=30)
        for rank in living:
            self._reserve(rank)
        self._submit(living)

    def look(self, now: float) -> tuple[list[Frame], set[int]]:
        """Return what engines have said, and the ranks that have died since the last look."""
        died = self._bury()
        frames: list[Frame] = []
        for rank, one in self._all.items():
            if one.state == "gone":
                continue
            self._look_at_call(rank, one, now)
            try:
                peer = self.cluster.peer(rank)
                if now >= one.due:
                    one.due = now + ENLIST_SECONDS
                    peer.send("trial.enlist", {"sweep": self._order.sweep})
                while (frame := peer.receive(0)) is not None:
                    if frame.meta.get("sweep") == self._order.sweep and frame.kind.startswith("trial."):
                        frames.append(frame)
            except UnavailableError:  # it died, which is noticed above, or was cut off: it is asked again
                one.due = min(one.due, now + JOIN_SECONDS)
        return frames, died

    def take(self, frame: Frame, now: float) -> None:
        """Take note of what an engine says of itself in a frame."""
        one = self._all[int(frame.meta["rank"])]
        if one.state == "gone":
            return
        if frame.kind == "trial.over":
            trial = one.trial
            if trial is not None and trial.number == frame.meta["number"]:
                one.state, one.trial = "free", None
        elif frame.kind == "trial.standing":
            present = frame.meta["present"]
            if present is not None:
                one.state, one.trial = "busy", TrialOrder.from_meta(present)
            elif frame.meta["serving"]:
                if one.state == "joining":
                    one.state = "free"
                elif one.trial is not None and now - one.sent > RESEND_SECONDS:  # it never came
                    self._start(int(frame.meta["rank"]), one, now)
            elif one.state != "joining":  # it has left, for it heard nothing of us
                one.state, one.trial, one.calls = "joining", None, None

    def start(self, trial: TrialOrder, now: float) -> None:
        """Send a trial to its ranks."""
        for rank in trial.ranks:
            one = self._all[rank]
            one.state, one.trial = "busy", trial
            self._start(rank, one, now)

    def stop(self, number: int, attempt: int, reason: str = "") -> None:
        """Have an attempt at a trial end at its next step; with a reason it is aborted."""
        run = run_name(self._order.sweep, number, attempt)
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
        for rank, one in self._all.items():
            if one.state != "gone":
                self._send(rank, "trial.leave", {"sweep": self._order.sweep})

    def have_left(self) -> bool:
        """Whether all that have nothing to do serve no more, and others can have them."""
        idle = ((rank, one) for rank, one in self._all.items() if one.trial is None and one.state != "gone")
        return all(one.calls is None or rank in one.calls.ready_ranks() for rank, one in idle)

    def wait(self, wake: int, seconds: float) -> None:
        """Wait until an engine says something, ``wake`` becomes readable, or so many seconds are over."""
        for rank, one in self._all.items():
            if one.state != "gone" and self._polled.get(rank) != one.info.incarnation:
                self.cluster.peer(rank).wake(self._poller)
                self._polled[rank] = one.info.incarnation
        self._poller.register(wake, zmq.POLLIN)
        self._poller.poll(max(0, int(seconds * 1000)))

    def _start(self, rank: int, one: Engine, now: float) -> None:
        assert one.trial is not None
        one.sent = now
        self._send(rank, "trial.start", {**one.trial.to_meta(), "sweep": self._order.sweep})

    def _living(self) -> list[int]:
        self._bury()
        return [rank for rank, one in self._all.items() if one.state != "gone"]

    def _bury(self) -> set[int]:
        """Note which engines have died, and which have come back as others; return those that died."""
        dead = {info.incarnation for info in self.cluster.dead()}
        died = set()
        for info in self.cluster.tasks:
            one = self._all.get(info.rank)
            if one is None:
                continue
            gone = one.info.incarnation in dead or info.incarnation != one.info.incarnation
            if gone and one.state != "gone":
                one.state, one.trial, one.calls = "gone", None, None
                died.add(info.rank)
            if one.state == "gone" and info.incarnation not in dead and info.rank not in died:
                self._all[info.rank] = Engine(info)
                self._forget_connection(info.rank)
        return died

    def _forget_connection(self, rank: int) -> None:
        self._polled.clear()
        self._poller = zmq.Poller()

    def _look_at_call(self, rank: int, one: Engine, now: float) -> None:
        """See whether the engine still serves; submit the serving where it does not."""
        if one.calls is not None and rank in one.calls.ready_ranks():
            outcome = one.calls.outcome(rank)
            if isinstance(outcome, Exception) and not isinstance(outcome, TaskDiedError):
                one.wrong = outcome if isinstance(outcome, NbdistError) else UnavailableError(str(outcome))
            if one.state != "busy":
                one.calls, one.state = None, "joining"
                one.due = now + JOIN_SECONDS
        if one.state == "joining" and one.calls is None and now >= one.due and one.wrong is None:
            one.due = now + JOIN_SECONDS
            try:
                prepare(self.cluster)
                self.cluster.submit(open_desk, on=[rank]).results(timeout=10)
                self._reserve(rank)
                self._submit([rank])
            except NbdistError:  # another run has it
                return

    def _reserve(self, rank: int) -> None:
        try:
            self.cluster.peer(rank).call("run.reserve", {"run": self._order.sweep, "ranks": [rank]})
        except FailedPreconditionError:
            standing = self.cluster.peer(rank).call("run.using").meta["run"]
            if standing != self._order.sweep:
                raise

    def _submit(self, ranks: list[int]) -> None:
        for rank in ranks:
            self._send(rank, "trial.enlist", {"sweep": self._order.sweep})
        calls = self.cluster.submit(serve, self._order, self._body, on=ranks)
        for rank in ranks:
            self._all[rank].calls = calls

    def _send(self, rank: int, kind: str, meta: dict[str, Any]) -> None:
        try:
            self.cluster.peer(rank).send(kind, meta)
        except UnavailableError:  # it is gone, or cut off: it is asked what it is at, and told again
            self._all[rank].due = 0.0
