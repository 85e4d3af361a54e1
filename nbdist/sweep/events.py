"""What can happen in a sweep, one record each.

The records are the truth: whatever else is known of a sweep is worked out from them (`Ledger`). Times are
seconds since 1970. An ``attempt`` counts how often a trial was started; what an earlier attempt still says
after that is not taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from nbdist.sweep.space import Parameters, Space

VERSION = 1

Direction: TypeAlias = Literal["max", "min"]
EndState: TypeAlias = Literal["finished", "pruned", "stopped", "failed"]
Reason: TypeAlias = Literal["death", "recovery", "asked"]


class Reported(NamedTuple):
    """A trial reported a value of the sweep's metric at a step."""

    number: int
    attempt: int
    step: int
    value: float
    time: float


@dataclass(frozen=True)
class Created:
    """The sweep: what is searched, how, for what, and with which body. The first record."""

    time: float
    space: Space
    trials: int
    seed: int
    metric: str
    direction: Direction = "max"
    sampler: str = "random"
    pruner: str = "none"
    per_trial: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    body: str = ""
    body_hash: str = ""
    version: int = VERSION


@dataclass(frozen=True)
class Asked:
    """A new trial with the parameters that the sampler chose."""

    time: float
    number: int
    parameters: Parameters
    seed: int


@dataclass(frozen=True)
class Cloned:
    """A new trial with the parameters of another, some of them changed by hand."""

    time: float
    number: int
    parameters: Parameters
    seed: int
    parent: int


@dataclass(frozen=True)
class Started:
    """A trial is given to engines; written before they are told."""

    time: float
    number: int
    attempt: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Pruned:
    """The pruner decided that a trial is not worth going on with; it ends when its engines say so."""

    time: float
    number: int
    attempt: int
    step: int


@dataclass(frozen=True)
class Stopped:
    """A running trial is to be stopped because somebody, or an edit of the space, wished so."""

    time: float
    number: int
    attempt: int


@dataclass(frozen=True)
class Ended:
    """A trial is over; ``value`` is that of the sweep's metric, ``values`` those of all metrics."""

    time: float
    number: int
    attempt: int
    state: EndState
    value: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Retried:
    """A trial starts again from its beginning, if possible not on the ranks in ``avoid``."""

    time: float
    number: int
    reason: Reason
    error: str = ""
    avoid: tuple[int, ...] = ()


@dataclass(frozen=True)
class Promoted:
    """An ended trial goes on from its checkpoint; it is not pruned again.

    ``per_trial`` is the number of engines if not the sweep's own, ``changes`` what the body gets beside its
    parameters (such as more epochs).
    """

    time: float
    number: int
    checkpoint: str = ""
    per_trial: int | None = None
    changes: Parameters = field(default_factory=dict)


@dataclass(frozen=True)
class SpaceEdited:
    """From here on trials are asked for from another space."""

    time: float
    space: Space


@dataclass(frozen=True)
class Added:
    """So many more trials are wanted."""

    time: float
    trials: int


@dataclass(frozen=True)
class Paused:
    """No trial is started from here on; those running go on."""

    time: float


@dataclass(frozen=True)
class Resumed:
    """Trials are started again."""

    time: float


@dataclass(frozen=True)
class Closed:
    """The sweep is over: nothing is asked for or started any more."""

    time: float
    reason: str = ""


Event: TypeAlias = (
    Created | Asked | Cloned | Started | Reported | Pruned | Stopped | Ended | Retried | Promoted
    | SpaceEdited | Added | Paused | Resumed | Closed
)  # fmt: skip
