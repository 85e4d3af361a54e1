"""A sampler of PyTorch that shuffles by its epoch, and what is said when the epoch stays the same."""

from __future__ import annotations

import pytest
from torch.utils.data.distributed import DistributedSampler

from nbdist.frameworks.apart import changes
from nbdist.frameworks.patches import Patches
from nbdist.train.context import Context, use

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize(
    ("shuffle", "set_epoch", "whole", "said"),
    [(True, False, True, 1), (True, True, True, 0), (True, False, False, 0), (False, False, True, 0)],
)
def test_a_pass_in_the_order_of_the_last_one_is_told_of_once(
    capsys: pytest.CaptureFixture[str], shuffle: bool, set_epoch: bool, whole: bool, said: int
) -> None:
    sampler = DistributedSampler(range(10), num_replicas=2, rank=0, shuffle=shuffle)
    with use(Context(quiet=True)), Patches(changes(), pytest.fail):
        for epoch in range(3):
            if set_epoch:
                sampler.set_epoch(epoch)
            order = iter(sampler)
            assert len([next(order) for _ in range(5)]) == 5
            if whole:
                assert next(order, None) is None
    assert capsys.readouterr().out.count("its epoch is still 0: call set_epoch(epoch)") == said
