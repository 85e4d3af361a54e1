from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE, until

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NbdistError, NotFoundError
from nbdist.runtime.server import Server, choose_task
from nbdist.runtime.spec import ClusterSpec
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Caller, Peer
from nbdist.wire.rpc.frame import Frame


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server.create_local_server()
    yield one
    one.close()


@pytest.fixture
def peer(server: Server) -> Iterator[Peer]:
    with Peer(server.address, server.keys, name=server.name) as one:
        yield one


def test_ping_names_the_task(server: Server, peer: Peer) -> None:
    meta = peer.call("ping").meta
    assert meta["name"] == "/job:local/task:0"
    assert meta["pid"] == os.getpid()
    assert meta["incarnation"] == server.incarnation
    assert meta["version"]


def test_every_server_has_an_incarnation_of_its_own(server: Server) -> None:
    other = Server.create_local_server()
    assert other.incarnation != server.incarnation
    assert other.target == f"nbdist://{other.address}"
    other.close()


def test_a_handler_answers_now_or_later(server: Server, peer: Peer) -> None:
    waiting: list[Caller] = []

    def later(frame: Frame, sender: Caller) -> None:
        waiting.append(sender)
        threading.Thread(target=server.post, args=(answer,)).start()  # only now is there one to answer

    def answer() -> None:
        waiting[0].reply(Frame("at last"))

    server.on("now", lambda frame, sender: Frame("sum", {}, (frame.arrays[0] + 1,)))
    server.on("later", later)
    np.testing.assert_array_equal(peer.call("now", {}, [np.zeros(3)]).arrays[0], np.ones(3))
    assert peer.call("later").kind == "at last"


def test_a_failing_handler_is_the_callers_error_and_the_thread_continues(server: Server, peer: Peer) -> None:
    def broken(frame: Frame, sender: Caller) -> Frame:
        raise FailedPreconditionError("variable 'w' is not initialised")

    def buggy(frame: Frame, sender: Caller) -> Frame:
        return {}["key"]  # type: ignore[return-value]

    server.on("broken", broken)
    server.on("buggy", buggy)
    with pytest.raises(FailedPreconditionError, match="'w' is not initialised"):
        peer.call("broken")
    with pytest.raises(NbdistError, match="KeyError on /job:local/task:0"):
        peer.call("buggy")
    with pytest.raises(NotFoundError, match=r"answers no 'nothing'; it knows .*broken.*buggy.*ping"):
        peer.call("nothing")
    server.off("broken")
    with pytest.raises(NotFoundError):
        peer.call("broken")
    assert peer.call("ping").kind == "pong"


def test_frames_are_pushed_to_subscribers(server: Server, peer: Peer) -> None:
    watchers: list[Caller] = []
    server.on("watch", lambda frame, sender: watchers.append(sender) or Frame("ok"))
    peer.call("watch")
    server.post(lambda: [sender.push(Frame("news", {"n": n})) for n in range(2) for sender in watchers])
    got = [peer.receive(5), peer.receive(5)]
    assert [frame and frame.meta["n"] for frame in got] == [0, 1]


def test_a_push_to_a_disconnected_client_fails(server: Server) -> None:
    watchers: list[Caller] = []
    failures: list[BaseException] = []
    server.on("watch", lambda frame, sender: watchers.append(sender) or Frame("ok"))
    with Peer(server.address, server.keys) as closed:
        closed.call("watch")

    def push() -> None:
        try:
            watchers[0].push(Frame("news"))
        except NbdistError as error:
            failures.append(error)
        else:
            server.post(push)

    server.post(push)
    until(lambda: bool(failures))
    assert "no longer connected" in str(failures[0])


def test_replies_and_pushes_go_out_on_the_servers_thread_only(server: Server, peer: Peer) -> None:
    senders: list[Caller] = []
    server.on("watch", lambda frame, sender: senders.append(sender) or Frame("ok"))
    peer.call("watch")
    with pytest.raises(FailedPreconditionError, match=r"server\.post"):
        senders[0].push(Frame("news"))


