"""Peer of P3, P4 and g3: PyTorch's DistributedDataParallel over gloo, or NCCL on GPUs; a process per worker.

Prints images per second of both workers together.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from argparse import Namespace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.script import need_torch, not_measured
from bench.sync_work import WORKERS, WORKS, options, scaled


def main() -> None:
    given = options()
    torch, device = need_torch(given.device)
    if device != "cpu" and torch.cuda.device_count() < WORKERS:
        raise not_measured(
            f"{WORKERS} workers need {WORKERS} GPUs, and torch has {torch.cuda.device_count()}"
        )
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            processes.Process(target=train, args=(given, rank, folder, there)) for rank in range(WORKERS)
        ]
        for one in ranks:
            one.start()
        there.close()  # so that nothing is waited for when all workers have failed
        outcome = here.recv()
        for one in ranks:
            one.join()
    print(json.dumps(outcome))


def train(given: Namespace, rank: int, folder: str, pipe: Connection) -> None:
    """Be one worker; the first sends the outcome."""
    torch, device = need_torch(given.device.replace("GPU:0", f"GPU:{rank}"))
    import torch.distributed as dist

    if device != "cpu":
        torch.cuda.set_device(device)
    backend, store = "gloo" if device == "cpu" else "nccl", f"file://{Path(folder) / 'store'}"
    dist.init_process_group(backend, store, rank=rank, world_size=WORKERS)
    outcome = measured(given, rank, device)
    if rank == 0:
        pipe.send(outcome)
    dist.destroy_process_group()


def measured(given: Namespace, rank: int, device: str) -> dict[str, Any]:
    """Train with DistributedDataParallel in a process group that is open; return the outcome."""
    import torch.distributed as dist
    from torch.nn import CrossEntropyLoss
    from torch.nn.parallel import DistributedDataParallel

    work, name = scaled(given), given.work
    x, y = tensors_of(name, *work.share(rank))
    if device != "cpu":
        x, y = x.pin_memory(), y.pin_memory()
    model, loss = network(name).to(device), CrossEntropyLoss()
    optimizer = optimizer_of(name, model)
    parallel = DistributedDataParallel(model)
    begin = 0.0
    for step in range(work.warm_up + work.steps):
        if step == work.warm_up:
            dist.barrier()
            begin = time.perf_counter()
        batch = step % len(x)
        optimizer.zero_grad()
        images, numbers = (part[batch].to(device, non_blocking=True) for part in (x, y))
        value = loss(parallel(images), numbers)
        value.backward()
        optimizer.step()
        value.item()  # all sides report the loss of every step
    dist.barrier()
    seconds = time.perf_counter() - begin
    return work.outcome(seconds, weights_of(name, model))


def tensors_of(name: str, images: Any, numbers: Any) -> tuple[Any, Any]:
    """Return batches as PyTorch takes them."""
    import torch

    x, y = torch.from_numpy(images), torch.from_numpy(numbers)
    if name == "cnn":
        # Not contiguous(): with one channel that leaves strides which PyTorch takes for channels last.
        x = x.permute(0, 1, 4, 2, 3).clone(memory_format=torch.contiguous_format)
    return x, y


def network(name: str) -> Any:
    """Return the network with the first weights."""
    import torch
    from torch import nn

    from bench import torch_cnn

    if name == "cnn":
        return torch_cnn.network()
    model = nn.Sequential(nn.Linear(784, 100), nn.Sigmoid(), nn.Linear(100, 10))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), WORKS[name].first_weights(), strict=True):
            parameter.copy_(torch.from_numpy(value.T))
    return model


def optimizer_of(name: str, model: Any) -> Any:
    """Return the optimizer of this work."""
    import torch

    from bench.cnn_work import EPSILON

    rate = WORKS[name].learning_rate
    if name == "cnn":
        return torch.optim.Adam(model.parameters(), rate, eps=EPSILON, amsgrad=True)
    return torch.optim.SGD(model.parameters(), rate)


def weights_of(name: str, model: Any) -> list[Any]:
    """Return the weights in the order and the layout of the first weights."""
    return in_our_layout(name, [p.detach().cpu().numpy() for p in model.parameters()])


def in_our_layout(name: str, found: list[Any]) -> list[Any]:
    """Return PyTorch's arrays in the order and the layout of the first weights."""
    from bench.cnn_work import to_channels_last

    return to_channels_last(found) if name == "cnn" else [value.T for value in found]


if __name__ == "__main__":
    main()
