"""The events of a run: what is written, read, and shown of very many."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbdist.metrics.run_events import (
    LONGEST_LINE,
    LONGEST_TEXT,
    MOST_EVENTS,
    Event,
    EventLog,
    EventReader,
    events_path,
    read_events,
    thinned,
)


def test_events_of_several_writers_are_read_by_time(tmp_path: Path) -> None:
    one, client = EventLog(events_path(tmp_path, 0)), EventLog(events_path(tmp_path))
    one.add("pause", "paused", 9, epoch=2, rank=0)
    client.add("lost", "worker 1 died", 12, rank=1)
    client.flush()
    one.add("resume", "resumed after 1.0 s", 9)
    one.flush()
    again = EventLog(events_path(tmp_path, 0))  # a new process of the task has a file of its own
    again.add("state", "state written", 20)
    again.close()
    found = read_events(tmp_path)
    assert [(event.step, event.kind, event.epoch, event.rank) for event in found] == [
        (9, "pause", 2, 0), (12, "lost", None, 1), (9, "resume", None, None), (20, "state", None, None),
    ]  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {
        "events.log",
        "events-0000.log",
        "events-0000.1.log",
    }
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())


def test_without_an_event_there_is_no_file(tmp_path: Path) -> None:
    log = EventLog(events_path(tmp_path, 0))
    log.flush()
    log.close()
    assert [*tmp_path.iterdir()] == []


def test_a_reader_reads_only_what_is_new(tmp_path: Path) -> None:
    log, reader = EventLog(events_path(tmp_path, 0)), EventReader(tmp_path)
    assert not reader.poll()
    log.add("pause", "paused", 1)
    log.flush()
    assert (reader.poll(), reader.poll()) == (True, False)
    with events_path(tmp_path, 0).open("ab") as file:
        file.write(b'{"time": 1.0, "step": 2, "kind": "state", ')  # its writer is at it
        file.flush()
        assert not reader.poll()
        file.write(b'"text": "state written"}\n')
        file.flush()
        assert reader.poll()
    assert [event.step for event in reader.events] == [2, 1]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[1]",
        b"\xff\xfe",
        b'{"time": "now", "step": 1, "kind": "pause"}',
        b'{"time": 1e999, "step": 1, "kind": "pause"}',
        b'{"time": 1, "step": -1, "kind": "pause"}',
        b'{"time": 1, "step": 1.5, "kind": "pause"}',
        b'{"time": 1, "step": 4294967296, "kind": "pause"}',
        b'{"time": 1, "step": 1, "kind": "explosion"}',
        b'{"time": 1, "step": 1, "kind": ["pause"]}',
        b'{"time": 1, "step": 1, "kind": "pause", "text": "' + b"x" * LONGEST_LINE + b'"}',
        b"[" * 100_000,
    ],
)
def test_damage_is_left_out(tmp_path: Path, line: bytes) -> None:
    whole = b'{"time": 1, "step": 1, "kind": "pause", "text": "half \\ud800", "rank": "0"}'
    events_path(tmp_path, 0).write_bytes(line + b"\n" + whole + b"\n")
    assert read_events(tmp_path) == [Event(1.0, 1, "pause", "half  ")]


def test_what_is_no_file_of_events_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b'{"time": 1, "step": 1, "kind": "pause", "text": ""}\n')
    events_path(tmp_path, 0).symlink_to(tmp_path / "elsewhere")
    events_path(tmp_path, 1).mkdir()
    (tmp_path / "events-x.log").write_bytes((tmp_path / "elsewhere").read_bytes())
    assert read_events(tmp_path) == []
    assert read_events(tmp_path / "nowhere") == []


def test_what_comes_after_very_many_events_is_counted_by_a_last_one(tmp_path: Path) -> None:
    log = EventLog(events_path(tmp_path, 0))
    for step in range(MOST_EVENTS + 5):
        log.add("pause", "x" * 2 * LONGEST_TEXT, step)
    log.close()
    found = read_events(tmp_path)
    assert len(found) == MOST_EVENTS
    assert found[-1].text.endswith("further events of this task are not recorded")
    assert all(len(event.text) <= LONGEST_TEXT for event in found)


def test_a_view_keeps_what_is_not_regular() -> None:
    states = [Event(float(n), n, "state", "") for n in range(500)]
    rest = [Event(1000.0, 7, "lost", ""), Event(0.5, 1, "pause", "")]
    found = thinned([*states, *rest], 100)
    assert len(found) == 100
    assert set(rest) <= set(found)
    assert [event.time for event in found] == sorted(event.time for event in found)
    assert (found[0], found[-2]) == (states[0], states[-1])
