"""Collectives over MPI: the ranks are processes of one world."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from collective_worlds import members
from examples import examples
from mpi_worlds import MpiWorld, RemoteGroup, RemoteRank, remote_groups
from own_collective import OwnCollective

from nbdist.errors import AbortedError, DeadlineExceededError, FailedPreconditionError, MissingExtra
from nbdist.testing import CollectiveContract
from nbdist.wire.collective.mpi import world as mpi_world
from nbdist.wire.collective.mpi.collective import MpiEndpoint
from nbdist.wire.collective.registry import choose

pytestmark = pytest.mark.processes
_ranks: list[RemoteRank] = []


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    one = MpiWorld(3)
    _ranks[:] = [RemoteRank(one, rank) for rank in range(3)]
    yield
    for rank in _ranks:
        rank.close()
    one.close()


class TestMpi(OwnCollective, CollectiveContract):
    def make_world(self, size: int, **options: Any) -> Sequence[Any]:
        return remote_groups(_ranks[:size], **options)


def together(groups: Sequence[RemoteGroup], work: Callable[[RemoteGroup], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(work, groups))


def test_a_hundred_groups_leave_nothing_behind() -> None:
    for number in range(examples(100)):
        groups = remote_groups(_ranks[: 2 + number % 2])
        size = len(groups)
        assert together(groups, lambda group: group.all_reduce(1, "sum")) == [size] * size
        together(groups, lambda group: group.close())
    last = remote_groups(_ranks)
    together(last, lambda group: group.barrier())
    assert max(rank.ask("open_count") for rank in _ranks) <= 4, "a new group frees the closed ones before it"
    together(last, lambda group: group.close())


def test_a_broken_group_does_not_affect_the_next_ones() -> None:
    for count in (3, 40_000, 300_000):
        broken = remote_groups(_ranks)
        x = np.full(count, 1e9)

        def cut_off(group: RemoteGroup) -> Any:
            try:
                if group.rank == 2:
                    group.abort("on purpose")
                    return None
                return group.all_reduce(x, "sum", np.zeros(count))  # noqa: B023
            except AbortedError as error:
                return str(error)

        assert all("on purpose" in str(one) for one in together(broken, cut_off)[:2])
        groups = remote_groups(_ranks)
        for number in range(2):
            values = [np.random.default_rng(rank + number).normal(size=count) for rank in range(3)]
            results = together(groups, lambda group: group.all_reduce(values[group.rank], "max"))  # noqa: B023
            assert all((result == np.max(values, axis=0)).all() for result in results)
        together([*groups, *broken], lambda group: group.close())


def test_messages_of_two_groups_and_of_other_code_do_not_mix() -> None:
    both = [remote_groups(_ranks), remote_groups(_ranks)]
    stray = [rank.ask("open_stray_receive") for rank in _ranks]
    assert stray == [None] * 3

    def many(group: RemoteGroup) -> float:
        x = np.full(30_000, group.rank + 1.0, "f4")
        return sum(float(group.all_reduce(x, "sum")[-1]) for _ in range(30))

    assert together([*both[0], *both[1]], many) == [180.0] * 6
    assert [rank.ask("close_stray_receive") for rank in _ranks] == [True] * 3
    together([*both[0], *both[1]], lambda group: group.close())


def test_ranks_of_several_hosts_and_their_note_without_keys() -> None:
    for hosts in (["left", "right", "left"], ["one", "two", "three"], ["left", "left", "right"]):
        groups = remote_groups(_ranks, hosts=hosts)
        assert together(groups, lambda group: group.all_reduce(group.rank, "sum")) == [3] * 3
        assert _ranks[0].ask("notes", groups[0].number) == []
        together(groups, lambda group: group.close())
    groups = remote_groups(_ranks[:2], hosts=["left", "right"], keys=None)
    (note,) = _ranks[0].ask("notes", groups[0].number)
    assert note.startswith("the end of rank 1 (/job:worker/task:1) cannot be detected")
    together(groups, lambda group: group.close())


def test_a_process_without_mpiexec_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_world, "_entered", [])
    for name in mpi_world.STARTED:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(FailedPreconditionError, match=r"%cluster start --launcher mpi, or mpiexec -n 4"):
        MpiEndpoint(members(["here"] * 2)[0])
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingExtra, match=r'pip install "nbdist\[mpi\]" \(needed for .*mpi4py is missing'):
        MpiEndpoint(members(["here"] * 2)[0])
    assert choose(["here"] * 2) == "shm"
    assert choose(["a", "b"], "mpi") == "mpi"


def test_ranks_of_two_worlds_are_refused() -> None:
    everyone = members(["here"] * 2)
    infos = [{"world": "one", "world_rank": rank} for rank in range(2)]
    assert mpi_world.world_ranks(everyone[0], infos) == [0, 1]
    with pytest.raises(FailedPreconditionError, match=r"rank 1 \(.*\) is in another one than rank 0"):
        mpi_world.world_ranks(everyone[0], [infos[0], {**infos[1], "world": "two"}])
    with pytest.raises(FailedPreconditionError, match=r"one rank of each process.*\[0, 0\]"):
        mpi_world.world_ranks(everyone[0], [infos[0], infos[0]])


def test_a_rank_that_does_not_join_is_named() -> None:
    everyone = members(["here"] * 2)
    made = [_ranks[rank].ask("make_endpoint", everyone[rank], False) for rank in range(2)]
    (number, info), (_, other) = made
    with pytest.raises(
        DeadlineExceededError, match=r"rank 1 \(/job:worker/task:1\) did not take part within the time limit"
    ):
        _ranks[0].ask("join", number, [info, other], 0.2)
