"""``run.json``: what a run was, written whole or not at all."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nbdist.errors import DataLossError, InvalidArgumentError, NotFoundError
from nbdist.metrics.home import run_folder

STATUSES = ("preparing", "running", "paused", "done", "failed", "stopped", "damaged")


@dataclass(frozen=True, repr=False)
class RunFile:
    """What ``run.json`` says; times are in seconds since 1970. It shows in a line: much of it is long."""

    # Change it with `dataclasses.replace`, then `write_run`.

    id: str
    name: str = ""
    kind: str = "run"
    created: float = field(default_factory=time.time)
    ended: float | None = None
    status: str = "preparing"
    error: str = ""
    code: str = ""
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InvalidArgumentError(f"no run status {self.status!r}; choose from {', '.join(STATUSES)}")

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
    return path


def sync_run(run_id: str) -> None:
    """Bring a ``run.json`` to the disk that was written without ``wait``; raises `OSError`."""
    folder = run_folder(run_id)
    sync(folder / "run.json", os.O_RDWR)
    sync_folder(folder)


def read_run(run_id: str) -> RunFile:
    """Read a run's ``run.json``; raises `NotFoundError` or `DataLossError`."""
    path = run_folder(run_id) / "run.json"
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFoundError(
            f"no run {run_id!r} in {path.parent.parent}; nb.runs() lists those there are"
        ) from None
    except ValueError as error:
        raise DataLossError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict) or content.get("id") != run_id:
        raise DataLossError(f"{path} is damaged: it does not describe run {run_id!r}")
    known = {one.name for one in fields(RunFile)}  # a newer nbdist may have written more
    return RunFile(**{name: value for name, value in content.items() if name in known})


def versions() -> dict[str, str]:
    """Return the versions that decide how a run comes out, for ``RunFile.versions``."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("nbdist", "numpy", "ipyparallel", "pyzmq", "cupy-cuda13x"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_whole_file(path: Path, content: bytes, wait: bool = True) -> None:
    """Put ``content`` at ``path`` so that a reader or a crash meets the old file or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns():x}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if wait:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if wait:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring a rename in ``folder`` to the disk (POSIX)."""
    if os.name != "nt":
        sync(folder, os.O_RDONLY)


def sync(path: Path, flags: int) -> None:
    """Bring a file or folder to the disk, opened with ``flags``."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
