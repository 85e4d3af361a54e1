"""A client of a supervisor, used by several threads."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.cluster.supervisor.process import read_line
from nbdist.errors import UnavailableError

Pair = tuple[SupervisorClient, socket.socket]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A client, and the other end of its connection."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(10.0)
    client = SupervisorClient(ours, tmp_path)
    yield client, theirs
    client.close()
    theirs.close()


def say(supervisor: socket.socket, **message: Any) -> None:
    supervisor.sendall(json.dumps(message).encode() + b"\n")


def test_a_slow_reply_delays_no_other_thread(pair: Pair) -> None:
    client, supervisor = pair
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(client.ask, "fork")
        first = read_line(supervisor)
        fast = pool.submit(client.ask, "ping")
        say(supervisor, reply=read_line(supervisor)["id"], what="fast")
        assert fast.result(5.0)["what"] == "fast"
        say(supervisor, event="exit", rank=1, pid=7)
        while 1 not in client.ended():
            assert not slow.done()
        say(supervisor, reply=first["id"], what="slow")
        assert slow.result(5.0)["what"] == "slow"


def test_events_are_kept_only_until_they_are_taken(pair: Pair) -> None:
    client, supervisor = pair
    say(supervisor, event="waiting", reason="no node is free")
    say(supervisor, event="roster", tasks=[])
    say(supervisor, event="waiting", reason="its turn has come")
    say(supervisor, event="exit", rank=1, pid=7)
    while 1 not in client.exits:
        client.listen(5.0)
    assert [one["reason"] for one in client.take("waiting")] == ["no node is free", "its turn has come"]
    assert client.take("waiting") == client.take("roster") == []


def test_a_host_that_is_lost_has_no_place(pair: Pair) -> None:
    client, _ = pair
    client.hosts["a"] = {"address": "10.0.0.1"}
    assert client.place_of("a") == {"host": "10.0.0.1", "node": "a"}
    assert client.place_of("") == {}
    with pytest.raises(UnavailableError, match="host b was lost"):
        client.place_of("b")


def test_the_end_can_be_awaited_without_a_limit(pair: Pair) -> None:
    client, supervisor = pair
    supervisor.close()
    assert client.wait_closed(math.inf)


def test_a_line_is_read_and_no_byte_after_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"plan": "\xc3\xa9"}\n{"next"')
        assert read_line(ours) == {"plan": "é"}
        theirs.sendall(b": 1}\n")
        assert read_line(ours) == {"next": 1}
        theirs.sendall(b"{")
        theirs.close()
        with pytest.raises(EOFError):
            read_line(ours)
