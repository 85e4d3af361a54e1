"""A cluster without processes: real trial servers, simulated main threads, connections cut at random."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from nbdist.errors import TaskDiedError, UnavailableError
from nbdist.run.task.agent import Agent
from nbdist.runtime.task import TaskInfo
from nbdist.trials.protocol import SweepSpec, TrialSpec
from nbdist.trials.trial_worker import TrialServer
from nbdist.wire.rpc.frame import Frame, decode, encode


class Clock:
    """Replaces the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def time_ns(self) -> int:
        return int(self.now * 1e9)


class Line:
    """One connection of a driver to an engine, with the frames in transit in both directions."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.up, self.reported = engine, True, False
        self.to_engine: deque[Frame] = deque()
        self.to_driver: deque[Frame] = deque()

    def push(self, frame: Frame) -> None:
        if not self.up:
            raise UnavailableError("the connection was closed")
        self.to_driver.append(travelled(frame))


class Peer:
    """A driver's side of a connection: it reconnects after a cut."""

    def __init__(self, cluster: Simulated, engine: Engine) -> None:
        self.cluster, self.engine = cluster, engine
        self.line = cluster.connect(engine)

    def send(self, kind: str, meta: dict[str, Any]) -> None:
        if self.engine.dead:
            raise UnavailableError("the engine died")
        self._again()
        self.line.to_engine.append(travelled(Frame(kind, meta)))

    def receive(self, timeout: float) -> Frame | None:
        if not self.line.up and not self.line.reported:
            self.line.reported = True
            raise UnavailableError("the connection was lost")
        return self.line.to_driver.popleft() if self.line.to_driver and self.line.up else None

    def _again(self) -> None:
        if not self.line.up:
            self.line = self.cluster.connect(self.engine)


class Calls:
    """Calls of functions on main threads."""

    def __init__(self, engines: list[Engine]) -> None:
        self.engines = {one.info.rank: one for one in engines}
        self.done: dict[int, Any] = {}

    def add_done_callback(self, tell: Callable[[], object]) -> None: ...

    def ready_ranks(self) -> list[int]:
        return [rank for rank, one in self.engines.items() if rank in self.done or one.dead]

    def outcome(self, rank: int) -> Any:
        return self.done[rank] if rank in self.done else TaskDiedError("it died")


class Engine:
    """An engine: a real trial server on a simulated Server, and a main thread that tests advance."""

    def __init__(self, cluster: Simulated, info: TaskInfo) -> None:
        self.cluster, self.info, self.dead, self.frozen = cluster, info, False, False
        self.handlers: dict[str, Any] = {}
        self.server: TrialServer | None = None
        self.calls: deque[tuple[Callable[..., Any], tuple[Any, ...], Calls]] = deque()
        self.serving: Calls | None = None
        self.trial: TrialSpec | None = None
        self.stop: dict[str, str] = {}
        self.holder: str | None = None
        server = SimpleNamespace(on=self.handlers.__setitem__, post=lambda function: function())
        ignore: Callable[..., None] = lambda *given: None
        self.agent = cast(
            Agent,
            SimpleNamespace(
                task=SimpleNamespace(rank=info.rank, server=server),
                hold=lambda holder: setattr(self, "holder", holder),
                let_go=lambda holder: setattr(self, "holder", None),
                claim=lambda run: "" if self.holder in (None, run) else self.holder,
                subscribers=SimpleNamespace(add=ignore, take=ignore), control=ignore,
            ),
        )  # fmt: skip

    def receive(self, frame: Frame, line: Line) -> None:
        """Process a frame as the Server's thread does."""
        if frame.kind in ("run.stop", "run.abort"):
            self.stop[frame.meta["run"]] = "stopped" if frame.kind == "run.stop" else "failed"
        elif frame.kind in self.handlers:
            with suppress(ConnectionError):
                self.handlers[frame.kind](frame, line)

    def step(self) -> None:
        """Make one step of the main thread."""
        if self.serving is None:
            if not self.calls:
                return
            function, given, calls = self.calls.popleft()
            if function.__name__ == "open_trial_server":
                self.server = self.server or TrialServer(self.agent)
                calls.done[self.info.rank] = None
            else:
                self.serving = calls
                spec: SweepSpec = given[0]
                cast(TrialServer, self.server).open(spec, given[2])
            return
        server = cast(TrialServer, self.server)
        if self.trial is None:
            if server._line.empty():
                return
            self.trial = server._line.get_nowait()
            if self.trial is None:
                server.close()
                self.serving.done[self.info.rank] = None
                self.serving = None
            else:
                self.cluster.begun(self, self.trial)
            return
        self.cluster.continue_trial(self, self.trial)

    def end(self, state: str, value: float | None) -> None:
        """End the present trial."""
        trial, self.trial = cast(TrialSpec, self.trial), None
        values = {} if value is None else {"accuracy": value}
        cast(TrialServer, self.server).end(
            trial, {"state": state, "values": values, "error": "", "aborted": True}
        )


