"""Timelines: what is a span, what the sums are, and that traces and plain values say the same."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_rules import problems

from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.metrics import timeline as timelines
from nbdist.metrics.timeline import KINDS, Span, Timeline, covered

W0, W1, PS = "/job:worker/task:0", "/job:worker/task:1", "/job:ps/task:0"

SPANS = st.lists(
    st.builds(
        Span,
        task=st.sampled_from([W0, W1, PS]),
        lane=st.sampled_from(["training", "mailbox"]),
        kind=st.sampled_from(KINDS),
        name=st.sampled_from(["step", "gradient"]),
        # Whole milliseconds: sums of them can be counted.
        start=st.integers(0, 40).map(lambda n: 100 + n / 1000),
        seconds=st.integers(0, 20).map(lambda n: n / 1000),
        step=st.none() | st.integers(0, 4),
    ),
    max_size=25,
)


def span(kind: str = "compute", start: float = 0.0, seconds: float = 1.0, **more: Any) -> Span:
    return Span(
        **{"task": W0, "lane": "CPU:0", "name": "step", **more}, kind=kind, start=start, seconds=seconds
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "sleep"}, "no kind of span 'sleep'; choose from data, compute"),
        ({"seconds": -1e-9}, "0 or more seconds"),
        ({"seconds": math.nan}, "not nan"),
        ({"seconds": math.inf}, "not inf"),
        ({"start": math.nan}, "finite time, not nan"),
        ({"start": -math.inf}, "finite time"),
    ],
    ids=str,
)
def test_what_is_no_span_says_so(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        span(**wrong)


@given(SPANS)
def test_totals_count_each_moment_once(spans: list[Span]) -> None:
    totals = Timeline(spans).totals()
    assert set(totals) == {one.task for one in spans}
    for task, kinds in totals.items():
        assert list(kinds) == [kind for kind in KINDS if kind in kinds]
        for kind, seconds in kinds.items():
            mine = [one for one in spans if (one.task, one.kind) == (task, kind)]
            moments = {ms for one in mine for ms in range(round(one.start * 1000), round(one.end * 1000))}
            assert seconds == pytest.approx(len(moments) / 1000, abs=1e-9)


@given(SPANS, st.integers(0, 60), st.integers(0, 60))
def test_parts_of_a_timeline_add_up(spans: list[Span], a: int, b: int) -> None:
    timeline = Timeline(spans)
    first, second = 100 + min(a, b) / 1000, 100 + max(a, b) / 1000
    ends = [99.0, first, second, 200.0]
    parts = [timeline.between(begin, end).totals() for begin, end in pairwise(ends)]
    for task, kinds in timeline.totals().items():
        for kind, seconds in kinds.items():
            assert sum(part[task].get(kind, 0.0) for part in parts) == pytest.approx(seconds, abs=1e-9)


@given(SPANS)
def test_plain_values_bring_back_the_same(spans: list[Span]) -> None:
    timeline = Timeline(spans, [PS, "/job:ps/task:1"], title="mnist")
    back = Timeline.from_dict(json.loads(json.dumps(timeline.to_dict())))
    assert (back.tasks, back.title) == (timeline.tasks, "mnist")
    assert len(back) == len(timeline)
    for ours, theirs in zip(timeline.spans, back.spans, strict=True):
        assert theirs.start == pytest.approx(ours.start, abs=2e-9)
        assert theirs.seconds == pytest.approx(ours.seconds, abs=2e-9)
    assert sorted(map(str, back.steps)) == sorted(map(str, timeline.steps))


@given(SPANS)
def test_a_chrome_trace_holds_every_span_and_whole_arrows(spans: list[Span]) -> None:
    trace = json.loads(json.dumps(Timeline(spans).chrome_trace()))
    events = trace["traceEvents"]
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(spans)
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in slices)
    assert {(e["pid"], e["tid"]) for e in slices} == threads
    assert {e["pid"] for e in slices} == processes
    tails = {e["id"]: e for e in events if e["ph"] == "s"}
    heads = {e["id"]: e for e in events if e["ph"] == "f"}
    assert tails.keys() == heads.keys()
    for number, head in heads.items():
        tail = tails[number]
        assert head["ts"] >= tail["ts"]
        for end, kinds in ((tail, {"send"}), (head, {"receive", "apply", "drop"})):
            assert any(
                e["cat"] in kinds
                and (e["pid"], e["tid"], e["name"]) == (end["pid"], end["tid"], end["name"])
                and e["ts"] - 1e-3 <= end["ts"] <= e["ts"] + e["dur"] + 2e-3
                for e in slices
            )


def without_overlaps(spans: list[Span]) -> list[Span]:
    """Return the spans that a lane could have: it does one thing at a time."""
    ends: dict[tuple[str, str], float] = {}
    kept = []
    for one in sorted(spans, key=lambda span: span.start):
        if one.start >= ends.get((one.task, one.lane), 0.0):
            ends[one.task, one.lane] = one.end
            kept.append(one)
    return kept


@given(SPANS)
def test_a_chrome_trace_keeps_the_rules_of_its_format(spans: list[Span]) -> None:
    assert problems(Timeline(without_overlaps(spans)).chrome_trace()) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda events: events[-1].pop("dur"), "a slice without a duration"),
        (lambda events: events[-1].update(ts=-1.0), "ts and cat are needed"),
        (lambda events: events[-1].update(ts=float("nan")), "not JSON"),
        (lambda events: events[-1].update(pid="ps"), "pid and tid are whole numbers"),
        (lambda events: events[-1].update(ph="Z"), "an unknown phase"),
        (lambda events: events[0].update(args={}), "metadata without its argument"),
        (
            lambda events: events.append({**events[-1], "ts": events[-1]["ts"] + 5e4}),
            "overlap and do not nest",
        ),
        (lambda events: events.append({**events[-1], "ph": "s", "id": 1}), "flow 1 has"),
    ],
)
def test_the_rules_find_what_breaks_them(change: Any, problem: str) -> None:
    trace = Timeline([span("compute", 1.0, 0.1)]).chrome_trace()
    assert problems(trace) == []
    change(trace["traceEvents"])
    assert any(problem in one for one in problems(trace)), problems(trace)


def test_an_arrow_leads_from_a_send_to_all_that_receive_it() -> None:
    sent = span("send", 1.0, 0.1, name="gradient", step=3)
    at_ps = span("apply", 1.2, 0.1, name="gradient", step=3, task=PS)
    waited = span("receive", 0.5, 0.6, name="gradient", step=3, task=W1)
    other_step = span("receive", 1.3, 0.1, name="gradient", step=4, task=W1)
    before = span("receive", 0.1, 0.2, name="gradient", step=3, task=W1)
    itself = span("receive", 1.3, 0.1, name="gradient", step=3)
    timeline = Timeline([sent, at_ps, waited, other_step, before, itself])
    assert timeline.arrows() == [(sent, waited), (sent, at_ps)]


def test_the_last_send_before_is_the_one() -> None:
    # Pulled for step 5, by a server that does not know of steps.
    sends = [span("send", at, 0.1, name="parameters") for at in (1.0, 2.0, 3.0)]
    got = span("receive", 1.9, 0.5, name="parameters", task=W1, step=5)
    assert Timeline([*sends, got]).arrows() == [(sends[1], got)]


def test_rows_are_in_the_order_given_also_those_without_spans() -> None:
    timeline = Timeline([span(task=W1), span(task=PS)], [W0, W1])
    assert timeline.tasks == (W0, W1, PS)
    assert timeline.totals()[W0] == {}
    assert timeline.between(0.0, 0.5).tasks == (W0, W1, PS)


def test_a_timeline_is_bounded_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "MOST_SPANS", 3)
    timeline = Timeline([span(start=float(at)) for at in (4, 1, 3, 2, 5)])
    assert [one.start for one in timeline.spans] == [3.0, 4.0, 5.0]
    assert (timeline.left_out, timeline.between(0, 9).left_out) == (2, 2)
    assert Timeline.from_dict(timeline.to_dict()).left_out == 2


def test_an_empty_timeline() -> None:
    timeline = Timeline([])
    assert (timeline.bounds, timeline.steps, timeline.totals(), len(timeline)) == ((0.0, 0.0), (), {}, 0)
    assert timeline.chrome_trace()["traceEvents"] == []


def test_spans_of_another_clock_are_moved() -> None:
    timeline = Timeline([span(), span(task=W1)], title="a").moved({W1: -5.0})
    assert (timeline.title, timeline.between(0, 1).title) == ("a", "a")
    assert [(one.task, one.start) for one in timeline.spans] == [(W1, -5.0), (W0, 0.0)]


def test_a_part_that_ends_before_it_begins() -> None:
    with pytest.raises(InvalidArgumentError, match="ends after it begins"):
        Timeline([]).between(2.0, 1.0)


def test_saved_as_json_and_as_nothing_else(tmp_path: Path) -> None:
    path = Timeline([span()]).save(tmp_path / "step.json")
    assert json.loads(path.read_text())["traceEvents"]
    with pytest.raises(InvalidArgumentError, match=r"a \.json file, not 'step\.txt'"):
        Timeline([span()]).save(tmp_path / "step.txt")


@pytest.mark.parametrize(
    "content",
    [
        {},
        {
            "tasks": [],
            "names": ["a"],
            "title": "",
            "zero": 0.0,
            "spans": [[0, 0, 7, 0, 0, 0, None]],
            "left_out": 0,
        },
        {
            "tasks": [],
            "names": ["a"],
            "title": "",
            "zero": 0.0,
            "spans": [[0, 0, 0, 0, 0, 0, None]],
            "left_out": 0,
        },
        {"tasks": [], "names": [], "zero": None, "spans": 3, "left_out": 0},
    ],
    ids=str,
)
def test_what_is_no_timeline_says_so(content: dict[str, Any]) -> None:
    with pytest.raises(DataLossError, match="no timeline"):
        Timeline.from_dict(content)


def test_intervals_that_touch_overlap_or_hold_each_other() -> None:
    assert covered([]) == 0
    assert covered([(0, 1), (1, 2)]) == 2
    assert covered([(0, 10), (2, 3), (4, 12)]) == 12
