"""Connections of a world between hosts: which rank has each, and when one is lost. MPI is a stand-in here."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until

from nbdist.wire.collective.mpi.links import Links, packed
from nbdist.wire.sockets import sockets


class TwoRanks:
    """Rank 0 of a communicator of this process, of which rank 1 is a socket that this test holds."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.other = socket.create_connection(self.listener.getsockname())
        self.own, _ = self.listener.accept()
        self.mpi = SimpleNamespace(Request=SimpleNamespace(Waitall=lambda requests: None))

    def Irecv(self, buffer: bytearray, rank: int, tag: int) -> None: ...

    def Isend(self, buffer: bytearray, rank: int, tag: int) -> None: ...

    def Barrier(self) -> None: ...

    def Allgather(self, row: bytes, rows: bytearray) -> None:
        theirs = packed(self.other.getsockname()).ljust(len(row), b"\0")
        rows[:] = row + theirs


@pytest.fixture
def ranks() -> Iterator[tuple[TwoRanks, Links]]:
    before = set(sockets())
    made, links = TwoRanks(), Links()
    links.connect(made.mpi, made, before | inode(made.other))
    yield made, links
    for one in (made.listener, made.other, made.own, *(s for own in links._sockets.values() for s in own)):
        one.close()


def inode(one: socket.socket) -> set[int]:
    return {os.fstat(one.fileno()).st_ino}


def test_no_process_can_connect_when_all_ranks_are_connected(ranks: tuple[TwoRanks, Links]) -> None:
    made, links = ranks
    address = ("127.0.0.1", made.own.getsockname()[1])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    assert not links.is_lost(1)
    made.other.sendall(b"1")
    assert made.own.recv(9) == b"1"


@pytest.mark.parametrize("reset", [False, True], ids=["ends", "resets"])
def test_a_rank_that_ends_is_lost(ranks: tuple[TwoRanks, Links], reset: bool) -> None:
    made, links = ranks
    if reset:
        made.other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    made.own.close()  # as libfabric does when it notices the end
    made.other.close()
    assert until(lambda: links.is_lost(1))
    assert not links.is_lost(0)
    looks: list[Any] = []
    threads = [threading.Thread(target=lambda: looks.append(links.is_lost(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert looks == [True] * 8


def test_a_world_on_one_host_has_no_links() -> None:
    assert not Links().is_lost(1)
