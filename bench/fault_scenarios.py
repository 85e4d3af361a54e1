"""Faults that are no signal to a task: the second table of ``python -m bench faults``.

Each function makes one fault from outside at real processes: it starts a small cluster, a kernel, hosts or a
browser of its own in a state folder of its own, ends all of it, and adds figures and the bounds that were
not kept to a `Found`. Where a fault needs what this machine lacks, it raises `NotThere` with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.fault_shims import CLOCK, SAVES, library
from bench.kills import FIT, PROGRAMS, Program, left_over, resources, trained
from bench.notebook import CellError, Notebook
from bench.recovery_work import reached, read
from bench.script import NotThere

TESTS = Path(__file__).parent.parent / "tests"
ABORT = 2.0  # seconds until an abort reaches every rank: the bound A
CUT_OFF = 10.0  # seconds until a peer that is cut off is noticed: the bound F
BACK = 3.0  # seconds until an interrupted cell has ended
HELD = 30.0  # seconds of a native call
AWAY = 300.0  # seconds without a browser's tab
LEAST = 400  # steps of a training


@dataclass(frozen=True)
class Settings:
    """What the command line may change."""

    seed: int = 3
    away: float = AWAY
    """Seconds for which the browser's tab is closed."""


@dataclass
class Found:
    """What a fault has shown."""

    figures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """The bounds that are not kept, in words."""

    def expect(self, kept: object, otherwise: str) -> None:
        """Note a bound that is not kept.

        >>> found = Found()
        >>> found.expect([], "no rank raised")
        >>> found.wrong
        ['no rank raised']
        """
        if not kept:
            self.wrong.append(otherwise)

    def within(self, what: str, seconds: float, bound: float) -> None:
        """Add a time to the figures, and note if it is above its bound.

        >>> found = Found()
        >>> found.within("back", 4.0, 3.0)
        >>> found.figures, found.wrong
        (['back 4.00 s'], ['back after 4.0 s'])
        """
        self.figures.append(f"{what} {seconds:.2f} s")
        self.expect(seconds <= bound, f"{what} after {seconds:.1f} s")


def measured(scenario: Scenario, settings: Settings) -> Found:
    """Make a fault; an error of the scenario itself is a bound that is not kept."""
    found = Found()
    try:
        scenario.make(found, settings)
    except NotThere:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        found.wrong.append(f"{type(error).__name__}: {lines[0][:200]}")
        found.wrong += [f"    {text}" for text in lines[-3:] if len(lines) > 1]
    return found


@contextmanager
def own_home() -> Iterator[str]:
    """Give this process, and those that it starts, a new state folder in the block."""
    before = os.environ.get("NBDIST_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NBDIST_HOME"] = os.path.join(folder, "nbdist")
        try:
            yield folder
        finally:
            if before is None:
                del os.environ["NBDIST_HOME"]
            else:
                os.environ["NBDIST_HOME"] = before


@contextmanager
def small_cluster(found: Found, workers: int = 3, ps: int = 0, **options: Any) -> Iterator[tuple[Any, str]]:
    """Start a cluster; stop it after the block, and note what it has left over."""
    from nbdist.cluster.launch import start_cluster

    with own_home() as home:
        before = resources()
        cluster = start_cluster(workers=workers, ps=ps, threads=1, report=None, **options)
        try:
            yield cluster, home
        finally:
            cluster.stop()
        found.wrong += left_over(before, home, cluster.id)


def until(condition: Callable[[], Any], seconds: float, what: str) -> float:
    """Wait for a condition; return the seconds that it took. Raises TimeoutError."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(0.01)
    return time.monotonic() - begun


# 12: a native call holds the interpreter's lock.

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


# 18: an interrupt inside of a collective. 10: a kernel that restarts.

ENDLESS = """%%distribute --no-live
import time
import numpy as np
value = np.full({size}, nb.task.index + 100.0)
nb.collective.barrier()
open({mark!r} + str(nb.task.index), "w").close()
if {absent} and nb.task.index == 1:
    time.sleep(600)
while True:
    nb.collective.all_reduce(value, "sum")
