"""What can happen in a sweep, one record each.

The records are the truth: whatever else is known of a sweep is worked out from them (`Ledger`). Times are
seconds since 1970. An ``attempt`` counts how often a trial was started; what an earlier attempt still says
after that is not taken.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from nbdist.errors import DataLossError, InvalidArgumentError, ResourceExhaustedError
from nbdist.sweep.parameters import plain
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
    """A trial starts on engines; written before they receive it."""

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
    """A running trial is to be stopped, by a command or by an edit of the space."""

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
    """An ended trial continues from its checkpoint; it is not pruned again.

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
    """No trial is started from here on; running ones continue."""

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

# How an event is written down: JSON, or packed numbers for the many reports.
#
# >>> from nbdist.sweep.events import Asked >>> event = Asked(1e9, number=3, parameters={"lr": 0.1,
# "widths": (32, 64)}, seed=7) >>> kind, payload = encoded(event) >>> payload
# b'{"event":"asked","time":1000000000.0,"number":3,"parameters":{"lr":0.1,"widths":[32,64]},"seed":7}' >>>
# decoded(kind, payload) == [event] True

EVENT, REPORTS = 16, 17  # kinds of frames; those of a metrics log have smaller numbers
LARGEST = 4 << 20  # bytes of one record; a longer one is refused, or damage
LONGEST_ERROR = 20_000  # characters
_REPORT = struct.Struct("<IHIdd")
REPORT_BYTES = _REPORT.size
_NAMES: dict[type, str] = {
    Created: "created", Asked: "asked", Cloned: "cloned", Started: "started", Pruned: "pruned",
    Stopped: "stopped", Ended: "ended", Retried: "retried", Promoted: "promoted",
    SpaceEdited: "space_edited", Added: "added", Paused: "paused", Resumed: "resumed", Closed: "closed",
}  # fmt: skip
_KINDS: dict[str, type] = {name: kind for kind, name in _NAMES.items()}


def encoded(event: Event) -> tuple[int, bytes]:
    """Return (kind, payload) of a frame for one event; raises `ResourceExhaustedError` if it is too large."""
    if isinstance(event, Reported):
        return encoded_reports([event])
    data: dict[str, Any] = {"event": _NAMES[type(event)]}
    for one in fields(event):
        value = getattr(event, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if value != default:  # what is as it mostly is takes no room
            data[one.name] = value.to_json() if isinstance(value, Space) else value
    if "error" in data:
        data["error"] = data["error"][-LONGEST_ERROR:]  # the end of a traceback says what happened
    payload = json.dumps(data, separators=(",", ":")).encode()
    if len(payload) > LARGEST:
        raise ResourceExhaustedError(
            f"a record {data['event']!r} of {len(payload):,} bytes; at most {LARGEST:,}: a shorter body, or "
            "fewer values"
        )
    return EVENT, payload


def encoded_reports(reports: Iterable[Reported]) -> tuple[int, bytes]:
    """Return (kind, payload) of one frame for many reports; `InvalidArgumentError` for anything else."""
    packed = []
    for report in reports:
        try:
            packed.append(_REPORT.pack(*report))
        except struct.error:
            raise InvalidArgumentError(
                f"{report!r:.200}: a step is a whole number, 0 to 2**32 - 1, and a value a number"
            ) from None
    return REPORTS, b"".join(packed)


def decoded(kind: int, payload: bytes) -> list[Event]:
    """Return the events of a frame; raises `DataLossError` for one that says nothing this version knows."""
    if kind == REPORTS:
        if len(payload) % _REPORT.size:
            raise DataLossError(
                f"a frame of reports has {len(payload)} bytes, expected a multiple of {_REPORT.size}"
            )
        return list(map(Reported._make, _REPORT.iter_unpack(payload)))
    try:
        if kind != EVENT:
            raise InvalidArgumentError(f"no kind of record {kind}")
        data = json.loads(payload)
        event = _KINDS[data.pop("event")]
        for name, read in _READ.items():
            if name in data:
                data[name] = read(data[name])
        if not isinstance(data["time"], (int, float)):
            raise InvalidArgumentError(f"no time: {data['time']!r:.40}")
        return [event(**data)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DataLossError(f"a record that cannot be read: {payload[:80]!r}: {error}") from None


def _parameters(data: Mapping[str, object]) -> Parameters:
    return {str(name): plain(value) for name, value in data.items()}


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise InvalidArgumentError(f"no number: {value!r:.40}")
    return value


def _one_of(*allowed: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in allowed:
            raise InvalidArgumentError(f"{value!r:.40} is none of {', '.join(allowed)}")
        return str(value)

    return read


def _end_state(value: object) -> str:
    # Logs written before 2026-11-22 call a finished trial "complete".
    return "finished" if value == "complete" else _one_of(*get_args(EndState))(value)


_READ: dict[str, Callable[[Any], object]] = {
    "space": Space.from_json,
    "parameters": _parameters,
    "changes": _parameters,
    "ranks": lambda value: tuple(map(_count, value)),
    "avoid": lambda value: tuple(map(_count, value)),
    "number": _count,
    "attempt": _count,
    "trials": _count,
    "direction": _one_of(*get_args(Direction)),
    "state": _end_state,
}
