"""Peer: the convolutional network's training step in PyTorch, one thread."""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn

from bench import cnn_work as work


def network() -> nn.Sequential:
    """Return the network with the initial weights, with kernels in PyTorch's order."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(9216, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    turned = work.to_channels_first(work.first_weights())
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), turned, strict=True):
            parameter.copy_(torch.from_numpy(value))
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, required=True)
    updates = parser.parse_args().updates
    torch.set_num_threads(1)
    images, labels = work.data()
    # Not contiguous(): with one channel that leaves strides which PyTorch takes for channels last.
    x = torch.from_numpy(images).permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
    y = torch.from_numpy(labels)
    model, loss = network(), nn.CrossEntropyLoss()
    adam = torch.optim.Adam(model.parameters(), work.LEARNING_RATE, eps=work.EPSILON, amsgrad=True)
    begin = 0.0
    for step in range(updates):
        if step == work.WARM_UP:
            begin = time.perf_counter()
        row = work.batch_start(step)
        adam.zero_grad()
        value = loss(model(x[row : row + work.BATCH]), y[row : row + work.BATCH])
        value.backward()
        adam.step()
        value.item()  # both sides report the loss of every step
    per_step = (time.perf_counter() - begin) / (updates - work.WARM_UP)
    weights = work.to_channels_last([p.detach().numpy() for p in model.parameters()])
    print(json.dumps({"value": per_step * 1e3, "check": work.check(updates, weights)}))


if __name__ == "__main__":
    main()