"""
SUMS = """%%distribute --no-live
import numpy as np
sums = [float(nb.collective.all_reduce(np.full(50_000, nb.task.index + n), "sum").max()) for n in range(50)]
assert sums == [3.0 + 3 * n for n in range(50)], sums
print("right on", nb.task.index)
"""


def interrupts(found: Found, settings: Settings) -> None:
    """A cell inside of collectives is interrupted twice: it ends, and the next cell's sums are right."""
    with own_home() as home, Notebook() as notebook:
        notebook.run("%load_ext nbdist")
        notebook.run("import nbdist as nb; nb.start_cluster(workers=3, threads=1, report=lambda line: None)")
        for name, absent in (("in calls", False), ("rank 1 absent", True)):
            mark, sent = os.path.join(home, f"{absent}-"), list[float]()

            def interrupt(mark: str = mark, sent: list[float] = sent) -> None:
                ready = all(Path(f"{mark}{rank}").exists() for rank in range(3))
                if ready and (not sent or (len(sent) == 1 and time.monotonic() > sent[0] + 0.2)):
                    sent.append(time.monotonic())
                    os.kill(notebook.pid, signal.SIGINT)

            try:
                notebook.run(ENDLESS.format(size=100_000, mark=mark, absent=absent), 60, interrupt)
            except CellError as error:  # the cell may say that it was interrupted
                found.expect("Interrupt" in str(error), f"{name}: {str(error)[-200:]}")
            found.expect(len(sent) == 2, f"{name}: {len(sent)} interrupts")
            found.within(name, time.monotonic() - sent[0] if sent else 0.0, BACK)
            seconds, printed = notebook.run(SUMS)
            found.expect(printed.count("right on") == 3, f"{name}: the next cell prints {printed!r}")
            found.figures.append(f"next cell {seconds:.2f} s")
        notebook.run("%cluster stop")


# 10: a kernel that restarts, and the magic that runs again.

WAITS = """%%distribute --background --no-live
import os, time
while not os.path.exists({end!r}):
    time.sleep(0.01)
"""


def kernel_restarts(found: Found, settings: Settings) -> None:
    """A kernel is killed and started again, and %cluster start runs again: there is never a second cluster.

    An idle cluster of the same shape and one with a run are used again, one of another shape is ended, and
    so is one that was starting.
    """
    from nbdist.cluster.folder import clusters_folder, living

    with own_home() as home, Notebook({"JPY_SESSION_NAME": "faults.ipynb"}) as notebook:
        before, most, end = resources(), 0, os.path.join(home, "end")

        def count() -> None:
            nonlocal most
            most = max(most, len(living()))

        def start(workers: int) -> tuple[float, str]:
            notebook.run("%load_ext nbdist")
            seconds, _ = notebook.run(f"%cluster start --workers {workers}", while_running=count)
            return seconds, " ".join(living())

        def restart() -> None:
            notebook.manager.restart_kernel(now=True)
            notebook.kernel.wait_for_ready(timeout=60)

        def expect_one(what: str) -> None:
            found.expect(most <= 1, f"{what}: {most} clusters at once")

        _, first = start(2)
        restart()
        seconds, again = start(2)
        expect_one("idle")
        found.within("adopted", seconds, CUT_OFF)
        found.expect(again == first, f"idle: {again} in place of {first}")
        notebook.run(WAITS.format(end=end))
        restart()
        _, busy = start(1)
        found.expect(busy == first, f"with a run: {busy} in place of {first}")
        expect_one("with a run")
        Path(end).touch()
        restart()
        until(lambda: not any(clusters_folder().glob("*/busy/*")), 30, "the end of the run")
        seconds, other = start(1)
        found.within("another shape", seconds, CUT_OFF)
        found.expect(other != first, "a cluster of another shape was used again")
        expect_one("another shape")
        notebook.run("%cluster stop")
        notebook.kernel.execute("%cluster start --workers 2")
        until(lambda: any(clusters_folder().glob("*")), 30, "a start")
        restart()
        begun = time.monotonic()
        start(2)
        until(lambda: len([*clusters_folder().glob("*")]) == 1, 30, "the end of a half-started cluster")
        found.within("half-started one ended", time.monotonic() - begun, CUT_OFF)
        name = " ".join(living())
        notebook.run("%cluster stop")
    found.wrong += left_over(before, home, name)


# 13, 14, 15: between two hosts, which are network namespaces.

