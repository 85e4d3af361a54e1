"""Synchronous replicas are equal to one device: what a property draws of them, and how both are compared.

    @settings(max_examples=examples(100))
    @given(drawn(LOSSES, accumulate=st.integers(1, 3)))
    def test_replicas_are_equal_to_one_device(one: Drawn) -> None:
        require_one_device(alone(one), lambda strategy: trained(strategy, one), one)

Replicas are threads of this process. Losses are means over examples, over weights or masks, or sums; a model,
its data and its losses are those of nbdist or of a framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
from hypothesis import strategies as st

from nbdist.distribute import MultiWorkerMirroredStrategy, ShardedStrategy
from nbdist.errors import InvalidArgumentError
from nbdist.testing import thread_world
from nbdist.testing.strategy import everywhere

STRATEGIES = {
    "multi_worker": MultiWorkerMirroredStrategy,
    "sharded 1": partial(ShardedStrategy, stage=1),
    "sharded 2": partial(ShardedStrategy, stage=2),
    "sharded 3": partial(ShardedStrategy, stage=3),
}
CLASSES, PLACES = 3, 4
IGNORED = -100


class Found(NamedTuple):
    """What a training ends with: the weights in one order, and the mean loss of each epoch."""

    weights: Sequence[Any]
    losses: Sequence[float]


Drawn: TypeAlias = dict[str, Any]
"""An example: ``loss``, ``strategy``, ``workers``, ``rows``, ``size``, ``seed``, and what a test adds."""


def drawn(losses: Iterable[str], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Drawn]:
    """Draw a loss, a strategy and batches, of which the last is uneven and shares may be empty."""
    common = {
        "loss": st.sampled_from(sorted(losses)),
        "strategy": st.sampled_from(sorted(STRATEGIES)),
        "workers": st.integers(1, 4),
        "rows": st.integers(3, 25),
        "size": st.integers(1, 12),
        "seed": st.integers(0, 99),
    }
    return st.fixed_dictionaries(common | more)


def refused_by(strategy: str) -> str:
    """Return what a strategy says to a model that reads all parameters at one time; "" for nothing."""
    return "all parameters at one time: take --stage 2" if strategy == "sharded 3" else ""


def classified(one: Drawn) -> tuple[Any, Any]:
    """Return inputs, and class numbers of examples or of several places of each, of which a part is ignored.

    At least one of each batch counts: one device has no loss where nothing does.
    """
    rng = np.random.default_rng(one["seed"])
    shape = (one["rows"], PLACES) if one["places"] else (one["rows"],)
    targets = rng.integers(0, CLASSES, shape)
    targets[rng.random(shape) < one["ignored"]] = IGNORED
    targets[:: one["size"]] = 1
    return rng.normal(size=(one["rows"], 5)).astype(np.float32), targets


def require_one_device(
    expected: Found, train: Callable[[Any], Found], one: Drawn, refused: str = "", **near: float
) -> None:
    """Require that each replica that trains ends as ``expected``, or that several are refused by a sentence.

    - ``train``: trains under a strategy, in the thread of a replica
    - ``refused``: what the error says where replicas share a batch; "" for a loss that they train by
    - ``near``: the tolerances
    """
    near = near or {"rtol": 2e-4, "atol": 2e-5}
    world = thread_world(lambda place: STRATEGIES[one["strategy"]](world=place), one["workers"])
    if refused and one["workers"] > 1:
        with pytest.raises(InvalidArgumentError, match=refused):
            everywhere(world, lambda strategy, _: train(strategy))
        return
    for found in everywhere(world, lambda strategy, _: train(strategy)):
        np.testing.assert_allclose(found.losses, expected.losses, **near)
        for a, b in zip(found.weights, expected.weights, strict=True):
            np.testing.assert_allclose(a, b, **near)
