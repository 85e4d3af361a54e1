"""What the page of a space editor shows, as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from nbdist.ui.spacecheck import Checked
from nbdist.ui.spacedraft import Condition, Draft, literals

SHOWN_VALUES = 60  # of a choice, each as what it was read
LONGEST_FIELD = 4_000  # characters: a longer list is changed in Python


def rows(drafts: Sequence[Draft], checked: Checked) -> list[dict[str, Any]]:
    """Return a row for each parameter."""
    names = {draft.id: draft.name for draft in drafts}
    return [_row(draft, checked, names) for draft in drafts]


def _row(draft: Draft, checked: Checked, names: dict[int, str]) -> dict[str, Any]:
    problem = checked.problems.get(draft.id)
    typed = draft.value if draft.kind == "fixed" else draft.values
    read = _literals(typed) if draft.kind in ("choice", "fixed") else []
    return {
        "id": draft.id, "name": draft.name, "kind": draft.kind,
        "low": draft.low, "high": draft.high, "step": draft.step, "points": draft.points,
        "values": draft.values[:LONGEST_FIELD], "value": draft.value[:LONGEST_FIELD],
        "too_long": len(typed) > LONGEST_FIELD, "count": len(read), "read": read[:SHOWN_VALUES],
        "when": [_condition(one, names) for one in draft.when],
        "problem": None if problem is None else {"text": problem.text, "at": problem.at},
    }  # fmt: skip


def _condition(condition: Condition, names: dict[int, str]) -> dict[str, Any]:
    gone = isinstance(condition.on, str)
    return {
        "on": condition.on,
        "name": condition.on if gone else names[condition.on],  # type: ignore[index]
        "values": condition.values,
        "read": [text for text, _ in _literals(condition.values)],
    }


@lru_cache(maxsize=256)
def _literals(text: str) -> list[tuple[str, str]]:
    return literals(text)
