"""What all that follows a run from the client shares: `FollowedRun`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbdist.checkpoint.manager import state_files
from nbdist.errors import NbdistError, TaskDiedError
from nbdist.metrics.run_events import EventLog, events_path
from nbdist.metrics.store import Point, RunStore
from nbdist.run.body_error import Hint
from nbdist.run.displays import Displayed
from nbdist.run.files.mirror import Mirror
from nbdist.run.membership import MembershipRules
from nbdist.run.progress import ProgressTracker
from nbdist.run.protocols import RunTasks
from nbdist.run.recovery.member import Member, Members
from nbdist.run.recovery.replacement import CallsByRank, Restart
from nbdist.run.recovery.resizing import Resize
from nbdist.run.recovery.server_recovery import Replaced
from nbdist.run.recovery.shutdown import Escalation
from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.frame import Frame


@dataclass(frozen=True)
class RunEvents:
    """What is called with the news of a run.

    ``printed`` receives a task's output, ``displayed`` its displayed objects, ``noted`` messages for the end
    of the run, ``restarted`` each replacement that has started, joined or failed, ``placed`` a worker that
    becomes a replica, ``resized`` each that has started, joined, failed or left. ``happened`` receives
    the kind and the sentence of each event about a task, and the task. ``hint`` returns the remedy for a name
    that the body lacks.
    """

    printed: Callable[[str, str], object]
    displayed: Callable[[str, Displayed], object]
    noted: Callable[[str], object]
    restarted: Callable[[Restart | Replaced], object]
    placed: Callable[[TaskInfo], object]
    resized: Callable[[Resize], object]
    happened: Callable[[str, str, TaskInfo | None], object] = lambda kind, text, info: None
    hint: Hint | None = None


@dataclass
class FollowedRun:
    """A run and its members, as this client knows them, and how it speaks to their tasks.

    - ``calls``: the calls that run the body on the workers
    - ``rules``: which workers it needs, and whether they are replaced, join and leave
    - ``store`` receives points, ``tally`` progress, ``events`` all other news
    - ``decides``: whether this client is the owner of the run; else it observes what the owner does
    - ``mirror`` copies the files of tasks that do not see ``folder``
    - ``log`` takes the events of the run that its owner knows of: lost, replaced and joined tasks

    ``error`` is the first failure.
    """

    run: str
    folder: Path
    cluster: RunTasks
    members: Members
    calls: CallsByRank
    rules: MembershipRules
    store: RunStore
    tally: ProgressTracker
    events: RunEvents
    decides: bool
    mirror: Mirror
    error: NbdistError | None = None
    interrupted: bool = False
    escalation: Escalation = field(init=False)
    log: EventLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = EventLog(events_path(self.folder), self.events.noted)
        self.escalation = Escalation(aborts=bool(self.members.towers))

    @property
    def is_ending(self) -> bool:
        """Whether the run has failed, is being stopped, or expects no more outcomes."""
        return self.error is not None or self.interrupted or self.members.all_ended

    def send(self, info: TaskInfo, kind: str, meta: dict[str, Any], wait: float = 0.0) -> Frame | None:
        """Send a message about the run to a task and ``wait`` so many seconds for its answer; return that.

        A dead task is left out.
        """
        meta = {"run": self.run, **meta}
        if info.rank in {one.rank for one in self.cluster.dead()}:
            return None
        try:
            peer = self.cluster.peer(info.rank)
            if wait:
                return peer.call(kind, meta, timeout=wait)
            peer.send(kind, meta)
        except NbdistError:
            if (member := self.members.of(info.rank)) is not None:
                member.body.is_silent = True
        return None

    def say_what_is_missing(self) -> None:
        """Print what files of other hosts cannot be copied, and keep it for the end of the run."""
        while self.mirror.news:
            self.note(self.members.workers[0].info.name, self.mirror.news.popleft())

    def say(self, text: str) -> None:
        """Print a sentence as the first worker's output."""
        self.events.printed(self.members.workers[0].info.name, f"{text}\n")

    def send_to(self, members: Iterable[Member], kind: str, **meta: Any) -> None:
        """Send a message about the run to members."""
        for one in list(members):
            self.send(one.info, kind, meta)

    def note(self, name: str, now: str, later: str = "") -> None:
        """Print a sentence as a task's output, and keep it, or ``later`` instead, for the end of the run."""
        self.events.printed(name, f"{now}\n")
        self.events.noted(later or now)

    def happened(self, kind: str, text: str, info: TaskInfo | None = None) -> None:
        """Record an event about a task in the run's folder, if this client is the owner of the run."""
        if not self.decides:
            return
        standing = self.tally.standing(time.monotonic(), self.store)
        # Curves are drawn over these steps: the replicas' own, or the updates of all.
        drawn = [last.step for one in self.store.replicas for last in [self._last(one)] if last is not None]
        step = max(drawn, default=max((one.step for one in standing.replicas), default=0))
        rank = None if info is None else info.rank
        self.log.add(kind, text, step, epoch=standing.epoch, rank=rank)
        self.log.flush()
        self.events.happened(kind, text, info)

    def _last(self, replica: int) -> Point | None:
        return self.store.last(replica, "loss") if "loss" in self.store.series else None

    def fail(self, error: NbdistError, member: Member | None = None) -> None:
        """Record the first error, which a member has raised, and abort the other bodies."""
        if self.error is not None:
            return
        self.error = error
        where = "another task" if member is None else member.info.name
        others = [one for one in self.members.workers if one is not member]
        self.send_to(others, "run.abort", reason=f"run {self.run} was aborted: {where} failed")
        self.escalation.begin(failed=True)

    def died(self, how: str, advice: str) -> TaskDiedError:
        """Return the error of a run that ends with a task: how, what it leaves, and what to do about it."""
        left = f"What run {self.run} logged is in {self.folder}."
        if state_files(self.folder):
            left += f" It can be resumed from its newest state: nb.attach({self.run!r}).resume()."
        return TaskDiedError(f"{how}. {left} {advice}")
