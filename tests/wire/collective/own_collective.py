"""What nbdist's own collectives pass beside `CollectiveContract`: arrays on a GPU, and `peek`.

class TestMine(OwnCollective, CollectiveContract): ...
class TestMine(OwnCollective, PeekContract): ...
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import waiting
from examples import SHARE, examples
from fake_cupy import DeviceArray
from fake_nccl import FakeGpus
from tiers import matrix

from nbdist.errors import AbortedError, InvalidArgumentError, UnavailableError
from nbdist.testing.collective import MISMATCHES, SECONDS, CollectiveContract, World, same
from nbdist.wire.collective.base import Collective

SIZES = (1, 2, 3) if SHARE == 1 else (1, 3)
"""Of groups in which two ranks are no special case: the second tier has two as well."""


class OwnCollective(CollectiveContract):
    """Before the contract: its limits follow the machine's speed, and its examples the tier."""

    def limit(self, seconds: float) -> float:
        return waiting.limit(seconds)

    def examples(self, count: int) -> int:
        return examples(count)

    @pytest.mark.parametrize(
        ("op", "count"),
        matrix([("sum", 100_003), ("mean", 900_001)], rest=[("mean", 100_003), ("sum", 900_001)]),
    )
    def test_large_arrays(self, worlds: Callable[[int], World], count: int, op: str) -> None:
        super().test_large_arrays(worlds, count, op)

    @pytest.mark.parametrize(
        ("mismatch", "odd"),
        matrix(
            [(name, number % 3) for number, name in enumerate(MISMATCHES)],
            rest=[(name, (number + i) % 3) for number, name in enumerate(MISMATCHES) for i in (1, 2)],
        ),
    )
    def test_all_ranks_raise_a_mismatch_that_names_both_calls(
        self, fresh: Callable[..., World], mismatch: str, odd: int
    ) -> None:
        super().test_all_ranks_raise_a_mismatch_that_names_both_calls(fresh, mismatch, odd)

    @pytest.mark.parametrize("kind", matrix([UnavailableError, OSError], rest=[AbortedError]))
    def test_an_error_of_the_abort_check_ends_all_waits(
        self, fresh: Callable[..., World], kind: type[Exception]
    ) -> None:
        super().test_an_error_of_the_abort_check_ends_all_waits(fresh, kind)

    def test_device_arrays_return_device_arrays(
        self, worlds: Callable[[int], World], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "cupy", FakeGpus())
        values = [np.random.default_rng(rank).integers(0, 99, (5, 7)).astype("f4") for rank in range(3)]
        total = np.sum(values, axis=0)

        def on_device(group: Collective) -> list[Any]:
            group = getattr(group, "bare", group)  # without a wrapper that copies host arrays to a GPU
            x, out = DeviceArray(values[group.rank].copy()), DeviceArray(np.empty((5, 7), "f4"))
            assert group.all_reduce(x, "sum", out) is out
            results = [
                out,
                group.all_reduce(x.T, "sum"),
                group.reduce_scatter(x, "sum"),
                group.all_gather(x),
                group.broadcast(x, group.size - 1),
                group.all_reduce(DeviceArray(np.arange(3)), "mean"),
                group.all_reduce(x, "sum", x),
            ]
            assert results[-1] is x
            with pytest.raises(
                InvalidArgumentError, match=r"numpy.ndarray; it has to be float32 \(5, 7\) on"
            ):
                group.all_reduce(x, "sum", np.empty((5, 7), "f4"))
            with pytest.raises(InvalidArgumentError, match=r"cupy\.DeviceArray"):
                group.all_reduce(values[0], "sum", x)
            with pytest.raises(InvalidArgumentError, match=r"is float32 \(7, 5\); it has to be"):
                group.all_reduce(x, "sum", x.T)
            assert all(isinstance(result, DeviceArray) for result in results)
            return [result.get() for result in results]

        for rank, results in enumerate(worlds(3).all(on_device)):
            part = np.array_split(total, 3)[rank]
            wanted = [total, total.T, part, np.stack(values), values[-1], np.arange(3.0), total]
            assert [same(one, other) for one, other in zip(results, wanted)] == [True] * len(wanted), results


class PeekContract(CollectiveContract):
    """Tests of groups that can be the control group of NCCL: `peek` shows the state of the others."""

    def test_peek_shows_that_a_rank_waits_or_has_left(self, fresh: Callable[..., World]) -> None:
        world = fresh(3)
        assert world.all(lambda group: group.barrier()) == [None] * 3
        seen: set[str] = set()

        def look(group: Collective) -> None:
            deadline = time.monotonic() + SECONDS
            while group.rank and not seen and time.monotonic() < deadline:
                seen.add(group.peek())
                seen.discard("")
            group.barrier()

        assert world.all(look) == [None] * 3
        assert seen == {"waits"}
        world.ranks[0].close()
        deadline = time.monotonic() + SECONDS
        while "left" not in seen and time.monotonic() < deadline:
            seen |= {group.peek() for group in world.ranks[1:]}
        assert "left" in seen
