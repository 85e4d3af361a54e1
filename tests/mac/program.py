"""What test_mac.py runs in the stand-in for a Mac: a cluster, every strategy, a sweep, recovery, the end."""

from __future__ import annotations

import os
import select
import signal
import sys

import psutil

sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))
from waiting import until

from nbdist.cluster.cluster import Cluster
from nbdist.cluster.launch import start_cluster
from nbdist.cluster.supervisor.process import short_path
from nbdist.run.options import Options
from nbdist.run.start import start_run
from nbdist.ui.api import run_sweep

BODY = """
x, y, x_test, y_test = nb.data.digits()
model = nb.nn.Sequential([nb.nn.Dense(10, activation="softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(x[:1000], y[:1000]).batch(100), epochs=EPOCHS)
"""


def main() -> None:
    for missing in ("pidfd_open", "memfd_create", "sched_yield", "posix_fallocate", "waitid"):
        assert not hasattr(os, missing)
    assert not hasattr(select, "epoll")
    cluster = start_cluster(workers=2, ps=1)
    with short_path(cluster.folder) as short:
        assert len(short) < len(str(cluster.folder)), "the folder is long, as a Mac's is"
    losses = {}
    for strategy in sys.argv[1:]:
        options = Options(strategy=strategy, seed=7, on="worker:0" if strategy == "tpu" else None)
        run = start_run(BODY.replace("EPOCHS", "2"), options, cluster=cluster).wait()
        losses[strategy] = run.history["loss"]
        print("trained", strategy, losses[strategy][-1], flush=True)
        assert losses[strategy][-1] < losses[strategy][0]
    tune(cluster)
    recover(cluster)
    end(cluster)
    print("all of it", flush=True)


def tune(cluster: Cluster) -> None:
    """Run a sweep of four trials."""
    body = BODY.replace("SGD(0.1)", "SGD(lr)").replace("EPOCHS", "1")
    sweep = run_sweep(body, {"lr": [0.001, 0.01, 0.1, 1.0]}, metric="accuracy", live=False, cluster=cluster)
    sweep.wait()
    assert [trial.state for trial in sweep.trials] == ["finished"] * 4
    print("tuned: best of 4 is", sweep.best.number, flush=True)


def recover(cluster: Cluster) -> None:
    """Kill a worker during a run: the run continues without it, and with its replacement."""
    run = start_run(BODY.replace("EPOCHS", "100000"), Options(strategy="multi_worker"), cluster=cluster)
    until(lambda: run.standing().step > 20, during=run)
    killed = cluster.tasks[1].pid
    os.kill(killed, signal.SIGKILL)
    until(lambda: cluster.tasks[1].pid != killed, during=run)
    step = run.standing().step
    until(lambda: run.standing().step > step + 20, during=run)
    run.interrupt()
    until(run.poll)
    assert run.status == "stopped", run.error
    print("recovered: worker 1 was killed and replaced", flush=True)


def end(cluster: Cluster) -> None:
    """Kill the supervisor: every process of the cluster ends with it."""
    pids = [task.pid for task in cluster.tasks]
    supervisor = psutil.Process(pids[0]).parent()
    assert supervisor is not None
    processes = supervisor.children()
    assert {process.pid for process in processes} >= set(pids)
    supervisor.kill()
    until(lambda: not any(map(lives, processes)))
    print(f"ended: {len(processes)} processes", flush=True)


def lives(process: psutil.Process) -> bool:
    """Return whether a process runs."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
