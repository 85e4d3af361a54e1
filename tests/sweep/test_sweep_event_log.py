from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as some

from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    ResourceExhaustedError,
)
from nbdist.sweep import event_log as log_module
from nbdist.sweep.event_log import FORMAT, EventLog, parse, read_events
from nbdist.sweep.events import (
    EVENT,
    LARGEST,
    REPORTS,
    Added,
    Asked,
    Cloned,
    Closed,
    Created,
    Ended,
    Event,
    Paused,
    Promoted,
    Pruned,
    Reported,
    Resumed,
    Retried,
    SpaceEdited,
    Started,
    Stopped,
    decoded,
    encoded,
)
from nbdist.sweep.space import Space, log, when

SPACE = Space({"lr": log(1e-4, 1e-1), "opt": ["sgd", "adam"], "m": when([0.1], opt="sgd")})
EVERY: list[Event] = [
    Created(
        1.5, SPACE, 24, 7, "accuracy", "min", "tpe", "asha", 2, {"pruner": {"eta": 4}}, "train()\n", "ab"
    ),
    Asked(2.0, 0, {"lr": 0.1, "opt": "sgd", "m": 0.1}, 99),
    Cloned(2.5, 1, {"lr": 0.1, "widths": (32, (64, None), True, "x")}, 98, 0),
    Started(3.0, 0, 1, (0, 1)),
    Reported(0, 1, 10, 0.5, 3.5),
    Reported(0, 1, 20, float("inf"), 3.75),
    Pruned(4.0, 0, 1, 20),
    Stopped(4.5, 1, 2),
    Ended(5.0, 0, 1, "failed", None, {"accuracy": 0.5, "loss": -0.0}, "Traceback é\n\x00"),
    Ended(5.0, 3, 1, "finished", 0.0),
    Retried(6.0, 0, "death", "lost", (0, 1)),
    Promoted(7.0, 1, "checkpoints/3", 4, {"epochs": 20}),
    SpaceEdited(8.0, Space({"lr": [1, 2]})),
    Added(9.0, 5),
    Paused(10.0),
    Resumed(11.0),
    Closed(12.0, "finished"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sweep.log"


def written(path: Path, events: list[Event]) -> bytes:
    with EventLog.create(path) as log:
        for event in events:
            log.append(event)
    return path.read_bytes()


def test_every_event_is_read_as_it_was_written(path: Path) -> None:
    written(path, EVERY)
    part = read_events(path)
    assert part.events == EVERY
    assert (part.torn, part.damaged, part.unread, part.complaint()) == (0, 0, 0, "")


def test_a_log_that_calls_a_finished_trial_complete_is_read(path: Path) -> None:
    """Old logs say "complete" instead of "finished"."""
    kind, payload = encoded(Ended(5.0, 3, 1, "finished", 0.5))
    assert b'"finished"' in payload
    assert decoded(kind, payload.replace(b'"finished"', b'"complete"')) == [Ended(5.0, 3, 1, "finished", 0.5)]


def test_many_at_once_are_the_same_as_one_by_one(path: Path) -> None:
    with EventLog.create(path) as log:
        log.append(*EVERY)
        log.append()
    assert read_events(path).events == EVERY


def test_a_reader_continues_at_its_position(path: Path) -> None:
    with EventLog.create(path) as log:
        log.append(*EVERY[:6])
        first = read_events(path)
        log.append(*EVERY[6:])
    assert first.events == EVERY[:6]
    assert read_events(path, first.offset).events == EVERY[6:]


def test_only_the_user_may_read_it_and_links_are_not_followed(path: Path, tmp_path: Path) -> None:
    written(path, EVERY[:2])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "link.log"
    link.symlink_to(path)
    with pytest.raises(NotAllowedError, match="is a link"):
        EventLog.reopen(link)
    path.chmod(0o666)
    with pytest.raises(NotAllowedError, match=r"others could have written it.*chmod 600"):
        EventLog.reopen(path)


def test_the_error_for_a_second_writer_names_the_first(path: Path) -> None:
    first = EventLog.create(path)
    with pytest.raises(FailedPreconditionError, match=f"process {os.getpid()} is writing"):
        EventLog.reopen(path)
    code = f"from nbdist.sweep.event_log import *; EventLog.reopen(Path({str(path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"process {os.getpid()} is writing" in done.stderr
    first.close()
    first.close()
    EventLog.reopen(path).close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        first.append(Paused(1.0))
    with pytest.raises(FailedPreconditionError, match="is there already"):
        EventLog.create(path)


def test_a_missing_or_foreign_log_is_an_error(path: Path) -> None:
    with pytest.raises(NotFoundError, match="no sweep log"):
        EventLog.reopen(path)
    path.write_bytes(b"nbdist metrics 2\n")
    path.chmod(0o600)
    for _ in range(2):  # no lock is left
        with pytest.raises(DataLossError, match="is not a sweep log"):
            EventLog.reopen(path)


def test_a_log_cut_off_anywhere_loses_at_most_one_record(path: Path) -> None:
    data = written(path, EVERY)
    ends = [len(log_module.MAGIC)]
    for event in EVERY:
        ends.append(ends[-1] + len(FORMAT.frame(*encoded(event))))
    assert ends[-1] == len(data)
    for cut in sorted({*range(0, len(data), 11), *ends[:-1], *(end - 1 for end in ends), *range(40)}):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends[1:])
        with EventLog.reopen(path) as log:
            assert log.found.events == EVERY[:whole]
            assert log.found.torn == cut - max((end for end in ends if end <= cut), default=0)
            assert ("cut off" in log.found.complaint()) == bool(log.found.torn)
            log.append(Paused(99.0))
        assert read_events(path).events == [*EVERY[:whole], Paused(99.0)]
        assert not read_events(path).torn


@given(some.data())
@settings(max_examples=examples(150))
def test_damage_in_the_middle_is_skipped_and_counted(data: some.DataObject) -> None:
    frames = [FORMAT.frame(*encoded(event)) for event in EVERY]
    hit = data.draw(some.integers(0, len(frames) - 2))
    place = data.draw(some.integers(0, len(frames[hit]) - 1))
    bad = bytearray(frames[hit])
    bad[place] ^= data.draw(some.integers(1, 255))
    part = parse(b"".join([*frames[:hit], bytes(bad), *frames[hit + 1 :]]))
    assert part.events == EVERY[:hit] + EVERY[hit + 1 :]
    assert part.damaged == len(frames[hit])
    assert "damaged bytes were stepped over" in part.complaint()


@given(some.binary(max_size=400))
def test_any_bytes_are_at_most_damage(data: bytes) -> None:
    part = parse(data)
    assert part.offset + part.torn == len(data)


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"[]", b"{}", b"\xff", b'{"event":"exploded","time":1}', b'{"event":"asked","time":1}',
        b'{"event":"asked","time":1,"number":-1,"parameters":{},"seed":1}',
        b'{"event":"asked","time":1,"number":0,"parameters":{"a":{}},"seed":1}',
        b'{"event":"asked","time":1,"number":0,"parameters":7,"seed":1}',
        b'{"event":"paused","time":"now"}', b'{"event":["paused"],"time":1}',
        b'{"event":"started","time":1,"number":0,"attempt":1,"ranks":[-4]}',
        b'{"event":"ended","time":1,"number":0,"attempt":1,"state":"exploded"}',
        b'{"event":"space_edited","time":1,"space":{"version":1,"parameters":[]}}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_whole_record_that_cannot_be_read_is_counted(payload: bytes) -> None:
    with pytest.raises(DataLossError, match="cannot be read"):
        decoded(EVENT, payload)
    part = parse(FORMAT.frame(EVENT, payload) + FORMAT.frame(*encoded(Paused(1.0))))
    assert (part.events, part.unread, part.damaged) == ([Paused(1.0)], 1, 0)
    assert "1 records are of a kind" in part.complaint()


def test_reports_of_a_broken_length_and_other_kinds_are_counted() -> None:
    part = parse(
        FORMAT.frame(REPORTS, b"123")
        + FORMAT.frame(3, b"x")
        + FORMAT.frame(*encoded(Reported(0, 1, 2, 3.0, 4.0)))
    )
    assert (len(part.events), part.unread) == (1, 2)


def test_a_claimed_length_allocates_no_memory() -> None:
    huge = b"NBS2" + bytes([EVENT]) + (0xFFFFFFFF).to_bytes(4, "little") + bytes(8)
    part = parse(huge + FORMAT.frame(*encoded(Paused(1.0))))
    assert part.events == [Paused(1.0)]


def test_a_record_that_is_too_large_is_damage() -> None:
    large = FORMAT.frame(EVENT, b" " * (LARGEST + 1))
    part = parse(large + FORMAT.frame(*encoded(Paused(1.0))))
    assert (part.events, part.damaged) == ([Paused(1.0)], len(large))


def test_a_too_large_event_is_not_written(path: Path) -> None:
    with EventLog.create(path) as log:
        with pytest.raises(ResourceExhaustedError, match="at most"):
            log.append(Closed(1.0, "x" * (LARGEST + 1)))
        log.append(Ended(1.0, 0, 1, "failed", error="y" * (LARGEST + 1) + "the end"))
    (ended,) = read_events(path).events
    assert isinstance(ended, Ended)
    assert ended.error.endswith("ythe end")
    assert len(ended.error) == 20_000


@pytest.mark.parametrize(
    "bad", [{"step": -1}, {"step": 1.5}, {"step": 2**32}, {"value": "x"}, {"value": None}]
)
def test_an_invalid_report_is_not_written(path: Path, bad: dict[str, Any]) -> None:
    with EventLog.create(path) as log:
        with pytest.raises(InvalidArgumentError, match="a step is a whole number"):
            log.append(Paused(1.0), Reported(0, 1, 2, 0.5, 3.0)._replace(**bad))
        log.append(Reported(0, 1, 2, 0.5, 3.0))
    assert len(read_events(path).events) == 1


def test_a_file_that_is_too_long_is_not_read(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(log_module.MOST_BYTES + 1)
    with pytest.raises(ResourceExhaustedError, match="at most"):
        read_events(path)


def test_a_full_disk_leaves_the_log_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog.create(path)
    log.append(Paused(1.0))
    real = os.pwrite

    def full(descriptor: int, data: Any, offset: int) -> int:
        if len(data) > 5:
            return real(descriptor, data[:5], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(ResourceExhaustedError, match="No space left on device; free some space"):
            log.append(Resumed(2.0))
    log.append(Closed(3.0))
    log.close()
    assert read_events(path).events == [Paused(1.0), Closed(3.0)]


def test_a_killed_driver_loses_no_appended_event(path: Path) -> None:
    code = (
        "import sys; from nbdist.sweep.event_log import *; from nbdist.sweep.events import *\n"
        f"log = EventLog.create(Path({str(path)!r}))\n"
        "for step in range(10**9):\n"
        "    log.append(Reported(0, 1, step, 0.5, 1.0))\n"
        "    if step % 100 == 0: print(step, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 500:
            break
    process.send_signal(signal.SIGKILL)
    last = int(([line, *process.stdout.readlines()])[-1])
    process.wait()
    process.stdout.close()
    with EventLog.reopen(path) as log:  # the lock of the dead process is free
        steps = [event.step for event in log.found.events if isinstance(event, Reported)]
        assert steps == list(range(len(steps)))
        assert len(steps) > last
        log.append(Paused(1.0))


def test_no_code_is_in_the_log(path: Path) -> None:
    data = written(path, EVERY)
    assert b"pickle" not in data
    assert json.loads(encoded(EVERY[0])[1])["space"]["version"] == 1
