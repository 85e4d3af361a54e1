from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import report, script, table
from bench.__main__ import run_one
from bench.frame import Bar, Benchmark, Found, Goal, Survey, close, equal, run

ROOT = Path(__file__).parent.parent.parent


def benchmark(ours: list[float], peer: list[float], check: object = 1) -> Benchmark:
    order.clear()
    mine, theirs = iter(ours), iter(peer)

    def one() -> dict:
        order.append("ours")
        return {"value": next(mine), "check": 1}

    def other() -> dict:
        order.append("peer")
        return {"value": next(theirs), "check": check}

    return Benchmark("p0", "nothing", "s", "a fake", one, other, Bar("<=", 0.5))


order: list[str] = []


def test_sides_alternate_and_each_is_first_in_turn() -> None:
    result = run(benchmark([1, 2, 3], [2, 2, 2]), 3, lambda *_: None)
    assert order == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert result.ratios == [0.5, 1.0, 1.5]
    assert result.ratio == 1.0
    assert not result.met


def test_the_bar() -> None:
    assert run(benchmark([1], [2]), 1, lambda *_: None).met
    assert not run(benchmark([1], [2], check="other"), 1, lambda *_: None).met
    assert Bar(">=", 2).met(2.0)
    assert not Bar(">=", 2).met(1.9)


def test_a_bar_of_the_difference() -> None:
    bar = Bar("<=", 1.5, "difference")
    result = replace(run(benchmark([3, 4], [2, 2]), 2, lambda *_: None), bar=bar)
    assert result.difference == 1.5
    assert result.met
    text = report.summary(benchmark([], []), result)
    assert "difference +1.5 (+1 to +2)" in text
    assert "bar <= 1.5 more: met" in text


def test_what_is_printed_and_kept(tmp_path: Path) -> None:
    one = benchmark([1, 1], [2, 4], check="other")
    result = run(one, 2, lambda *_: None)
    text = report.summary(one, result)
    assert "ratio 0.375 (0.25 to 0.5)" in text
    assert "DIFFERENT RESULTS: [1, 'other']" in text
    assert "NOT MET" in text
    report.keep(result, tmp_path / "results" / "results.jsonl")
    report.keep(result, tmp_path / "results" / "results.jsonl")
    lines = (tmp_path / "results" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["ratio"] for line in lines] == [0.375, 0.375]
    assert "bar" not in report.summary(one, replace(result, bar=None))


def test_a_survey_has_figures_with_bars_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    goals = (Goal("cost", "%", Bar("<=", 5, "figure")), Goal("speed", "a second", None))
    figures = iter([{"cost": 4.0, "speed": 1.0}, {"cost": 6.0, "speed": 3.0}, {"cost": 4.5, "speed": 2.0}])
    survey = Survey("p0", "nothing", goals, lambda: next(figures), most=3)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results.jsonl")
    monkeypatch.setattr(report.keep, "__defaults__", (tmp_path / "results.jsonl",))
    assert run_one(survey, 5, False)
    printed = capsys.readouterr().out
    assert "bars: cost <= 5 %" in printed
    assert "round 3: cost 4.5 %, speed 2 a second" in printed
    assert "cost: 4.5 % (4 to 6); bar <= 5: met" in printed
    assert json.loads((tmp_path / "results.jsonl").read_text())["medians"] == {"cost": 4.5, "speed": 2.0}
    assert not Found("p0", goals, [{"cost": 5.5, "speed": 1.0}]).all_met


def test_comparing() -> None:
    assert equal([1, 2], [1, 2])
    assert close(0.1)({"a": 1.0}, {"a": 1.05})
    assert not close(0.1)({"a": 1.0}, {"a": 1.2})
    assert not close(0.1)({"a": 1.0}, {"b": 1.0})


def test_choosing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "has_driver", lambda: True)  # else all leaves out what needs a GPU
    assert {b.key for b in table.chosen(["p8"])} == {"p8.ipyparallel", "p8.ray"}
    assert table.chosen(["all"]) == table.BENCHMARKS
    assert len({b.key for b in table.BENCHMARKS}) == len(table.BENCHMARKS)
    with pytest.raises(SystemExit, match="p99"):
        table.chosen(["p99"])


def test_a_side_that_is_not_written_is_said() -> None:
    with pytest.raises(script.NotThere, match=r"bench/no_such_side\.py is not written"):
        script.here("no_such_side")()


def test_a_side_runs_in_a_process_of_its_own() -> None:
    outcome = script.here("numpy_mlp", "--updates", 60)()
    assert outcome["value"] > 0
    assert outcome["check"]["updates"] == 60
    with pytest.raises(script.NotThere, match="failed"):
        script.here("numpy_mlp", "--updates", "many")()


def test_the_list_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert all(b.key in done.stdout for b in table.BENCHMARKS)
