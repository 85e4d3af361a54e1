"""The ring log keeps the last rows, and rows before shared moments; the step window finds them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.metrics import timeline_parts
from nbdist.metrics.ring_log import DENSE, EVERY, RingLog, is_kept, roundest
from nbdist.metrics.timeline import Span, Timeline


class Clock:
    """A steady clock, and the time of day, which started elsewhere."""

    def __init__(self, now: float = 100.0, noon: float = 1_000_000.0) -> None:
        self.now, self._start, self._noon = now, now, noon

    def __call__(self) -> float:
        return self.now

    def day(self) -> float:
        return self._noon + self.now - self._start


def recorded(
    seconds: float, total: float, start: float = 0.0, **options: int
) -> list[tuple[int, float, float]]:
    """Return what a ring log holds of steps of ``seconds`` each: (number, begin, end)."""
    clock = Clock()
    ring_log = RingLog(clock=clock, day=clock.day, **options)
    clock.now += start
    step, until = 0, clock.now + total
    while clock.now + seconds <= until:
        begin = clock.now
        clock.now += seconds
        step += 1
        ring_log.add((step, begin, clock.now))
    return ring_log.rows()  # type: ignore[return-value]


def test_a_short_recording_is_whole() -> None:
    rows = recorded(0.001, 0.06)
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))


def test_a_long_one_is_bounded_and_in_order() -> None:
    rows = recorded(0.01, 600.0)
    assert len(rows) < 600
    ends = [row[-1] for row in rows]
    assert ends == sorted(set(ends))
    assert [row[0] for row in rows[-64:]] == list(range(rows[-1][0] - 63, rows[-1][0] + 1))
    assert rows[0][0] < 60_000 / 3  # of the beginning something is left too


def test_rows_before_a_moment_are_those_that_led_to_it() -> None:
    rows = recorded(0.001, 3.0, recent=4, before=3)
    moments = [103.0 - n * EVERY for n in range(1, DENSE - 1)]
    for moment in moments:
        before = [row for row in rows if row[1] <= moment + 1e-9][-3:]
        assert len(before) == 3
        assert moment - before[0][1] < 0.004


def test_moments_increase_when_the_time_of_day_is_put_back() -> None:
    clock = Clock()
    ring_log = RingLog(recent=2, before=1, clock=clock, day=clock.day)
    for step in range(2000):
        clock.now += 0.001
        ring_log.add((step, clock.now))
        if step == 1000:
            clock._noon -= 3600
    late = [row[0] for row in ring_log.rows() if row[0] > 1000]
    assert len(late) > DENSE


@given(st.integers(0, 10**6), st.integers(0, 10**5))
def test_two_tasks_that_end_apart_have_a_moment_in_common(end: int, later: int) -> None:
    common = next((n for n in range(end, -1, -1) if is_kept(n, end) and is_kept(n, end + later)), None)
    assert common is not None
    assert end - common <= 2 * later / (DENSE - 1) + 1


@given(st.integers(1, 10**5), st.integers(0, 200))
def test_the_roundest_number_of_a_step(first: int, length: int) -> None:
    numbers = range(first, first + length + 1)
    assert roundest(first, first + length) == max(numbers, key=lambda n: n & -n)


@given(st.floats(0.001, 0.4), st.floats(0.001, 0.4), st.floats(4.0, 20.0), st.floats(0.0, 1.0))
def test_steps_of_any_length_have_a_moment_in_common(a: float, b: float, end: float, share: float) -> None:
    later = end * share  # one that lasts much longer has forgotten most of what it did then
    found = timeline(a=recorded(a, end), b=recorded(b, end + later, start=a / 3))
    begin, until = step_window(found)
    inside = found.between(begin, until).totals()
    assert inside["a"]["compute"] > 0
    assert inside["b"]["compute"] > 0
    assert 100 + end + a - until < 2 * (later + a + b) / (DENSE - 1) + 2 * (a + b) + EVERY


@given(st.integers(0, 10**6))
def test_few_moments_are_kept(newest: int) -> None:
    kept = sum(is_kept(n, newest) for n in range(max(0, newest - 3000), newest + 1))
    assert kept <= DENSE * 8


def timeline(**tasks: list[tuple[int, float, float]]) -> Timeline:
    spans = [
        Span(task, "CPU:0", kind, "step", at, (end - begin) / 2, number)
        for task, rows in tasks.items()
        for number, begin, end in rows
        for kind, at in (("receive", begin), ("compute", (begin + end) / 2))
    ]
    spans.append(Span("ps", "mailbox", "apply", "gradient", 0.0, 1e6, 1))
    return Timeline(spans, list(tasks))


def steps(begin: float, seconds: float, first: int, last: int) -> list[tuple[int, float, float]]:
    return [
        (n, begin + (n - first) * seconds, begin + (n - first + 1) * seconds) for n in range(first, last + 1)
    ]


def step_window(found: Timeline, step: int | None = None, steps: int = 1) -> tuple[float, float]:
    window = timeline_parts.step_window(found, step, steps)
    return window.begin, window.end


def test_a_window_has_a_name() -> None:
    together = timeline(a=steps(0.0, 1.0, 1, 1200), b=steps(0.2, 1.0, 1, 1200))
    assert (
        timeline_parts.step_window(together).name
        == "step 1,200 (near the median of 1,199 recorded, 1,000 ms)"
    )
    assert timeline_parts.step_window(together, steps=3).name == "steps 1,198 to 1,200"
    apart = timeline(a=steps(0.0, 1.0, 1, 20), b=steps(0.0, 3.0, 1, 8))
    assert timeline_parts.step_window(apart).name.startswith("one step each, of 6 to 20 (near the median of")
    assert timeline_parts.step_window(apart, steps=2).name == "2 steps each, of 5 to 20"


def test_a_ragged_last_step_is_not_the_one_that_is_shown() -> None:
    rows = {
        task: [*steps(at, 1.0, 1, 15), (16, at + 15.0, at + 29.0)] for task, at in (("a", 0.0), ("b", 0.2))
    }
    window = timeline_parts.step_window(timeline(**rows))
    assert window.first == window.last == 15
    assert window.end - window.begin == pytest.approx(1.2)
    assert timeline_parts.step_window(timeline(**rows), steps=2).last == 16
    assert timeline_parts.step_window(timeline(**rows), 16).name == "step 16"


def test_tasks_that_step_together_show_the_same_step() -> None:
    found = timeline(a=steps(0.0, 1.0, 1, 9), b=steps(0.2, 1.0, 1, 8))
    assert step_window(found) == pytest.approx((7.0, 8.2))
    assert step_window(found, 3) == pytest.approx((2.0, 3.2))
    assert step_window(found, 3, steps=2) == pytest.approx((1.0, 3.2))


@pytest.mark.parametrize(("applied", "end"), [(9.4, 9.5), (14.0, 9.2)])
def test_what_a_step_sent_is_seen_to_arrive_if_that_is_soon(applied: float, end: float) -> None:
    found = timeline(a=steps(0.0, 1.0, 1, 9), b=steps(0.2, 1.0, 1, 9))
    sent = Span("b", "CPU:0", "send", "gradient of b", 9.1, 0.1, 9)
    apply = Span("ps", "mailbox", "apply", "gradient of b", applied, 0.1, 9)
    assert step_window(Timeline([*found.spans, sent, apply])) == pytest.approx((8.0, end))


def test_tasks_that_go_their_own_ways_show_the_steps_they_were_at() -> None:
    found = timeline(a=steps(0.0, 1.0, 1, 20), b=steps(0.0, 3.0, 1, 8))  # b lasts to 24, a ends at 20
    assert step_window(found) == pytest.approx((15.0, 20.0))
    assert step_window(found, 5) == pytest.approx((0.0, 5.0))


def test_a_task_that_finished_earlier_shares_a_moment_with_the_other() -> None:
    fast, slow = recorded(0.002, 20.0), recorded(0.003, 31.0)
    found = timeline(fast=fast, slow=slow)
    begin, end = step_window(found)
    assert 0 < end - begin < 0.01
    assert end <= 120.0
    assert 120.0 - end < 6.0
    inside = found.between(begin, end).totals()
    assert inside["fast"]["compute"] > 0
    assert inside["slow"]["compute"] > 0


def test_a_server_is_seen_too_where_it_kept_nothing_of_the_last_moment() -> None:
    found = timeline(a=steps(0.0, 1.0, 1, 20), b=steps(0.0, 3.0, 1, 8))  # which have 20.0 in common
    kept = [Span("ps", "mailbox", "apply", "gradient of a", n + 0.1, 0.1, n) for n in (8, 9, 10, 15, 16)]
    assert step_window(Timeline([*found.spans, *kept])) == pytest.approx((12.0, 16.0))
    of_b = [Span("ps", "mailbox", "apply", "gradient of b", 3.0 * n + 0.1, 0.1, n) for n in range(1, 9)]
    assert step_window(Timeline([*found.spans, *kept, *of_b])) == step_window(found)


def test_a_task_that_is_never_there_at_the_same_time_leaves_its_row_empty() -> None:
    found = timeline(a=steps(0.0, 1.0, 1, 3), b=steps(50.0, 1.0, 1, 3), c=steps(50.1, 1.0, 1, 3))
    assert step_window(found) == pytest.approx((52.0, 53.1))


def test_a_training_of_one_step() -> None:
    found = timeline(a=steps(0.0, 1.0, 1, 1), b=steps(0.1, 1.0, 1, 1))
    assert step_window(found) == step_window(found, steps=5) == pytest.approx((0.0, 1.1))


def test_what_is_not_there_says_so() -> None:
    found = timeline(a=steps(0.0, 1.0, 3, 5) + steps(20.0, 1.0, 9, 9))
    with pytest.raises(InvalidArgumentError, match=r"step 7 is not on record; there are steps 3-5, 9"):
        step_window(found, 7)
    with pytest.raises(InvalidArgumentError, match="1 step or more, not 0"):
        step_window(found, steps=0)
    with pytest.raises(FailedPreconditionError, match="no training step"):
        step_window(timeline())
