"""P13's parts: what it makes of a profile, and short runs of both rows with a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiers import exhaustive

from bench import page_flow, page_reload


def test_shares_of_a_profile() -> None:
    frame = {"functionName": "draw", "url": "https://host/static/live.js", "lineNumber": 4}
    idle = {"functionName": "(idle)", "url": "", "lineNumber": -1}
    profile = {
        "nodes": [{"id": 1, "callFrame": frame}, {"id": 2, "callFrame": idle}],
        "samples": [1, 2, 2],
        "timeDeltas": [100, 200, 100],
    }
    assert page_flow.shares(profile) == {"draw live.js:5": 25.0, "(idle) :0": 75.0}


@exhaustive
@pytest.mark.browser
def test_a_page_is_measured(apart: Callable[..., Any], tmp_path: Path) -> None:
    found = apart(page_flow.measure, 0.1, 4, tmp_path)
    assert 0 < found["frames"] <= 11
    assert 0 < found["main thread busy"] < 100
    assert found["longest task"] >= 0


@exhaustive
@pytest.mark.browser
def test_a_reload_is_measured(apart: Callable[..., Any], tmp_path: Path) -> None:
    found = apart(page_reload.measure, 2.0, tmp_path)
    assert all(seconds > 0 for seconds in found.values())
