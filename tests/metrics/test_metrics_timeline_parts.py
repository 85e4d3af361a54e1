"""Parts of a timeline from several tasks, hosts and clocks become one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbdist.errors import DataLossError
from nbdist.metrics.timeline import Span, Timeline
from nbdist.metrics.timeline_parts import (
    ROUND_TRIPS,
    Part,
    has_parts,
    joined,
    part_path,
    read_parts,
    shift_by_asking,
    shift_by_day,
    write_part,
)

A, B = "/job:worker/task:0", "/job:worker/task:1"


def part(task: str, start: float, host: str = "here", clock: float = 100.0, day: float = 5000.0) -> Part:
    return Part(task, host, clock, day, Timeline([Span(task, "CPU:0", "compute", "step", start, 0.5, 1)]))


def test_parts_of_other_hosts_are_moved_to_the_common_clock() -> None:
    timeline = joined([part(A, 10.0), part(B, 70.0, "there")], [A, B], {"here": 0.0, "there": -59.5})
    assert [(span.task, span.start) for span in timeline.spans] == [(A, 10.0), (B, 10.5)]
    assert timeline.tasks == (A, B)


def test_the_times_of_day_tell_clocks_apart() -> None:
    # There the clock read 7 when it was 5003 o'clock; here it reads 107 when it is 5010 o'clock.
    assert shift_by_day(part(B, 0.0, "there", clock=7.0, day=5003.0), 107.0, 5010.0) == 93.0


class Far:
    """A clock an hour ahead, at the end of a line with delays: there, and back."""

    def __init__(self, delays: list[tuple[float, float]]) -> None:
        self.now, self._delays = 50.0, iter(delays)

    def clock(self) -> float:
        return self.now

    def ask(self) -> float:
        there, back = next(self._delays)
        self.now += there
        answer = self.now + 3600
        self.now += back
        return answer


def test_the_quickest_answer_is_believed() -> None:
    far = Far([(0.5, 0.1)] * (ROUND_TRIPS - 2) + [(0.001, 0.002), (0.1, 0.9)])
    assert shift_by_asking(far.ask, far.clock) == pytest.approx(-3600, abs=0.0015)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    tmp_path.chmod(0o700)
    return tmp_path


def test_parts_are_kept_in_the_runs_folder(folder: Path) -> None:
    assert not has_parts(folder)
    assert read_parts(folder) == []
    write_part(folder, 3, part(B, 1.25))
    write_part(folder, 0, part(A, 1.5, "there"))
    assert has_parts(folder)
    first, second = read_parts(folder)
    assert (first.task, first.host, first.clock, first.day) == (A, "there", 100.0, 5000.0)
    assert second.timeline.spans[0] == Span(B, "CPU:0", "compute", "step", 1.25, 0.5, 1)
    assert os.stat(part_path(folder, 3)).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"timeline": {}}', part(A, 0.0).encode()[:-5]])
def test_a_damaged_part_is_named(folder: Path, content: bytes) -> None:
    part_path(folder, 2).write_bytes(content)
    with pytest.raises(DataLossError, match=r"timeline-0002\.json is damaged"):
        read_parts(folder)
