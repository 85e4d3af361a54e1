"""Collectives by MPI: ranks are processes of one world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from collective_contract import CollectiveContract
from mpi_worlds import MpiWorld, RemoteRank, remote_groups

_ranks: list[RemoteRank] = []


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    one = MpiWorld(3)
    _ranks[:] = [RemoteRank(one, rank) for rank in range(3)]
    yield
    for rank in _ranks:
        rank.close()
    one.close()


class TestMpi(CollectiveContract):
    def make_world(self, size: int, **options: Any) -> Sequence[Any]:
        return remote_groups(_ranks[:size], **options)
