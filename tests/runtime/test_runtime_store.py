"""What a task keeps: variables by container and name, and how much memory they may take."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE

from nbdist.errors import InvalidArgumentError, ResourceExhaustedError
from nbdist.graph.op import Spec
from nbdist.runtime.session.store import Cell, Store

FOUR = Spec((2, 2), np.dtype(np.float32))


def test_one_name_is_one_memory() -> None:
    store = Store()
    cell = store.cell("ps", "w", FOUR)
    assert (cell.array.shape, cell.array.dtype, cell.ready) == ((2, 2), np.float32, False)
    assert store.cell("ps", "w", FOUR) is cell
    others = [store.cell("ps", "v", FOUR), store.cell("x", "w", FOUR), store.cell("ps", "w", FOUR, "CPU:1")]
    assert len({id(one) for one in (cell, *others)}) == 4
    assert store.used() == 4 * 16


@pytest.mark.parametrize("spec", [Spec((4,), np.dtype(np.float32)), Spec((2, 2), np.dtype(np.float64))])
def test_another_shape_or_dtype_is_refused_and_both_are_said(spec: Spec) -> None:
    store = Store()
    store.cell("ps", "w", FOUR)
    with pytest.raises(InvalidArgumentError) as caught:
        store.cell("ps", "w", spec)
    shape = "(4,)" if spec.shape == (4,) else "(2, 2)"
    for words in ("'w' in container 'ps'", "float32 (2, 2) here", f"{spec.dtype} {shape} in this graph"):
        assert words in str(caught.value)
    assert "Session.reset" in str(caught.value)


def test_names_by_container_and_readiness() -> None:
    store = Store()
    store.cell("ps", "w", FOUR).ready = True
    store.cell("ps", "v", FOUR)
    store.cell("x", "u", FOUR).ready = True
    assert store.names() == ["w", "v", "u"]
    assert store.names("ps") == ["w", "v"]
    assert store.names("ps", ready=True) == ["w"]
    assert store.names(ready=True) == ["w", "u"]


def test_a_reset_empties_the_containers_that_it_names_or_all() -> None:
    store = Store()
    for name in "abc":
        store.cell(name, "w", FOUR)
    kept = store.cell("c", "w", FOUR)
    store.reset(["a", "nothing of this name"])
    assert (len(store.names()), store.resets) == (2, 1)
    assert store.cell("c", "w", FOUR) is kept
    store.reset([])
    assert (store.names(), store.resets, store.used()) == ([], 2, 0)
    assert store.cell("c", "w", FOUR) is not kept


def test_isolated_variables_go_by_their_prefix() -> None:
    store = Store()
    store.cell("isolated-1/ps", "w", FOUR)
    store.cell("isolated-2/ps", "w", FOUR)
    store.drop_all("isolated-1/")
    assert store.names("isolated-2/ps") == ["w"]
    assert store.names("isolated-1/ps") == []
    assert store.resets == 0


def test_a_limit_holds_for_variables_and_programs_together() -> None:
    store = Store(limit=64)
    store.cell("ps", "w", FOUR)
    store.take("program", 32, "a program")
    store.take("program", 16, "a program")
    with pytest.raises(
        ResourceExhaustedError, match=r"16 bytes .* variable 'v' \(2, 2\) float32.* 64 .* 64 .*"
    ):
        store.cell("ps", "v", FOUR)
    with pytest.raises(ResourceExhaustedError, match="another program"):
        store.take("other", 1, "another program")
    assert store.cell("ps", "w", FOUR) is not None  # that one is there
    store.give_back("program")
    store.give_back("unknown")
    store.cell("ps", "v", FOUR)
    assert store.used() == 32


def test_many_threads_make_one_cell() -> None:
    store, meet, found = Store(), threading.Barrier(8), []

    def ask() -> None:
        meet.wait(PATIENCE)
        found.append(store.cell("ps", "w", Spec((100, 100), np.dtype(np.float64))))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cells: set[Any] = set(found)
    assert len(found) == 8
    assert len(cells) == 1
    assert isinstance(found[0], Cell)
