"""Run folders: ``<home>/runs/<id>/``, and the ids that name them."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any

from nbdist.draft import replacing, to_disk
from nbdist.errors import DataLossError, InvalidArgumentError, NotFoundError, choices
from nbdist.home import checked, home, private_folder, refuse_link
from nbdist.numbers import is_whole

__all__ = ["home", "new_run_id", "run_folder", "runs_folder"]
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


def run_folder(run_id: str) -> Path:
    """Return the folder of a run (it may not exist); an id or a link that leads elsewhere is refused."""
    if not is_id(run_id):
        raise InvalidArgumentError(
            f"{run_id!r} is not a run id: letters, digits, '-', '_', '.', at most 80; nb.runs() lists them"
        )
    folder = runs_folder() / run_id
    refuse_link(folder)
    return folder


def is_id(name: str) -> bool:
    """Return whether a name is a valid id of a run or a sweep.

    >>> is_id("261120-091512-mnist"), is_id("../x"), is_id(".draft"), is_id("a..b")
    (True, False, False, False)
    """
    return _ID.fullmatch(name) is not None and ".." not in name


def runs_folder() -> Path:
    """Return the folder that holds all run folders, made with mode 0700 if it is not there."""
    return checked(home() / "runs", private_folder)


def new_run_id(name: str = "run") -> str:
    """Return an unused id such as ``"261120-091512-mnist"`` and reserve it by making its folder.

    Ids sort by time (UTC). Two runs of one name in one second get ``-2``, ``-3``...: making the folder is
    what decides, so two notebooks never share one.
    """
    folder, base = runs_folder(), f"{time.strftime('%y%m%d-%H%M%S', time.gmtime())}-{slug(name)}"
    for number in count(1):
        run_id = base if number == 1 else f"{base}-{number}"
        try:
            (folder / run_id).mkdir(mode=0o700)
        except FileExistsError:
            continue
        return run_id
    raise AssertionError("count() has no end")


def slug(name: str) -> str:
    """Return ``name`` cut down to what is easily typed and safe in a file name.

    >>> slug("My CNN (v2)!")
    'my-cnn-v2'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:24].strip("-") or "run"


# ``run.json``: what a run was, written whole or not at all.

STATUSES = ("preparing", "running", "paused", "finished", "failed", "stopped", "damaged")
LONGEST = 8 << 20  # bytes of a run.json, with all of its body's code
ARTIFACTS = "artifacts"
"""The folder of a run's folder with the files that `nb.save_artifact` has saved."""
BODY, NO_BODY = "body.bin", "body.txt"
"""Files of a run's folder: its body with its inputs, or why they could not be recorded."""
CONTINUED = "continued"
"""A file of a run's folder, once a client has started the run again."""
LATEST = 253_402_300_800  # the year 10000: later values cannot be shown as a time


@dataclass(frozen=True, repr=False)
class RunFile:
    """The content of ``run.json``; times are in seconds since 1970. Its repr is one line."""

    # Change it with `dataclasses.replace`, then `write_run`.

    id: str
    name: str = ""
    kind: str = "run"
    created: float = field(default_factory=time.time)
    ended: float | None = None
    status: str = "preparing"
    error: str = ""
    code: str = ""
    """The body: its text, the source of a function, or its name where that has none."""
    function: str = ""
    """The name of the function that is the body; empty for a text."""
    first_line: int = 1
    """The number of the code's first line in its cell or file."""
    given: Mapping[str, str | float] = field(default_factory=dict)
    """What the body was given, by name: numbers, and short texts for all other values."""
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    trained: bool | None = None
    """Whether it trained or logged metrics; None while unknown."""
    paused: float = 0.0
    """Seconds of pauses between ``created`` and ``ended``."""
    resumed_from: str = ""
    """The id of the run whose training it continues; empty if it began one."""
    restarts: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Workers that were lost and replaced: the task, how and when, the new process, and where it joined."""
    losses: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Tasks that were lost while the run continued, replaced or not: the task, how and when."""
    resizes: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Workers that were added or have left: the task, when, and the step at which it joined or left."""
    devices: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Where each replica trained, from where its arrays were (see `nbdist.run.devices`)."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InvalidArgumentError(f"no run status {self.status!r}; {choices(self.status, STATUSES)}")

    def __repr__(self) -> str:
        return f"<run {self.id}: {self.status}>"


def write_run(run: RunFile, *, wait: bool = True) -> Path:
    """Write the run's ``run.json`` (0600) into its folder, which must be there; returns the path.

    Without ``wait`` the disk may take its time: if the power fails, the file of before may be there.
    """
    path = run_folder(run.id) / "run.json"
    # A line for each field: with an indent, json would take its slow encoder, and a short cell notices.
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in vars(run).items()]
    write_whole_file(path, ("{\n" + ",\n".join(lines) + "\n}").encode(), wait)
    with suppress(OSError):  # its folder may have been deleted just now
        _written.append((path, _version(path), run))
    return path


_written: deque[tuple[Path, tuple[int, ...], RunFile]] = deque(maxlen=8)


def as_written(run_id: str) -> RunFile | None:
    """Return the content of a run's ``run.json`` without reading it, if this process has just written it."""
    path = run_folder(run_id) / "run.json"
    with suppress(OSError):
        version = _version(path)
        return next((run for where, one, run in _written if (where, one) == (path, version)), None)
    return None


