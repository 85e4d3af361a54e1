from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nbdist.metrics.run_folder import RunFile, run_folder
from nbdist.run import follow
from nbdist.run.follow import WakeableSleep
from nbdist.run.membership import MembershipRules
from nbdist.run.options import Options
from nbdist.run.remote import EndedTasks
from nbdist.run.run import Run
from nbdist.runtime.task import TaskInfo

LONG = 60.0


def test_a_sleep_ends_when_another_thread_wakes_it() -> None:
    sleeper, began = WakeableSleep(), time.monotonic()
    threading.Timer(0.01, sleeper.wake).start()
    sleeper.sleep(LONG)
    assert time.monotonic() - began < LONG / 2


def test_a_sleep_on_a_loop_ends_too_and_the_next_is_whole() -> None:
    sleeper = WakeableSleep()

    async def sleep() -> tuple[float, float]:
        began = time.monotonic()
        threading.Timer(0.01, sleeper.wake).start()
        await sleeper.sleep_on_loop(LONG)
        woken = time.monotonic()
        await sleeper.sleep_on_loop(0.02)
        return woken - began, time.monotonic() - woken

    first, second = asyncio.run(sleep())
    assert first < LONG / 2
    assert second >= 0.02


def test_a_wake_before_the_sleep_ends_it_at_once() -> None:
    sleeper = WakeableSleep()
    sleeper.wake()
    asyncio.run(sleeper.sleep_on_loop(LONG))
    sleeper.wake()  # the loop has ended; that raises nothing
    sleeper.sleep(LONG)
    assert not sleeper._woken.is_set()


class OneOfTwo:
    """Calls of which rank 0 has returned; rank 1 returns after ``polls`` more polls."""

    def __init__(self, polls: int) -> None:
        self.polls = polls

    def ready_ranks(self) -> list[int]:
        self.polls -= 1
        return [0] if self.polls > 0 else [0, 1]

    def outcome(self, rank: int) -> Any:
        return {"rank": rank}


def test_polls_are_rare_while_one_of_two_bodies_runs(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: list[float] = []
    monkeypatch.setattr(WakeableSleep, "sleep", lambda self, seconds: sleeps.append(seconds))
    monkeypatch.setattr("nbdist.run.monitor.LAST_MESSAGE_SECONDS", 0.0)
    workers = [TaskInfo("worker", rank, rank, "", 0, "", "", 0) for rank in range(2)]
    run_folder("half").mkdir(mode=0o700, exist_ok=True)
    record = RunFile("half", status="running")
    rules = MembershipRules.of(Options(), 2, 0)
    run = Run(EndedTasks(workers), record, run_folder("half"), workers, rules, OneOfTwo(9))
    assert run.wait().status == "finished"
    assert sleeps[6] == follow.LONGEST_SLEEP
