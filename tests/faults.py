"""Fail a process at an exact place of a training, once: `fail_at`.

    mark = tmp_path / "failed"
    run = start_run(fail_at("/job:worker/task:1", 20, "pushing", mark) + BODY, options, cluster=cluster)
    until(mark.exists, during=run)

The text that `fail_at` returns is run on the task, ahead of the body, and wraps the calls of the training
loop (``replica.pull`` and ``replica.push``), or those of a parameter server, where it is run by
``cluster.run``. At the given call the process writes ``mark`` and sends itself a signal. A process that finds
``mark`` does nothing, so the new process of the task trains.

"In the middle" of a call is half of the calls of functions that it makes in Python, counted in the calls
before: between two writes to shared memory, two parts of an exchange, or two frames.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

LOSE_GPU = 0


class CUDARuntimeError(RuntimeError):
    """Has the name of CuPy's error."""


WORKER_PHASES = {
    "starting": ("pull", "before"),
    "pulled": ("pull", "after"),
    "computed": ("push", "before"),
    "pushing": ("push", "inside"),
    "pushed": ("push", "after"),
}
SERVER_PHASES = {
    "received": ("offer", "before"),
    "applying": ("_apply", "inside"),
    "applied": ("offer", "after"),
}


def fail_at(task: str, step: int, phase: str, mark: Path, signum: int = signal.SIGKILL) -> str:
    """Return source text that makes a task fail at a phase of its step.

    - ``task``: such as "/job:worker/task:1"; all other tasks ignore the text
    - ``step``: of a worker, from 2 on; of a parameter server, the number of the gradient that it receives
    - ``phase``: a key of `WORKER_PHASES` or `SERVER_PHASES`
    - ``mark``: a file that the failing process makes
    - ``signum``: SIGKILL, or SIGSTOP for a process that stands still until it gets SIGCONT, or LOSE_GPU: it
      gets CUDA's error for a GPU that is lost
    """
    assert step > 1
    assert phase in WORKER_PHASES | SERVER_PHASES
    here = str(Path(__file__).parent)
    call = f"arm({task!r}, {step}, {phase!r}, {str(mark)!r}, {int(signum)})"
    return f"__import__('sys').path.append({here!r}); __import__('faults').{call}\n"


def arm(task: str, step: int, phase: str, mark: str, signum: int) -> None:
    """Wrap the calls of this process, if it is the task and has not failed yet."""
    from nbdist.runtime import task as tasks
    from nbdist.runtime.ps.shard import ParameterShard
    from nbdist.train.strategy import Strategy

    if tasks.current().name != task or Path(mark).exists():
        return
    fault = Fault(step, mark, signum)
    if phase in SERVER_PHASES:
        name, moment = SERVER_PHASES[phase]
        setattr(ParameterShard, name, fault.around(getattr(ParameterShard, name), moment))
        return
    name, moment = WORKER_PHASES[phase]
    begin = Strategy.begin

    def begun(self: Strategy, *args: Any, **options: Any) -> Any:
        replica = begin(self, *args, **options)
        setattr(replica, name, fault.around(getattr(replica, name), moment))
        return replica

    Strategy.begin = begun  # type: ignore[method-assign]


class Fault:
    """Counts the calls of a function, and sends this process a signal at one of them."""

    def __init__(self, step: int, mark: str, signum: int) -> None:
        self.step, self.mark, self.signum = step, mark, signum
        self.number = 0
        self.shortest = sys.maxsize
        """The smallest number of function calls that one call has made so far."""
        self.lock = threading.Lock()

    def around(self, function: Callable[..., Any], moment: str) -> Callable[..., Any]:
        """Return the function with the failure before, inside or after its call number ``step``."""

        def wrapped(*args: Any, **options: Any) -> Any:
            with self.lock:
                self.number += 1
                now = self.number == self.step
            if now and moment == "before":
                self.fail()
            if moment != "inside":
                result = function(*args, **options)
            else:
                result = self.counted(self.shortest // 2 if now else 0, function, *args, **options)
            if now and moment == "after":
                self.fail()
            return result

        return wrapped

    def counted(self, last: int, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function, and fail at its function call number ``last``, if that is not 0."""
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            if event in ("call", "c_call"):
                calls += 1
                if calls == last:
                    self.fail()

        sys.setprofile(count)
        try:
            result = function(*args, **options)
        finally:
            sys.setprofile(None)
        assert not last or os.path.exists(self.mark), f"{function} made {calls} calls, and {last} are half"
        self.shortest = min(self.shortest, calls)
        return result

    def fail(self) -> None:
        """Write the mark, and send the signal or raise the error."""
        Path(self.mark).write_text(str(os.getpid()))
        if self.signum == LOSE_GPU:
            raise CUDARuntimeError("cudaErrorECCUncorrectable: uncorrectable ECC error encountered")
        os.kill(os.getpid(), self.signum)
