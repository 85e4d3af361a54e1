"""A parameter in the space editor: the texts of its fields, which may be invalid. Pure.

>>> print(read(Draft(0, "lr", "log", low="1e-4", high="0.1")))
log(0.0001, 0.1)
>>> read_values("sgd, 'adam', 32, 0.5, True")
['sgd', 'adam', 32, 0.5, True]
>>> drafts_of(Space({"opt": ["sgd", "adam"], "epochs": 5}))[0].values
"'sgd', 'adam'"
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal, TypeAlias, get_args

from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.sweep.parameters import Choice, Fixed, Integer, Parameter, Real, Value, literal, plain, whole
from nbdist.sweep.space import MOST_PARAMETERS, Space, log, uniform

MOST_TYPED = 400_000  # characters of one field: enough for a choice of 10,000 values
# Words that probably mean a number or a truth value, but would be read as texts.
AMBIGUOUS = ("nan", "inf", "infinity", "true", "false", "none", "null")
EXAMPLE = "write values with commas between, such as 32, 64 or 'sgd', 'adam'"


@dataclass(frozen=True)
class Condition:
    """A condition: the other parameter (its identity, or its name if it does not exist) and its values."""

    on: int | str
    values: str = ""


@dataclass(frozen=True)
class Draft:
    """One parameter's fields as typed; fields of other kinds are kept in case the user changes back."""

    id: int
    name: str = ""
    kind: Kind = "log"
    low: str = ""
    high: str = ""
    step: str = ""
    points: str = ""
    values: str = ""
    value: str = ""
    when: tuple[Condition, ...] = ()


def read(draft: Draft) -> Parameter:
    """Return the draft's parameter without its conditions; raises `InvalidArgumentError` if it is invalid."""
    if draft.kind == "fixed":
        return Fixed(_one_value(draft.value))
    if draft.kind == "choice":
        return Choice(tuple(read_values(draft.values)))
    points = read_whole(draft.points, "number of grid points") if draft.points.strip() else None
    low, high = (read_number(text, end) for text, end in ((draft.low, "lowest"), (draft.high, "highest")))
    if draft.kind == "uniform":
        return uniform(low, high, points)
    if draft.kind == "log":
        return log(low, high, points)
    step = read_whole(draft.step, "step") if draft.step.strip() and draft.kind == "int" else 1
    return Integer(
        whole(low, "lowest value"), whole(high, "highest value"), draft.kind == "log int", step, points
    )


def read_number(text: str, what: str) -> float | int:
    """Return the number in a field; ``what`` names it in the error."""
    if not text.strip():
        raise InvalidArgumentError(f"the {what} value is missing; type a number")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise InvalidArgumentError(f"the {what} value must be a number, got {text.strip()!r:.80}")


def read_whole(text: str, what: str) -> int:
    """Return the whole number in a field."""
    try:
        return whole(float(text), what)
    except ValueError:
        raise InvalidArgumentError(f"the {what} must be a whole number, got {text.strip()!r:.80}") from None


