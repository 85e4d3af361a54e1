"""An actor that is a client: it starts a cluster on other hosts, trains on it and changes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
from actor import serve

import nbdist as nb
from nbdist.checkpoint.manager import state_files
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.launch import start_cluster
from nbdist.metrics.run_folder import read_run, run_folder
from nbdist.ui.magics import status_text

phases: list[str] = []
following: list[str] = []


def reports() -> list[str]:
    """Return what has been reported of the start, and since."""
    return phases


def heard(hosts: list[str], seconds: float = 10.0) -> list[str]:
    """Wait until each of some hosts has a sentence among the reports, and return the reports."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < deadline:
        told = "\n".join(phases)
        if all(f"host {host}: " in told for host in hosts):
            break
        pause.wait(0.02)
    return phases


def grown(workers: int, seconds: float = 60.0) -> list[str]:
    """Wait until the cluster has so many workers."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while len(Cluster.current().tasks) < workers and time.monotonic() < deadline:
        pause.wait(0.02)
    return nodes(Cluster.current())


def awaited(until: int | None = None, seconds: float = 10.0) -> list[str]:
    """Return the hosts that the cluster awaits, once there are ``until``."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while until not in (None, len(Cluster.current().awaited_hosts)) and time.monotonic() < deadline:
        pause.wait(0.02)
    return Cluster.current().awaited_hosts


def start(**options: Any) -> dict[str, Any]:
    """Start a cluster; return its phases, the tasks' hosts by rank, and whether runs follow its jobs."""
    phases.clear()
    cluster = start_cluster(report=phases.append, **options)
    begun = [line.split(" ", 1)[0] for line in phases]
    return {"phases": begun, "nodes": nodes(cluster), "requeues": cluster.requeues}


def nodes(cluster: Cluster) -> list[str]:
    return [info.node for info in cluster.tasks]


def chdir(folder: str) -> None:
    """Go to a folder, as a notebook that lies there."""
    os.chdir(folder)


def run(code: str) -> list[Any]:
    return Cluster.current().run(code)


def train(
    strategy: str = "", epochs: int = 4, framework: str | None = None, data: str = ""
) -> dict[str, Any]:
    """Train on all workers; return the run's error, its steps and the chief's last epoch."""
    options = {"framework": framework} if framework else {"strategy": strategy}
    options |= {"data": data} if data else {}
    done = nb.launch(with_ddp if framework else training(epochs), **options)
    return {"error": done.error, "steps": done.global_step, "epoch": done.last_epoch(0)}


def training(epochs: int, batch: int = 32) -> Callable[[], str]:
    """Return a body that trains on the digits, and returns the name of its host."""

    def body() -> str:
        x, y, *_ = nb.data.digits()
        layers = [nb.nn.Dense(16, activation="relu"), nb.nn.Dense(10, activation="softmax")]
        model = nb.nn.Sequential([nb.nn.Flatten(), *layers])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(nb.data.Dataset.from_arrays(x, y).batch(batch), epochs=epochs)
        return nb.task.info.node

    return body


def with_ddp() -> None:
    """Train by PyTorch's own data parallelism, over gloo between the hosts."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), float(dist.get_rank()))).square().mean()
        loss.backward()
        optimizer.step()
        nb.log(loss=float(loss.detach()))


def background(epochs: int, collective: str = "auto") -> str:
    """Begin a training in the background, and return its run's id once it has made some steps."""
    body = training(epochs, batch=8)
    run = nb.launch(body, strategy="multi_worker", collective=collective, background=True)
    run.wait_until(step=50)
    return run.id


