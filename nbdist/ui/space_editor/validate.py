"""Checks an edited space: the problems of its parameters, and the number of trials. Pure.

>>> found = check((Draft(0, "lr", "log", "0.1", "0.01"), Draft(1, "lr", "fixed", value="5")))
>>> for identity, problem in found.problems.items():
...     print(identity, problem.at, problem.text)
0 range log(0.1, 0.01) is empty: 0.1 is more than 0.01; swap them
1 name lr stands twice in the space; give it once
>>> found.space is None
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import prod
from typing import Literal, TypeAlias

from nbdist.errors import InvalidArgumentError, MissingExtra
from nbdist.sweep.parameters import Fixed, Parameter
from nbdist.sweep.samplers import OF_OPTUNA, Grid
from nbdist.sweep.space import Space, check_name, in_order, when
from nbdist.sweep.start import MOST_TRIALS
from nbdist.ui.space_editor.draft import Draft, read, read_values, read_whole

MOST_COUNTED = (
    100_000  # combinations of the values that conditions depend on: counting more would delay the page
)
Place: TypeAlias = Literal["name", "range", "when", "points"]


@dataclass(frozen=True)
class Problem:
    """A parameter's problem, and the field that has it."""

    text: str
    at: Place


@dataclass(frozen=True)
class Checked:
    """A valid space, or its problems: by parameter, or in general."""

    space: Space | None
    problems: Mapping[int, Problem]
    general: str = ""

    def why_not(self, drafts: Sequence[Draft]) -> str:
        """Return the first problem, worded as by `Space`; "" if there is none."""
        for draft in drafts:
            if (problem := self.problems.get(draft.id)) is not None:
                named = problem.at in ("name", "when")  # these texts name the parameter
                return problem.text if named else f"{draft.name}: {problem.text}"
        return self.general


@dataclass(frozen=True)
class Trials:
    """The number of trials, and of points for a grid; or the reason why there are none."""

    count: int | None = None
    points: int | None = None
    problem: str = ""


@lru_cache(maxsize=8)  # each edit checks the whole space again, and Start once more
def check(drafts: tuple[Draft, ...], grid: bool = False) -> Checked:
    """Return the space of the drafts; with ``grid``, every range must have finitely many values."""
    problems: dict[int, Problem] = {}
    parameters: dict[int, Parameter] = {}
    for draft in drafts:
        found = _read_alone(draft, drafts, grid)
        if isinstance(found, Problem):
            problems[draft.id] = found
        else:
            parameters[draft.id] = found
    if not problems:
        problems |= _wrong_conditions(drafts, parameters)
    if problems:
        return Checked(None, problems)
    try:
        return Checked(Space([(draft.name, parameters[draft.id]) for draft in drafts]), {})
    except InvalidArgumentError as error:  # about the whole space: empty, too many parameters
        return Checked(None, {}, str(error))


def count_trials(space: Space | None, sampler: str, typed: str) -> Trials:
    """Return the number of trials of a sweep over the space; ``typed`` is the text of that field."""
    if sampler in OF_OPTUNA and find_spec("optuna") is None:
        return Trials(problem=str(MissingExtra("sweep", "the samplers of Optuna and the export to a study")))
    points = None
    if sampler == "grid" and space is not None:
        try:
            points = _points(space)
        except InvalidArgumentError as error:
            return Trials(problem=str(error))
    if not typed.strip():
        if sampler == "grid":
            return _within(Trials(points, points))
        return Trials(problem=f"the sampler {sampler} draws without end: give the number of trials")
    try:
        wanted = read_whole(typed, "number of trials")
    except InvalidArgumentError as error:
        return Trials(None, points, str(error))
    return _within(Trials(wanted if points is None else min(wanted, points), points))


def _within(trials: Trials) -> Trials:
    if trials.count is not None and not 1 <= trials.count <= MOST_TRIALS:
        return Trials(
            None,
            trials.points,
            f"{trials.count:,} trials; a sweep has 1 to {MOST_TRIALS:,}: give the number of trials",
        )
    return trials


def _points(space: Space) -> int:
    deciding = {on for parameter in space.values() for on in parameter.conditions}
    if prod(len(space[name].grid()) for name in deciding) > MOST_COUNTED:
        raise InvalidArgumentError(
            f"conditions depend on {', '.join(sorted(deciding))}, with more than {MOST_COUNTED:,} "
            "combinations of values: too many to count; give them fewer values, or use another sampler"
        )
    return Grid(space).size


def _read_alone(draft: Draft, drafts: Sequence[Draft], grid: bool) -> Parameter | Problem:
    place: Place = "name"
    try:
        check_name(draft.name)
        if any(one.name == draft.name for one in drafts[: drafts.index(draft)]):
            Space([(draft.name, Fixed(0))] * 2)  # raises
        place = "range"
        parameter = _read(draft)
        place = "when"
        if draft.when:
            parameter = _under_conditions(draft, parameter, {one.id: one.name for one in drafts})
        place = "points"
        if grid:
            parameter.grid()
    except InvalidArgumentError as error:
        return Problem(str(error), place)
    return parameter


_read = lru_cache(maxsize=512)(read)


def _under_conditions(draft: Draft, parameter: Parameter, names: Mapping[int, str]) -> Parameter:
    conditions: dict[str, object] = {}
    for condition in draft.when:
        on = condition.on if isinstance(condition.on, str) else names[condition.on]
        if on in conditions:
            raise InvalidArgumentError(f"{draft.name} has two conditions on {on}; give one")
        try:
            conditions[on] = read_values(condition.values)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{draft.name} depends on {on}: {error}") from None
        if not conditions[on]:
            raise InvalidArgumentError(f"{draft.name}: give the values of {on} that it depends on")
    return when(parameter, conditions)


def _wrong_conditions(drafts: Sequence[Draft], parameters: Mapping[int, Parameter]) -> dict[int, Problem]:
    """Return the parameters with invalid conditions, each checked in a space with only what it depends on."""
    ids = {draft.name: draft.id for draft in drafts}
    names = {draft.id: draft.name for draft in drafts}
    problems: dict[int, Problem] = {}
    needed = {draft.id: _needed(draft.id, parameters, ids) for draft in drafts if draft.when}
    for identity in sorted(needed, key=lambda one: len(needed[one])):
        of = needed[identity]
        if identity not in of and of & problems.keys():
            continue  # a parameter that it depends on has an error already
        try:
            # First check that the parameters of its conditions exist: the message lists the existing ones.
            in_order({**{name: Fixed(0) for name in ids}, names[identity]: parameters[identity]})
            Space([(names[one], parameters[one]) for one in names if one in of or one == identity])
        except InvalidArgumentError as error:
            problems[identity] = Problem(str(error), "when")
    return problems


def _needed(identity: int, parameters: Mapping[int, Parameter], ids: Mapping[str, int]) -> set[int]:
    found: set[int] = set()
    todo = [identity]
    while todo:
        for on in parameters[todo.pop()].conditions:
            if on in ids and ids[on] not in found:
                found.add(ids[on])
                todo.append(ids[on])
    return found
