"""A sweep's first record, with everything checked before an engine receives it. Pure.

>>> from nbdist.sweep.space import Space
>>> created = open_sweep(Space({"width": [32, 64, 128]}), metric="accuracy", sampler="grid", now=0.0)
>>> created.trials, created.per_trial, created.pruner
(3, 1, 'none')
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from hashlib import sha256
from typing import Any, get_args

from nbdist.errors import InvalidArgumentError
from nbdist.sweep.events import Created, Direction
from nbdist.sweep.parameters import whole
from nbdist.sweep.pruners import make_pruner
from nbdist.sweep.samplers import make_sampler
from nbdist.sweep.space import Space

MOST_TRIALS = 1_000_000
LONGEST_BODY = 1 << 20


def open_sweep(
    space: Space,
    *,
    metric: str,
    now: float,
    trials: int | None = None,
    seed: int = 0,
    direction: Direction = "max",
    sampler: str = "random",
    pruner: str = "none",
    per_trial: int = 1,
    engines: int | None = None,
    sampler_settings: Mapping[str, Any] | None = None,
    pruner_settings: Mapping[str, Any] | None = None,
    body: str = "",
) -> Created:
    """Return the record that makes a sweep; without ``trials`` a grid runs all its points, and never more.

    ``engines`` is how many there are, if that is known. Raises `InvalidArgumentError` for what cannot be
    meant, `MissingExtra` if the sampler needs Optuna and it is not there.
    """
    if not metric or not isinstance(metric, str):
        got = f", not {metric!r:.80}" if metric else ""
        raise InvalidArgumentError(f"say which metric counts, such as --metric val_accuracy{got}")
    if direction not in get_args(Direction):
        raise InvalidArgumentError(f"no direction {direction!r}; choose from max, min")
    if len(body) > LONGEST_BODY:
        raise InvalidArgumentError(f"a body of {len(body):,} characters; at most {LONGEST_BODY:,}")
    made = make_sampler(sampler, space, whole(seed, "seed"), direction, sampler_settings)
    make_pruner(pruner, pruner_settings)
    if trials is None:
        trials = made.size
        if trials is None:
            raise InvalidArgumentError(f"the sampler {sampler} has no end: say --trials N")
    if not 1 <= whole(trials, "number of trials") <= MOST_TRIALS:
        raise InvalidArgumentError(f"{trials:,} trials; a sweep has 1 to {MOST_TRIALS:,}")
    if made.size is not None:  # more than a grid has would be wanted for ever
        trials = min(int(trials), made.size)
    check_per_trial(per_trial, engines)
    settings = {"sampler": dict(sampler_settings or {}), "pruner": dict(pruner_settings or {})}
    return Created(
        now, space, int(trials), int(seed), metric, direction, sampler, pruner, int(per_trial), settings,
        body, sha256(body.encode()).hexdigest(),
    )  # fmt: skip


def check_per_trial(per_trial: int, engines: int | None) -> None:
    """Raise `InvalidArgumentError` if a trial is given less than one engine, or more than there are."""
    if whole(per_trial, "number of engines a trial") < 1:
        raise InvalidArgumentError(f"--per-trial {per_trial}: a trial needs at least one engine")
    if engines is not None and per_trial > engines:
        raise InvalidArgumentError(
            f"--per-trial {per_trial}: the cluster has {engines} engines; start a larger one "
            "(%cluster stop, %cluster start), or give less"
        )


# The names of parameters, checked against a trial's body.


def wrong_names(
    trial: object, names: Iterable[str], conditional: Iterable[str] = ()
) -> tuple[dict[str, str], str]:
    """Return the errors in a space's parameters for a trial: by name, and a message on missing parameters.

    Text is not checked: it may ignore a parameter (a number that only repeats a trial). Nor is a function
    without a readable signature. ``conditional`` are parameters that not all trials have.

    >>> def trial(lr, hidden, epochs=5): ...
    >>> wrong_names(trial, ["lr", "dropout"])
    ({'dropout': 'trial() takes no parameter dropout; it takes lr, hidden, epochs'}, 'trial() needs hidden: \
add it to the space')
    """
    if isinstance(trial, str) or not callable(trial):
        return {}, ""
    try:
        taken = inspect.signature(trial).parameters
    except (TypeError, ValueError):
        return {}, ""
    called = f"{getattr(trial, '__name__', 'the trial')}()"
    by_name = [
        name for name, one in taken.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    needed = [name for name in by_name if taken[name].default is inspect.Parameter.empty]
    given = list(names)
    wrong: dict[str, str] = {}
    if not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        there = ", ".join(by_name) or "none"
        wrong = {
            name: f"{called} takes no parameter {name}; it takes {there}"
            for name in given
            if name not in by_name
        }
    for name in set(conditional).intersection(needed):
        wrong[name] = f"not all trials have {name}: give it a default value in {called}"
    missing = [name for name in needed if name not in given]
    return wrong, f"{called} needs {', '.join(missing)}: add it to the space" if missing else ""


def check_names(trial: object, space: Space) -> None:
    """Raise `InvalidArgumentError` if a trial cannot take the parameters of a space, or overwrites one.

    >>> check_names("lr = 0.1\\nfit(lr, hidden)", Space({"lr": [0.1, 0.2], "hidden": [32, 64]}))
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: the trial sets lr itself, and all trials would have that value: \
delete the line, or take lr out of the space
    """
    conditional = [name for name, one in space.items() if one.conditions]
    wrong, missing = wrong_names(trial, space, conditional)
    own = names_bound(trial)
    lost = [
        f"the trial sets {name} itself, and all trials would have that value: delete the line, or take "
        f"{name} out of the space"
        for name in space
        if name in own
    ]
    found = [*wrong.values(), *([missing] if missing else []), *lost]
    if found:
        raise InvalidArgumentError("; ".join(found))


def check_edit(trial: object, before: Space, after: Space) -> None:
    """Raise `InvalidArgumentError` if a trial cannot take the parameters of an edited space.

    Text is checked as well: a name that is new in the space has to occur in it, and one that it uses has to
    stay, because the usual reason for either is a typing error.

    >>> before = Space({"lr": [0.1], "hidden": [32, 64]})
    >>> check_edit("print(lr, hidden)", before, Space({"lr": [0.1], "hiddn": [128]}))
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: the trial does not use hiddn (do you mean hidden?); the trial uses \
hidden: keep it in the space, as one value if it is not searched any more
    """
    check_names(trial, after)
    used = names_used(trial)
    if used is None:
        return
    wrong = [unused(name, [*before, *used]) for name in after if name not in before and name not in used]
    wrong += [
        f"the trial uses {name}: keep it in the space, as one value if it is not searched any more"
        for name in before
        if name not in after and name in used
    ]
    if wrong:
        raise InvalidArgumentError("; ".join(wrong))


def check_changes(trial: object, parameters: Iterable[str], changes: Iterable[str]) -> None:
    """Raise `InvalidArgumentError` if a promotion changes variables that a trial does not have.

    >>> check_changes("fit(lr)", ["lr"], ["epohs"])
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: the trial does not use epohs
    >>> check_changes("for epoch in range(epochs): fit(lr)", ["lr", "epochs"], ["epoch"])
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: the trial sets epoch itself (do you mean epochs?)
    """
    known = set(parameters)
    new = [name for name in changes if name not in known]
    wrong, _ = wrong_names(trial, new)
    used = names_used(trial)
    found = [*wrong.values(), *(unused(name, used) for name in new if used is not None and name not in used)]
    own = names_bound(trial)
    found += [f"the trial sets {name} itself{meant(name, known)}" for name in new if name in own]
    if found:
        raise InvalidArgumentError("; ".join(found))


def unused(name: str, known: Iterable[str]) -> str:
    """Return the message on a name that does not occur in a trial's text."""
    return f"the trial does not use {name}{meant(name, known)}"