SYNC, ASYNC = {"synchronous": True}, {"synchronous": False}
SILENT = b"/job:ps/task:0 (pid "  # begins the line of a replica whose server does not answer
SERVED = {"ps0": "a", "worker0": "a", "worker1": "b"}


@contextmanager
def hosts_of_tests() -> Iterator[Any]:
    """Yield two hosts of tests/hosts; nothing may be left in their shared memory."""
    sys.path[:0] = [str(TESTS / "hosts"), str(TESTS)]
    from two_hosts import NotHere, TwoHosts, why_not

    if why := why_not():
        raise NotThere(why)
    hosts = TwoHosts()
    try:
        yield hosts
        left = [name for host in "ab" for name in hosts.shared_files(host)]
        assert not left, f"left in shared memory: {left}"
    except NotHere as why:
        raise NotThere(str(why)) from None
    finally:
        hosts.close()


def silent_partition(found: Found, settings: Settings) -> None:
    """Host b is off the network in mid-run, and on it again: both sides err, no update counts twice.

    An asynchronous worker says that its server is silent, and raises when it has waited for a new process.
    """
    with hosts_of_tests() as hosts:
        from hosts_cluster import HostsCluster
        from hosts_model import assert_alike, fit_alone

        from nbdist.distribute.served_training import NEW_SECONDS

        def cut(cluster: HostsCluster) -> float:
            hosts.cut("b")
            cluster.resume()
            return time.monotonic()

        def raised(what: str, cluster: HostsCluster, name: str, begun: float, bound: float = CUT_OFF) -> Any:
            answer = cluster[name].answer()
            found.expect("error" in answer, f"{what} {name} ended without an error")
            found.within(f"{what} {name}", time.monotonic() - begun, bound)
            return answer

        cluster = HostsCluster(hosts, SERVED)
        cluster.begin("ps", SYNC, epochs=10, pause=True)
        begun = cut(cluster)
        for name in cluster.workers:
            raised("sync", cluster, name, begun)
        run, made = cluster.run, cluster["ps0"].do(do="served", run=cluster.run)
        hosts.heal("b")
        cluster.begin("ps", SYNC)
        for result in cluster.results():
            assert_alike(result, fit_alone())
        later = cluster["ps0"].do(do="served", run=run)
        found.expect(later == made, f"updates {made} became {later} after the link was whole again")
        cluster["ps0"].do(do="release", run=run)

        cluster.begin("ps", ASYNC, epochs=30, pause=True)
        begun, remote = cut(cluster), cluster["worker1"]
        until(
            lambda: SILENT in os.pread(remote._stderr.fileno(), 1 << 20, 0), 60, "a word of the silent server"
        )
        found.within("async worker1 says so", time.monotonic() - begun, CUT_OFF)
        lost = raised("async", cluster, "worker1", begun, CUT_OFF + NEW_SECONDS)
        hosts.heal("b")
        near = cluster["worker0"].answer()
        theirs = near["global_step"] - near["steps"]
        found.figures.append(f"{theirs} of {lost['steps']} updates of the lost worker")
        found.expect(near["steps"] == 90, f"the near worker made {near['steps']} steps of 90")
        found.expect(lost["steps"] - 2 <= theirs <= lost["steps"], f"{theirs} of {lost['steps']} updates")
        cluster.close()

        cluster = HostsCluster(hosts, {"worker0": "a", "worker1": "a", "worker2": "b"})
        cluster.begin("multi_worker", {}, pause=True, epochs=6)
        begun = cut(cluster)
        raised("all-reduce", cluster, "worker2", begun)
        for name in ("worker0", "worker1"):
            assert_alike(cluster[name].answer(), fit_alone(epochs=6))
        found.within("the others' end", time.monotonic() - begun, 15.0)
        hosts.heal("b")
        cluster.begin("multi_worker", {})
        for result in cluster.results():
            assert_alike(result, fit_alone())
        cluster.close()


