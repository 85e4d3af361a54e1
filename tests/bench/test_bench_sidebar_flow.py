"""lab.panel for a few changes returns all its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import sidebar_flow
from bench.table import chosen


@pytest.mark.browser
def test_what_the_panel_costs(tmp_path: Path) -> None:
    found = sidebar_flow.measure(tmp_path, changes=2)
    [survey] = chosen(["lab.panel"])
    assert found.keys() == {goal.name for goal in survey.goals}
    assert found["a change, median"] >= found["of it script"] > 0
