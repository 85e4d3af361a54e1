"""Collectives through NCCL, with a fake of it (fake_nccl.py): no GPU has run these tests.

They test the logic: the NCCL calls and their arguments, the comparison of calls before them, and that a rank
that waits for its GPU detects failures of the others. test_collective_nccl_gpu.py tests the real NCCL.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import fake_nccl
import numpy as np
import pytest
from collective_worlds import members
from fake_cupy import DeviceArray
from fake_nccl import FakeGpus
from hypothesis import given
from hypothesis import strategies as st
from own_collective import SIZES, OwnCollective
from test_collective_registry import Table, formed_by_all
from waiting import limit, until

from nbdist.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    MissingExtra,
    NbdistError,
    UnavailableError,
)
from nbdist.testing.collective import CollectiveContract, World, same
from nbdist.wire.collective import nccl, registry
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.call import CollectiveCall, describe
from nbdist.wire.collective.nccl import CallHistory, NcclFormat, nccl_format


@pytest.fixture(scope="class", autouse=True)
def gpus() -> Iterator[FakeGpus]:
    fake = FakeGpus()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", fake)
        patch.setattr(nccl, "_cupy", lambda: fake)
        patch.setitem(sys.modules, "cupy.cuda.nccl", fake.nccl)
        patch.setattr(nccl, "SPINS", 20)  # the ranks share an interpreter here
        yield fake
        assert fake.nccl.clashes == [], "values moved on which not all agreed"


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(nccl.INTERFACE, raising=False)
    monkeypatch.setattr(nccl, "_chosen", [])


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    entries = {
        "lo": [SimpleNamespace(address="127.0.0.1")],
        "eth7": [SimpleNamespace(address="10.1.2.3"), SimpleNamespace(address="fe80::1%eth7")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: entries)


@pytest.mark.usefixtures("interfaces")
def test_the_network_interface_is_chosen_before_nccl_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl.choose_interface(["here", "here"], "10.1.2.3")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"
    nccl.choose_interface(["here"], "10.1.2.3")
    nccl.choose_interface(["here", "there"], "127.0.0.1")
    with pytest.raises(FailedPreconditionError, match="group of 2 hosts needs eth7; set NCCL_SOCKET_IFNAME"):
        nccl.choose_interface(["here", "there"], "10.1.2.3")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")  # the user's setting stays
    nccl.choose_interface(["here", "there"], "10.1.2.3")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0"


@pytest.mark.usefixtures("interfaces")
def test_on_several_hosts_the_interface_has_the_bound_address() -> None:
    nccl.choose_interface(["here", "there"], "10.1.2.3")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=eth7"
    assert nccl.interface_of("fe80::1") == "eth7"
    with pytest.raises(UnavailableError, match=r"no interface of this host has the address 10\.9\.9\.9"):
        nccl.interface_of("10.9.9.9")


def test_a_group_on_one_host_sets_the_loopback(gpus: FakeGpus) -> None:
    groups = formed(["here"] * 2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda group: group.all_reduce(DeviceArray(np.ones(3, "f4"))), groups))
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"


def formed(hosts: Sequence[str], kind: str = "nccl", **options: Any) -> list[Collective]:
    return formed_by_all(members(hosts, **options), kind=kind)


class OnDevice:
    """A wrapper of a group that copies host arrays to a GPU for each call."""

    def __init__(self, group: Collective) -> None:
        self.bare = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bare, name)

    def __enter__(self) -> OnDevice:
        return self

    def __exit__(self, *error: Any) -> None:
        self.bare.__exit__(*error)

    def all_reduce(self, x: Any, op: str = "mean", out: Any = None) -> Any:
        return self._do(self.bare.all_reduce, x, out, op)

    def reduce_scatter(self, x: Any, op: str = "mean", out: Any = None) -> Any:
        return self._do(self.bare.reduce_scatter, x, out, op)

    def all_gather(self, x: Any, out: Any = None) -> Any:
        return self._do(self.bare.all_gather, x, out)

    def broadcast(self, x: Any, root: int = 0, out: Any = None) -> Any:
        return self._do(self.bare.broadcast, x, out, root)

    def _do(self, call: Any, x: Any, out: Any, *order: Any) -> Any:
        if isinstance(x, DeviceArray):
            return call(x, *order, *([] if out is None else [out]))
        x = np.asarray(x)
        if x.dtype.kind not in "biufc":
            return call(x, *order)
        there = DeviceArray(x.astype(x.dtype.newbyteorder("="), copy=False))
        if out is None:
            return call(there, *order).get()
        call(there, *order, DeviceArray(out) if isinstance(out, np.ndarray) else out)
        return out


class TestNcclInHostMemory(OwnCollective, CollectiveContract):
    """NumPy arrays use the control group."""

    sizes = SIZES

    def make_world(self, size: int, **options: Any) -> Sequence[Collective]:
        return formed(["here"] * size, **options)


class TestNccl(OwnCollective, CollectiveContract):
    sizes, ordered = SIZES, False

    def make_world(self, size: int, **options: Any) -> Sequence[Collective]:
        return [OnDevice(group) for group in formed(["here"] * size, **options)]  # type: ignore[misc]


class TestNcclBetweenHosts:
    """With a ring and with a hierarchy as the control group."""

    @pytest.mark.parametrize("hosts", [["a", "b", "c"], ["a", "b", "a"]])
    def test_a_rank_that_makes_another_call_is_named(self, hosts: list[str]) -> None:
        world = World(formed(hosts))
        check_deviation(world, odd=1)
        world.close()


def steps(group: Collective, count: int, x: DeviceArray) -> None:
    for _ in range(count):
        group.all_reduce(x, "max", x)


def check_deviation(world: World, odd: int) -> None:
    """All ranks expect the same call and one makes another: no value moves and all ranks raise."""
    ones = np.ones(5, "f4")

    def deviate(group: Collective) -> Any:
        x = DeviceArray(ones * (group.rank + 1))
        steps(group, 40, x)
        asked = group.sequence
        if group.rank == odd:
            return group.all_reduce(DeviceArray(np.ones(6, "f4")), "max")
        return group.all_reduce(x, "max", x), asked

    for result in world.all(deviate):
        assert isinstance(result, InvalidArgumentError), result
        assert f"rank {odd} (" in str(result)
        assert "shape=(6,)" in str(result)
        assert "shape=(5,)" in str(result)
        assert "collective #41" in str(result)


class TestAgreement:
    @pytest.mark.parametrize("odd", [0, 1, 2])
    def test_all_ranks_name_a_rank_that_makes_an_unexpected_call(self, odd: int) -> None:
        world = World(formed(["here"] * 3))
        check_deviation(world, odd)
        world.close()

    def test_repeated_steps_need_no_comparison(self) -> None:
        world = World(formed(["here"] * 2))

        def train(group: Any) -> list[int]:
            asked = []
            for _ in range(12):
                before = group._control.sequence
                for count in (3, 3, 3, 7):
                    group.all_reduce(DeviceArray(np.ones(count, "f4")), "sum")
                asked.append(group._control.sequence - before)
            return asked

        one, other = world.all(train)
        assert sum(one) == sum(other)
        assert one[-3:] == other[-3:]
        # Four calls and the name of the communicator. A slow rank takes part in a second comparison.
        assert one[0] >= 5
        assert one[-3:] == [0, 0, 0]
        world.close()

    @pytest.mark.parametrize("hosts", [["here"] * 2, ["a", "b"]], ids=str)
    def test_calls_in_host_memory_cost_what_they_do_without_gpus(self, hosts: list[str]) -> None:
        """Only the first one after a call on GPUs is compared; arrays in shared memory are not copied."""
        world = World(formed(hosts))

        def mix(group: Any) -> list[int]:
            group.all_reduce(DeviceArray(np.ones(3, "f4")), "sum")
            buffer = group.symmetric_buffer((40_000,), np.float32)
            asked = []
            for number in range(4):
                before = group._control.sequence
                buffer[:] = group.rank + number
                assert group.all_reduce(buffer, "sum", buffer)[0] == 1 + 2 * number
                group.barrier()
                asked.append(group._control.sequence - before)
                if number == 2:
                    group.all_reduce(DeviceArray(np.ones(3, "f4")), "sum")
            if group._control.kind == "shm":
                call = CollectiveCall("all_reduce", buffer.shape, buffer.dtype, group.size, "sum")
                assert group._control._buffers.find(call, buffer, buffer) is not None
            return asked

        one, other = world.all(mix)
        assert one[:3] == other[:3] == [2, 2, 2]
        assert one[3] >= 3  # and a rank that still waits for its GPU takes part in a comparison
        world.close()

    @pytest.mark.parametrize("odd", [0, 1])
    def test_a_call_on_gpus_among_calls_in_host_memory_is_named(self, odd: int) -> None:
        world = World(formed(["here"] * 2))

        def deviate(group: Collective) -> Any:
            x = np.ones(5, "f4")
            group.all_reduce(x, "max")
            group.all_reduce(x, "max")
            return group.all_reduce(DeviceArray(x) if group.rank == odd else x, "max")

        for result in world.all(deviate):
            assert isinstance(result, InvalidArgumentError), result
            assert f"rank {odd} (" in str(result)
            assert "on GPUs" in str(result)
            assert "shape=(5,)" in str(result)
            assert "collective #3" in str(result)
        world.close()

    def test_calls_on_host_arrays_barriers_and_calls_on_gpus_alternate(self) -> None:
        world = World(formed(["here"] * 3))

        def mix(group: Collective) -> list[float]:
            found = []
            for number in range(30):
                x = np.full(4, group.rank + number, "f4")
                found.append(float(group.all_reduce(DeviceArray(x), "sum").get()[0]))
                if number % 3:
                    group.barrier()
                if number % 7 == 0:
                    found.append(float(group.all_reduce(x, "sum")[0]))
            return found

        results = world.all(mix)
        assert results[0] == results[1] == results[2]
        assert results[0][:3] == [3.0, 3.0, 6.0]
        world.close()

    @given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 3))
    def test_expectations_depend_only_on_the_calls(self, calls: list[int], more: int) -> None:
        one, other = CallHistory(), CallHistory()
        for call in calls:
            assert one.expects(call) == other.expects(call)
            assert sum(one.expects(any_call) for any_call in range(4)) <= 1
            one.note(call)
            other.note(call)

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
    def test_all_calls_of_a_repeated_step_are_expected(self, step: list[int]) -> None:
        history = CallHistory()
        for call in step * 20:
            history.note(call)
        for call in step:
            assert history.expects(call)
            history.note(call)


class TestWaiting:
    def wait(self, world: World, then: Any) -> list[Any]:
        """Two ranks wait on their GPUs for a third, which makes another call."""

        def work(group: Collective) -> Any:
            x = DeviceArray(np.ones(5, "f4"))
            steps(group, 20, x)
            return then(group) if group.rank == 2 else group.all_reduce(x, "max", x)

        begun = time.monotonic()
        results = world.all(work)
        assert time.monotonic() - begun < limit(5.0)
        return results[:2]

    def test_an_abort_ends_the_work_of_ranks_that_wait_for_their_gpus(self) -> None:
        world = World(formed(["here"] * 3))
        communicators: list[Any] = [None] * 3

        def abort(group: Any) -> None:
            for rank, one in enumerate(world.ranks):
                communicators[rank] = one._communicator  # type: ignore[attr-defined]
            group.abort("out of data")

        for result in self.wait(world, abort):
            assert isinstance(result, AbortedError), result
            assert "rank 2 (" in str(result)
            assert "out of data" in str(result)
        assert [one.aborted for one in communicators[:2]] == [True, True]
        world.close()

    def test_ranks_do_not_wait_for_a_rank_that_leaves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nccl, "GRACE_SECONDS", 0.2)
        world = World(formed(["here"] * 3))
        for result in self.wait(world, lambda group: group.close()):
            assert isinstance(result, UnavailableError), result
            assert "rank 2 (" in str(result)
        world.close()

    def test_the_abort_check_ends_the_wait(self) -> None:
        flag, raised = threading.Event(), AbortedError("the run was ended")

        def check() -> None:
            if flag.is_set():
                raise raised

        world = World(formed(["here"] * 3, check=check))
        for result in self.wait(world, lambda group: flag.set()):
            assert isinstance(result, AbortedError), result
            assert "the run was ended" in str(result)
        world.close()

    def test_a_call_has_a_time_limit(self) -> None:
        world = World(formed(["here"] * 3, timeout=0.3))
        results = self.wait(world, lambda group: None)
        assert all(isinstance(result, NbdistError) for result in results), results
        assert any(isinstance(result, DeadlineExceededError) for result in results), results
        world.close()

    def test_ranks_do_not_wait_for_one_that_fails_before_nccl_is_set_up(
        self, gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """NCCL's initialization cannot be cancelled; it waits on, and later groups are not affected."""
        world, names, make = World(formed(["here"] * 3)), [], gpus.nccl.get_unique_id

        def unique_id() -> bytes:
            names.append(make())
            return names[-1]

        monkeypatch.setattr(gpus.nccl, "get_unique_id", unique_id)

        def fail() -> None:
            world.ranks[2]._control.broadcast(np.zeros(128, np.uint8), 0)  # type: ignore[attr-defined]
            raise MemoryError("no room for a communicator")

        world.ranks[2]._connect = fail  # type: ignore[attr-defined]
        begun = time.monotonic()
        results = world.all(lambda group: group.all_reduce(DeviceArray(np.ones(5, "f4"))))
        assert time.monotonic() - begun < limit(2.0)
        assert isinstance(results[2], MemoryError)
        for result in results[:2]:
            assert isinstance(result, NbdistError), result
            assert "rank 2 (" in str(result)
        world.close()
        again = World(formed(["here"] * 3))
        sums = again.all(lambda group: group.all_reduce(DeviceArray(np.ones(5, "f4")), "sum").get())
        for total in sums:
            np.testing.assert_array_equal(total, np.full(5, 3, "f4"))
        again.close()
        gpus.nccl.NcclCommunicator(3, names[0], 2)  # late: the first group's communicators are complete now

        def aborted() -> set[int]:
            return {one._rank for one in gpus.nccl.communicators if one._name == names[0] and one.aborted}

        until(lambda: aborted() == {0, 1})

    def test_an_error_of_nccl_reaches_all_ranks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = World(formed(["here"] * 3))

        def fail(*call: Any) -> None:
            raise fake_nccl.NcclError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")

        def break_own(group: Any) -> Any:
            monkeypatch.setattr(group._communicator, "allReduce", fail)
            return group.all_reduce(DeviceArray(np.ones(5, "f4")), "max")

        for result in self.wait(world, break_own):
            assert isinstance(result, UnavailableError), result
            assert "NCCL failed on rank 2 (" in str(result)
            assert "NCCL_ERROR_SYSTEM_ERROR" in str(result)
        world.close()