def weights(collective: str) -> list[list[float]]:
    """Train by a collective; return the weights of each worker, and a large sum."""

    def body() -> list[list[float]]:
        import numpy as np

        x = np.random.default_rng(0).random((90, 5), np.float32)
        model = nb.nn.Sequential([nb.nn.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(nb.data.Dataset.from_arrays(x, x[:, :1]).batch(30), epochs=3)
        assert nb.collective.kind() == collective
        large = nb.collective.all_reduce(np.arange(300_000, dtype=np.float32))
        flat = [*(one.ravel() for one in model.get_weights()), large[-1:]]
        return nb.collective.all_gather(np.concatenate(flat)).tolist()

    run = nb.launch(body, strategy="multi_worker", collective=collective, seed=5)
    return run.results["result"]


def outlive(rank: int, collective: str) -> dict[str, Any]:
    """Kill a worker's process while it trains; return how the run has ended, and the steps that it made."""
    run = nb.attach(background(30, collective))
    kill(rank)
    run.wait()
    return {"error": run.error and str(run.error), "steps": run.global_step, "notes": run.notes}


BODY = """
import os, threading

def paced(x, y):
    if os.environ.get("SLURM_JOB_ID") == {slow_in!r}:
        threading.Event().wait(0.03)
    return x, y

x, y, *_ = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Flatten(), nb.nn.Dense(10, activation="softmax")])
model.compile("adam", "sparse_categorical_crossentropy")
model.fit(nb.data.Dataset.from_arrays(x, y).batch(8).map(paced), epochs={epochs})
"""


def cell(epochs: int, on: str | None = None, slow_in: str = "") -> str:
    """Begin a training in the background, as a cell that can be resumed; return its run's id.

    In the job ``slow_in`` each step takes 30 ms or more.
    """
    body = BODY.format(epochs=epochs, slow_in=slow_in)
    return nb.launch(body, strategy="multi_worker", on=on, seed=3, background=True).id


def read(gate: str) -> str:
    """Begin a run in the background whose first worker reads 300 elements from data tasks; return its id.

    It reads a third of them, makes a file ``gate`` on its host, and reads the others once that is removed.
    """

    fit = training(1, batch=600)

    def body() -> list[int]:
        import threading
        from pathlib import Path

        import numpy as np

        fit()
        whole = np.arange(300, dtype="f4")[:, None] * np.ones((1, 1000), "f4")
        seen: list[int] = []
        for batch in nb.distribute.get_strategy().distribute_dataset(
            nb.data.Dataset.from_arrays(whole).map(lambda row: row * 2).batch(10)
        ):
            seen += [int(row[0]) // 2 for row in batch if (row == row[0]).all()]
            if len(seen) == 100:
                Path(gate).touch()
                while Path(gate).exists():
                    threading.Event().wait(0.02)
        return seen

    run = nb.launch(body, on="worker:0", data="service", background=True)
    following.append(run.id)
    return run.id


def tunnel(host: str, **options: Any) -> list[str]:
    """Start a cluster whose head is on a host, through a tunnel; return its tasks' hosts."""
    return nodes(nb.start_cluster(tunnel=host, report=phases.append, **options))


def attach(run: str, tunnel: str = "") -> list[str]:
    """Attach to the newest cluster, and return its tasks' hosts; `finish` follows the run."""
    following.append(run)
    return nodes(Cluster.attach(tunnel=tunnel or None))


def stop_by_command(seconds: float) -> dict[str, Any]:
    """Stop the cluster by the command line once its run has ended; return what that prints."""
    begun, pause = time.monotonic(), threading.Event()
    while True:
        command = [sys.executable, "-m", "nbdist", "cluster", "stop", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return dict(json.loads(done.stdout))
        if "is in use by" not in done.stdout + done.stderr or time.monotonic() > begun + seconds:
            raise AssertionError(done.stdout + done.stderr)
        pause.wait(0.2)


def loss_of(run: str) -> float:
    """Return the loss of the last epoch of a run, once it has ended."""
    return float(nb.attach(run).wait().last_epoch(0)["loss"])


def state_of(run: str, seconds: float = 20.0) -> list[str]:
    """Wait until a run's state is in this host's folder; return the names of its states."""
    begun, pause = time.monotonic(), threading.Event()
    while not (found := state_files(run_folder(run))) and time.monotonic() < begun + seconds:
        pause.wait(0.05)
    return [path.name for path in found]


def next_run(run: str, seconds: float = 20.0) -> dict[str, Any]:
    """Wait for the run that continues one, to its end; return its tasks' hosts, error, steps and lines."""
    begun, pause = time.monotonic(), threading.Event()
    found: list[Any] = []
    while not found and time.monotonic() < begun + seconds:
        found = [one.id for one in nb.runs() if read_run(one.id).resumed_from == run]
        pause.wait(0.1)
    if not found:
        ended = [row["ended"] for row in Cluster.current().status()]
        return {"phases": phases, "ended": ended, "runs": [(one.id, one.status) for one in nb.runs()]}
    continued = nb.attach(found[0])
    continued.wait()
    error = continued.error and str(continued.error)
    steps = {"steps": continued.global_step, "resumed": continued.tally.resumed_steps}
    steps["loss"] = continued.last_epoch(0)["loss"]
    return {"nodes": nodes(Cluster.current()), "error": error, **steps, "phases": phases}


def between_jobs(seconds: float = 20.0) -> list[str]:
    """Wait until the tasks are dead; return what a start and a restart by hand are refused with."""
    cluster = Cluster.current()
    dead([info.rank for info in cluster.tasks], seconds)
    refused = []
    for change in (cluster.check_job, cluster.restart):
        try:
            change()
        except nb.errors.FailedPreconditionError as error:
            refused.append(str(error))
    return refused


def finish(run: str = "") -> dict[str, Any]:
    """Follow a run, or the one that was attached to last, to its end."""
    followed = nb.attach(run or following[-1])
    followed.wait()
    ended = {"error": followed.error and str(followed.error), "steps": followed.global_step}
    ended |= {"notes": followed.notes}
    return ended | {"result": followed.results.get("result")}


def break_tunnel() -> list[Any]:
    """End the ssh of a tunnel while a run is followed; return the run's status, and if a line leads back."""
    run = nb.attach(following[-1])
    run.wait_until(step=run.global_step + 1)
    for child in psutil.Process().children(recursive=True):
        if child.name() == "ssh":
            child.kill()
    try:
        run.wait()
    except nb.errors.NbdistError as error:
        return [read_run(run.id).status, "connect again with %cluster attach --tunnel host1" in str(error)]
    return [read_run(run.id).status, str(run.error)]


def halt() -> dict[str, Any]:
    """Follow the run for some steps, and stop it."""
    run = nb.attach(following[-1])
    run.wait_until(step=run.global_step + 20)
    run.stop()
    run.wait()
    return {"error": run.error and str(run.error), "steps": run.global_step}


def fetch() -> Any:
    """Run a step of a session whose master is here."""
    cluster = Cluster.current()
    with nb.Graph().as_default(), nb.device("/job:worker/task:1"):
        one = nb.constant(1.0)
        with nb.Session(cluster.target) as session:
            return float(session.run(one + one))


def kill(rank: int) -> list[int]:
    """Kill a task's process, and return the ranks that are known to be dead."""
    cluster = Cluster.current()
    assert cluster.signal(rank, signal.SIGKILL)
    return dead([rank])


def signal_often(rank: int, seconds: float) -> list[str]:
    """Ask whether a task's process exists, three times a second; return how tasks have ended meanwhile."""
    cluster, begun, pause = Cluster.current(), time.monotonic(), threading.Event()
    while time.monotonic() < begun + seconds and cluster.signal(rank, 0):
        pause.wait(0.3)
    return [row["ended"] for row in cluster.status() if row["ended"]]


def dead(ranks: list[int], seconds: float = 15.0) -> list[Any]:
    """Wait until these ranks are dead; return how they ended, and how long that took."""
    cluster, begun, pause = Cluster.current(), time.monotonic(), threading.Event()
    while [info.rank for info in cluster.dead()] != ranks and time.monotonic() < begun + seconds:
        pause.wait(0.02)
    ended = [row["ended"] for row in cluster.status() if row["ended"]]
    return [*ended, time.monotonic() - begun]


def restart(task: int | str | None = None) -> list[str]:
    """Replace a task, the tasks of a host, or all dead ones; return what was reported."""
    lines: list[str] = []
    Cluster.current().restart(task, report=lines.append)
    return [*lines, *nodes(Cluster.current())]


def grow(workers: int) -> list[str]:
    Cluster.current().grow(workers, report=str)
    return nodes(Cluster.current())


def shrink(workers: int) -> list[str]:
    Cluster.current().shrink(workers, report=str)
    return nodes(Cluster.current())


def kill_supervisor() -> None:
    """Kill the supervisor on this host, which this process has started."""
    Cluster.current()._supervisor.kill()


def keys() -> list[str]:
    """Return both halves of the cluster's key."""
    own = Cluster.current().keys
    return [own.public, own.secret]


def rest(seconds: float) -> None:
    """Let time pass."""
    threading.Event().wait(seconds)


def status() -> dict[str, Any]:
    """Return the hosts, the host of each task, and what %cluster prints."""
    cluster = Cluster.current()
    rows, hosts = cluster.status(), cluster.hosts()
    return {"hosts": hosts, "nodes": [row["node"] for row in rows], "text": status_text(rows, hosts, 0.0)}


def seconds_left() -> float:
    """Return the time that the job of the hosts has left."""
    (ends,) = {row["ends"] for row in Cluster.current().hosts()}
    return ends - time.time()


def stop() -> float:
    begun = time.monotonic()
    Cluster.current().stop()
    return time.monotonic() - begun


ORDERS = (
    *(start, reports, heard, run, chdir, train, background, read, attach, finish, kill, dead, restart),
    *(weights, outlive, signal_often, stop_by_command),
    *(state_of, loss_of, next_run, between_jobs, cell, tunnel, break_tunnel, halt, fetch),
    *(grow, grown, awaited, shrink, keys, kill_supervisor, rest, status, seconds_left, stop),
)
serve({one.__name__: one for one in ORDERS})