def resets_in_mid_frame(found: Found, settings: Settings) -> None:
    """A proxy resets a worker's connections inside of three gradients: each is applied once."""
    with hosts_of_tests() as hosts:
        from hosts_cluster import HostsCluster
        from hosts_model import assert_alike, fit_alone

        model = {"epochs": 8, "width": 10_000}
        for name, rules in (("sync", SYNC), ("async", ASYNC)):
            cluster = HostsCluster(hosts, SERVED, through_proxy={"worker1": "ps0"})
            cluster.begin("ps", rules, pause=True, **model)
            proxy = cluster.proxies["worker1"]
            proxy.do(do="reset_after", sizes=[100_000, 300_000, 1_000_000])
            cluster.resume()
            for result in cluster.results():
                if rules is SYNC:
                    assert_alike(result, fit_alone(**model))
                steps = 24 if rules is SYNC else 48
                found.expect(result.get("global_step") == steps, f"{name}: {str(result)[:200]}")
            resets = proxy.do(do="resets")
            found.expect(resets == 3, f"{name}: {resets} resets of 3")
            found.figures.append(f"{name} {resets} resets, {steps} updates of {steps}")
            cluster.close()


SLOW = """
import time
import numpy as np
x, y, _, _ = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(32, "sigmoid"), nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
def work(*batch):
    time.sleep(0.02)
    return batch
data = nb.data.Dataset.from_arrays(x, y).batch(64, drop_remainder=True).repeat().map(work)
model.fit(data, steps_per_epoch=10, epochs=1_000_000)
"""


def slow_replica_and_link(found: Found, settings: Settings) -> None:
    """A worker is stopped most of the time, then a link has 4 Mbit/s: the bound on staleness holds."""
    sys.path[:0] = [str(TESTS / "hosts"), str(TESTS)]
    from staleness import most_stale

    from nbdist.run.options import Options
    from nbdist.run.start import start_run
    from nbdist.runtime.ps.sync import Rules

    most = most_stale(Rules(replicas=3, staleness=2))
    assert most is not None
    with small_cluster(found, ps=1) as (cluster, _):
        run = start_run(SLOW, Options(strategy="ps", staleness=2), cluster=cluster)
        until(lambda: run.poll() or run.global_step > 60, 60, "a training")
        over = threading.Event()
        pid = cluster.tasks[1].pid

        def halt() -> None:
            while not over.wait(0.01):
                os.kill(pid, signal.SIGSTOP)
                over.wait(0.09)
                os.kill(pid, signal.SIGCONT)

        thread = threading.Thread(target=halt)
        thread.start()
        try:
            named = until(
                lambda: run.poll() or run.standing().replicas[1].state == "straggler", 30, "a named straggler"
            )
            until(lambda: run.poll() or run.global_step > 300, 60, "300 updates")
            states = [replica.state for replica in run.standing().replicas]
            slowness = run.standing().replicas[1].slowness or 0.0
        finally:
            over.set()
            thread.join()
        run.stop()
        until(run.poll, 30, "the end")
        stale = max(int(run.store.points(rank, "staleness")[1].max()) for rank in range(3))
        found.figures.append(
            f"straggler named after {named:.1f} s ({slowness:.1f}x), staleness {stale} of {most}"
        )
        found.expect(states.count("straggler") == 1, f"states {states}")
        found.expect(stale <= most, f"staleness {stale} is above {most}")
        found.expect(run.error is None, f"ended with {run.error}")
    with hosts_of_tests() as hosts:
        from hosts_cluster import HostsCluster

        most = most_stale(Rules(replicas=2, staleness=1)) or 0
        cluster = HostsCluster(hosts, SERVED)
        hosts.slow("b", rate="4mbit")
        cluster.begin("ps", {**ASYNC, "staleness": 1}, width=5_000, epochs=2)
        results = cluster.results()
        stale = max(max(result["staleness"]) for result in results)
        found.figures.append(f"4 Mbit/s: staleness {stale} of {most}")
        found.expect(stale <= most, f"staleness {stale} is above {most}")
        found.expect(all(result["global_step"] == 12 for result in results), f"{results}"[:200])
        cluster.close()


# 23: a save that is killed at each of its calls.

