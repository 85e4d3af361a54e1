"""Collectives through the real NCCL, on a machine with a GPU; one rank, because one GPU may be all."""

from __future__ import annotations

import pytest
from collective_worlds import members

from nbdist.wire.collective import registry


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
