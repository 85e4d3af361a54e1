"""Peer of ``bench recovery``: TensorFlow's MonitoredTrainingSession, between-graph, 1 ps and 2 workers.

TensorFlow starts no process again, so this script does at once what a cluster manager would do later.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict

from bench import recovery_work, work
from bench.tensorflow_async_ps import free_ports, network


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill", choices=["worker", "chief", "ps"], default="worker")
    parser.add_argument("--job", choices=["ps", "worker"])
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--ports", type=int, nargs="*", default=[])
    parser.add_argument("--folder")
    options = parser.parse_args()
    if options.job:
        task(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asdict(whole_cluster(options.kill, folder))))


def whole_cluster(kill: str, folder: str) -> recovery_work.Figures:
    """Start all tasks, kill one, and start it again until all workers train."""
    ports = free_ports(1 + recovery_work.WORKERS)

    def start(job: str, index: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "bench.tensorflow_recovery", "--job", job, "--task", str(index)]
        command += ["--folder", folder, "--ports", *map(str, ports)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    tasks = {("ps", 0): start("ps", 0)}
    tasks |= {("worker", index): start("worker", index) for index in range(recovery_work.WORKERS)}
    victim = {"worker": 1, "chief": 0, "ps": None}[kill]
    begin, killed_at, found = time.monotonic(), 0.0, None
    try:
        while found is None:
            if time.monotonic() - begin > recovery_work.LONGEST:
                raise SystemExit("TensorFlow does not continue")
            steps = recovery_work.read(folder)
            if not killed_at and recovery_work.reached(steps):
                tasks["ps" if victim is None else "worker", victim or 0].send_signal(signal.SIGKILL)
                killed_at = time.time()
            elif killed_at:
                found = recovery_work.figures(steps, killed_at, [] if victim is None else [victim])
                for name, process in tasks.items():
                    if process.poll() is not None:
                        tasks[name] = start(*name)
            time.sleep(0.01)
    finally:
        for process in tasks.values():
            process.kill()
            process.wait()
    return found


def task(options: argparse.Namespace) -> None:
    """Be one task of the cluster."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    tf1 = tf.compat.v1
    tf1.disable_eager_execution()
    addresses = [f"127.0.0.1:{port}" for port in options.ports]
    cluster = tf1.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
    server = tf1.train.Server(cluster, job_name=options.job, task_index=options.task)
    if options.job == "ps":
        server.join()

    data, labels = work.data()
    log = recovery_work.StepLog(options.folder, options.task)
    x, y, fetches, _ = network(tf, options.task, cluster)
    with tf1.train.MonitoredTrainingSession(
        server.target,
        is_chief=options.task == 0,
        checkpoint_dir=os.path.join(options.folder, "checkpoints"),
        save_checkpoint_steps=recovery_work.CHECKPOINT_STEPS,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
    ) as session:
        number = 0
        while not session.should_stop():
            row = work.batch_start(number)
            feed = {x: data[row : row + work.BATCH], y: labels[row : row + work.BATCH]}
            log.add(int(session.run(fetches, feed)[2]))
            number += 1


if __name__ == "__main__":
    main()