KILLED_SAVES = """
import ctypes, os, sys
from pathlib import Path
sys.path[:0] = {paths}
import killed_saver
arm = ctypes.CDLL(None).fault_arm
killed_saver.kill_at, killed_saver.KILLED = (lambda number, half: arm(number, half)), -9
print(killed_saver.main(Path({folder!r})))
"""
KILLED_STATES = """
import ctypes, os, shutil
from pathlib import Path
import numpy as np
from nbdist import nn
from nbdist.checkpoint.manager import parse_interval, state_files
from nbdist.train import Callback
from nbdist.train.context import Context, use_here
from nbdist.train.resume import TrainingStates
folder = Path({folder!r})
arm = ctypes.CDLL(None).fault_arm
x, y = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32), np.arange(20) % 3
class Written(Callback):
    def on_epoch_end(self, epoch, logs):
        states._wait()
def train():
    global states
    states = TrainingStates(folder, parse_interval(1), read=state_files(folder))
    context = Context(seed=5, quiet=True)
    context.states = states
    with use_here(context):
        model = nn.Sequential([nn.Dense(5, "tanh"), nn.Dense(3, "softmax")], seed=5)
        model.compile("adam", "sparse_categorical_crossentropy")
        model.fit(x, y, batch_size=20, epochs=5, callbacks=[Written()])
    return model.get_weights()
def anew():
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
anew()
whole = train()
for half in (0, 1):
    for number in range(1, 1000):
        anew()
        child = os.fork()
        if not child:
            arm(number, half)
            train()
            os._exit(0)
        died = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
        before = state_files(folder)
        again = train()
        assert all(np.array_equal(a, b) for a, b in zip(whole, again, strict=True)), (number, half)
        assert states.error is None and sorted(folder.iterdir()) == sorted(state_files(folder)), number
        if not died:
            break
        assert not states.fallbacks or len(before) > len(states.fallbacks), states.fallbacks
print(number - 1)
"""


