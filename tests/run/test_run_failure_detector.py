"""What an error about lost tasks advises."""

from __future__ import annotations

from nbdist.run.recovery.failure_detector import remedy
from nbdist.runtime.task import TaskInfo


def a_task(job: str, index: int) -> TaskInfo:
    return TaskInfo(job, index, index, "here", 100 + index, "127.0.0.1:1", "CPU:0", 0)


def test_the_advice_says_why_a_run_without_workers_does_not_continue() -> None:
    one, two = a_task("worker", 0), a_task("worker", 1)
    assert remedy(two, [two]).startswith("Run without it with --on")
    every = remedy(one, [one, two], all_workers=True)
    assert every.startswith("No worker is left from which new processes could continue")
    assert "--checkpoint-every can be resumed" in every
