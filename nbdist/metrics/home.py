"""Run folders: ``<home>/runs/<id>/``, and the ids that name them."""

from __future__ import annotations

import re
import time
from itertools import count
from pathlib import Path

from nbdist.errors import InvalidArgumentError
from nbdist.home import home, private_folder

__all__ = ["home", "new_run_id", "run_folder", "runs_folder"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


def run_folder(run_id: str) -> Path:
    """Return the folder of a run (it may not exist); an id that could lead elsewhere is refused."""
    if not _ID.fullmatch(run_id) or ".." in run_id:
        raise InvalidArgumentError(
            f"{run_id!r} is no run id: letters, digits, '-', '_', '.', at most 80; nb.runs() lists them"
        )
    return runs_folder() / run_id


def runs_folder() -> Path:
    """Return the folder that holds all run folders, made with mode 0700 if it is not there."""
    return private_folder(home() / "runs")


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
