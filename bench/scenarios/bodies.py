"""Faults in what the user's code does: a long native call, calls that differ, a NaN gradient (12, 17, 19)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.kills import FIT, PROGRAMS, Program, trained
from bench.scenarios.frame import ABORT, LEAST, Found, Settings, small_cluster, until

HELD = 30.0  # seconds of a native call
HOLD = """
import ctypes
add = log.add
def hold(step):
    add(step)
    if nb.task.index == 1 and step >= 250 and not os.path.exists(log._path.with_suffix(".held")):
        log._path.with_suffix(".held").touch()
        ctypes.PyDLL(None).usleep({held})
log.add = hold
"""


def holds_the_lock(found: Found, settings: Settings) -> None:
    """A worker's native call keeps the GIL for 30 s: no thread of the process runs, and it is not dead."""
    for name in ("async-ps", "sync-ps", "all-reduce", "session"):
        program = PROGRAMS[name]
        log = "log = StepLog({steps!r}, nb.task.rank, "
        line = next(one for one in program.body.splitlines() if one.startswith(log))
        body = program.body.replace(line, line + HOLD.replace("{held}", str(int(HELD * 1e6))))
        held = Program(body, 2, program.servers, program.options)
        outcome = trained(held, lambda run, cluster, steps: None, settings.seed, least=LEAST, per_epoch=1)
        found.figures.append(f"{name} {outcome.seconds:.0f} s, {len(outcome.restarts)} replaced")
        found.expect(not outcome.error, f"{name}: {outcome.error}")
        found.expect(not outcome.restarts, f"{name}: the worker was declared dead")
        found.expect(outcome.seconds >= HELD, f"{name}: the call did not last")
        found.wrong += outcome.left


# 17: calls of collectives that differ.

CALLS = """
import json, time
import numpy as np
nb.collective.all_reduce(np.ones(4, np.float32), "sum")
begun = time.monotonic()
try:
    {call}
except BaseException as error:
    took = time.monotonic() - begun
    with open({path!r} % nb.task.index, "w") as file:
        json.dump([took, type(error).__name__, str(error)], file)
    raise
"""
OTHERS = 'nb.collective.all_reduce(np.ones(4, np.float32), "sum")'
DIFFERENT = {
    "shape": ('nb.collective.all_reduce(np.ones(7, np.float32), "sum")', ("(4,)", "(7,)")),
    "dtype": ('nb.collective.all_reduce(np.ones(4, np.int64), "sum")', ("float32", "int64")),
    "op": ('nb.collective.all_reduce(np.ones(4, np.float32), "max")', ("sum", "max")),
    "call": ("nb.collective.all_gather(np.ones(4, np.float32))", ("all_reduce", "all_gather")),
    "skipped": ("nb.collective.barrier()", ("all_reduce", "barrier")),  # rank 1 is one call ahead
}


def calls_that_differ(found: Found, settings: Settings) -> None:
    """Rank 1 of 3 makes another call than the others: each rank's error names the rank, call and shapes."""
    from nbdist.run.options import Options
    from nbdist.run.start import start_run

    with small_cluster(found) as (cluster, home):
        for name, (call, words) in DIFFERENT.items():
            path = os.path.join(home, f"{name}-%d.json")
            chosen = f"{call} if nb.task.index == 1 else {OTHERS}"
            run = start_run(CALLS.format(call=chosen, path=path), Options(), cluster=cluster)
            until(run.poll, 60, f"the end of {name}")
            files = [Path(path % rank) for rank in range(3)]
            raised = [json.loads(one.read_text()) for one in files if one.exists()]
            found.expect(len(raised) == 3, f"{name}: {len(raised)} of 3 ranks raised an error")
            if raised:
                found.within(name, max(one[0] for one in raised), ABORT)
            for _, kind, text in raised:
                missing = [one for one in ("rank 1", "#2", *words) if one not in text]
                found.expect(not missing, f"{name}: {kind} lacks {missing}: {text[:150]}")


# 19: a gradient that is NaN on one rank.

# The first batch is read once more, for its shapes.
POISON = """
seen = [0]
def poison(*batch):
    seen[0] += 1
    x, y = batch
    return (x * np.nan if nb.task.index == 1 and seen[0] == 21 else x, y)
import numpy as np
"""
STRATEGIES = ("all-reduce", "sync-ps", "async-ps")


def keep_in(runs: list[Any]) -> Callable[..., None]:
    """Return a disturbance for `trained` that only keeps the run."""
    return lambda run, cluster, steps: runs.append(run)


def nan_on_one_rank(found: Found, settings: Settings) -> None:
    """Worker 1's 20th batch makes a NaN gradient: the policies "stop" and "skip" are obeyed."""
    for name in STRATEGIES:
        for policy in ("stop", "skip"):
            body = POISON + FIT.replace("model.fit(data,", f"model.fit(data.map(poison), nan={policy!r},")
            runs: list[Any] = []
            program = Program(body, 2, PROGRAMS[name].servers, PROGRAMS[name].options)
            outcome = trained(program, keep_in(runs), settings.seed, least=100, per_epoch=1)
            said = f"{name} {policy}"
            found.wrong += outcome.left
            if policy == "stop":
                words = ("NaN", "step 20", "/job:worker/task:1")
                missing = [one for one in words if one not in outcome.error]
                found.expect(not missing, f"{said}: the error lacks {missing}: {outcome.error[-300:]!r}")
                found.figures.append(f"{said}: named")
                continue
            finite = all((weight == weight).all() for weight in outcome.weights)
            found.expect(not outcome.error, f"{said}: {outcome.error[-200:]}")
            found.expect(len(outcome.weights) and finite, f"{said}: a NaN was applied")
            found.expect(outcome.accuracy > 0.8, f"{said}: accuracy {outcome.accuracy:.3f}")
            found.expect(runs[0].skipped, f"{said}: no step counts as skipped")
            found.figures.append(f"{said}: {runs[0].skipped} left out, accuracy {outcome.accuracy:.3f}")
