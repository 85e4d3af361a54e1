"""Workers that a run loses and adds, on a cluster of which no process is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nbdist.errors import TaskDiedError
from nbdist.metrics.store import RunStore
from nbdist.run.files.mirror import Mirror
from nbdist.run.files.place import RunPlace
from nbdist.run.followed import FollowedRun, RunEvents
from nbdist.run.membership import MembershipRules
from nbdist.run.options import Options
from nbdist.run.progress import ProgressTracker
from nbdist.run.recovery.failure_detector import FailureDetector
from nbdist.run.recovery.losses import Losses
from nbdist.run.recovery.member import Members, Need, State
from nbdist.run.recovery.policy import Action, Decision
from nbdist.run.recovery.replacement import CallsByRank, Restart, RestartBudget, WorkerRecovery
from nbdist.run.recovery.resizing import WorkerGrowth
from nbdist.run.recovery.worker_changes import WorkerChanges
from nbdist.run.remote import EndedTasks
from nbdist.runtime.task import TaskInfo


def a_task(index: int, incarnation: int = 1) -> TaskInfo:
    return TaskInfo("worker", index, index, "elsewhere", 100 + index, "127.0.0.1:1", "CPU:0", incarnation)


class Calls:
    """Calls with the outcomes that a test gives them."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Any] = {}

    def ready_ranks(self) -> list[int]:
        return list(self.outcomes)

    def outcome(self, rank: int) -> Any:
        return self.outcomes[rank]

    def done(self) -> bool:
        return bool(self.outcomes)


class Launcher:
    """Starts bodies on processes that are prepared when a test says so."""

    def __init__(self) -> None:
        self.preparing: dict[int, Calls] = {}
        self.ranks = {0, 1}

    def prepare(self, info: TaskInfo) -> Calls:
        return self.preparing.setdefault(info.incarnation, Calls())

    def install_agent(self, info: TaskInfo) -> Calls:
        return self.prepare(info)

    def reserve(self, info: TaskInfo, timeout: float) -> None: ...

    def start(self, info: TaskInfo) -> Calls:
        return Calls()

    def add(self, rank: int) -> None:
        self.ranks.add(rank)

    def remove(self, rank: int) -> None:
        self.ranks.discard(rank)


class Followed:
    """A run on two workers, and what it says."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.cluster = EndedTasks([a_task(0), a_task(1)])
        self.members = Members(self.cluster.tasks)
        self.noted: list[str] = []
        events = RunEvents(
            printed=lambda task, text: None, displayed=lambda task, shown: None, noted=self.noted.append,
            restarted=lambda restart: None, placed=lambda info: None, resized=lambda resize: None,
        )  # fmt: skip
        tally = ProgressTracker(2, synchronous=False, members=self.members.workers)
        self.run = FollowedRun(
            "r", folder, self.cluster, self.members, CallsByRank(Calls()), MembershipRules.of(options, 2, 0),
            RunStore(), tally, events, decides=True, mirror=Mirror.of(RunPlace(str(folder)), self.cluster),
        )  # fmt: skip
        self.detector = FailureDetector(self.cluster, self.members)


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path, Options(strategy="multi_worker"))


def test_an_added_worker_whose_process_is_replaced_before_it_has_the_body_is_added_once(
    followed: Followed,
) -> None:
    launcher = Launcher()
    growth = WorkerGrowth(followed.cluster, launcher)
    changes = WorkerChanges(followed.run, followed.detector, None, growth)
    followed.cluster.tasks = [*followed.cluster.tasks, a_task(2, incarnation=2)]
    changes.poll()
    member = followed.members.worker(2)
    assert (member.state, member.info.incarnation) == (State.ADDED, 2)
    launcher.preparing[2].outcomes[2] = TaskDiedError("it died")
    followed.cluster.tasks = [*followed.cluster.tasks[:2], a_task(2, incarnation=3)]
    changes.poll()
    assert (member.state, member.info.incarnation) == (State.ADDED, 3)
    assert "could not be prepared: it died" in followed.noted[0]
    launcher.preparing[3].outcomes[2] = None
    changes.poll()
    assert (member.state, launcher.ranks) == (State.JOINING, {0, 1, 2})
    assert not changes.under_way


def test_a_new_owner_counts_a_loss_from_when_it_was_found(followed: Followed) -> None:
    """Its waits for others begin anew."""
    recovery = WorkerRecovery(followed.cluster, Launcher(), RestartBudget(1))
    changes = WorkerChanges(followed.run, followed.detector, recovery, None)
    member = followed.members.worker(1)
    member.suspect(3.0, "it died", "")
    member.move(State.LOST)
    member.observed = True
    Losses(followed.run, followed.detector, changes, recovery.budget, None, None).take_over()
    member.suspect(9.0, "it died", "")
    assert member.loss is not None
    assert (member.state, member.observed) == (State.SUSPECTED, False)
    assert member.loss.since > member.loss.found
    changes.lose(member, Decision(Action.REPLACE))
    (restart,) = recovery.restarts
    assert restart.lost_at == 3.0


def test_a_run_does_not_wait_for_a_worker_that_it_no_longer_needs_and_that_is_not_replaced(
    followed: Followed,
) -> None:
    """It was needed in a session with too few others, and died again after they had joined."""
    recovery = WorkerRecovery(followed.cluster, Launcher(), RestartBudget(0))
    changes = WorkerChanges(followed.run, followed.detector, recovery, None)
    member = followed.members.worker(1)
    member.move(State.LOST)
    member.need = Need.AT_END
    member.renew(member.info, State.JOINING, Restart(member.info, "it died", 1, 0.0, calls=Calls()))
    member.suspect(0.0, "it died again", "")
    changes.lose(member, Decision(Action.CONTINUE, by_session=True))
    assert (member.state, member.outcome, member.need) == (State.LOST, {}, Need.NONE)
    assert "it is not replaced, as --max-restarts 0 asks" in followed.noted[0]
