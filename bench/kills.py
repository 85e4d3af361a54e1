"""Random kills of any role while a training continues: what it costs, and whether anything is left over.

    python -m bench kills                                   # ten minutes, a kill every 10 s in the mean
    python -m bench kills --seconds 60 --mean 3 --program session

"session" trains in a MonitoredTrainingSession on 3 workers and 2 parameter servers, and any of them is
killed: a worker, the chief, a server. "async-ps" trains there by an asynchronous ``fit``, and
"replicated-ps" and "sync-ps" with ``--ps-replicas 1``. "all-reduce" and "elastic" train by ``fit`` with
``multi_worker`` and ``elastic`` on 4 workers; the first one too is killed. The times are those of a Poisson
process; a task that starts again may be killed again at once. With all programs each has an equal part of
the time.

The last line of a program compares the accuracy with a training that nothing disturbed, with the same seed
and at least as many steps, and counts processes, shared-memory files, descriptors and files of the cluster
that are left over. The exit status is 1 if a run ended, the accuracy differs by more than one point, or
anything is left.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from bench.recovery_work import read
from nbdist.wire.rpc.client import process_context

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.run.run import Run

MEAN, SECONDS, SEED, LEAST_STEPS = 10.0, 600.0, 3, 1500
PACE = 0.01  # seconds of each step
POINT = 0.01  # of accuracy
END_SECONDS = 120.0  # for the last steps after the last kill

SESSION = """
import os
import numpy as np
from bench.recovery_work import StepLog
log = StepLog({steps!r}, nb.task.rank, {pace})
x, y, x_test, y_test = nb.data.digits()
order = np.random.default_rng([{seed}, nb.task.index])
with nb.Graph().as_default():
    with nb.device(nb.train.replica_device_setter(cluster=nb.task.cluster, worker_device=nb.task.name)):
        global_step = nb.train.get_or_create_global_step()
        images = nb.placeholder(np.float32, (None, x.shape[1]), name="images")
        labels = nb.placeholder(np.int64, (None,), name="labels")
        rng = np.random.default_rng({seed})
        w1 = nb.Variable(rng.normal(0, 0.1, (x.shape[1], 32)).astype(np.float32))
        b1 = nb.Variable(np.zeros(32, np.float32))
        w2 = nb.Variable(rng.normal(0, 0.1, (32, 10)).astype(np.float32))
        b2 = nb.Variable(np.zeros(10, np.float32))
        logits = nb.nn.functional.sigmoid(images @ w1 + b1) @ w2 + b2
        loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(labels, logits))
        train = nb.optim.SGD(0.5).minimize(loss, global_step=global_step)
    with nb.train.MonitoredTrainingSession(
        nb.task.target, nb.task.is_chief, {folder!r}, save_checkpoint_steps=100
    ) as session:
        step = 0
        while not session.should_stop() and not (step >= {least} and os.path.exists({end!r})):
            rows = order.integers(0, len(x), 64)
            feed = {{images: x[rows], labels: y[rows]}}
            step = int(session.run([train, global_step], feed)[1])
            log.add(step)
        *weights, scores = session.run([w1, b1, w2, b2, logits], {{images: x_test}})
accuracy = float((scores.argmax(1) == y_test).mean())
"""
FIT = """
import os
from bench.recovery_work import StepLog
log = StepLog({steps!r}, nb.task.rank, {per_epoch} * {pace})
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(32, "sigmoid"), nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.5), "sparse_categorical_crossentropy")

