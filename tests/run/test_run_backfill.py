"""A late subscriber receives every point and all text once; a task keeps the outcome of its last body."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.metrics import log
from nbdist.metrics.log import MAGIC, Batch
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.store import RunStore, columns_from_logs
from nbdist.run.task import agent as keeping
from nbdist.run.task.agent import Agent, CachedOutcome
from nbdist.run.task.reporting import TAIL_LIMIT, ActiveRun, Output, tail_of
from nbdist.run.values import backfill
from nbdist.run.values.backfill import backfill_store, log_end, printed
from nbdist.run.values.outcome import decode, outcome_path, read_outcome
from nbdist.train.context import Context
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame

RUN = "r1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def live(agent: Agent, folder: Path) -> ActiveRun:
    one = ActiveRun(
        RUN,
        Context(control=agent.control(RUN)),
        Recorder(folder / "metrics-0000.log", replica=0, say=lambda line: None),
        Output(folder / "output-0000.log"),
    )
    agent.begin(one)
    return one


def finish(agent: Agent, one: ActiveRun) -> None:
    agent.end(one)
    one.close()


def take(store: RunStore, client: Peer, text: str) -> str:
    """Process reports until the end of the run; return ``text`` followed by the printed text."""
    while True:
        frame = client.receive(10)
        assert frame is not None
        text += frame.arrays[0].tobytes().decode()
        if "batch" in frame.meta:
            store.extend_batch(Batch.from_arrays(frame.meta["batch"], frame.arrays[1:]))
        if frame.meta["ended"]:
            return text


def text_of(answer: Frame) -> str:
    return answer.arrays[0].tobytes().decode()


def test_a_late_subscriber_receives_every_point_once(agent: Agent, client: Peer, folder: Path) -> None:
    one = live(agent, folder)
    loss = one.recorder.series("loss")
    store, answer = RunStore(), None
    for step in range(300):
        one.recorder.add(loss, step, float(step))
        one.output.write(f"{step}\n")
        if step == 150:
            answer = client.call("run.subscribe", {"run": RUN})
            assert answer.meta["state"] == "on"
            assert backfill_store(store, folder, {0: answer}) == []
    finish(agent, one)
    assert answer is not None
    text = take(store, client, text_of(answer))
    assert store.points(0, "loss")[1].tolist() == [float(step) for step in range(300)]
    assert text == "".join(f"{step}\n" for step in range(300))


@pytest.mark.parametrize("when", ["from the start", "after a while"])
def test_points_that_wait_for_a_full_disk_are_backfilled(
    agent: Agent, client: Peer, folder: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """These points are in no file, and were already sent to the other subscribers."""

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if when == "from the start":
        monkeypatch.setattr(log, "open_new", full)
    one = live(agent, folder)
    loss = one.recorder.series("loss")
    one.recorder.add(loss, 1, 1.0)
    one.recorder.flush()
    monkeypatch.setattr(log, "write_whole", full)
    one.recorder.add(loss, 2, 2.0)
    one.recorder.add(one.recorder.series("late"), 2, 5.0)
    one.recorder.flush()
    answer = client.call("run.subscribe", {"run": RUN})
    store = RunStore()
    assert backfill_store(store, folder, {0: answer}) == []
    assert store.points(0, "loss")[1].tolist() == [1.0, 2.0]
    one.recorder.add(loss, 3, 3.0)
    finish(agent, one)
    take(store, client, "")
    assert store.points(0, "loss")[1].tolist() == [1.0, 2.0, 3.0]
    assert store.points(0, "late")[1].tolist() == [5.0]
    over = client.call("run.subscribe", {"run": RUN})  # they were never written, and the task knows it
    assert over.meta["state"] == "over"
    again = RunStore()
    backfill_store(again, folder, {0: over})
    assert again.points(0, "loss")[1].tolist() == [1.0, 2.0, 3.0]


def test_states_of_a_run_on_a_task(agent: Agent, client: Peer, folder: Path) -> None:
    def state(kind: str) -> Any:
        return client.call(kind, {"run": RUN}).meta["state"]

    assert (state("run.subscribe"), state("run.outcome")) == ("unknown", "unknown")
    client.call("run.reserve", {"run": RUN})
    assert (state("run.subscribe"), state("run.outcome")) == ("waiting", "coming")
    one = live(agent, folder)
    assert (state("run.subscribe"), state("run.outcome")) == ("on", "coming")
    finish(agent, one)
    assert (state("run.subscribe"), state("run.outcome")) == ("over", "coming")
    agent.cached_outcome.put(RUN, str(folder), {"rank": 0})
    assert state("run.outcome") == "here"
    agent.begin(one)  # as another run's body would
    assert client.call("run.outcome", {"run": "r0"}).meta["state"] == "unknown"


def test_an_outcome_comes_in_pages(
    agent: Agent, client: Peer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "PAGE_BYTES", 100)
    finish(agent, live(agent, folder))
    agent.cached_outcome.put(RUN, str(folder), {"rank": 0, "results": {"w": np.arange(40.0)}})
    data = b""
    while True:
        answer = client.call("run.outcome", {"run": RUN, "at": len(data)})
        assert 0 < answer.arrays[0].size <= 100
        data += answer.arrays[0].tobytes()
        if len(data) == answer.meta["size"]:
            break
    assert decode(data)["results"]["w"].tolist() == list(range(40))


class Timers:
    """Records delayed calls."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        self.calls.append(function)


