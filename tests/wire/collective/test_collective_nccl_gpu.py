"""Collectives through the real NCCL, on a machine with a GPU; of one process, because one GPU may be all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from collective_worlds import members

from nbdist.wire.collective import registry
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.nccl import gpu_thread_group


@pytest.mark.gpu
def test_one_rank_on_a_gpu() -> None:
    import cupy

    with registry.form(members(["here"])[0], lambda info: [info], "nccl") as group:
        x = cupy.arange(12, dtype="f4").reshape(4, 3)
        assert group.kind == "nccl"
        for _ in range(40):
            assert (group.all_reduce(x) == x).all()
        assert (group.all_reduce(x.astype("i2"), "sum") == x).all()
        assert (group.reduce_scatter(x, "max") == x).all()
        assert (group.all_gather(x.T)[0] == x.T).all()
        assert (group.broadcast(x[::2]) == x[::2]).all()
        assert group.all_reduce(x, "sum", x) is x


@pytest.mark.gpu
def test_a_thread_for_each_gpu() -> None:
    import cupy

    size = cupy.cuda.runtime.getDeviceCount()

    def work(group: Collective) -> tuple[Any, Any]:
        with cupy.cuda.Device(group.rank), group:
            x = cupy.full(1000, group.rank + 1, "f4")
            totals = [group.all_reduce(x, "sum") for _ in range(40)]
            return totals[-1].get(), group.all_reduce(np.float64(group.rank + 1), "sum")

    with ThreadPoolExecutor(size) as pool:
        groups = gpu_thread_group([f"GPU:{number}" for number in range(size)], range(size))
        for on_gpu, on_host in pool.map(work, groups):
            assert (on_gpu == size * (size + 1) / 2).all()
            assert on_host == size * (size + 1) / 2
