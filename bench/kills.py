"""Random kills of any role while a training continues: what it costs, and whether anything is left over.

    python -m bench kills                                   # ten minutes, a kill every 10 s in the mean
    python -m bench kills --seconds 60 --mean 3 --program session

"session" trains in a MonitoredTrainingSession on 3 workers and 2 parameter servers, and any of them is
killed: a worker, the chief, a server. "async-ps" trains there by an asynchronous ``fit``. "all-reduce" and
"elastic" train by ``fit`` with ``multi_worker`` and ``elastic`` on 4 workers; the first one too is killed.
The times are those of a Poisson process; a task that starts again may be killed again at once. With all
programs each has an equal part of the time.

The last line of a program compares the accuracy with a training that nothing disturbed, with the same seed
and at least as many steps, and counts processes, shared-memory files, descriptors and files of the cluster
that are left over. The exit status is 1 if a run ended, the accuracy differs by more than one point, or
anything is left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEAN, SECONDS, SEED, LEAST_STEPS = 10.0, 600.0, 3, 1500
POINT = 0.01  # of accuracy
END_SECONDS = 120.0  # for the last steps after the last kill

SESSION = """
import os, time
import numpy as np
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
            time.sleep(0.01)
        predicted = session.run(logits, {{images: x_test}}).argmax(1)
accuracy = float((predicted == y_test).mean())
"""
FIT = """
import os, time
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(32, "sigmoid"), nb.nn.Dense(10, "softmax")])
model.compile(nb.optim.SGD(0.5), "sparse_categorical_crossentropy")

