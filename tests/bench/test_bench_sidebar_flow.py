"""lab.panel for a few changes returns all its figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiers import exhaustive

from bench import sidebar_flow
from bench.table import chosen


@exhaustive
@pytest.mark.browser
def test_what_the_panel_costs(apart: Callable[..., Any], tmp_path: Path) -> None:
    found = apart(sidebar_flow.measure, tmp_path, changes=2)
    [survey] = chosen(["lab.panel"])
    assert found.keys() == {goal.name for goal in survey.goals}
    assert found["a change, median"] >= found["of it script"] > 0
