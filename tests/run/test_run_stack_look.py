"""Where a run's tasks are that hang: looks on threads, repeated while tasks are silent, and in the report."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from waiting import until

from nbdist.cluster.stacks import Frame, Stacks, TaskStack, Thread
from nbdist.errors import UnavailableError
from nbdist.run.recovery.member import Body
from nbdist.run.recovery.shutdown import StuckTaskReplacer
from nbdist.run.stack_look import AGAIN_SECONDS, STALLED_SECONDS, SilentTasks, StackLook, StepWatch
from nbdist.runtime.task import TaskInfo
from nbdist.ui.display.run import RunView


class Tasks:
    """A cluster whose tasks are at a line of their body that the test chooses."""

    def __init__(self) -> None:
        self.line, self.looked, self.error = 7, list[int](), False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.tasks = [TaskInfo("worker", n, n, "7f", 70 + n, "", "CPU:0", n + 1) for n in range(3)]
        self.replaced: list[list[TaskInfo]] = []

    def stacks(self, task: int, *, timeout: float) -> Stacks:
        self.looked.append(task)
        assert self.may_answer.wait(60)
        if self.error:
            raise UnavailableError("the cluster has ended")
        main = Thread("", True, (Frame("<distribute r>", self.line, "<module>", "body"),))
        return Stacks([TaskStack(f"worker:{task}", 7, by="py-spy", threads=(main,))])

    def replace(self, tasks: list[TaskInfo]) -> Any:
        self.replaced.append(tasks)
        return Replacement(tasks)


class Replacement:
    """One that is done at once."""

    def __init__(self, tasks: list[TaskInfo]) -> None:
        self.tasks, self.notes = tasks, list[str]()

    def poll(self) -> bool:
        return True


def places(silent: SilentTasks, ranks: set[int], wanted: dict[int, str]) -> None:
    until(lambda: silent.places(ranks) == wanted)


def test_a_silent_task_is_looked_at_once_and_again_after_a_while() -> None:
    now, tasks = 0.0, Tasks()
    silent = SilentTasks(tasks, lambda: now)  # type: ignore[arg-type]
    tasks.may_answer.clear()
    assert silent.places({1}) == {}  # it does not wait
    tasks.may_answer.set()
    places(silent, {1}, {1: "at line 7 of the body"})
    tasks.line = 8
    assert silent.places({1}) == {1: "at line 7 of the body"}
    now = AGAIN_SECONDS
    places(silent, {1}, {1: "at line 8 of the body"})
    assert tasks.looked == [1, 1]
    places(silent, {1, 2}, {1: "at line 8 of the body", 2: "at line 8 of the body"})
    assert silent.places(set()) == {}
    places(silent, {2}, {2: "at line 8 of the body"})  # silent again: it may be elsewhere


def test_a_look_at_a_cluster_that_has_ended_finds_nothing() -> None:
    tasks = Tasks()
    tasks.error = True
    look = StackLook(tasks, [0, 1])  # type: ignore[arg-type]
    until(lambda: look.is_over)
    assert look.places == {}


def test_a_replaced_task_is_reported_with_its_place() -> None:
    now, tasks = 0.0, Tasks()
    replacer = StuckTaskReplacer(tasks, lambda: now)  # type: ignore[arg-type]
    tasks.may_answer.clear()
    replacer.begin([tasks.tasks[1]], 4.0)
    assert (tasks.replaced, replacer.under_way) == ([], True)  # first it is read where it is
    tasks.may_answer.set()
    until(lambda: replacer.poll() or not replacer.under_way)
    assert replacer.report.splitlines()[1] == "It was at line 7 of the body"


def test_a_look_that_takes_too_long_holds_no_replacement_back() -> None:
    now, tasks = 0.0, Tasks()
    replacer = StuckTaskReplacer(tasks, lambda: now)  # type: ignore[arg-type]
    tasks.may_answer.clear()
    try:
        replacer.begin([tasks.tasks[1]], 4.0)
        now = 3.0
        until(lambda: replacer.poll() or not replacer.under_way)
        assert "It was" not in replacer.report
    finally:
        tasks.may_answer.set()


def test_the_note_of_the_view_says_where_a_silent_rank_is() -> None:
    tasks, now = Tasks(), 0.0
    run = SimpleNamespace(
        members=SimpleNamespace(infos=tasks.tasks, workers=[SimpleNamespace(body=Body(in_fit=True))]),
        silent=SilentTasks(tasks),  # type: ignore[arg-type]
    )
    view: Any = SimpleNamespace(
        _run=run, _tasks=[info.name for info in tasks.tasks], _steps=StepWatch(lambda: now)
    )
    replicas = [SimpleNamespace(state="running", step=7, slowness=None) for _ in tasks.tasks]
    standing: Any = SimpleNamespace(state="running", replicas=replicas)
    assert RunView._note(view, standing, ()) == ""
    replicas[1].state = "silent"
    until(lambda: "line 7" in RunView._note(view, standing, ()))
    assert RunView._note(view, standing, ()) == "worker 1 is silent; worker 1 is at line 7 of the body"
    replicas[1].state, now = "running", STALLED_SECONDS
    assert RunView._note(view, standing, ()).startswith("no step for more than 20 s: %cluster stacks shows")
    standing.state = "paused"
    assert RunView._note(view, standing, ()) == ""
