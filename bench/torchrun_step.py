"""Peer: one data-parallel step over gloo, in a process that torchrun has started; it prints its rank."""

from __future__ import annotations

import os

os.environ["GLOO_SOCKET_IFNAME"] = "eth0"

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
labels = torch.arange(8) % 10
torch.nn.functional.cross_entropy(model(torch.ones(8, 4)), labels).backward()
optimizer.step()
print(dist.get_rank(), flush=True)
dist.destroy_process_group()