class End(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        time.sleep(0.2)  # not in the data, which a new process reads again up to its place
        self.stop_training = epoch * 20 >= {least} and os.path.exists({end!r})

data = nb.data.Dataset.from_arrays(x, y).shuffle(len(x)).batch(64, drop_remainder=True).repeat()
model.fit(data, steps_per_epoch=20, epochs=1_000_000, callbacks=[End()])
accuracy = float((model.predict(x_test).argmax(1) == y_test).mean())
"""


@dataclass(frozen=True)
class Program:
    """A training, and the tasks of its cluster; any of these is killed."""

    body: str
    workers: int
    servers: int
    strategy: str | None


PROGRAMS = {
    "session": Program(SESSION, 3, 2, None),
    "all-reduce": Program(FIT, 4, 0, "multi_worker"),
    "async-ps": Program(FIT, 3, 2, "ps"),
    "elastic": Program(FIT, 4, 0, "elastic"),
}


@dataclass
class Outcome:
    """How a training has ended."""

    accuracy: float
    kills: Counter[str]
    replaced: int
    """Tasks that the run has replaced."""
    error: str
    left: list[str]
    """What is left over, in words."""
    notes: list[str] = field(default_factory=list)
    """What the run says of its tasks."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench kills", description="Kill random tasks of a run.")
    parser.add_argument("--program", choices=[*PROGRAMS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long (default 600)")
    parser.add_argument("--mean", type=float, default=MEAN, help="seconds between two kills (default 10)")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or options.mean <= 0:
        parser.error("--seconds and --mean are numbers above 0")
    chosen = list(PROGRAMS) if options.program == "all" else [options.program]
    good = True
    for name in chosen:
        calm = trained(PROGRAMS[name], 0.0, options.mean, options.seed)
        print(f"{name}: accuracy {calm.accuracy:.3f} without kills", flush=True)
        found = trained(PROGRAMS[name], options.seconds / len(chosen), options.mean, options.seed)
        good &= report(name, found, calm)
    return 0 if good else 1


def report(name: str, found: Outcome, calm: Outcome) -> bool:
    """Print how a training with kills has ended; return whether all is as it has to be."""
    kills = ", ".join(f"{task} {number}" for task, number in sorted(found.kills.items()))
    print(f"{name}: {found.kills.total()} kills ({kills}), {found.replaced} tasks replaced")
    if found.error or calm.error:
        print(f"{name}: the run has ended with {found.error or calm.error}", flush=True)
        print("\n".join(f"  {note}" for note in found.notes[-20:]), flush=True)
        return False
    points = 100 * (found.accuracy - calm.accuracy)
    left = "; ".join(found.left) or "nothing"
    print(f"{name}: accuracy {found.accuracy:.3f} ({points:+.1f} points), left over: {left}", flush=True)
    return found.accuracy >= calm.accuracy - POINT and not found.left


def trained(program: Program, seconds: float, mean: float, seed: int) -> Outcome:
    """Train on a new cluster, with kills for so many seconds."""
    from nbdist.cluster.launch import start_cluster
    from nbdist.run.options import Options
    from nbdist.run.start import start_run

    with tempfile.TemporaryDirectory() as home:
        os.environ["NBDIST_HOME"] = os.path.join(home, "nbdist")
        end = os.path.join(home, "end")
        body = program.body.format(seed=seed, folder=os.path.join(home, "model"), least=LEAST_STEPS, end=end)
        before = resources()
        cluster = start_cluster(workers=program.workers, ps=program.servers, threads=1, report=None)
        try:
            options = Options(
                strategy=program.strategy, seed=seed, max_restarts=1_000_000, fetch=("accuracy",)
            )
            run = start_run(body, options, cluster=cluster)
            kills = killed(run, cluster, seconds, mean, random.Random(seed))
            Path(end).touch()
            until = time.monotonic() + END_SECONDS
            while not run.poll() and time.monotonic() < until:
                time.sleep(0.02)
            error = "" if run.poll() else f"no end: it makes no steps, after {run.global_step}"
            if run.error is not None:
                error = f"{type(run.error).__name__}: {run.error}"
            accuracy = float(run.results.get("accuracy", 0.0))
            replaced = sum("replaced after" in note for note in run.notes)
        finally:
            cluster.stop()
        return Outcome(accuracy, kills, replaced, error, left_over(before, home), run.notes)


def killed(run: Any, cluster: Any, seconds: float, mean: float, rng: random.Random) -> Counter[str]:
    """Kill random tasks for so many seconds; return how often each was killed."""
    kills: Counter[str] = Counter()
    begin = time.monotonic()
    while time.monotonic() - begin < 60 and not run.poll() and not run.global_step:
        time.sleep(0.02)  # it has trained, at least a little
    begin = time.monotonic()
    following = begin + rng.expovariate(1 / mean)
    while (now := time.monotonic()) - begin < seconds and not run.poll():
        if now >= following:
            following = now + rng.expovariate(1 / mean)
            dead = {info.rank for info in cluster.dead()}
            task = rng.choice([info for info in cluster.tasks if info.rank not in dead])
            os.kill(task.pid, signal.SIGKILL)
            kills[task.name] += 1
            step = run.global_step
            print(f"  {now - begin:5.1f} s  {task.name} (pid {task.pid}) killed at step {step:,}", flush=True)
        time.sleep(0.02)
    return kills


@dataclass(frozen=True)
class Resources:
    """What this user and this process have."""

    segments: frozenset[str]
    """Names of shared-memory files."""
    descriptors: int


def resources() -> Resources:
    """Return what there is now."""
    segments = frozenset(path.name for path in Path("/dev/shm").glob("nbdist-*"))
    return Resources(segments, len(os.listdir("/proc/self/fd")))


def left_over(before: Resources, home: str, seconds: float = 5.0) -> list[str]:
    """Return in words what a cluster has left over, at most so many seconds after its end."""
    until = time.monotonic() + seconds
    while (found := [*_left(before, home)]) and time.monotonic() < until:
        time.sleep(0.1)
    return found


def _left(before: Resources, home: str) -> list[str]:
    now = resources()
    found = [f"process {pid}" for pid in processes_of(home)]
    found += [f"/dev/shm/{name}" for name in sorted(now.segments - before.segments)]
    found += [str(path) for path in Path(home, "nbdist", "clusters").glob("*/*")]
    if now.descriptors > before.descriptors:
        found.append(f"{now.descriptors - before.descriptors} descriptors of this process")
    return found


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