def meant(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name that is most like another one; empty for none."""
    close = get_close_matches(name, set(known) - set(dir(builtins)), 1)
    return f" (do you mean {close[0]}?)" if close else ""


BY_TEXT = {"globals", "locals", "vars", "eval", "exec"}
"""Functions that find names which do not occur in a trial's text."""


def names_used(trial: object) -> set[str] | None:
    """Return the names that occur in a trial's text; None if they cannot be found, and of a function.

    >>> sorted(names_used("model.fit(x, lr=rate)"))
    ['model', 'rate', 'x']
    """
    if not isinstance(trial, str):
        return None
    if (tree := parsed(trial)) is None:
        return None
    found = names_in(tree)
    return None if found & BY_TEXT else found


def names_bound(trial: object) -> set[str]:
    """Return the names that a trial's text sets before it reads them: parameters of these names are lost.

    Only assignments and loops that are always executed count.

    >>> sorted(names_bound("lr = 0.1; width = width * 2\\nif lr: depth = 3\\nfor epoch in epochs: fit(lr)"))
    ['epoch', 'lr']
    """
    tree = parsed(trial) if isinstance(trial, str) else None
    bound: set[str] = set()
    read: set[str] = set()
    for statement in () if tree is None else tree.body:
        first: ast.AST = statement
        targets: list[ast.expr] = []
        if isinstance(statement, ast.For):
            first, targets = statement.iter, [statement.target]
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        read |= names_in(first, ast.Load)
        bound |= {name for target in targets for name in names_in(target, ast.Store)} - read
        read |= names_in(statement, ast.Load)
    return bound


def names_in(tree: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> set[str]:
    """Return the names that are read (``ast.Load``) or set (``ast.Store``) in a tree."""
    nodes = ast.walk(tree)
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def parsed(trial: str) -> ast.Module | None:
    """Return the tree of a trial's text; None if Python cannot read it, as with lines of IPython's."""
    try:
        return ast.parse(trial)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