def _version(path: Path) -> tuple[int, ...]:
    """Return what is another number for each file that takes the place of one."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def sync_run(run_id: str) -> None:
    """Bring a ``run.json`` to the disk that was written without ``wait``; raises `OSError`."""
    folder = run_folder(run_id)
    to_disk(folder / "run.json")
    to_disk(folder)


def read_run(run_id: str) -> RunFile:
    """Read a run's ``run.json``; raises `NotFoundError` or `DataLossError`."""
    return read_run_in(run_folder(run_id))


def read_run_in(folder: Path) -> RunFile:
    """Read the ``run.json`` in a folder, wherever it is; raises `NotFoundError` or `DataLossError`."""
    run_id, path = folder.name, f"{folder}/run.json"
    try:
        with open(path, "rb") as file:  # a list of thousands of runs notices Path's own open
            data = file.read(LONGEST + 1)
    except FileNotFoundError:
        raise NotFoundError(f"no run {run_id!r} in {folder.parent}; nb.runs() lists all runs") from None
    except OSError as error:
        raise DataLossError(f"{path} cannot be read: {error.strerror or error}") from error
    run, damage = parse_run(run_id, data)
    if damage:
        raise DataLossError(f"{path} is damaged: {damage}")
    return run


def parse_run(run_id: str, data: bytes, changed: float | None = None) -> tuple[RunFile, str]:
    """Return the run in a run.json and the first damage in it, "" if there is none; nothing raises.

    Damaged values are left out. A file that cannot be read gives a run with the status "damaged", and the
    damage as its error. ``changed`` (seconds since 1970, None for now) is the creation time if it has none.

    >>> parse_run("r1", b'{"id": "r1", "name": "mnist", "paused": "long", "colour": "blue"}')
    (<run r1: preparing>, "its 'paused' is 'long', and should be a number of seconds")
    >>> parse_run("r1", b'{"id": "r2"}')
    (<run r1: damaged>, "it does not describe run 'r1'")
    """
    created = time.time() if changed is None else changed
    content, damage = _parsed(run_id, data)
    values = {}
    for name, value in content.items():
        if name not in _VALID:  # a newer nbdist may have written more
            continue
        valid, expected = _VALID[name]
        if valid(value):
            values[name] = value
        else:
            damage = damage or f"its {name!r} is {value!r:.60}, and should be {expected}"
    if not values or ("status" not in values and "status" in content):
        return RunFile(
            run_id, status="damaged", created=created, error=f"run.json is damaged: {damage}"
        ), damage
    return RunFile(**{"created": created, **values}), damage


def _parsed(run_id: str, data: bytes) -> tuple[Mapping[str, Any], str]:
    """Return the object in a run.json, and why there is none."""
    if len(data) > LONGEST:
        return {}, f"it has over {LONGEST:,} bytes"
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        return {}, str(error)
    if not isinstance(content, dict) or content.get("id") != run_id:
        return {}, f"it does not describe run {run_id!r}"
    if content.get("status") == "done":  # the word of earlier versions
        content["status"] = "finished"
    return content, ""


_Rule = tuple[Callable[[Any], bool], str]
"""Whether a value is valid, and what it should be."""


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LATEST


_TEXT: _Rule = (lambda value: isinstance(value, str)), "a text"
_OBJECT: _Rule = (lambda value: isinstance(value, dict)), "an object"
_OBJECTS: _Rule = (
    lambda value: isinstance(value, list) and all(isinstance(one, dict) for one in value),
    "a list of objects",
)
_STATUS: _Rule = (
    lambda value: value in STATUSES,
    f"one of {', '.join(STATUSES)} (a newer nbdist may have written it)",
)
_VALID: Mapping[str, _Rule] = {
    "id": _TEXT, "name": _TEXT, "kind": _TEXT, "status": _STATUS, "error": _TEXT, "code": _TEXT,
    "function": _TEXT, "given": _OBJECT, "first_line": (lambda value: is_whole(value, 1), "a line's number"),
    "created": (_is_time, "a time in seconds since 1970"),
    "ended": (lambda value: value is None or _is_time(value), "a time in seconds since 1970, or null"),
    "seed": (lambda value: value is None or is_whole(value), "a whole number or null"),
    "versions": _OBJECT, "cluster": _OBJECT, "options": _OBJECT,
    "trained": (lambda value: value is None or isinstance(value, bool), "true, false or null"),
    "paused": (_is_time, "a number of seconds"), "resumed_from": _TEXT,
    "restarts": _OBJECTS, "losses": _OBJECTS, "resizes": _OBJECTS, "devices": _OBJECTS,
}  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions that decide how a run comes out, for ``RunFile.versions``."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("nbdist", "numpy", "ipyparallel", "pyzmq", "cupy-cuda13x", "cupy-cuda12x"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_whole_file(path: Path, content: bytes, wait: bool = True) -> None:
    """Put ``content`` at ``path`` so that a reader or a crash meets the old file or the new one."""
    with replacing(path, durable=wait) as draft:
        draft.write_bytes(content)


# Formatting of times.


def duration(seconds: float) -> str:
    """Return seconds as people read them.

    >>> duration(3.21), duration(75), duration(7500)
    ('3.2 s', '1 min 15 s', '2 h 05 min')
    """
    if 0 < seconds < 0.095:
        return f"{seconds * 1000:.0f} ms"
    if not seconds >= 60 or seconds == math.inf:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
