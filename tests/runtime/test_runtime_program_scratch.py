"""Programs of one thread share their memory: it is counted once, and refused before it is taken."""

from __future__ import annotations

import numpy as np
import pytest

from nbdist.errors import ResourceExhaustedError
from nbdist.graph.tensor import Graph, placeholder
from nbdist.runtime.session.program import Scratch
from nbdist.runtime.session.session import Session
from nbdist.runtime.session.store import Store


def test_a_slab_serves_all_that_fit_into_it() -> None:
    store = Store()
    scratch = Scratch(store)
    first = scratch.take(np, 1000)
    assert np.shares_memory(scratch.take(np, 600), first)
    assert store.used() == 1000
    larger = scratch.take(np, 5000)
    assert not np.shares_memory(larger, first)
    assert store.used() == 6000
    scratch.close()
    assert store.used() == 0


def test_what_is_over_the_limit_is_refused() -> None:
    store = Store(limit=2000)
    scratch = Scratch(store)
    scratch.take(np, 1500)
    with pytest.raises(ResourceExhaustedError, match=r"1,600 bytes are needed .* 1,500 are taken"):
        scratch.take(np, 1600)
    scratch.take(np, 1500)


def test_runs_of_other_shapes_leave_each_other_alone() -> None:
    with Graph().as_default():
        x = placeholder(np.float64, (None, 4))
        y = np.tanh(x * 2) + np.exp(x)
        with Session() as session:
            batches = [np.full((n, 4), n / 10) for n in (5, 2, 5, 7, 2)]
            found = [session.run(y, {x: batch}) for batch in batches]
            for batch, got in zip(batches, found, strict=True):
                np.testing.assert_allclose(got, np.tanh(batch * 2) + np.exp(batch))
