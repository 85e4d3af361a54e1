"""What an engine prints outside of runs is sent when it is flushed, and a flush of nothing is nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from ipykernel.iostream import IOPubThread
from jupyter_client.session import Session

from nbdist.cluster.supervisor.engine import EngineStream

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster


class Sent(Session):
    """A session that keeps what it is given to send; it waits at its gate first."""

    def __init__(self) -> None:
        super().__init__(key=b"key")
        self.texts: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.sending = threading.Event()

    def send(self, stream: Any, message: Any, **given: Any) -> None:  # type: ignore[override]  # fewer words
        self.sending.set()
        assert self.gate.wait(60)
        self.texts.append(message["content"]["text"])


@pytest.fixture
def session() -> Sent:
    return Sent()


@pytest.fixture
def stream(session: Sent) -> Iterator[EngineStream]:
    context = zmq.Context()
    thread = IOPubThread(context.socket(zmq.PUB))
    thread.start()
    one = EngineStream(session, thread, "stdout", watchfd=False)
    one.parent_header = {}
    yield one
    session.gate.set()
    one.close()
    thread.stop()
    thread.close()
    context.term()


def test_what_was_printed_is_sent_by_a_flush(stream: EngineStream, session: Sent) -> None:
    print("one", file=stream)
    stream.flush()
    assert session.texts == ["one\n"]
    print("two", file=stream, flush=True)
    assert session.texts == ["one\n", "two\n"]


def test_a_flush_of_nothing_hands_nothing_over(
    stream: EngineStream, session: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    print("one", file=stream, flush=True)
    handed: list[object] = []
    monkeypatch.setattr(stream.pub_thread, "schedule", handed.append)
    stream.flush()
    assert handed == []


def test_a_flush_waits_for_text_that_is_just_being_sent(stream: EngineStream, session: Sent) -> None:
    session.gate.clear()
    stream.write("slow")
    assert session.sending.wait(60)  # by itself, a moment after it was written
    flushed = threading.Event()

    def flush() -> None:
        stream.flush()
        flushed.set()

    threading.Thread(target=flush).start()
    assert not flushed.wait(0.05)
    session.gate.set()
    assert flushed.wait(60)
    assert session.texts == ["slow"]


@pytest.mark.engines
def test_engines_have_it(cluster: Cluster) -> None:
    look = "import sys\n[type(one).__name__ for one in (sys.stdout, sys.stderr)]"
    assert cluster.run(look, on=0) == [["EngineStream", "EngineStream"]]
