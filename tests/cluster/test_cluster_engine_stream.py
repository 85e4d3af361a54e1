"""Output of an engine outside of runs: a flush sends it, and an empty flush sends nothing."""

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


class RecordingSession(Session):
    """A session that records its messages; it waits at its gate first."""

    def __init__(self) -> None:
        super().__init__(key=b"key")
        self.texts: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.sending = threading.Event()

    def send(self, stream: Any, message: Any, **given: Any) -> None:  # type: ignore[override]  # fewer arguments
        self.sending.set()
        assert self.gate.wait(60)
        self.texts.append(message["content"]["text"])


@pytest.fixture
def session() -> RecordingSession:
    return RecordingSession()


@pytest.fixture
def stream(session: RecordingSession) -> Iterator[EngineStream]:
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


def test_a_flush_sends_the_printed_text(stream: EngineStream, session: RecordingSession) -> None:
    print("one", file=stream)
    stream.flush()
    assert session.texts == ["one\n"]
    print("two", file=stream, flush=True)
    assert session.texts == ["one\n", "two\n"]


def test_an_empty_flush_schedules_nothing(
    stream: EngineStream, session: RecordingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    print("one", file=stream, flush=True)
    handed: list[object] = []
    monkeypatch.setattr(stream.pub_thread, "schedule", handed.append)
    stream.flush()
    assert handed == []


def test_a_flush_waits_for_text_in_transit(stream: EngineStream, session: RecordingSession) -> None:
    session.gate.clear()
    stream.write("slow")
    assert session.sending.wait(60)  # sent by the timer, a moment after the write
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
def test_engines_use_this_stream(cluster: Cluster) -> None:
    look = "import sys\n[type(one).__name__ for one in (sys.stdout, sys.stderr)]"
    assert cluster.run(look, on=0) == [["EngineStream", "EngineStream"]]
