from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import input_work
from bench.input_work import WORKS
from bench.nbdist_input import ROWS


@pytest.mark.parametrize("name", ["raw", "examples", "csv", "map", "jpeg", "png", "arrays"])
def test_our_side_reads_each_element_once_a_pass(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_work, "FOLDER", tmp_path)
    monkeypatch.setattr(input_work, "arrays", lambda: tuple(array[:150] for array in ARRAYS))
    work = replace(WORKS[name], elements=150 if name == "arrays" else 7, batch=3, passes=2)
    outcome = work.outcome(ROWS[name](work))
    assert outcome["check"]["elements"] == work.elements
    assert outcome["value"] > 0
    if work.write is not None:
        assert outcome["check"]["sum"] == work.outcome(ROWS[name](work))["check"]["sum"]
        assert len(list(tmp_path.glob(f"{name}-7"))) == 1


ARRAYS = (input_work.numbers(150), input_work.numbers(150)[:, 0])
