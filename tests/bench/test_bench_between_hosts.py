"""The rows `hosts.*`: every figure is found, and the prediction follows the link and the processor."""

from __future__ import annotations

import math

import pytest

from bench import between_hosts
from bench.frame import Survey
from bench.script import NotThere
from bench.table import chosen

ROW = chosen(["hosts.1gbit"])[0]


@pytest.mark.netns
@pytest.mark.frameworks
@pytest.mark.timeout(180)
def test_all_figures_of_a_row_are_found() -> None:
    assert isinstance(ROW, Survey)
    try:
        found = between_hosts.measure(1, nbytes=400_000, turns=1)
    except NotThere as why:
        pytest.skip(str(why))
    assert found.keys() == {goal.name for goal in ROW.goals}
    assert all(math.isfinite(value) for value in found.values())


def test_a_slow_link_decides_and_on_a_fast_one_the_processor() -> None:
    nbytes, ring = 40_000_000, 0.06
    slow, fast = (between_hosts.predictions(gbit, nbytes, ring) for gbit in (1, 1000))
    for name in between_hosts.PREDICTED:
        at_best = between_hosts.crossing(name, nbytes) / (1e9 / 8 * between_hosts.PAYLOAD)
        assert at_best < slow[name] < 1.1 * at_best
    assert fast["ring, 2 hosts"] == pytest.approx(ring, rel=0.05)