class Simulated:
    """The part of a cluster that a driver's `Engines` uses."""

    id, stopped = "simulated", False

    def __init__(self, engines: int, dice: Random) -> None:
        self.dice = dice
        self.engines = [Engine(self, info_of(rank, rank + 1)) for rank in range(engines)]
        self.incarnation = engines
        self.lines: list[Line] = []
        self.peers: dict[int, Peer] = {}
        self.begun_at: dict[tuple[int, int, int], int] = {}
        self.left: dict[tuple[int, int], int] = {}
        self.twice = True
        """Whether two attempts at a trial at the same time are an error."""

    @property
    def tasks(self) -> list[TaskInfo]:
        return [one.info for one in self.engines]

    def dead(self) -> list[TaskInfo]:
        return [one.info for one in self.engines if one.dead]

    def controller_died(self) -> None: ...

    def is_cut_off(self) -> bool:
        return False

    def stacks(self, task: int, *, timeout: float) -> Any:
        raise UnavailableError("no process is behind this task")

    def peer(self, rank: int) -> Peer:
        engine = self.engines[rank]
        if rank not in self.peers or self.peers[rank].engine is not engine:
            self.peers[rank] = Peer(self, engine)
        return self.peers[rank]

    def connect(self, engine: Engine) -> Line:
        self.lines.append(Line(engine))
        return self.lines[-1]

    def submit(self, function: Callable[..., Any], *given: Any, on: Iterable[int]) -> Calls:
        engines = [self.engines[rank] for rank in on]
        calls = Calls(engines)
        for one in engines:
            one.calls.append((function, given, calls))
        return calls

    def signal(self, rank: int, signum: int) -> bool:
        engine = self.engines[rank]
        if engine.trial is not None and not engine.frozen and not engine.dead:
            engine.end("stopped", None)
        return True

    def replace(self, tasks: list[TaskInfo]) -> Any:
        for info in tasks:
            self.kill(info.rank)
            self.restart(info.rank)
        new = [self.engines[info.rank].info for info in tasks]
        return SimpleNamespace(poll=lambda: True, tasks=new, notes=[])

    # Faults.

    def driver_dies(self) -> None:
        """Disconnect the driver; frames that it has sent stay in transit. The next driver has new lines."""
        self.peers.clear()
        for line in self.lines:
            line.to_driver.clear()

    def kill(self, rank: int) -> None:
        engine = self.engines[rank]
        engine.dead, engine.trial = True, None
        for line in self.lines:
            if line.engine is engine:
                line.up = False

    def restart(self, rank: int) -> None:
        if self.engines[rank].dead:
            self.incarnation += 1
            self.engines[rank] = Engine(self, info_of(rank, self.incarnation))

    def cut(self) -> None:
        if self.lines:
            self.dice.choice(self.lines).up = False

    def deliver(self) -> None:
        """Deliver one frame, occasionally twice."""
        full = [
            line for line in self.lines if line.to_engine and not line.engine.dead and not line.engine.frozen
        ]
        if full:
            line = self.dice.choice(full)
            frame = line.to_engine.popleft()
            for _ in range(1 + (self.dice.random() < 0.1)):
                line.engine.receive(frame, line)

    def work(self) -> None:
        able = [one for one in self.engines if not one.dead and not one.frozen]
        if able:
            self.dice.choice(able).step()

    def begun(self, engine: Engine, trial: TrialSpec) -> None:
        key = (trial.number, trial.attempt, engine.info.incarnation)
        self.begun_at[key] = self.begun_at.get(key, 0) + 1
        assert self.begun_at[key] == 1, f"{key} was begun twice"
        self.left.setdefault((trial.number, trial.attempt), self.dice.randrange(4))
        if self.twice:
            for other in self.engines:
                at = other.trial
                if at is not None and not other.dead and at.number == trial.number:
                    assert at.attempt == trial.attempt, f"{at} continues while {trial} begins"

    def continue_trial(self, engine: Engine, trial: TrialSpec) -> None:
        key = (trial.number, trial.attempt)
        asked = engine.stop.get(f"{cast(TrialServer, engine.server).sweep}.{trial.number}.{trial.attempt}")
        if asked is not None:
            engine.end(asked, None)
        elif self.left[key] > 0:
            self.left[key] -= 1
            for line in self.lines:
                if line.engine is engine and line.up and engine.info.rank == trial.ranks[0]:
                    meta = {"sweep": cast(TrialServer, engine.server).sweep, "rank": engine.info.rank}
                    meta |= {"number": trial.number, "attempt": trial.attempt}
                    step, value = np.array([4 - self.left[key]]), np.array([float(trial.number)])
                    line.push(Frame("trial.reports", meta, (step, value)))
        else:
            engine.end("finished", float(trial.number))


def info_of(rank: int, incarnation: int) -> TaskInfo:
    return TaskInfo(
        "worker", rank, rank, "here", 1000 + incarnation, f"here:{incarnation}", "CPU:0", incarnation
    )


def travelled(frame: Frame) -> Frame:
    """Return a frame as the receiver decodes it."""
    return decode([bytes(part) for part in encode(frame)])