def read_values(text: str) -> list[Value]:
    """Return the values of a list without its brackets: numbers, texts, True, False, None, lists.

    The syntax is that of ``%%sweep``, except that a bare word is a text.
    """
    if len(text) > MOST_TYPED:
        raise InvalidArgumentError(
            f"{len(text):,} characters of values; a field takes at most {MOST_TYPED:,}"
        )
    if not text.strip():
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # 1if: the error is raised below
            items = ast.parse(f"[{text}\n]", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise InvalidArgumentError(f"{text.strip()!r:.80} cannot be read: {EXAMPLE}") from None
    if not isinstance(items, ast.List):  # 1] + [2
        raise InvalidArgumentError(f"{text.strip()!r:.80} cannot be read: {EXAMPLE}")
    return [_value(item) for item in items.elts]


def drafts_of(space: Space) -> tuple[Draft, ...]:
    """Return the drafts of a space, numbered from 0."""
    ids = {name: index for index, name in enumerate(space)}
    return tuple(
        replace(
            _fields(Draft(ids[name], name), parameter.kind),
            when=tuple(
                Condition(ids[on], ", ".join(map(literal, values)))
                for on, values in parameter.conditions.items()
            ),
        )
        for name, parameter in space.items()
    )


def new_draft(drafts: tuple[Draft, ...], identity: int) -> Draft:
    """Return a new parameter with an unused name."""
    names = {one.name for one in drafts}
    name = next(name for number in count(1) if (name := f"p{number}") not in names)
    low, high = FIRST["log"]
    return Draft(identity, name, "log", low, high)


def turned(draft: Draft, kind: Kind) -> Draft:
    """Return the draft as another kind, with its range if that fits the kind."""
    if kind not in get_args(Kind):
        raise InvalidArgumentError(
            f"unknown kind of parameter {kind!r:.80}; the kinds are {', '.join(get_args(Kind))}"
        )
    other = replace(draft, kind=kind)
    if kind == "choice" and not draft.values.strip():
        other = replace(other, values=draft.value or f"{draft.low}, {draft.high}".strip(", "))
    if kind == "fixed" and not draft.value.strip():
        other = replace(other, value=draft.low or draft.values.partition(",")[0])
    if kind in NUMBERS:
        if (draft.low, draft.high) == FIRST.get(draft.kind):  # not chosen by the user
            return _in_range(other, *FIRST[kind])
        try:
            read(other)
        except InvalidArgumentError:
            return _in_range(other, *FIRST[kind])
    return other


def _in_range(draft: Draft, low: str, high: str) -> Draft:
    return replace(draft, low=low, high=high, step="", points="")


def literals(text: str) -> list[tuple[str, str]]:
    """Return the values of a field as literals with their types; empty if they cannot be read.

    >>> literals("sgd, 32, True")
    [("'sgd'", 'text'), ('32', 'number'), ('True', 'truth value')]
    """
    try:
        return [(literal(value), reading(value)) for value in read_values(text)]
    except InvalidArgumentError:
        return []


def _fields(draft: Draft, parameter: Parameter) -> Draft:
    match parameter:
        case Real():
            kind: Kind = "log" if parameter.log else "uniform"
            low, high, points = _typed(parameter.low), _typed(parameter.high), _typed(parameter.points)
            return replace(draft, kind=kind, low=low, high=high, points=points)
        case Integer():
            step = "" if parameter.step == 1 else str(parameter.step)
            return replace(
                draft, kind="log int" if parameter.log else "int", low=str(parameter.low),
                high=str(parameter.high), step=step, points=_typed(parameter.points),
            )  # fmt: skip
        case Choice():
            return replace(draft, kind="choice", values=", ".join(map(literal, parameter.values)))
        case Fixed():
            return replace(draft, kind="fixed", value=literal(parameter.value))
    raise InvalidArgumentError(f"the editor does not support {type(parameter).__name__}: {parameter}")


def _typed(number: float | None) -> str:
    return "" if number is None else repr(number).removesuffix(".0")


def _one_value(text: str) -> Value:
    values = read_values(text)
    if len(values) != 1:
        got = "none" if not values else f"{len(values)}; for several values, use the distribution choice"
        raise InvalidArgumentError(f"a fixed parameter has one value, got {got}")
    return values[0]


def _value(node: ast.expr) -> Value:
    if isinstance(node, ast.Name):
        if node.id.lower() in AMBIGUOUS:
            raise InvalidArgumentError(
                f"{node.id} cannot be a value; write {node.id!r} in quotes for a text, or True, "
                "False or None with a capital letter"
            )
        return node.id
    try:
        return plain(ast.literal_eval(node))
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"{ast.unparse(node):.80} is not a value: {EXAMPLE}") from None


# The kinds of parameters in the space editor, and the labels of their values.

Kind: TypeAlias = Literal["uniform", "log", "int", "log int", "choice", "fixed"]
NUMBERS: dict[Kind, str] = {
    "uniform": "uniform", "log": "log-uniform", "int": "integer", "log int": "log-integer",
}  # fmt: skip
"""Ranges of numbers, and the page's names of their distributions."""


KINDS: dict[Kind, str] = {**NUMBERS, "choice": "choice", "fixed": "fixed"}
FIRST: dict[Kind, tuple[str, str]] = {
    "uniform": ("0", "1"), "log": ("0.0001", "0.1"), "int": ("1", "10"), "log int": ("1", "1024"),
}  # fmt: skip
"""The range of a parameter that has just become one of these."""