def ended_outcome(timers: Timers, folder: Path, watched: bool) -> CachedOutcome:
    one = CachedOutcome(3, timers.after)
    one.end(RUN, Frame("run.backfill"), watched)
    one.put(RUN, str(folder), {"rank": 3})
    return one


def test_an_outcome_without_subscribers_is_written_immediately(folder: Path) -> None:
    ended_outcome(Timers(), folder, watched=False)
    assert read_outcome(folder, 3) == {"rank": 3}
    assert outcome_path(folder, 3).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("fetched", [True, False])
def test_an_outcome_is_written_unless_it_was_fetched(folder: Path, fetched: bool) -> None:
    timers = Timers()
    one = ended_outcome(timers, folder, watched=True)
    assert read_outcome(folder, 3) is None
    if fetched:
        one.set_fetched(RUN)
    one.forget()
    assert (read_outcome(folder, 3) is None) is fetched
    for call in timers.calls:  # after a later run has replaced the outcome
        call()
    assert (read_outcome(folder, 3) is None) is fetched


def test_a_dropped_outcome_is_unknown(folder: Path) -> None:
    one = CachedOutcome(3, Timers().after)
    one.end(RUN, Frame("run.backfill"), True)
    one.drop(RUN)
    assert one.page(RUN, 0) is None
    kept = ended_outcome(Timers(), folder, watched=True)
    kept.drop(RUN)
    assert kept.page(RUN, 0) is not None


def test_a_folder_that_cannot_be_written_costs_no_outcome(folder: Path) -> None:
    one = CachedOutcome(3, Timers().after)
    one.end(RUN, Frame("run.backfill"), False)
    (folder / "file").touch()
    one.put(RUN, str(folder / "file" / "no"), {"rank": 3})
    page = one.page(RUN, 0)
    assert page is not None
    assert decode(page.arrays[0].tobytes()) == {"rank": 3}


@given(st.lists(st.text(st.sampled_from("ab\n"), max_size=9), max_size=20), st.integers(1, 30))
def test_the_end_of_a_text_starts_with_a_line(pieces: list[str], limit: int) -> None:
    text = "".join(pieces)
    tail = tail_of(text, limit)
    assert text.endswith(tail)
    assert len(tail) <= limit
    if len(text) < limit:
        assert tail == text
    elif "\n" in text[-limit:]:
        assert tail == text[-limit:].partition("\n")[2]


def test_kept_output_is_bounded(folder: Path) -> None:
    output = Output(folder / "output-0000.log")
    for number in range(40_000):
        output.write(f"line {number}\n")
        if number % 1000 == 0:
            output.take()
    output.take()
    tail = output.tail()
    assert TAIL_LIMIT - 20 < len(tail) <= TAIL_LIMIT
    assert tail.endswith("line 39999\n")
    assert tail.startswith("line ")
    assert len(output._tail) < 40
    output.finish()
    assert printed(folder, 0) == tail
    assert printed(folder, 1) == ""


@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 20])
def test_a_log_is_read_in_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    recorder = Recorder(folder / "metrics-0000.log", replica=4)
    for step in range(60):
        recorder.add(recorder.series(f"name {step % 7}"), step, float(step))
        if step % 9 == 0:
            recorder.flush()
    recorder.close()
    monkeypatch.setattr(backfill, "PIECE", piece)
    store = RunStore()
    backfill_store(store, folder, {})
    assert store.replicas == [4]
    assert sorted(store.columns()["value"].tolist()) == [float(step) for step in range(60)]


