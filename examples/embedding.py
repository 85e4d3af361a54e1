"""A large embedding table in shards on parameter servers, trained by workers that fetch only its rows.

    table = nb.get_variable("embedding", (10_000_000, 20), partitioner=nb.train.fixed_size_partitioner(3))

The task: words that occur together get similar vectors (skip-gram with negative samples, on pairs that are
drawn from a known structure, so that the result can be checked). Each parameter server saves its own shard of
the table; no process ever holds all of it. Start the tasks as `async_mnist.py` describes.
"""

from __future__ import annotations

import argparse

import numpy as np

import nbdist as nb

GROUP = 10  # words n*10 to n*10 + 9 occur together


def build(server: nb.Server, words: int, width: int, rate: float) -> dict[str, nb.Tensor]:
    """Build the graph of one worker."""
    shards = max(server.cluster.num_tasks("ps"), 1)
    here = f"/job:{server.job}/task:{server.index}"
    greedy = nb.train.GreedyLoadBalancingStrategy(shards, nb.train.byte_size_load_fn)
    setter = nb.train.replica_device_setter(worker_device=here, cluster=server.cluster, ps_strategy=greedy)
    with nb.device(setter):
        global_step = nb.train.get_or_create_global_step()
        table = nb.get_variable(
            "embedding", (words, width), initializer="glorot_uniform",
            partitioner=nb.train.fixed_size_partitioner(shards),
        )  # fmt: skip
        word = nb.placeholder(np.int64, (None,), name="word")
        other = nb.placeholder(np.int64, (None,), name="other")
        together = nb.placeholder(np.float32, (None,), name="together")
        a = nb.nn.functional.embedding_lookup(table, word)
        b = nb.nn.functional.embedding_lookup(table, other)
        score = np.sum(a * b, axis=1)
        errors = np.log1p(np.exp(-np.abs(score))) + np.maximum(score, 0) - score * together
        loss = np.mean(errors)
        train = nb.optim.Adagrad(rate).minimize(np.sum(errors), global_step=global_step)
    return {"word": word, "other": other, "together": together, "loss": loss, "train": train}


def pairs(rng: np.random.Generator, words: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw pairs of words: half of them of one group, half of any two words."""
    word = rng.integers(0, words, count)
    same = word - word % GROUP + rng.integers(0, GROUP, count)
    together = np.arange(count) < count // 2
    other = np.where(together, np.minimum(same, words - 1), rng.integers(0, words, count))
    return word, other, together.astype(np.float32)


def train(
    server: nb.Server,
    *,
    is_chief: bool,
    words: int = 10_000_000,
    width: int = 20,
    steps: int = 1000,
    rate: float = 0.5,
    checkpoints: str | None = None,
    save_steps: int = 500,
) -> float:
    """Train as one worker until the global step is reached, and return the last loss."""
    loss = float("nan")
    with nb.Graph().as_default():
        ops = build(server, words, width, rate)
        rng = np.random.default_rng(server.index)
        hooks = [nb.train.StopAtStepHook(last_step=steps), nb.train.NanTensorHook(ops["loss"])]
        with nb.train.MonitoredTrainingSession(
            server.target,
            is_chief,
            checkpoints,
            hooks=hooks,
            save_checkpoint_steps=save_steps if checkpoints else None,
            log_step_count_steps=0,
        ) as session:
            while not session.should_stop():
                word, other, together = pairs(rng, words, 1000)
                feeds = {ops["word"]: word, ops["other"]: other, ops["together"]: together}
                loss = float(session.run([ops["train"], ops["loss"]], feeds)[1])
    print(f"loss {loss:.4f}", flush=True)
    return loss


def main() -> None:
    """Run the task that TF_CONFIG names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--words", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--checkpoints", help="a folder that all tasks share, or a URL such as s3://bucket/run"
    )
    options = parser.parse_args()
    server = nb.Server.from_tf_config()
    if server.job == "ps":
        server.join()
    else:
        train(
            server,
            is_chief=server.is_chief,
            words=options.words,
            steps=options.steps,
            checkpoints=options.checkpoints,
        )


if __name__ == "__main__":
    main()
