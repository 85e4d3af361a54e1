"""A convolutional network trained by several towers: one graph, shared variables, averaged gradients.

The published example of one program on several GPUs (a small network for CIFAR-10), with nbdist's names and
scikit-learn's digits. Each worker has a *tower*, a copy of the network. In each step every tower computes the
gradients of its share of the batch; a parameter server has the only copy of the variables, averages the
gradients and makes the step. A moving average of the weights, which is less noisy, is evaluated as well.

    python examples/towers.py       # starts a cluster on this host: 2 workers and a parameter server

As a cell of a notebook the whole file does the same, on the notebook's cluster if it has one, which may be on
several hosts. A worker that has a GPU computes its tower there. `fit` builds such towers by itself, in a cell
with `%%distribute --replication in-graph`.
"""

from __future__ import annotations

import time

import numpy as np

import nbdist as nb

BATCH = 60  # digits in a step, of all towers together
RATE, DECAY = 0.01, 0.95  # Adam's learning rate, and what is left of it after each epoch
AVERAGE = 0.98  # how much of the moving average a step keeps

Weights = dict[str, nb.Variable]
Gradients = list[tuple[nb.Tensor, nb.Variable]]


def weights() -> Weights:
    """Return the variables of the network, which all towers share."""
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "hidden": (128, 64), "out": (64, 10)}
    made = {}
    for name, shape in shapes.items():
        made[f"{name}/kernel"] = nb.get_variable(f"{name}/kernel", shape, initializer="he_normal")
        made[f"{name}/bias"] = nb.get_variable(f"{name}/bias", shape[-1:], initializer="zeros")
    return made


def network(images: nb.Tensor, values: dict[str, nb.Tensor] | Weights) -> nb.Tensor:
    """Return the logits of images (n, 8, 8, 1): two convolutions, each with pooling, and two dense layers."""
    x = images
    for name in ("conv1", "conv2"):
        x = nb.nn.functional.conv2d(
            x, values[f"{name}/kernel"], values[f"{name}/bias"], padding="same", relu=True
        )
        x = nb.nn.functional.max_pool2d(x, 2)
    x = np.reshape(x, (-1, 128))
    x = nb.nn.functional.relu(x @ values["hidden/kernel"] + values["hidden/bias"])
    return x @ values["out/kernel"] + values["out/bias"]


def average(towers: list[Gradients]) -> Gradients:
    """Return for each variable the mean of the towers' gradients.

    All towers have to be done before the first variable changes: this is where they wait for each other.
    """
    return [
        (mean([gradient for gradient, _ in of_towers]), of_towers[0][1])
        for of_towers in zip(*towers, strict=True)
    ]


def mean(values: list[nb.Tensor]) -> nb.Tensor:
    """Return the mean of tensors of one shape, which may be on different devices."""
    return sum(values[1:], values[0]) / len(values)


def moving_averages(variables: Weights, step: nb.Variable) -> tuple[Weights, nb.Tensor]:
    """Return a shadow of each variable, and the op that moves the shadows towards the variables.

    The first steps count more than ``AVERAGE`` says, so that the initial values are soon forgotten.
    """
    count = step.astype(np.float32)
    keep = np.minimum(AVERAGE, (1 + count) / (10 + count))
    shadows, moves = {}, []
    for name, variable in variables.items():
        shadows[name] = nb.Variable(variable.initial_value, trainable=False, name=f"{name}/average")
        moves.append(shadows[name].assign_sub((1 - keep) * (shadows[name] - variable)))
    return shadows, nb.group(*moves)


def build(devices: list[str], variables_on: str, epoch: int) -> dict[str, nb.Tensor]:
    """Build the graph: a tower on each of ``devices``, the variables and the update on ``variables_on``.

    ``epoch`` is the number of steps after which the learning rate is multiplied by ``DECAY``.
    """
    with nb.device(variables_on):
        nb.set_random_seed(1)
        step = nb.train.get_or_create_global_step()
        variables = weights()
        images, labels = nb.placeholder(np.float32, (None, 8, 8, 1)), nb.placeholder(np.int64, (None,))
        optimizer = nb.optim.Adam(RATE * DECAY ** (step // epoch).astype(np.float32))
    losses, gradients = [], []
    for number, device in enumerate(devices):
        with nb.device(device), nb.name_scope(f"tower_{number}"):
            share = slice(number, None, len(devices))
            logits = network(images[share], variables)
            losses.append(np.mean(nb.nn.functional.sparse_softmax_cross_entropy(labels[share], logits)))
            gradients.append(optimizer.compute_gradients(losses[-1]))
    with nb.device(variables_on):
        update = optimizer.apply_gradients(average(gradients), global_step=step)
        with nb.control_dependencies([update]):
            averages, train = moving_averages(variables, step)
    with nb.device(devices[0]):
        evaluated = {"weights": network(images, variables), "average": network(images, averages)}
    return {"images": images, "labels": labels, "loss": mean(losses), "train": train, **evaluated}


def train(cluster: nb.Cluster, towers: int | None = None, epochs: int = 8) -> dict[str, float]:
    """Train with so many towers (None: one on each worker), and return the accuracies on the test digits.

    The result does not depend on the number of towers, except for rounding: the mean of the gradients of
    equal shares is the gradient of the batch.
    """
    devices = [f"{task.name}/device:{task.device}" for task in cluster.tasks if task.job == "worker"][:towers]
    variables_on = "/job:ps/task:0" if "ps" in cluster.spec.jobs else devices[0]
    x, y, x_test, y_test = nb.data.digits(flatten=False)
    batches = nb.data.Dataset.from_arrays(x, y).shuffle(len(x), seed=1).batch(BATCH, drop_remainder=True)
    with nb.Graph().as_default():
        ops = build(devices, variables_on, len(x) // BATCH)
        with nb.Session(cluster.target, isolate=True) as session:
            session.run(nb.global_variables_initializer())
            for epoch in range(epochs):
                begun = time.perf_counter()
                for images, labels in batches:
                    feeds = {ops["images"]: images, ops["labels"]: labels}
                    loss, _ = session.run([ops["loss"], ops["train"]], feeds)
                rate = len(x) / (time.perf_counter() - begun)
                print(f"epoch {epoch + 1}: loss {loss:.4f}, {rate:,.0f} images/s", flush=True)
            logits = session.run(
                {name: ops[name] for name in ("weights", "average")}, {ops["images"]: x_test}
            )
    accuracies = {name: float(np.mean(found.argmax(1) == y_test)) for name, found in logits.items()}
    print(f"{len(devices)} towers, test accuracy: weights {accuracies['weights']:.3f}, "
          f"their moving average {accuracies['average']:.3f}", flush=True)  # fmt: skip
    return accuracies


def main() -> None:
    """Train on the cluster of this notebook, or on one that ends with this program."""
    try:
        cluster = nb.Cluster.current()
    except nb.errors.NotFoundError:
        cluster = nb.start_cluster(workers=2, ps=1)
    train(cluster)


if __name__ == "__main__":
    main()
