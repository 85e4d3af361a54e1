"""Peer: TensorFlow's asynchronous parameter server, between-graph, with MonitoredTrainingSession.

Started without ``--job`` it starts one process per task, lets all workers begin at the same moment, and
prints the steps per second of all workers together.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

from bench import work


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000, help="of each worker, after the warm-up")
    parser.add_argument(
        "--threads", type=int, default=0, help="of each process's op pools; 0: TensorFlow's choice"
    )
    parser.add_argument("--job", choices=["ps", "worker"])
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--ports", type=int, nargs="*", default=[])
    options = parser.parse_args()
    if options.job:
        task(options)
    else:
        print(json.dumps(whole_cluster(options)))


def whole_cluster(options: argparse.Namespace) -> dict[str, Any]:
    """Start all tasks, train, and return value and check."""
    ports = free_ports(1 + options.workers)
    common = [
        "--workers",
        options.workers,
        "--steps",
        options.steps,
        "--threads",
        options.threads,
        "--ports",
        *ports,
    ]

    def start(job: str, index: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bench.tensorflow_async_ps", "--job", job, "--task", index, *common]
        return subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    ps = start("ps", 0)
    workers = [start("worker", index) for index in range(options.workers)]
    try:
        for _ in ("warm", "trained"):
            lines = [worker.stdout.readline() for worker in workers]  # type: ignore[union-attr]
            for worker in workers:
                worker.stdin.write("continue\n")  # type: ignore[union-attr]
        times = [json.loads(line) for line in lines]
        check = json.loads(workers[0].stdout.readline())  # type: ignore[union-attr]
        for worker in workers:
            worker.wait(60)
    finally:
        for process in (*workers, ps):
            process.kill()
            process.wait()
    seconds = max(end for _, end in times) - min(begin for begin, _ in times)
    return {"value": options.workers * options.steps / seconds, "check": check}


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def task(options: argparse.Namespace) -> None:
    """Be one task of the cluster."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import tensorflow as tf

    tf1 = tf.compat.v1
    tf1.disable_eager_execution()
    addresses = [f"127.0.0.1:{port}" for port in options.ports]
    cluster = tf1.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
    config = tf1.ConfigProto(
        intra_op_parallelism_threads=options.threads, inter_op_parallelism_threads=options.threads
    )
    server = tf1.train.Server(cluster, job_name=options.job, task_index=options.task, config=config)
    if options.job == "ps":
        server.join()

    data, labels = work.data()
    x, y, fetches, weights = network(tf, options.task, cluster)
    session = tf1.train.MonitoredTrainingSession(server.target, is_chief=options.task == 0)

    def steps(first_step: int, count: int) -> None:
        for step in range(first_step, first_step + count):
            row = work.batch_start(step)
            feed = {x: data[row : row + work.BATCH], y: labels[row : row + work.BATCH]}
            session.run(fetches, feed)

    steps(0, work.WARM_UP)
    report("warm")
    begin = time.time()
    steps(work.WARM_UP, options.steps)
    report([begin, time.time()])
    if options.task == 0:
        values = session.run(weights)
        updates = options.workers * (work.WARM_UP + options.steps)
        print(json.dumps(work.check(updates, *values)), flush=True)


def network(tf: Any, index: int, cluster: Any) -> tuple[Any, Any, list[Any], list[Any]]:
    """Build the graph of one worker; return both placeholders, what a step runs, and the weights.

    A step runs the update, the loss and the global step.
    """
    tf1 = tf.compat.v1
    worker = f"/job:worker/task:{index}"
    with tf1.device(tf1.train.replica_device_setter(worker_device=worker, cluster=cluster)):
        global_step = tf1.train.get_or_create_global_step()
        x = tf1.placeholder(tf.float32, [None, work.INPUTS])
        y = tf1.placeholder(tf.float32, [None, work.CLASSES])
        w1, b1, w2, b2 = weights = [
            tf1.get_variable(name, initializer=value)
            for name, value in zip(("w1", "b1", "w2", "b2"), work.first_weights(), strict=True)
        ]
        z = tf.matmul(tf.sigmoid(tf.matmul(x, w1) + b1), w2) + b2
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=z))
        optimizer = tf1.train.GradientDescentOptimizer(work.LEARNING_RATE)
        train = optimizer.minimize(loss, global_step=global_step)
    return x, y, [train, loss, global_step], weights


def report(what: object) -> None:
    """Send a value to the parent process, and wait until it has a value from every task."""
    print(json.dumps(what), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