class TestChoosing:
    def test_auto_uses_nccl_if_each_rank_has_a_gpu(self) -> None:
        groups = formed(["here"] * 2, "auto")
        assert [group.kind for group in groups] == ["nccl"] * 2
        for group in groups:
            group.close()

    def test_auto_does_not_use_nccl_if_ranks_share_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fake_nccl.Device, "pci_bus_id", "0000:17")
        groups = formed(["here"] * 2, "auto")
        assert [group.kind for group in groups] == ["shm"] * 2
        with pytest.raises(UnavailableError, match=r"rank 0 \(.*\) and rank 1 \(.*\) share GPU 0000:17"):
            formed(["here"] * 2)
        for group in groups:
            group.close()

    def test_gpus_of_two_hosts_may_have_equal_bus_ids(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fake_nccl.Device, "pci_bus_id", "0000:17")
        groups = formed(["one", "other"], "auto")
        assert [group.kind for group in groups] == ["nccl"] * 2
        for group in groups:
            group.close()

    def test_auto_does_not_use_nccl_if_one_rank_has_no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here, turns = nccl.gpu_here, iter([True, False, True])

        def some() -> nccl.CupyDevice:
            if next(turns):
                return here()
            raise UnavailableError("CuPy finds no GPU")

        monkeypatch.setattr(nccl, "gpu_here", some)
        groups = formed(["here"] * 3, "auto")
        assert [group.kind for group in groups] == ["shm"] * 3
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(lambda group: group.all_reduce(1, "sum"), groups)) == [3] * 3
        for group in groups:
            group.close()

    def test_cupy_is_not_loaded_if_no_gpu_is_visible(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        monkeypatch.setattr(nccl, "gpu_here", lambda: 1 / 0)
        groups = formed(["here"] * 2, "auto")
        assert [group.kind for group in groups] == ["shm"] * 2
        for group in groups:
            group.close()

    def test_a_missing_nccl_or_gpu_is_named(self, gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gpus.nccl, "available", False)
        with pytest.raises(UnavailableError, match="CuPy finds no NCCL; install"):
            formed(["here"] * 2)
        monkeypatch.undo()
        monkeypatch.setattr(gpus, "devices", 0)
        with pytest.raises(UnavailableError, match="CuPy finds no GPU; check nvidia-smi"):
            formed(["here"] * 2)

    def test_missing_cupy_raises_missing_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing() -> Any:
            raise MissingExtra("gpu", "NCCL")

        monkeypatch.setattr(nccl, "_cupy", missing)
        with pytest.raises(MissingExtra, match=r'pip install "nbdist\[gpu\]"'):
            formed(["here"] * 2)

    def test_all_ranks_raise_if_one_rank_lacks_nccl(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first, here = threading.Lock(), nccl.gpu_here

        def all_but_one() -> nccl.CupyDevice:
            if first.acquire(blocking=False):
                raise MissingExtra("gpu", "NCCL")
            return here()

        monkeypatch.setattr(nccl, "gpu_here", all_but_one)
        table = Table(2)

        def try_one(member: Any) -> NbdistError:
            with pytest.raises(NbdistError, match=r'pip install "nbdist\[gpu\]"') as raised:
                registry.form(member, table.exchange(member.rank), "nccl")
            return raised.value

        with ThreadPoolExecutor(2) as pool:
            errors = {type(error) for error in pool.map(try_one, members(["here"] * 2))}
        assert errors == {MissingExtra, UnavailableError}

    def test_an_array_on_another_gpu_is_refused(self) -> None:
        world = World(formed(["here"] * 2))
        there = DeviceArray(np.ones(3))
        there.number = 1
        for result in world.all(lambda group: group.all_reduce(there)):
            assert isinstance(result, InvalidArgumentError)
            assert "of an array on GPU 1" in str(result)
        assert all(
            same(one.get(), np.ones(3)) for one in world.all(lambda g: g.all_reduce(DeviceArray(np.ones(3))))
        )
        world.close()


class TestNcclFormat:
    @pytest.mark.parametrize(
        ("dtype", "op", "wanted"),
        [
            ("f4", "sum", NcclFormat("NCCL_FLOAT32", 1, "NCCL_SUM")),
            ("f2", "mean", NcclFormat("NCCL_FLOAT32", 1, "NCCL_SUM")),
            ("f2", "max", NcclFormat("NCCL_FLOAT16", 1, "NCCL_MAX")),
            ("i4", "mean", NcclFormat("NCCL_FLOAT64", 1, "NCCL_SUM")),
            ("?", "sum", NcclFormat("NCCL_UINT8", 1, "NCCL_MAX")),
            ("?", "product", NcclFormat("NCCL_UINT8", 1, "NCCL_MIN")),
            ("c8", "mean", NcclFormat("NCCL_FLOAT32", 2, "NCCL_SUM")),
            ("c16", "product", None),
            ("i2", "sum", None),
        ],
    )
    def test_reductions(self, dtype: str, op: str, wanted: NcclFormat | None) -> None:
        assert nccl_format(describe("all_reduce", (3,), np.dtype(dtype), 2, op)) == wanted

    def test_copies_are_bytes(self) -> None:
        assert nccl_format(describe("broadcast", (3,), np.dtype("c16"), 2, "", 1)) == NcclFormat(
            "NCCL_UINT8", 16
        )
