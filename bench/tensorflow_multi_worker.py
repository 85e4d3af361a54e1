"""Peer of P3 and P4: TensorFlow's MultiWorkerMirroredStrategy with Keras' fit, a process per worker.

Keras is tf_keras: Keras 3 cannot take a distributed dataset. Batches are made before the clock starts.
Prints images per second of both workers together.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import Any

from bench.sync_work import WORKERS, WORKS, options
from bench.tensorflow_async_ps import free_ports


def main() -> None:
    name = options().work
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    ports = free_ports(WORKERS)
    ranks = [processes.Process(target=train, args=(name, rank, ports, there)) for rank in range(WORKERS)]
    for one in ranks:
        one.start()
    there.close()  # so that nothing is waited for when all workers have failed
    outcome = here.recv()
    for one in ranks:
        one.join()
    print(json.dumps(outcome))


def train(name: str, rank: int, ports: list[int], pipe: Connection) -> None:
    """Be one worker; the first sends the outcome."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["TF_CONFIG"] = json.dumps(
        {
            "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
            "task": {"type": "worker", "index": rank},
        }
    )
    import tensorflow as tf
    import tf_keras as keras

    work = WORKS[name]
    tf.config.threading.set_intra_op_parallelism_threads(1)  # faster here than TensorFlow's own choice
    tf.config.threading.set_inter_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    images, numbers = work.share(rank)

    def batches(context: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices((images, numbers)).repeat().prefetch(tf.data.AUTOTUNE)

    with strategy.scope():
        model = network(name, keras)
        model.set_weights(work.first_weights())
        model.compile(optimizer_of(name, keras), "sparse_categorical_crossentropy")
    clock: list[float] = []
    each = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: clock.append(time.perf_counter()))
    epochs = 1 + work.steps // work.warm_up  # the first is the warm-up
    data = strategy.distribute_datasets_from_function(batches)
    model.fit(data, epochs=epochs, steps_per_epoch=work.warm_up, verbose=0, callbacks=[each])
    if rank == 0:
        pipe.send(work.outcome(clock[-1] - clock[0], model.get_weights()))


def network(name: str, keras: Any) -> Any:
    """Return the network."""
    layers = keras.layers
    if name == "cnn":
        return keras.Sequential(
            [
                layers.Conv2D(32, 3, activation="relu", input_shape=(28, 28, 1)),
                layers.Conv2D(64, 3, activation="relu"),
                layers.MaxPooling2D(2),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(10, activation="softmax"),
            ]
        )
    return keras.Sequential(
        [
            layers.Dense(100, activation="sigmoid", input_shape=(784,)),
            layers.Dense(10, activation="softmax"),
        ]
    )


def optimizer_of(name: str, keras: Any) -> Any:
    """Return the optimizer of this work."""
    from bench.cnn_work import EPSILON

    rate = WORKS[name].learning_rate
    if name == "cnn":
        return keras.optimizers.Adam(rate, epsilon=EPSILON, amsgrad=True)
    return keras.optimizers.SGD(rate)


if __name__ == "__main__":
    main()