def killed_saves(found: Found, settings: Settings) -> None:
    """A process is killed in place of each call of a save that changes a file, in the middle, and after it.

    The newest complete checkpoint loads, the next save works, and a training that continues from its newest
    state ends with the weights of one that was not killed.
    """
    shim, paths = library(SAVES), [str(TESTS / "runtime")]
    for name, source in (("a saver", KILLED_SAVES), ("a training's states", KILLED_STATES)):
        with tempfile.TemporaryDirectory() as folder:
            program = source.format(paths=paths, folder=os.path.join(folder, "saved"))
            environment = {**os.environ, "LD_PRELOAD": str(shim)}
            done = subprocess.run(
                [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300
            )
        found.expect(done.returncode == 0, f"{name}: {done.stderr.strip()[-300:]}")
        calls = int((done.stdout.split() or ["0"])[-1])
        found.expect(calls >= 5, f"{name}: {calls} calls change a file")
        found.figures.append(f"{name}: {2 * calls} kills at {calls} calls")


# 27: a client of another version.

OTHER = """
import sys
from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError
try:
    Cluster.attach({id!r})
except FailedPreconditionError as error:
    print(error)
"""


def other_versions(found: Found, settings: Settings) -> None:
    """A client with the metadata of another version of nbdist, then of NumPy, attaches to a cluster."""
    with small_cluster(found, workers=2) as (cluster, home):
        for package, version in (("nbdist", "9.9.9"), ("numpy", "7.0.0")):
            shown = version.split(".")[0] if package == "numpy" else version
            metadata = Path(home, package, f"{package}-{version}.dist-info")
            metadata.mkdir(parents=True)
            (metadata / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
            )
            path = os.pathsep.join([str(metadata.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
            begun = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", OTHER.format(id=cluster.id)],
                env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            found.within(f"{package} {version} refused", time.monotonic() - begun, CUT_OFF)
            rows = [line.split() for line in done.stdout.splitlines()]
            table = ["here", "cluster"] in rows and [row[0] for row in rows[2:]]
            found.expect(
                table == ["nbdist", "python", "numpy", "ipyparallel"],
                f"{package}: no table in {done.stdout + done.stderr[-200:]!r}",
            )
            found.expect(any(row[:2] == [package, shown] for row in rows), f"{package}: {done.stdout!r}")
            found.expect(cluster.run("1 + 1") == [2, 2], f"{package}: the cluster does not work")


# 28: a browser's tab that is closed, and a second one.

BEGIN = """import os
import nbdist as nb
%load_ext nbdist
nb.start_cluster(workers=2, threads=1, report=lambda line: None)
print("pid of the kernel:", os.getpid())"""
TRAIN = """%%distribute --strategy multi_worker
import time
def slowly(*batch):
    time.sleep(0.01)
    return batch
x, y, _, _ = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(nb.data.Dataset.from_arrays(x, y).batch(64).repeat().map(slowly), steps_per_epoch=10, epochs=10**6)
"""
AT = """node => Number(/at [a-z]+ ([\\d,]+)/.exec(node.ariaLabel)?.[1].replaceAll(',', '') ?? -1)"""
MOST_GROWTH = 64.0  # MB of the kernel, and of the page's heap


def closed_tab(found: Found, settings: Settings) -> None:
    """The tab of a run is closed for minutes, then two are opened: both have the whole curve."""
    sys.path[:0] = [str(TESTS / "browser"), str(TESTS)]
    try:
        import psutil
        from browser_lab import LIVE, Lab, bring_into_view, start_chromium, wait_for_curve
        from browser_server import LabServer
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise NotThere(f"no browser here: {error}") from None
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        raise NotThere("no Chromium here")

    def at(page: Any) -> int:
        return int(page.locator(f"{LIVE} .nbd-plot").first.evaluate(AT))

    def heap(page: Any) -> float:
        chromium = page.context.new_cdp_session(page)
        for _ in range(2):
            chromium.send("HeapProfiler.collectGarbage")
        return float(chromium.send("Runtime.getHeapUsage")["usedSize"]) / 1e6

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = LabServer(Path(folder))
        try:
            browser = start_chromium(playwright)
            lab = Lab(server, browser)
            lab.write("away.ipynb", [BEGIN, TRAIN])
            page = lab.open("away.ipynb")
            lab.run(0)
            kernel = psutil.Process(int(lab.output(0).inner_text().partition("kernel:")[2]))
            lab.run(1, wait=False)
            wait_for_curve(page)
            page.wait_for_timeout(5_000)
            lab.save()
            left_at, memory, page_memory = at(page), kernel.memory_info().rss / 1e6, heap(page)
            page.close()
            time.sleep(settings.away)
            pages = []
            for _ in range(2):
                begun = time.monotonic()
                page = lab.open_again("away.ipynb")
                view = page.locator(LIVE)
                view.wait_for(state="attached")
                bring_into_view(view)
                wait_for_curve(page)
                pages.append(page)
                found.figures.append(f"curve back {time.monotonic() - begun:.1f} s")
            grown = kernel.memory_info().rss / 1e6 - memory
            shown = []
            for page in pages:
                page.bring_to_front()
                chart = page.locator(f"{LIVE} .nbd-plot").first
                now = at(page)
                found.expect(now > left_at + 2 * settings.away, f"the curve ends at {now}, left at {left_at}")
                until_page(page, lambda page=page, now=now: at(page) > now, "a curve that grows")
                chart.press("Home")
                until_page(page, lambda page=page: 0 <= at(page) < left_at, "the curve's begin")
                shown.append((at(page), now))
            (first, last), _ = shown
            found.figures.append(f"steps {first:,} to {last:,}, away from {left_at:,}")
            larger = heap(pages[0]) - page_memory
            found.figures.append(f"kernel {grown:+.1f} MB, page {larger:+.1f} MB")
            found.expect(grown < MOST_GROWTH, f"the kernel has grown by {grown:.0f} MB")
            found.expect(larger < MOST_GROWTH, f"the page has grown by {larger:.0f} MB")
            found.wrong += [f"page: {error}" for error in lab.errors]
            lab.close()
            browser.close()
        finally:
            server.close()


def until_page(page: Any, condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition while a page goes on. Raises TimeoutError."""
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} was not seen within 30 s")
        page.wait_for_timeout(50)


# 31: a clock that jumps.

ABANDONED = """
import os
from nbdist.cluster.launch import start_cluster
start_cluster(workers=1, report=None, orphan_timeout={seconds})
os._exit(0)
"""
IDLE = 6.0  # seconds after which a cluster without a client ends


def clock_jumps(found: Found, settings: Settings) -> None:
    """The time of day of a client and its cluster jumps by +1 h and by -1 h in mid-run: nothing notices."""
    shim = library(CLOCK)
    with tempfile.TemporaryDirectory() as folder:
        clock = os.path.join(folder, "clock")
        Path(clock).write_text("0")
        program = f"from bench.fault_scenarios import jumping; jumping({clock!r}, {settings.seed})"
        environment = {**os.environ, "LD_PRELOAD": str(shim), "FAULT_CLOCK": clock}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=400
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    found.figures += told["figures"]
    found.wrong += told["wrong"]


def jumping(clock: str, seed: int) -> None:
    """Make the jumps in this process and the clusters that it starts; print a `Found`."""
    from nbdist.cluster.folder import living

    found, begun = Found(), time.time()

    def jump(seconds: int) -> None:
        Path(clock).write_text(str(seconds))
        until(lambda: abs(time.time() - begun - seconds) < 600, 5, "a jump")

    def disturb(run: Any, cluster: Any, steps: str) -> None:
        def makes_steps() -> None:
            now = run.global_step
            until(lambda: run.poll() or run.global_step > now + 50, 60, "50 more steps")

        def noticed(rank: int, signum: signal.Signals, bound: float) -> None:
            told = len(run.notes)
            os.kill(cluster.tasks[rank].pid, signum)
            took = until(lambda: run.poll() or len(run.notes) > told, 60, "a notice")
            found.within(f"{name} {signum.name} noticed", took, bound)
            until(lambda: run.poll() or "joined" in " ".join(run.notes[told:]), 60, "a new process")

        until(lambda: run.poll() or reached(read(steps), 3), 60, "step 250")
        began = time.monotonic()
        for seconds, signum, bound in ((3600, signal.SIGKILL, 2.0), (-3600, signal.SIGSTOP, CUT_OFF)):
            jump(seconds)
            makes_steps()
            noticed(1, signum, bound)
            makes_steps()
        jump(0)
        until(lambda: run.poll() or len(run.store.replicas) == 3, 10, "points")
        for rank in range(3):
            times = run.store.points(rank, "loss")[2]
            span = float(times.max() - times.min())
            found.expect(span < time.monotonic() - began + 60, f"{name}: curve {rank} spans {span:.0f} s")

    for name in ("async-ps", "all-reduce"):
        program = Program(FIT, 3, PROGRAMS[name].servers, PROGRAMS[name].options)
        outcome = trained(program, disturb, seed, least=LEAST, per_epoch=1)
        found.expect(not outcome.error, f"{name}: {outcome.error[-300:]}")
        found.expect(len(outcome.restarts) == 2, f"{name}: {len(outcome.restarts)} tasks replaced, not 2")
        found.expect(outcome.accuracy > 0.9, f"{name}: accuracy {outcome.accuracy:.3f}")
        found.figures.append(f"accuracy {outcome.accuracy:.3f}")
        found.wrong += outcome.left
    for seconds in (3600, -3600):
        with own_home():
            source = [sys.executable, "-c", ABANDONED.format(seconds=IDLE)]
            subprocess.run(source, stdout=subprocess.DEVNULL, check=True)
            jump(seconds)
            took = until(lambda: not living(), 60, "the end of an idle cluster")
            found.within(f"idle {IDLE:.0f} s and {seconds:+} s: ended", took, IDLE + 6)
            found.expect(took > IDLE - 1, f"an idle cluster ended after {took:.1f} s")
            jump(0)
    print(json.dumps(asdict(found)))


@dataclass(frozen=True)
class Scenario:
    """A fault, and the function that makes it."""

    row: int
    name: str
    make: Callable[[Found, Settings], None]


SCENARIOS = (
    Scenario(10, "kernel restarted, magic run again", kernel_restarts),
    Scenario(12, "a native call holds the GIL 30 s", holds_the_lock),
    Scenario(13, "a silent partition between two hosts", silent_partition),
    Scenario(14, "connections reset inside a frame", resets_in_mid_frame),
    Scenario(15, "a slow worker, a slow link", slow_replica_and_link),
    Scenario(17, "calls of collectives that differ", calls_that_differ),
    Scenario(18, "two interrupts in a collective", interrupts),
    Scenario(19, "a NaN gradient on one rank", nan_on_one_rank),
    Scenario(23, "a save killed at each call", killed_saves),
    Scenario(27, "a client of another version", other_versions),
    Scenario(28, "a browser's tab closed, then two", closed_tab),
    Scenario(31, "a clock that jumps by an hour", clock_jumps),
)