@pytest.mark.parametrize("piece", [1, 50, 1 << 20])
def test_a_gap_is_filled_from_where_it_begins(
    agent: Agent, client: Peer, folder: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(backfill, "PIECE", piece)
    one = live(agent, folder)
    ends = [one.recorder.end]
    for step in range(9):
        one.recorder.add(one.recorder.series(f"name {step // 3}"), step, float(step))
        one.recorder.flush()
        ends.append(one.recorder.end)
    assert ends == sorted(set(ends))
    answer = client.call("run.subscribe", {"run": RUN})
    assert answer.meta["at"] == ends[-1]
    for known, end in enumerate(ends):
        store = RunStore()
        backfill.add_since(store, folder / answer.meta["log"], answer, end)
        assert sorted(store.columns()["value"].tolist()) == [float(step) for step in range(known, 9)]
        assert set(store.series) <= {"name 0", "name 1", "name 2"}
    finish(agent, one)


def test_a_dropped_subscriber_can_resubscribe(agent: Agent, client: Peer, folder: Path) -> None:
    def ask_again() -> None:
        client.send("run.subscribe", {"run": RUN, "resubscribe": True})
        client.call("run.hello")

    one = live(agent, folder)
    client.call("run.subscribe", {"run": RUN})
    ask_again()
    agent.subscribers._of.clear()
    client.call("run.hello")  # what was pushed before has arrived with its answer
    while client.receive(0) is not None:
        pass
    one.output.write("while unsubscribed\n")
    one.output.take()
    ask_again()
    frame = client.receive(10)
    assert frame is not None
    assert (frame.kind, text_of(frame)) == ("run.backfill", "while unsubscribed\n")
    agent.subscribers._of.clear()
    finish(agent, one)
    ask_again()
    while frame.kind == "run.progress" or not frame.meta["ended"]:
        found = client.receive(10)
        assert found is not None
        frame = found
    assert frame.meta["state"] == "over"


def test_a_damaged_record_is_skipped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(folder / "metrics-0000.log", replica=0)
    for step in range(40):
        recorder.add(recorder.series("loss"), step, float(step))
        recorder.flush()
    recorder.close()
    data = bytearray(recorder.path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    recorder.path.write_bytes(data)
    monkeypatch.setattr(backfill, "PIECE", 100)
    store = RunStore()
    (note,) = backfill_store(store, folder, {})
    assert len(store.columns()["value"]) == 39
    assert "metrics-0000.log is damaged: 39 bytes, which are at most 1 points, were dropped" in note
    recorder.path.write_bytes(b"something else")
    (note,) = backfill_store(store, folder, {})
    assert "metrics-0000.log is not a metrics log of nbdist" in note
    assert len(store.columns()["value"]) == 39


@pytest.mark.parametrize("piece", [100, 1 << 20])
def test_a_damaged_header_is_reported_and_loses_no_point(
    folder: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    recorder = Recorder(folder / "metrics-0002.log", replica=2)
    for step in range(40):
        recorder.add(recorder.series("loss"), step, float(step))
        recorder.flush()
    recorder.close()
    whole = recorder.path.read_bytes()
    monkeypatch.setattr(backfill, "PIECE", piece)
    for place in (3, len(MAGIC) + 20):  # in the first line, and in the header
        data = bytearray(whole)
        data[place] ^= 0x10
        recorder.path.write_bytes(data)
        store = RunStore()
        (note,) = backfill_store(store, folder, {})
        assert store.replicas == [2]
        assert len(store.columns()["value"]) == 40
        assert "is damaged" in note
    recorder.path.write_bytes(whole[:-3])
    (note,) = backfill_store(RunStore(), folder, {})
    assert note.endswith("metrics-0002.log is damaged: 36 bytes at its end are an incomplete record")


def test_logs_of_unreachable_tasks_are_read_whole(folder: Path) -> None:
    for rank in (0, 1, 2):
        recorder = Recorder(folder / f"metrics-{rank:04d}.log", replica=rank)
        recorder.add(recorder.series("loss"), 7, float(rank))
        recorder.close()
    store = RunStore()
    waiting = Frame("run.backfill", {"state": "waiting"})
    missing = Frame(
        "run.backfill",
        {"state": "on", "log": "metrics-0002.log", "size": 10_000},
        (np.empty(0, np.uint8), np.empty(0, np.uint8)),
    )
    notes = backfill_store(store, folder, {1: waiting, 2: missing})
    assert store.replicas == [0, 2]
    assert len(notes) == 1
    assert "and should have 10,000: points are missing" in notes[0]
    assert log_end(store).endswith("with step 7 of replica 0, step 7 of replica 2")
    assert len(columns_from_logs(folder)["step"]) == 3
