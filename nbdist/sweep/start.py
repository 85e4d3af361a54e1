"""A sweep's first record, with everything checked before an engine receives it. Pure.

>>> from nbdist.sweep.space import Space
>>> created = open_sweep(Space({"width": [32, 64, 128]}), metric="accuracy", sampler="grid", now=0.0)
>>> created.trials, created.per_trial, created.pruner
(3, 1, 'none')
"""

from __future__ import annotations

from collections.abc import Mapping
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
