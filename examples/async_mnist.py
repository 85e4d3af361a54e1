"""Asynchronous training of a small network by several workers that share parameter servers.

The published example of distributed TensorFlow (784-100-10 with sigmoid, SGD, batches of 100, 20 epochs),
with nbdist's names. Every worker trains on all data, in its own order; more workers reach a higher accuracy
in the same number of epochs. Each task is a process, started with TF_CONFIG:

    # once; then copy the file to each host
    python -c 'import nbdist as nb; nb.ClusterKeys.create().save("keys.json")'

    export NBDIST_KEYS=keys.json
    cluster='{"ps": ["pc-01:2222"], "worker": ["pc-02:2222", "pc-03:2222"]}'
    export TF_CONFIG='{"cluster": '$cluster', "task": {"type": "ps", "index": 0}}'         # on pc-01
    export TF_CONFIG='{"cluster": '$cluster', "task": {"type": "worker", "index": 0}}'     # on pc-02
    python async_mnist.py

In a notebook the tasks are engines: `%%distribute --strategy one_device` and `train(nb.task.server, ...)`.
A worker or a parameter server that is killed and started again joins the training; the parameter server's
variables come back from the newest checkpoint.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import nbdist as nb


def normal(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw initial weights."""
    return rng.standard_normal(shape).astype(np.float32)


def network(server: nb.Server, inputs: int, rate: float) -> dict[str, nb.Tensor]:
    """Build the graph of one worker: variables on the ps tasks, everything else here."""
    here = f"/job:{server.job}/task:{server.index}"
    with nb.device(nb.train.replica_device_setter(worker_device=here, cluster=server.cluster)):
        global_step = nb.train.get_or_create_global_step()
        x = nb.placeholder(np.float32, (None, inputs), name="x")
        y = nb.placeholder(np.int64, (None,), name="y")
        nb.set_random_seed(1)
        w1 = nb.get_variable("w1", (inputs, 100), initializer=normal)
        w2 = nb.get_variable("w2", (100, 10), initializer=normal)
        b1 = nb.get_variable("b1", (100,), initializer="zeros")
        b2 = nb.get_variable("b2", (10,), initializer="zeros")
        hidden = nb.nn.functional.sigmoid(x @ w1 + b1)
        logits = hidden @ w2 + b2
        loss = np.mean(nb.nn.functional.sparse_softmax_cross_entropy(y, logits))
        train = nb.optim.SGD(rate).minimize(loss, global_step=global_step)
        accuracy = np.mean((np.argmax(logits, axis=1) == y).astype(np.float32))
    nb.summary.scalar("cost", loss)
    return {"x": x, "y": y, "loss": loss, "train": train, "accuracy": accuracy, "global_step": global_step}


def train(
    server: nb.Server,
    data: tuple[Any, ...],
    *,
    is_chief: bool,
    epochs: int = 20,
    batch: int = 100,
    rate: float = 0.001,
    checkpoints: str | None = None,
    save_steps: int = 500,
) -> float:
    """Train as one worker, and return the accuracy on the test images."""
    x_train, y_train, x_test, y_test = data
    with nb.Graph().as_default():
        ops = network(server, x_train.shape[1], rate)
        rng = np.random.default_rng(server.index)
        begun = time.perf_counter()
        with nb.train.MonitoredTrainingSession(
            server.target,
            is_chief,
            checkpoints,
            save_checkpoint_steps=save_steps if checkpoints else None,
            log_step_count_steps=0,
        ) as session:
            for epoch in range(epochs):
                order = rng.permutation(len(x_train))
                for at in range(0, len(order) - batch + 1, batch):
                    rows = order[at : at + batch]
                    _, cost, step = session.run(
                        [ops["train"], ops["loss"], ops["global_step"]],
                        {ops["x"]: x_train[rows], ops["y"]: y_train[rows]},
                    )
                print(f"step {step}, epoch {epoch + 1:2}, cost {cost:.4f}", flush=True)
            accuracy = float(session.run(ops["accuracy"], {ops["x"]: x_test, ops["y"]: y_test}))
    print(f"test accuracy {accuracy:.2f} after {time.perf_counter() - begun:.1f} s", flush=True)
    return accuracy


def main() -> None:
    """Run the task that TF_CONFIG names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--mnist", help="the folder of MNIST's four IDX files; without it scikit-learn's digits"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument(
        "--checkpoints", help="a folder that all tasks share, or a URL such as s3://bucket/run"
    )
    options = parser.parse_args()
    server = nb.Server.from_tf_config()
    if server.job == "ps":
        server.join()
    else:
        data = nb.data.mnist(options.mnist) if options.mnist else nb.data.digits()
        train(
            server,
            data,
            is_chief=server.is_chief,
            epochs=options.epochs,
            rate=options.rate,
            checkpoints=options.checkpoints,
        )


if __name__ == "__main__":
    main()
