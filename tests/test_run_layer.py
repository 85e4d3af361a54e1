"""`scripts/run_layer.py` and the measured speed: when a layer is too slow, and what each tier runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from machine_speed import BURST, NORMAL_SECONDS, SpeedSampler, slowdown_of
from waiting import until

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture
def run_layer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import run_layer

    return run_layer


@pytest.mark.parametrize(
    ("seconds", "speed", "too_slow"), [(149, 1.0, False), (151, 1.0, True), (151, 0.5, False)]
)
def test_a_layer_over_its_budget_by_half_fails_on_a_normal_machine(
    run_layer: ModuleType, seconds: float, speed: float, too_slow: bool
) -> None:
    outcome = run_layer.Outcome("engines", 0, seconds, 100, speed)
    assert outcome.too_slow == too_slow
    assert ("TOO SLOW" in str(outcome)) == too_slow
    assert ("over the budget by half" in run_layer.summary([outcome])) == too_slow


def test_the_first_tier_leaves_the_matrices_out(run_layer: ModuleType) -> None:
    layer = run_layer.LAYERS["engines"]
    first, both = (run_layer.command_of(layer, whole) for whole in (False, True))
    assert first[first.index("-m", 3) + 1] == f"({layer.marks}) and not exhaustive"
    assert both[both.index("-m", 3) + 1] == layer.marks
    assert layer.budget < layer.whole


def test_the_layers_have_all_tests(run_layer: ModuleType) -> None:
    """Each combination of marks is in exactly one layer."""
    layers = [layer.marks for layer in run_layer.LAYERS.values() if layer.marks]
    kinds = ("engines", "browser", "netns", "processes", "slow")
    for chosen in range(2 ** len(kinds)):
        marks = {kind: bool(chosen >> i & 1) for i, kind in enumerate(kinds)}
        assert sum(bool(eval(expression, {}, marks)) for expression in layers) == 1, marks


@pytest.mark.parametrize(
    ("path", "marks", "problem"),
    [
        ("tests/browser/test_browser_first.py", ["browser"], None),
        ("tests/browser/test_browser_first.py", ["engines"], "mark it `browser`"),
        ("tests/first/test_first_engines.py", ["engines"], None),
        ("tests/first/test_first_fast.py", ["engines"], "its file does not name"),
    ],
)
def test_a_test_that_no_layer_would_run_is_refused(
    request: pytest.FixtureRequest, path: str, marks: list[str], problem: str | None
) -> None:
    (conftest,) = (one for one in request.config.pluginmanager.get_plugins() if hasattr(one, "mark_problem"))
    iter_markers = lambda: [getattr(pytest.mark, mark).mark for mark in marks]
    item = SimpleNamespace(path=SCRIPTS.parent / path, iter_markers=iter_markers)
    found = conftest.mark_problem(item)
    assert found is None if problem is None else problem in found


def test_an_unknown_layer_is_refused() -> None:
    command = [sys.executable, str(SCRIPTS / "run_layer.py"), "engine"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "no layer 'engine'; choose from checks, fast, engines, browser" in ended.stderr


def test_the_slower_half_of_the_samples_counts() -> None:
    normal = NORMAL_SECONDS
    assert slowdown_of([(at, normal) for at in range(10)], since=0) == 1
    assert slowdown_of([(0, 9 * normal), (1, normal), (2, normal)], since=1) == 1  # an old sample
    assert slowdown_of([(at, 5 * normal) for at in range(10)], since=0) == pytest.approx(5)
    assert slowdown_of([(at, normal / 2) for at in range(10)], since=0) == 1  # limits are never shorter


def test_a_sampler_finds_that_bursts_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("machine_speed.BURST", 50 * BURST)
    monkeypatch.setattr("machine_speed.SAMPLE_SECONDS", 0.001)
    sampler = SpeedSampler()
    assert sampler.slowdown(2) == 1
    with sampler.running():
        until(lambda: sampler.slowdown(2) > 10)
