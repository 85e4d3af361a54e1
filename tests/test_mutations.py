"""`scripts/mutations.py`: each fault that it makes is still one of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_each_mutation_has_its_text_once_and_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from mutations import MUTATIONS

    for one in MUTATIONS:
        assert (ROOT / one.path).read_text().count(one.before) == 1, one.name
        assert all(test == "widget" or (ROOT / test).exists() for test in one.tests), one.name