def reading(value: Value) -> str:
    """Return the name of a value's type.

    >>> reading(1), reading(True), reading("1"), reading((1, 2))
    ('number', 'truth value', 'text', 'list')
    """
    match value:
        case None:
            return "none"
        case bool():
            return "truth value"
        case str():
            return "text"
        case tuple():
            return "list"
    return "number"


# Edits of the parameters by the page. Pure.

Drafts: TypeAlias = tuple[Draft, ...]
Change: TypeAlias = Mapping[str, Any]
FIELDS = ("name", "low", "high", "step", "points", "values", "value")


def edited(drafts: Drafts, change: Change) -> Drafts:
    """Return the drafts after an edit by the page.

    Raises `InvalidArgumentError` for an invalid change, `NotFoundError` for a removed parameter.

    >>> drafts = drafts_of(Space({"opt": ["sgd", "adam"], "epochs": 5}))
    >>> drafts = edited(drafts, {"what": "field", "id": 0, "field": "name", "value": "optimizer"})
    >>> [one.name for one in edited(drafts, {"what": "move", "id": 0, "by": 1})]
    ['epochs', 'optimizer']
    """
    what = change.get("what")
    if what == "add":
        if len(drafts) >= MOST_PARAMETERS:
            raise InvalidArgumentError(f"a space has at most {MOST_PARAMETERS} parameters")
        return (*drafts, new_draft(drafts, 1 + max((one.id for one in drafts), default=-1)))
    if not isinstance(what, str) or what not in EDITS:
        raise InvalidArgumentError(
            f"unknown edit {what!r:.80} of a space; the edits are add, {', '.join(EDITS)}"
        )
    place = next((at for at, one in enumerate(drafts) if one.id == change.get("id")), None)
    if place is None:
        raise NotFoundError(f"parameter number {change.get('id')!r:.80} no longer exists")
    return EDITS[what](drafts, place, change)


def _remove(drafts: Drafts, place: int, change: Change) -> Drafts:
    removed = drafts[place]

    def by_name(condition: Condition) -> Condition:
        return replace(condition, on=removed.name) if condition.on == removed.id else condition

    rest = (*drafts[:place], *drafts[place + 1 :])
    return tuple(replace(one, when=tuple(map(by_name, one.when))) for one in rest)


def _move(drafts: Drafts, place: int, change: Change) -> Drafts:
    rest = [*drafts[:place], *drafts[place + 1 :]]
    by = change.get("by")
    if by not in (-1, 1):
        raise InvalidArgumentError(f"a parameter moves by 1 or -1, got {by!r:.80}")
    rest.insert(max(0, place + by), drafts[place])
    return tuple(rest)


def _field(drafts: Drafts, place: int, change: Change) -> Drafts:
    field, value = change.get("field"), _text(change.get("value"))
    if field not in FIELDS:
        raise InvalidArgumentError(f"unknown field {field!r:.80}; the fields are {', '.join(FIELDS)}")
    typed: dict[str, Any] = {field: value.strip() if field == "name" else value}
    return _with(drafts, place, replace(drafts[place], **typed))


def _kind(drafts: Drafts, place: int, change: Change) -> Drafts:
    return _with(drafts, place, turned(drafts[place], change.get("value")))  # type: ignore[arg-type]


def _condition(drafts: Drafts, place: int, change: Change) -> Drafts:
    """Set the condition number ``at``, or append one; ``on`` None removes it.

    Without values, the condition takes the other parameter's first value.
    """
    conditions, at, on = list(drafts[place].when), change.get("at"), change.get("on")
    if type(at) is not int or not 0 <= at <= len(conditions):
        raise NotFoundError(f"{drafts[place].name} no longer has a condition number {at!r:.80}")
    known = on is None or isinstance(on, str) or any(one.id == on for one in drafts)
    if not known or isinstance(on, bool):
        raise NotFoundError(f"parameter number {on!r:.80} no longer exists")
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
        raise InvalidArgumentError(f"a field takes a text, got {value!r:.80}")
    if len(value) > MOST_TYPED:
        raise InvalidArgumentError(f"{len(value):,} characters; a field has at most {MOST_TYPED:,}")
    return value