class End(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        log.add(epoch * {per_epoch})  # waits here, not in the data, which a new process reads again
        self.stop_training = epoch * {per_epoch} >= {least} and os.path.exists({end!r})

data = nb.data.Dataset.from_arrays(x, y).shuffle(len(x)).batch(64, drop_remainder=True).repeat()
model.fit(data, steps_per_epoch={per_epoch}, epochs=1_000_000, callbacks=[End()])
accuracy = float((model.predict(x_test).argmax(1) == y_test).mean())
weights = model.get_weights()
"""


@dataclass(frozen=True)
class Program:
    """A training, and the tasks of its cluster."""

    body: str
    workers: int
    servers: int
    options: Mapping[str, Any] = field(default_factory=dict)


PROGRAMS = {
    "session": Program(SESSION, 3, 2),
    "all-reduce": Program(FIT, 4, 0, {"strategy": "multi_worker"}),
    "async-ps": Program(FIT, 3, 2, {"strategy": "ps"}),
    "replicated-ps": Program(FIT, 3, 2, {"strategy": "ps", "ps_replicas": 1}),
    "sync-ps": Program(FIT, 3, 2, {"strategy": "ps", "synchronous": True, "ps_replicas": 1}),
    "elastic": Program(FIT, 4, 0, {"strategy": "elastic"}),
}


@dataclass
class Outcome:
    """How a training has ended."""

    accuracy: float
    error: str
    left: list[str] = field(default_factory=list)
    """What is left over, in words."""
    notes: list[str] = field(default_factory=list)
    """What the run says of its tasks."""
    restarts: Sequence[Mapping[str, Any]] = ()
    """Its replaced tasks, as in run.json."""
    global_step: int = 0
    steps: list[int] = field(default_factory=list)
    """The steps of each worker."""
    seconds: float = 0.0
    """From the first recorded step to the last."""
    weights: Sequence[Any] = ()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench kills", description="Kill random tasks of a run.")
    parser.add_argument("--program", choices=[*PROGRAMS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long (default 600)")
    parser.add_argument("--mean", type=float, default=MEAN, help="seconds between two kills (default 10)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--least", type=int, default=LEAST_STEPS, help="steps of each training, at least")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.mean <= 0:
        parser.error("--seconds and --mean are numbers above 0")
    chosen = list(PROGRAMS) if options.program == "all" else [options.program]
    good = True
    for name in chosen:
        calm = trained(PROGRAMS[name], lambda run, cluster, steps: None, options.seed, least=options.least)
        print(f"{name}: accuracy {calm.accuracy:.3f} without kills", flush=True)
        kills = Kills(options.seconds / len(chosen), options.mean, random.Random(options.seed))
        found = trained(PROGRAMS[name], kills, options.seed, least=options.least, max_restarts=1_000_000)
        good &= report(name, kills.counts, found, calm)
    return 0 if good else 1


def report(name: str, counts: Counter[str], found: Outcome, calm: Outcome) -> bool:
    """Print how a training with kills has ended; return whether all is as it has to be."""
    kills = ", ".join(f"{task} {number}" for task, number in sorted(counts.items()))
    print(f"{name}: {counts.total()} kills ({kills}), {len(found.restarts)} restarts")
    if found.error or calm.error:
        print(f"{name}: the run has ended with {found.error or calm.error}", flush=True)
        print("\n".join(f"  {note}" for note in found.notes[-20:]), flush=True)
        return False
    points = 100 * (found.accuracy - calm.accuracy)
    left = "; ".join(found.left) or "nothing"
    print(f"{name}: accuracy {found.accuracy:.3f} ({points:+.1f} points), left over: {left}", flush=True)
    return found.accuracy >= calm.accuracy - POINT and not found.left


Disturb = Callable[["Run", "Cluster", str], object]
"""Disturbs a run that has begun, and polls it; the folder has the record of all steps."""


def trained(
    program: Program,
    disturb: Disturb,
    seed: int,
    *,
    least: int = LEAST_STEPS,
    per_epoch: int = 20,
    **options: Any,
) -> Outcome:
    """Train on a new cluster, at least so many steps, and until ``disturb`` has returned.

    ``options`` are further ones of the run. With ``fit`` a step is in the record after ``per_epoch`` of them.
    """
    from nbdist.cluster.launch import start_cluster
    from nbdist.metrics.run_folder import read_run
    from nbdist.run.options import Options
    from nbdist.run.start import start_run

    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        end, steps = os.path.join(home, "end"), os.path.join(home, "steps")
        os.mkdir(steps)
        body = program.body.format(
            seed=seed, folder=os.path.join(home, "model"), least=least, end=end, steps=steps, pace=PACE,
            per_epoch=per_epoch,
        )  # fmt: skip
        before = resources()
        cluster = start_cluster(workers=program.workers, ps=program.servers, threads=1, report=None)
        try:
            chosen = Options(**{**program.options, "seed": seed, "fetch": ("accuracy", "weights"), **options})
            run = start_run(body, chosen, cluster=cluster)
            disturb(run, cluster, steps)
            Path(end).touch()
            until = time.monotonic() + END_SECONDS
            while not run.poll() and time.monotonic() < until:
                time.sleep(0.02)
            error = "" if run.poll() else f"no end: it makes no steps, after {run.global_step}"
            if run.error is not None:
                error = f"{type(run.error).__name__}: {run.error}"
            made = read(steps)
            outcome = Outcome(
                accuracy=float(run.results.get("accuracy", 0.0)),
                error=error,
                notes=run.notes,
                restarts=read_run(run.id).restarts,
                global_step=run.global_step,
                steps=[one.get("step", 0) for one in run.outcomes.values()],
                seconds=made[-1].time - made[0].time if made else 0.0,
                weights=run.results.get("weights", ()),
            )
        finally:
            cluster.stop()
        outcome.left = left_over(before, home, cluster.id)
        return outcome


class Kills:
    """Kills random tasks of a run for so many seconds, ``mean`` seconds apart in the mean.

    ``counts`` are the kills of each task.
    """

    def __init__(self, seconds: float, mean: float, rng: random.Random) -> None:
        self.seconds, self.mean, self.rng = seconds, mean, rng
        self.counts: Counter[str] = Counter()

    def __call__(self, run: Run, cluster: Cluster, steps: str) -> None:
        """Kill tasks until the time is over, or the run has ended."""
        begin = time.monotonic()
        while time.monotonic() - begin < 60 and not run.poll() and not run.global_step:
            time.sleep(0.02)  # it has trained, at least a little
        begin = time.monotonic()
        following = begin + self.rng.expovariate(1 / self.mean)
        while (now := time.monotonic()) - begin < self.seconds and not run.poll():
            if now >= following:
                following = now + self.rng.expovariate(1 / self.mean)
                dead = {info.rank for info in cluster.dead()}
                task = self.rng.choice([info for info in cluster.tasks if info.rank not in dead])
                os.kill(task.pid, signal.SIGKILL)
                self.counts[task.name] += 1
                at = f"{now - begin:5.1f} s"
                print(f"  {at}  {task.name} (pid {task.pid}) killed at step {run.global_step:,}", flush=True)
            time.sleep(0.02)


@dataclass(frozen=True)
class Resources:
    """What this user and this process have."""

    segments: frozenset[str]
    """Names of shared-memory files."""
    descriptors: int


def resources() -> Resources:
    """Return what there is now, with the connections' context, which lasts as long as this process."""
    process_context().socket(zmq.PAIR).close()
    segments = frozenset(path.name for path in Path("/dev/shm").glob("nbdist-*"))
    return Resources(segments, len(os.listdir("/proc/self/fd")))


def left_over(before: Resources, home: str, cluster: str, seconds: float = 5.0) -> list[str]:
    """Return in words what a cluster has left over, at most so many seconds after its end."""
    until = time.monotonic() + seconds
    while (found := [*_left(before, home, cluster)]) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _left(before: Resources, home: str, cluster: str) -> list[str]:
    now = resources()
    found = [f"process {pid}" for pid in processes_of(home)]
    new = sorted(now.segments - before.segments)
    found += [f"/dev/shm/{name}" for name in new if cluster in name or not is_of_others(name)]
    found += [str(path) for path in Path(home, "nbdist", "clusters").glob("*/*")]
    if now.descriptors > before.descriptors:
        found.append(f"{now.descriptors - before.descriptors} descriptors of this process")
    return found


def is_of_others(segment: str) -> bool:
    """Return whether a segment belongs to another cluster, or to a test beside this program.

    >>> is_of_others("nbdist-20261125_155130_059de3-23887-3fad02b1"), is_of_others("nbdist-7-3fad02b1")
    (True, False)
    """
    return re.match(r"nbdist-(\d{8}_\d{6}_[0-9a-f]+|alone|town)", segment) is not None


def processes_of(home: str) -> list[int]:
    """Return the other processes whose environment names a state folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
        except OSError:  # it has ended, or is another user's
            continue
        pid = int(path.parent.name)
        if f"NBDIST_HOME={home}".encode() in environment and pid != os.getpid():
            found.append(pid)
    return found