def test_timers_and_posts_run_on_the_servers_thread(server: Server, peer: Peer) -> None:
    ticks: list[str] = []
    cancel = server.every(0.01, lambda: ticks.append(threading.current_thread().name))
    server.post(lambda: 1 / 0)  # logged; the thread continues
    until(lambda: len(ticks) >= 3)
    assert set(ticks) == {f"nbdist {server.name}"}
    cancel()
    server.post(ticks.clear)
    until(lambda: not ticks)
    assert peer.call("ping").kind == "pong"
    with pytest.raises(InvalidArgumentError):
        server.every(0, print)


def test_a_timer_that_is_set_later_may_be_due_earlier(server: Server) -> None:
    fired: list[str] = []
    server.after(3600, lambda: fired.append("in an hour"))
    done = threading.Event()
    server.post(done.set)
    assert done.wait(PATIENCE)  # the thread goes to sleep for an hour, or will in a moment
    server.after(0.02, lambda: fired.append("second"))
    server.after(0.01, lambda: fired.append("first"))
    until(lambda: len(fired) == 2)
    assert fired == ["first", "second"]


def test_no_post_of_any_thread_waits_for_another(server: Server) -> None:
    """Each is made at another moment of the thread's way to sleep."""
    for number in range(300):
        done = threading.Event()
        server.after(0.0, done.set) if number % 2 else server.post(done.set)
        assert done.wait(PATIENCE)


def test_it_starts_on_demand_and_joins_until_closed() -> None:
    server = Server({"ps": ["127.0.0.1:0"]}, start=False)
    assert not server.join(0)
    server.start()
    server.start()
    threading.Timer(0.05, server.close).start()
    assert server.join(PATIENCE)
    server.close()
    with pytest.raises(FailedPreconditionError):
        server.start()
    never = Server({"ps": ["127.0.0.1:0"]}, start=False)
    never.close()
    assert never.join(0)


def test_it_can_be_closed_by_a_handler(peer: Peer) -> None:
    server = Server.create_local_server()
    server.on("quit", lambda frame, sender: server.close())
    with Peer(server.address, server.keys) as other:
        other.send("quit")
        assert server.join(PATIENCE)


def test_what_is_posted_too_late_reaches_no_file_that_has_the_pipes_number(tmp_path: Path) -> None:
    server = Server.create_local_server()
    server.close()
    files = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(8)]
    server.post(print)
    assert [os.fstat(file).st_size for file in files] == [0] * len(files)
    for file in files:
        os.close(file)


CLUSTER: dict[str, Any] = {"ps": ["a:0"], "worker": ["b:0", "c:0"]}


def test_which_task_it_is() -> None:
    assert choose_task(ClusterSpec({"ps": ["a:0"]}), None, None) == ("ps", 0)
    assert choose_task(ClusterSpec({"ps": {4: "a:0"}}), None, None) == ("ps", 4)
    assert choose_task(ClusterSpec(CLUSTER), "ps", None) == ("ps", 0)
    assert choose_task(ClusterSpec(CLUSTER), "worker", 1) == ("worker", 1)
    for job, index in ((None, None), ("worker", None), ("worker", 2), ("chief", 0), (None, 0)):
        with pytest.raises(ValueError):
            choose_task(ClusterSpec(CLUSTER), job, index)
    with pytest.raises(ValueError):
        choose_task(ClusterSpec({}), None, None)


def test_its_port_may_be_given_and_may_be_taken() -> None:
    keys = ClusterKeys.create()
    first = Server({"ps": ["127.0.0.1:0"]}, keys=keys)
    with pytest.raises(FailedPreconditionError, match="in use"):
        Server({"ps": [first.address]}, keys=keys)
    with pytest.raises(InvalidArgumentError, match="host:port"):
        Server({"ps": ["127.0.0.1:http"]})
    first.close()
    again = Server({"ps": [first.address]}, keys=keys)
    assert again.address == first.address
    again.close()


def test_the_chief() -> None:
    server = Server(CLUSTER, "worker", 0, start=False)
    assert server.is_chief
    assert server.name == "/job:worker/task:0"
    server.close()
