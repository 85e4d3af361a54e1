"""What a fault costs a training, for the faults that a cluster survives, by their rows.

    python -m bench faults                                # all rows, about twenty-five minutes
    python -m bench faults --rows 2 11 --program all-reduce --rounds 3
    python -m bench faults --rows 28 --away 10

The rows 1 to 7, 11 and 30 are the table `FAULTS`: each line is one fault of one program of `bench.kills`, on
a cluster of its own: the given tasks are killed, or frozen for 60 s, at step 250. "noticed" is the time from
the signal until the client knows (``lost_at`` in run.json, or the run's error), "next step" that until the
next step of the training, "all" that until every worker trains, the new processes too. "lost" are steps:
updates that are not in the final count or, of replicas in step and sessions, steps that were made again. The
accuracy is compared with that of the same program with the same seed and no fault.

The rows 10, 12 to 15, 17 to 19, 23, 27, 28 and 31 are those of `bench.scenarios`: a line has the figures
of one fault that is no signal to a task. `TESTED` names the test that shows each other row.

Each row has its bounds; the exit status is 1 if one is not kept. A row that needs what this machine lacks
(namespaces, g++, Chromium) says so, and counts as not shown.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import recovery_work
from bench.kills import POINT, SEED, Outcome, Program, trained
from bench.kills import PROGRAMS as SURVIVING
from bench.scenarios import SCENARIOS
from bench.scenarios.frame import AWAY, Found, Scenario, Settings
from bench.scenarios.frame import measured as made
from bench.script import NotThere

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.run.run import Run
    from nbdist.runtime.task import TaskInfo

KILLED, FROZEN = 2.0, 10.0  # seconds in which a killed, a frozen process is noticed: the bounds K and F
FROZEN_SECONDS = 60.0
LEAST_STEPS = 600
WORKER, CHIEF, SERVER = "/job:worker/task:1", "/job:worker/task:0", "/job:ps/task:0"
DDP = """
import torch
import torch.distributed as dist
from bench.recovery_work import StepLog
log = StepLog({steps!r}, nb.task.rank, {pace})
dist.init_process_group("gloo")
torch.manual_seed({seed})
x, y, x_test, y_test = nb.data.digits()
net = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 32), torch.nn.Sigmoid(), torch.nn.Linear(32, 10))
ddp = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(ddp.parameters(), 0.5)
draw = torch.Generator().manual_seed(nb.task.rank)
for step in range(1, {least} + 1):
    rows = torch.randint(len(x), (64,), generator=draw).numpy()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(ddp(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
    optimizer.step()
    log.add(step)
accuracy = float((net(torch.from_numpy(x_test)).argmax(1).numpy() == y_test).mean())
"""
PROGRAMS = {**SURVIVING, "ddp": Program(DDP, 3, 0, {"framework": "torch"})}


@dataclass(frozen=True)
class Fault:
    """A fault of a program, and what it may cost."""

    row: int
    program: str
    victims: tuple[str, ...]
    within: float = 30.0
    """Seconds until every worker trains again."""
    exact: bool = True
    """Whether no step may be lost or made again."""
    times: int = 1
    """How often the victims are killed; each time when all train again."""
    signum: signal.Signals = signal.SIGKILL
    ends: str = ""
    """What the run's error says, if it has to end."""
    refuses: str = ""
    """What the run's notes say, if it has to continue without the victims."""
    options: dict[str, Any] = field(default_factory=dict)
    descriptors: int = 0
    """How many files each process may have open; 0 for as many as it may here."""

    @property
    def text(self) -> str:
        """What happens, in words.

        >>> Fault(6, "async-ps", (SERVER, WORKER)).text
        'ps:0 and worker:1 killed'
        """
        names = " and ".join(name[5:].replace("/task", "") for name in self.victims)
        done = "killed" if self.signum == signal.SIGKILL else f"frozen {FROZEN_SECONDS:.0f} s"
        return f"{names} {done}" + (f" {self.times} times" if self.times > 1 else "")

    @property
    def ranks(self) -> list[int]:
        """The ranks of the workers among the victims."""
        return [int(name.rpartition(":")[2]) for name in self.victims if "worker" in name]


THIRD = "/job:worker/task:3"
SPENT = r"restart budget is spent \(--max-restarts 3\)"
FAULTS = (
    Fault(1, "async-ps", (WORKER,)),
    Fault(1, "session", (WORKER,)),
    Fault(2, "all-reduce", (WORKER,), within=15.0),
    Fault(2, "sync-ps", (WORKER,), within=15.0),
    Fault(2, "elastic", (WORKER,), within=15.0),
    Fault(3, "all-reduce", (WORKER, THIRD), within=15.0),
    Fault(3, "all-reduce", (WORKER, THIRD), ends="died: killed by SIGKILL", options={"min_workers": 3}),
    Fault(4, "all-reduce", (WORKER,), times=5, refuses=SPENT),
    Fault(4, "async-ps", (CHIEF,), times=5, ends=SPENT, refuses=SPENT),
    Fault(5, "async-ps", (SERVER,), exact=False),
    Fault(5, "replicated-ps", (SERVER,)),
    Fault(5, "sync-ps", (SERVER,)),
    Fault(5, "session", (SERVER,), exact=False),
    Fault(6, "async-ps", (SERVER, WORKER), exact=False),
    Fault(6, "replicated-ps", (SERVER, WORKER)),
    Fault(6, "sync-ps", (SERVER, WORKER)),
    Fault(6, "session", (SERVER, WORKER), exact=False),
    Fault(7, "async-ps", (CHIEF,), within=15.0),
    Fault(7, "session", (CHIEF,), within=15.0),
    Fault(7, "sync-ps", (CHIEF,), within=15.0),
    Fault(7, "all-reduce", (CHIEF,), within=15.0),
    Fault(11, "async-ps", (WORKER,), signum=signal.SIGSTOP),
    Fault(11, "sync-ps", (WORKER,), signum=signal.SIGSTOP),
    Fault(11, "session", (WORKER,), signum=signal.SIGSTOP),
    Fault(11, "all-reduce", (WORKER,), signum=signal.SIGSTOP),
    Fault(11, "elastic", (WORKER,), signum=signal.SIGSTOP),
    Fault(2, "ddp", (WORKER,), ends="died: killed by SIGKILL"),
    Fault(30, "async-ps", (WORKER,), descriptors=1024),
    Fault(30, "all-reduce", (WORKER,), within=15.0, descriptors=1024),
)

TESTED = {
    8: "cluster/test_cluster_cluster_engines.py::test_a_dead_controller_ends_the_cluster_and_is_named",
    9: "run/test_run_attach.py::test_a_run_survives_its_killed_client_and_can_be_fetched",
    16: "run/test_run_shutdown_fail_fast.py::test_an_error_on_one_rank_ends_the_cell",
    20: "run/test_run_monitor_faults.py::test_a_fit_over_the_memory_of_its_task_is_refused",
    21: "wire/test_wire_shm.py::test_a_mounted_memory_file_system_that_is_full",
    22: "checkpoint/test_checkpoint_manager_full_disk.py::"
    "test_training_continues_and_the_old_checkpoint_is_valid",
    24: "checkpoint/test_checkpoint_manager.py::test_a_damaged_state_is_left_for_the_one_before",
    25: "run/test_run_start_resume_data_files.py::"
    "test_a_training_on_files_continues_on_another_number_of_workers",
    26: "trials/test_trials_driver_faults.py::test_after_any_faults_every_trial_ends_once",
    29: "bench/test_bench_kills.py::test_a_minute_of_random_kills",
}
"""The test that shows a row, below tests/, of the rows up to 29 that are no line of this program."""


@dataclass
class Cost:
    """What a fault has cost; times are seconds from the signal, None where there is none."""

    noticed: float | None = None
    next_step: float | None = None
    all_steps: float | None = None
    lost: int | None = None
    accuracy: float | None = None
    points: float = 0.0
    """By how much the accuracy is above that without a fault."""
    wrong: list[str] = field(default_factory=list)
    """The bounds that are not kept, in words."""
    said: list[str] = field(default_factory=list)
    """The run's error and notes."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench faults", description=(__doc__ or "").splitlines()[0]
    )
    rows = sorted({one.row for one in (*FAULTS, *SCENARIOS)})
    parser.add_argument("--rows", nargs="+", type=int, choices=rows, default=rows, help="default: all")
    parser.add_argument("--program", choices=sorted({one.program for one in FAULTS}), help="default: all")
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault is made (default 1)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--away", type=float, default=AWAY, help="seconds without the browser's tab, in row 28 (default 300)"
    )
    options = parser.parse_args(arguments)
    calm: dict[str, float] = {}
    kept = True
    for fault in FAULTS:
        if fault.row not in options.rows or options.program not in (None, fault.program):
            continue
        if fault.program not in calm:
            calm[fault.program] = accuracy_without(fault.program, options.seed)
        costs = [measured(fault, calm[fault.program], options.seed) for _ in range(options.rounds)]
        print(line(fault, costs), flush=True)
        for cost in costs:
            print("\n".join(f"    {text}" for text in (cost.said if cost.wrong else [])), end="", flush=True)
        kept &= not any(cost.wrong for cost in costs)
    missing = []
    for scenario in SCENARIOS:
        if scenario.row not in options.rows or options.program:
            continue
        settings = Settings(options.seed, options.away)
        try:
            rounds = [made(scenario, settings) for _ in range(options.rounds)]
        except NotThere as why:
            missing.append(scenario.row)
            print(f"row {scenario.row:2}  {scenario.name:43}  NOT SHOWN: {why}", flush=True)
            continue
        print("\n".join(scenario_line(scenario, found) for found in rounds), flush=True)
        kept &= not any(found.wrong for found in rounds)
    if missing:
        print(f"not shown here: row {', '.join(map(str, missing))}")
    return 0 if kept else 1


def accuracy_without(program: str, seed: int) -> float:
    """Return the accuracy of a program that nothing disturbs."""
    settings: dict[str, Any] = {"least": LEAST_STEPS, "per_epoch": 1}
    return trained(PROGRAMS[program], lambda run, cluster, steps: None, seed, **settings).accuracy


def measured(fault: Fault, calm: float, seed: int) -> Cost:
    """Make a fault in a training on a new cluster; return what it costs."""
    injection = Injection(fault, PROGRAMS[fault.program].workers)
    with at_most(fault.descriptors):
        outcome = trained(
            PROGRAMS[fault.program], injection, seed, least=LEAST_STEPS, per_epoch=1, **fault.options
        )
    return cost_of(fault, injection, outcome, calm)


@contextmanager
def at_most(descriptors: int) -> Iterator[None]:
    """Let this process, and those that it starts, have so many files open in the block; 0 changes nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Injection:
    """Makes a fault at step 250 of a run, and follows the run until every worker trains again."""

    def __init__(self, fault: Fault, workers: int) -> None:
        self.fault, self.workers = fault, workers
        self.signalled: list[float] = []
        """When each signal was sent, in seconds since 1970."""
        self.figures: recovery_work.Figures | None = None
        """Of the last recovery."""
        self.ended_after: float | None = None
        """Seconds from the last signal until the run had ended."""
        self.problem = ""

    def __call__(self, run: Run, cluster: Cluster, folder: str) -> None:
        """Follow the run; see `bench.kills.trained`."""
        fault = self.fault
        if not self._follow(run, lambda: recovery_work.reached(recovery_work.read(folder), self.workers)):
            self.problem = "step 250 was not reached"
            return
        for _ in range(fault.times):
            old = [info for info in cluster.tasks if info.name in fault.victims]
            for info in old:
                os.kill(info.pid, fault.signum)
            self.signalled.append(time.time())

            def recovered() -> bool:
                self.figures = recovery_work.figures(
                    recovery_work.read(folder), self.signalled[-1], fault.ranks, self.workers
                )
                return self.figures is not None or self._is_refused(run)

            if not self._follow(run, recovered):
                if run.poll():
                    self.ended_after = time.time() - self.signalled[-1]
                else:
                    self.problem = "not every worker trains again"
                return
            if self._is_refused(run):
                return
            if fault.signum == signal.SIGSTOP:
                self._thaw(run, old)

    def _is_refused(self, run: Run) -> bool:
        refused = self.fault.refuses and re.search(self.fault.refuses, "\n".join(run.notes))
        return bool(refused and not self.fault.ends)

    def _follow(self, run: Run, condition: Any) -> bool:
        """Poll the run until a condition is true; return whether it is before the run ends."""
        until = time.monotonic() + recovery_work.LONGEST
        while not condition():
            if run.poll() or time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def _thaw(self, run: Run, old: Sequence[TaskInfo]) -> None:
        """Continue the frozen processes, if they are still there, after 60 s."""
        self._follow(run, lambda: time.time() > self.signalled[-1] + FROZEN_SECONDS)
        for info in old:
            with suppress(ProcessLookupError):  # it was ended when it was replaced
                os.kill(info.pid, signal.SIGCONT)


def cost_of(fault: Fault, injection: Injection, outcome: Outcome, calm: float) -> Cost:
    """Return what a fault has cost, and which of its bounds are not kept.

    >>> injection = Injection(FAULTS[0], 3)
    >>> injection.signalled = [100.0]
    >>> injection.figures = recovery_work.Figures(0.1, 0.5, 0)
    >>> restart = {"task": WORKER, "lost_at": 102.5}
    >>> outcome = Outcome(0.95, "", restarts=[restart], global_step=899, steps=[300] * 3)
    >>> cost_of(FAULTS[0], injection, outcome, calm=0.97).wrong
    ['noticed after 2.5 s', '1 steps lost', 'accuracy -2.0 points']
    """
    cost = Cost(wrong=[*filter(None, [injection.problem]), *outcome.left])
    cost.said = [*filter(None, [outcome.error]), *outcome.notes]
    if injection.ended_after is not None:
        cost.noticed = injection.ended_after
    elif injection.signalled:
        cost.noticed = noticed(injection.signalled, outcome.restarts, fault.victims)
    bound = KILLED if fault.signum == signal.SIGKILL else FROZEN
    # An error waits for its consequences on other tasks: it has been noticed before the run ends.
    if cost.noticed is None or cost.noticed > bound + (2.0 if injection.ended_after is not None else 0.0):
        cost.wrong.append("not noticed" if cost.noticed is None else f"noticed after {cost.noticed:.1f} s")
    said = "\n".join(outcome.notes)
    if fault.refuses and not re.search(fault.refuses, said):
        cost.wrong.append("the restart budget was not spent")
    if fault.ends:
        if not re.search(fault.ends, outcome.error):
            cost.wrong.append(f"ended with {outcome.error or 'no error'}")
        return cost
    if outcome.error:
        cost.wrong.append(f"ended with {outcome.error}")
        return cost
    if injection.figures is not None:
        found = injection.figures
        cost.next_step, cost.all_steps = found.next_step, found.all_steps
        if found.all_steps > fault.within:
            cost.wrong.append(f"all train after {found.all_steps:.1f} s")
    elif not fault.refuses:
        cost.wrong.append("not every worker trains again")
    cost.lost = lost_steps(fault, injection, outcome)
    if fault.exact and cost.lost:
        cost.wrong.append(f"{cost.lost} steps lost")
    cost.accuracy, cost.points = outcome.accuracy, 100 * (outcome.accuracy - calm)
    if outcome.accuracy < calm - POINT:
        cost.wrong.append(f"accuracy {cost.points:+.1f} points")
    return cost


def noticed(signalled: Sequence[float], restarts: Sequence[Any], victims: Collection[str]) -> float | None:
    """Return the longest time from a signal until the death was recorded; None if one is missing.

    >>> noticed([10.0, 20.0], [{"task": "a", "lost_at": 10.5}, {"task": "a", "lost_at": 20.1}], ["a"])
    0.5
    """
    waits = []
    for victim in victims:
        found = [float(one["lost_at"]) for one in restarts if one["task"] == victim]
        if not found:
            return None
        waits += [lost - sent for sent, lost in zip(signalled, found, strict=False)]
    return max(waits)


def lost_steps(fault: Fault, injection: Injection, outcome: Outcome) -> int:
    """Return the steps that were lost, or made again.

    Asynchronous workers and their servers count for themselves: each worker its own steps, the servers all
    updates.
    """
    if fault.program in ("async-ps", "replicated-ps"):
        return abs(sum(outcome.steps) - outcome.global_step)
    return 0 if injection.figures is None else injection.figures.lost


def line(fault: Fault, costs: Sequence[Cost]) -> str:
    """Return the medians of all rounds of a fault, and whether all bounds were kept in each.

    >>> print(line(FAULTS[0], [Cost(0.05, 0.02, lost=0)]))
    row  1  async-ps       worker:1 killed               noticed 0.05 s  next step 0.02 s  lost 0  met
    """
    parts = []
    for title, key, form in (
        ("noticed", "noticed", "{:.2f} s"),
        ("next step", "next_step", "{:.2f} s"),
        ("all", "all_steps", "{:.2f} s"),
        ("lost", "lost", "{:.0f}"),
    ):
        values = [getattr(cost, key) for cost in costs if getattr(cost, key) is not None]
        if values:
            parts.append(f"{title} {form.format(median(values))}")
    if accuracies := [cost.accuracy for cost in costs if cost.accuracy is not None]:
        parts.append(f"accuracy {median(accuracies):.3f} ({median(one.points for one in costs):+.1f})")
    if fault.ends or fault.refuses:
        parts.append("refused clearly" if not any(cost.wrong for cost in costs) else "")
    wrong = [problem for cost in costs for problem in cost.wrong]
    parts.append("met" if not wrong else f"NOT MET: {'; '.join(dict.fromkeys(wrong))}")
    return f"row {fault.row:2}  {fault.program:13}  {fault.text:28}  " + "  ".join(filter(None, parts))


def scenario_line(scenario: Scenario, found: Found) -> str:
    """Return what a scenario has shown.

    >>> print(scenario_line(SCENARIOS[1], Found(["async-ps 33 s"])))
    row 12  a native call holds the GIL 30 s             async-ps 33 s  met
    """
    ended = "met" if not found.wrong else f"NOT MET: {'; '.join(found.wrong)}"
    return f"row {scenario.row:2}  {scenario.name:43}  " + "  ".join([*found.figures, ended])
