"""Weights of a module as arrays by name, which a module of the notebook loads."""

from __future__ import annotations

import pytest
import torch

from nbdist.frameworks.torch.weights import StateDict, state_of

pytestmark = pytest.mark.frameworks


def test_a_module_loads_the_weights_that_come_home() -> None:
    made = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    made[1].num_batches_tracked.add_(3)
    weights = StateDict(state_of(made))
    other = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    other.load_state_dict(weights)
    for name, value in made.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    assert repr(weights["1.bias"]) == "array([0., 0.], dtype=float32)"
