"""Peer of G1 and g4: images per second of the same training in PyTorch, eager, on one device."""

from __future__ import annotations

import json
import time

from bench import sync_work
from bench.script import need_torch
from bench.torch_data_parallel import network, optimizer_of, tensors_of, weights_of


def main() -> None:
    options = sync_work.options()
    torch, device = need_torch(options.device)
    from torch.nn import CrossEntropyLoss

    work = sync_work.scaled(options)
    x, y = tensors_of(options.work, *work.batches())
    if device != "cpu":  # both sides begin with arrays of the host
        x, y = x.pin_memory(), y.pin_memory()
    model, loss = network(options.work).to(device), CrossEntropyLoss()
    optimizer = optimizer_of(options.work, model)
    begin, weights = 0.0, []
    for step in range(work.warm_up + work.steps):
        if step == work.warm_up:
            weights = [value.copy() for value in weights_of(options.work, model)]
            begin = time.perf_counter()
        images = x[step % len(x)].to(device, non_blocking=True)
        numbers = y[step % len(x)].to(device, non_blocking=True)
        optimizer.zero_grad()
        value = loss(model(images), numbers)
        value.backward()
        optimizer.step()
        value.item()  # both sides report the loss of every step
    if device != "cpu":
        torch.cuda.synchronize()
    print(json.dumps(work.outcome(time.perf_counter() - begin, weights)))


if __name__ == "__main__":
    main()
