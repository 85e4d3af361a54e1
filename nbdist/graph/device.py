"""Devices of ops: device specs, nested device scopes, and how a spec resolves to a device of a cluster.

    /job:ps/task:0  +  /cpu:0   ->   /job:ps/task:0/device:CPU:0

Pure functions of text and small frozen records.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from nbdist.errors import InvalidArgumentError, choices

__all__ = ["DeviceFunction", "DeviceScope", "DeviceSpec", "checked_scope", "choose_device", "device_of"]

SHORT_TYPES = ("cpu", "gpu", "tpu")  # may be written without `device:` before them
TPU_ADVICE = "Sessions do not compute on TPUs: train on them with --strategy tpu (nb.distribute.TPUStrategy)"
FIELDS = ("job", "replica", "task", "device", *SHORT_TYPES)


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device, or a part of its name.

    ``job`` is a name; ``replica``, ``task`` and ``device_index`` are numbers from 0; ``device_type`` is upper
    case, such as "CPU"; None leaves a field unset. An index without a type has no text; it counts when specs
    merge. Raises InvalidArgumentError for an invalid value.

    >>> DeviceSpec(job="ps", task=0).merge(DeviceSpec(device_type="cpu")).to_string()
    '/job:ps/task:0/device:CPU:*'
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    def __post_init__(self) -> None:
        for field in ("job", "device_type"):
            word = getattr(self, field)
            if word is not None and not (isinstance(word, str) and re.fullmatch(r"[^\s/:*]+", word)):
                raise InvalidArgumentError(
                    f"a {field.replace('_', ' ')} is a word without spaces and / : *, not {word!r}"
                )
        for field in ("replica", "task", "device_index"):
            object.__setattr__(self, field, _checked_number(field, getattr(self, field)))
        if self.device_type is not None:
            object.__setattr__(self, "device_type", self.device_type.upper())

    @classmethod
    def from_string(cls, text: str) -> DeviceSpec:
        """Return the spec of a ``text`` like ``/job:ps/task:0/cpu:0``; fields may have any order.

        ``device:CPU:0`` and ``cpu:0`` are one device, an index that is left out or ``*`` is not set, and ""
        is an empty spec. An unknown field, a field given twice, or a replica, task or index that is not a
        number is an InvalidArgumentError (a ValueError).

        >>> DeviceSpec.from_string("/gpu:1/job:worker").to_string()
        '/job:worker/device:GPU:1'
        """
        if not isinstance(text, str):
            raise TypeError(f"a device is a text like '/job:ps/task:0/cpu:0', not {text!r}")
        return _parse(text)

    def to_string(self) -> str:
        """Return the text: the fields that are set, in their order, the type in full.

        >>> DeviceSpec.from_string("cpu:0/task:1").to_string()
        '/task:1/device:CPU:0'
        """
        text = "" if self.job is None else f"/job:{self.job}"
        if self.replica is not None:
            text += f"/replica:{self.replica}"
        if self.task is not None:
            text += f"/task:{self.task}"
        if self.device_type is not None:
            text += f"/device:{self.device_type}:{'*' if self.device_index is None else self.device_index}"
        return text

    def merge(self, other: DeviceSpec) -> DeviceSpec:
        """Return a new spec with the fields of both; where both set one, that of ``other`` wins.

        >>> worker = DeviceSpec.from_string("/job:worker/cpu:0")
        >>> worker.merge(DeviceSpec.from_string("/job:ps/task:1")).to_string()
        '/job:ps/task:1/device:CPU:0'
        """
        return DeviceSpec(
            self.job if other.job is None else other.job,
            self.replica if other.replica is None else other.replica,
            self.task if other.task is None else other.task,
            self.device_type if other.device_type is None else other.device_type,
            self.device_index if other.device_index is None else other.device_index,
        )

    def covers(self, full: DeviceSpec) -> bool:
        """Return whether ``full``, a full device, matches this spec.

        A device without a replica number matches any replica.

        >>> DeviceSpec.from_string("/job:ps").covers(DeviceSpec.from_string("/job:ps/task:1/cpu:0"))
        True
        """
        return (
            self.job in (None, full.job)
            and (self.replica in (None, full.replica) or full.replica is None)
            and self.task in (None, full.task)
            and self.device_type in (None, full.device_type)
            and self.device_index in (None, full.device_index)
        )


DeviceFunction: TypeAlias = Callable[[Any], Any]
"""Gets an op, whose ``.device`` holds what inner scopes set; returns its device, or None to leave it."""

DeviceScope: TypeAlias = str | DeviceSpec | DeviceFunction | None
"""A text or spec to merge, a function that replaces the device, or None to ignore outer scopes."""


class HasDevice(Protocol):
    """An op that is being placed."""

    device: str


def checked_scope(scope: DeviceScope) -> DeviceSpec | DeviceFunction | None:
    """Return a scope with its text parsed, so that an invalid text fails where the scope is opened.

    >>> checked_scope("jobs:ps")
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: no device field 'jobs'; choose from job, ... (in 'jobs:ps')
    """
    if isinstance(scope, str):
        return DeviceSpec.from_string(scope)
    if scope is None or isinstance(scope, DeviceSpec) or callable(scope):
        return scope
    raise TypeError(
        f"device() takes a text like '/job:ps', a DeviceSpec, a function of an op, or None, not {scope!r}"
    )


def device_of(op: HasDevice, scopes: Sequence[DeviceScope]) -> str:
    """Set an op's device from its scopes, and return it.

    ``scopes`` are in the order they were opened. From the innermost out, a text or a spec fills the fields
    that are not set yet, a function replaces the device with its result (None keeps it), and a scope of None
    ends the walk. Functions read ``op.device``, so it is set before each, and to the result at the end.

    >>> from types import SimpleNamespace
    >>> device_of(SimpleNamespace(), ["/job:ps/gpu:0", "/task:1/cpu:*"])
    '/job:ps/task:1/device:CPU:0'
    """
    spec = DeviceSpec()
    for scope in reversed(scopes):
        if isinstance(scope, (str, DeviceSpec)):
            spec = _as_spec(scope).merge(spec)
        elif scope is None:
            break
        else:
            op.device = spec.to_string()
            spec = _returned(scope, scope(op), spec)
    op.device = spec.to_string()
    return op.device


def choose_device(wanted: str, devices: Sequence[str], default: str, *, soft: bool) -> str:
    """Return the one of a cluster's full devices that an op with the device ``wanted`` runs on.

    That is ``default`` if it matches ``wanted``, else the first of ``devices`` that does. With ``soft`` a
    device type that does not exist falls back to CPU; job and task never change. Raises
    InvalidArgumentError, which lists the devices, if none matches.

    >>> devices = ["/job:ps/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:CPU:0"]
    >>> choose_device("/cpu:0", devices, devices[1], soft=False)
    '/job:worker/replica:0/task:0/device:CPU:0'
    >>> choose_device("/job:ps/gpu:3", devices, devices[1], soft=True)
    '/job:ps/replica:0/task:0/device:CPU:0'
    """
    spec = DeviceSpec.from_string(wanted)
    ranked = (default, *devices)
    on_cpu = replace(spec, device_type="CPU", device_index=None)
    for allowed in (spec, on_cpu) if soft else (spec,):
        found = _first(allowed, ranked)
        if found is not None:
            return found
    shown = ", ".join(devices[:12]) + (f" and {len(devices) - 12} more" if len(devices) > 12 else "")
    message = f"no device {wanted!r} here; there {'is' if len(devices) == 1 else 'are'} {shown or 'none'}"
    if not soft and spec.device_type is not None and _first(on_cpu, ranked) is not None:
        message += "; choose one of them, or let the type fall back to CPU with allow_soft_placement=True"
    if spec.device_type == "TPU":
        message += f". {TPU_ADVICE}"
    raise InvalidArgumentError(message)


def _first(spec: DeviceSpec, devices: Sequence[str]) -> str | None:
    return next((device for device in devices if spec.covers(DeviceSpec.from_string(device))), None)


def _as_spec(device: str | DeviceSpec) -> DeviceSpec:
    return DeviceSpec.from_string(device) if isinstance(device, str) else device


def _returned(function: DeviceFunction, device: Any, so_far: DeviceSpec) -> DeviceSpec:
    if device is None:
        return so_far
    name = getattr(function, "__qualname__", repr(function))
    if not isinstance(device, (str, DeviceSpec)):
        raise TypeError(
            f"the device function {name} returned {device!r}; "
            "expected a text like '/job:ps', a DeviceSpec, or None to leave the device as it is"
        )
    try:
        return _as_spec(device)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"the device function {name} returned {device!r}: {error}") from None


@lru_cache(maxsize=4096)
def _parse(text: str) -> DeviceSpec:
    found: dict[str, Any] = {}
    for part in filter(None, text.split("/")):
        fields = _fields(part, text)
        for field in fields.keys() & found.keys() - {"device_index"}:
            raise InvalidArgumentError(
                f"{text!r} names more than one {field.replace('_', ' ')}; keep one of them"
            )
        found.update(fields)
    return DeviceSpec(**found)


def _fields(part: str, text: str) -> dict[str, Any]:
    """Return the fields that one part of a device text sets."""
    name, *values = part.split(":")
    if name == "job" and len(values) == 1:
        return {"job": values[0]}
    if name in ("replica", "task") and len(values) == 1:
        return {name: _number(name, values[0], text)}
    if name.lower() in SHORT_TYPES:
        name, values = "device", [name, *values]
    if name == "device" and len(values) in (1, 2):
        kind, index = values[0], (*values, "*")[1]
        return {"device_type": kind, "device_index": None if index == "*" else _number(kind, index, text)}
    if name in FIELDS:
        form = {"job": "job:ps", "replica": "replica:0", "task": "task:0"}.get(name, "device:CPU:0")
        raise InvalidArgumentError(f"{part!r} in {text!r} is not a {name}; write it like {form}")
    raise InvalidArgumentError(f"no device field {name!r}; {choices(name, FIELDS)} (in {text!r})")


def _number(name: str, value: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", value):
        raise InvalidArgumentError(
            f"{name}:{value} in {text!r}: {value!r} is not a number; write it like {name}:0"
        )
    return int(value)


def _checked_number(field: str, value: Any) -> int | None:
    try:
        number = None if value is None else int(operator.index(value))
    except TypeError:
        raise TypeError(f"a {field.replace('_', ' ')} is a whole number, not {value!r}") from None
    if number is not None and number < 0:
        raise InvalidArgumentError(f"a {field.replace('_', ' ')} is 0 or more, not {value!r}")
    return number
