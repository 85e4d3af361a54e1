"""NCCL between threads of one process with a GPU each, with a fake of CuPy and NCCL: no GPU has run this."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from fake_cupy import Device, DeviceArray, FakeCupy, Stream, counts
from fake_nccl import FakeNccl, NcclError
from waiting import limit, until

from nbdist.errors import AbortedError, InvalidArgumentError, UnavailableError
from nbdist.testing.collective import Work, World
from nbdist.wire.collective import nccl
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.call import describe
from nbdist.wire.collective.local import thread_group
from nbdist.wire.collective.nccl import gpu_thread_group


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNccl]:
    found = FakeNccl()
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(3))
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", found)
    monkeypatch.delenv(nccl.INTERFACE, raising=False)
    monkeypatch.setattr(nccl, "_chosen", [])
    yield found
    found.release()


GPUS = [2, 0, 1]


class GpuThreads(World):
    """A world of threads, each of which works for its GPU."""

    def __init__(self) -> None:
        super().__init__(gpu_thread_group("abc", GPUS))

    def each(self, works: Sequence[Work]) -> list[Any]:
        def there(group: Collective, work: Work) -> Any:
            with Device(GPUS[group.rank]):
                return work(group)

        return super().each([partial(there, work=work) for work in works])


@pytest.fixture
def world(fake: FakeNccl) -> Iterator[World]:
    made = GpuThreads()
    yield made
    made.close()
    assert fake.clashes == [], "values moved on which not all agreed"
    until(lambda: all(one.aborted or one.destroyed for one in fake.communicators))  # in threads


def calls(group: Collective, xp: Any) -> list[Any]:
    """Results of each call, of arrays of a module."""
    rng = np.random.default_rng(group.rank)
    x = xp.asarray(rng.integers(0, 99, (5, 7)).astype("f4"))
    return [
        group.all_reduce(x, "sum"),
        group.all_reduce(x.T, "mean"),
        group.all_reduce(x > 50, "max"),
        group.reduce_scatter(x, "sum"),
        group.all_gather(x),
        group.broadcast(x, 1),
        group.all_reduce(xp.asarray(np.arange(3, dtype="i2")), "sum"),
        group.all_reduce(np.float32(group.rank), "sum"),
        group.all_reduce(x, "sum", x),
    ]


def test_the_results_are_those_of_the_host(world: World, fake: FakeNccl) -> None:
    host, cupy = World(thread_group("abc")), sys.modules["cupy"]
    expected = host.all(lambda group: calls(group, np))
    for rank, results in enumerate(world.all(lambda group: calls(group, cupy))):
        for found, wanted in zip(results, expected[rank], strict=True):
            if isinstance(found, DeviceArray):
                assert found.number == GPUS[rank]
            np.testing.assert_allclose(getattr(found, "host", found), wanted, rtol=1e-6)
    assert fake.calls >= 7
    host.close()


def reduce_steps(group: Collective, count: int = 20) -> DeviceArray:
    x = DeviceArray(np.ones(5, "f4"))
    for _ in range(count):
        group.all_reduce(x, "max", x)
    return x


def waiting(world: World, then: Work) -> list[Any]:
    """Two ranks wait on their GPUs for the third, which does something else."""

    def work(group: Collective) -> Any:
        x = reduce_steps(group)
        return then(group) if group.rank == 2 else group.all_reduce(x, "max", x)

    begun = time.monotonic()
    results = world.all(work)
    assert time.monotonic() - begun < limit(5.0)
    return results[:2]


def test_an_abort_frees_threads_that_wait_for_their_gpus(world: World, fake: FakeNccl) -> None:
    for result in waiting(world, lambda group: group.abort("out of data")):
        assert isinstance(result, AbortedError), result
        assert "rank 2 (c) aborted: out of data" in str(result)
    assert [one.aborted for one in fake.communicators].count(True) >= 2


def test_a_thread_that_leaves_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "GRACE_SECONDS", 0.2)
    for result in waiting(world, lambda group: group.close()):
        assert isinstance(result, UnavailableError), result
        assert "rank 2 (c) has left the group: all_reduce(op='max'" in str(result)


def test_a_thread_that_makes_another_call_is_named(world: World) -> None:
    for result in waiting(world, lambda group: group.all_gather(np.ones(3))):
        assert isinstance(result, InvalidArgumentError), result
        assert "rank 2 (c) calls all_gather(dtype=float64, shape=(3,))" in str(result)


def test_an_abort_frees_threads_that_connect(world: World) -> None:
    """NCCL waits for all ranks there, and nothing can cancel it."""

    call = describe("all_reduce", (5,), np.dtype("f4"), 3, "sum")

    def work(group: Collective) -> Any:
        if group.rank == 2:
            control = group._control  # type: ignore[attr-defined]
            control.all_gather(nccl.to_record(1, f"{call.text} on GPUs"))
            control.broadcast(np.zeros(nccl.UNIQUE_ID_BYTES, np.uint8))
            group.abort("no memory")
            return None
        return group.all_reduce(DeviceArray(np.ones(5, "f4")), "sum")

    for result in world.all(work)[:2]:
        assert isinstance(result, AbortedError), result


def test_groups_that_nothing_closes_are_aborted(fake: FakeNccl) -> None:
    made = GpuThreads()
    made.all(lambda group: reduce_steps(group, 1))
    del made
    gc.collect()
    assert [one.aborted for one in fake.communicators] == [True] * 3


def test_memory_of_another_gpu_is_refused(world: World) -> None:
    def foreign(group: Collective) -> Any:
        return group.all_reduce(DeviceArray(np.ones(3), number=(GPUS[group.rank] + 1) % 3))

    for result in world.all(foreign):
        assert isinstance(result, InvalidArgumentError)
        assert "formed its group on GPU" in str(result)


def test_the_fake_judges_calls_as_nccl_does(world: World, fake: FakeNccl) -> None:
    world.all(reduce_steps)
    one = min(fake.communicators, key=lambda each: each._rank)
    with Device(GPUS[0]):
        mine, stream = DeviceArray(np.ones(4, "f4")), Stream()
    with Device(GPUS[1]):
        other = DeviceArray(np.ones(4, "f4"))
        elsewhere = Stream()
    kind, at = fake.NCCL_FLOAT32, mine.data.ptr  # type: ignore[attr-defined]
    with pytest.raises(NcclError, match="memory of GPU 0, the communicator is on 2"):
        one.allReduce(at, other.data.ptr, 4, kind, fake.NCCL_SUM, stream.ptr)
    with pytest.raises(NcclError, match="on a stream of GPU 0"):
        one.allReduce(at, at, 4, kind, fake.NCCL_SUM, elsewhere.ptr)
    with pytest.raises(AssertionError, match="20 bytes, the array has 16"):
        one.allReduce(at, at, 5, kind, fake.NCCL_SUM, stream.ptr)
    with pytest.raises(NcclError, match="INVALID_ARGUMENT"):
        one.broadcast(at, at, 4, kind, 3, stream.ptr)
    with pytest.raises(TypeError):
        one.allReduce(at, at, 4.0, kind, fake.NCCL_SUM, stream.ptr)  # type: ignore[arg-type]


def test_threads_that_share_a_gpu_and_a_missing_nccl_are_named(
    fake: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnavailableError, match=r"rank 0 \(a\) and rank 2 \(c\) share GPU 0000:01"):
        gpu_thread_group("abc", [1, 0, 1])
    monkeypatch.setattr(FakeNccl, "available", False)
    with pytest.raises(UnavailableError, match="CuPy finds no NCCL"):
        gpu_thread_group("ab", [0, 1])


def test_one_rank_alone_keeps_arrays_on_its_gpu(fake: FakeNccl) -> None:
    counts.clear()
    (group,), x = thread_group("a"), DeviceArray(np.arange(6).reshape(2, 3))
    assert group.all_reduce(x, "sum", x) is x
    found = [group.all_reduce(x), group.all_gather(x), group.reduce_scatter(x, "max"), group.broadcast(x)]
    assert counts["host wait"] == 0
    for one, wanted in zip(found, [x.host * 1.0, x.host[None], x.host, x.host], strict=True):
        assert one is not x
        np.testing.assert_array_equal(one.get(), wanted)
        assert one.dtype == wanted.dtype
