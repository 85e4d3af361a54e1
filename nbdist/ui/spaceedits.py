"""What the page may do to the parameters in the space editor. Pure.

>>> from nbdist.sweep import Space, when
>>> from nbdist.ui.spacecheck import check
>>> from nbdist.ui.spacedraft import drafts_of
>>> drafts = drafts_of(Space({"opt": ["sgd", "adam"], "momentum": when([0.0, 0.9], opt="sgd")}))
>>> drafts = edited(drafts, {"what": "field", "id": 0, "field": "name", "value": "optimizer"})
>>> print(check(drafts).space)
optimizer=['sgd', 'adam'] momentum=when([0.0, 0.9], optimizer=['sgd'])
>>> [one.name for one in edited(drafts, {"what": "move", "id": 0, "by": 1})]
['momentum', 'optimizer']
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.sweep.space import MOST_PARAMETERS
from nbdist.ui.spacedraft import MOST_TYPED, Condition, Draft, literals, new_draft, turned

Drafts: TypeAlias = tuple[Draft, ...]
Change: TypeAlias = Mapping[str, Any]

FIELDS = ("name", "low", "high", "step", "points", "values", "value")


def edited(drafts: Drafts, change: Change) -> Drafts:
    """Return the drafts after a change of the page's.

    Raises `InvalidArgumentError` for a change that is none, `NotFoundError` for a parameter that is gone.
    """
    what = change.get("what")
    if what == "add":
        if len(drafts) >= MOST_PARAMETERS:
            raise InvalidArgumentError(f"a space has at most {MOST_PARAMETERS} parameters")
        return (*drafts, new_draft(drafts, 1 + max((one.id for one in drafts), default=-1)))
    if not isinstance(what, str) or what not in EDITS:
        raise InvalidArgumentError(f"no change {what!r:.80} of a space; there are add, {', '.join(EDITS)}")
    place = next((at for at, one in enumerate(drafts) if one.id == change.get("id")), None)
    if place is None:
        raise NotFoundError(f"there is no parameter number {change.get('id')!r:.80} any more")
    return EDITS[what](drafts, place, change)


def _remove(drafts: Drafts, place: int, change: Change) -> Drafts:
    gone = drafts[place]

    def by_name(condition: Condition) -> Condition:
        return replace(condition, on=gone.name) if condition.on == gone.id else condition

    rest = (*drafts[:place], *drafts[place + 1 :])
    return tuple(replace(one, when=tuple(map(by_name, one.when))) for one in rest)


def _move(drafts: Drafts, place: int, change: Change) -> Drafts:
    rest = [*drafts[:place], *drafts[place + 1 :]]
    by = change.get("by")
    if by not in (-1, 1):
        raise InvalidArgumentError(f"a parameter moves by 1 or -1, not by {by!r:.80}")
    rest.insert(max(0, place + by), drafts[place])
    return tuple(rest)


def _field(drafts: Drafts, place: int, change: Change) -> Drafts:
    field, value = change.get("field"), _text(change.get("value"))
    if field not in FIELDS:
        raise InvalidArgumentError(f"no field {field!r:.80}; there are {', '.join(FIELDS)}")
    typed: dict[str, Any] = {field: value.strip() if field == "name" else value}
    return _with(drafts, place, replace(drafts[place], **typed))


def _kind(drafts: Drafts, place: int, change: Change) -> Drafts:
    return _with(drafts, place, turned(drafts[place], change.get("value")))  # type: ignore[arg-type]


def _condition(drafts: Drafts, place: int, change: Change) -> Drafts:
    """Set the condition number ``at``, or add one at their end; on None takes it away.

    Without values it takes the first one that the other parameter has.
    """
    conditions, at, on = list(drafts[place].when), change.get("at"), change.get("on")
    if type(at) is not int or not 0 <= at <= len(conditions):
        raise NotFoundError(f"{drafts[place].name} has no condition number {at!r:.80} any more")
    known = on is None or isinstance(on, str) or any(one.id == on for one in drafts)
    if not known or isinstance(on, bool):
        raise NotFoundError(f"there is no parameter number {on!r:.80} any more")
    values = _text(change["values"]) if "values" in change else _first_value(drafts, on)
    conditions[at : at + 1] = [] if on is None else [Condition(on, values)]
    return _with(drafts, place, replace(drafts[place], when=tuple(conditions)))


EDITS: dict[str, Callable[[Drafts, int, Change], Drafts]] = {
    "remove": _remove, "move": _move, "field": _field, "kind": _kind, "condition": _condition,
}  # fmt: skip


def _with(drafts: Drafts, place: int, draft: Draft) -> Drafts:
    return (*drafts[:place], draft, *drafts[place + 1 :])


def _first_value(drafts: Drafts, on: object) -> str:
    draft = next((one for one in drafts if one.id == on), None)
    typed = {"choice": "values", "fixed": "value", "int": "low", "log int": "low"}
    if draft is None or draft.kind not in typed:
        return ""
    return next((text for text, _ in literals(getattr(draft, typed[draft.kind]))), "")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"a field has a text, got {value!r:.80}")
    if len(value) > MOST_TYPED:
        raise InvalidArgumentError(f"{len(value):,} characters; a field has at most {MOST_TYPED:,}")
    return value
