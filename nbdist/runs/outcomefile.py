"""Outcomes in a run's folder, one file per task: for who comes when the tasks are gone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbdist.errors import DataLossError
from nbdist.metrics.run_folder import write_whole_file
from nbdist.runs.outcome import LEAST, Buffer, decode, encode, light, whole_size


def write_outcome(
    folder: Path, rank: int, outcome: dict[str, Any] | Sequence[Buffer], wait: bool = True
) -> Path:
    """Write a task's outcome (0600), or the pieces of one, whole or not at all; raises `OSError`.

    Without ``wait`` the disk may take its time.
    """
    path = outcome_path(folder, rank)
    pieces = encode(outcome) if isinstance(outcome, dict) else outcome
    write_whole_file(path, b"".join(pieces), wait)
    return path


def keep_light(folder: Path, outcomes: Mapping[int, dict[str, Any]]) -> None:
    """Write what is worth keeping of outcomes that have come home: histories, and how far replicas came."""
    for rank, outcome in outcomes.items():
        if outcome and not outcome_path(folder, rank).exists():  # else a task wrote all of it
            write_outcome(folder, rank, light(outcome), wait=False)


def read_outcome(folder: Path, rank: int) -> dict[str, Any] | None:
    """Return a task's outcome, None if it has none there; raises `DataLossError` if it is damaged."""
    path = outcome_path(folder, rank)
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataLossError(f"{path} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        try:
            start = file.read(LEAST)
            if whole_size(start) != os.fstat(file.fileno()).st_size:  # before memory is taken for it
                raise DataLossError("it was cut")
            return decode(start + file.read())
        except DataLossError as error:
            raise DataLossError(f"{path} is damaged: {error}") from None


def outcome_path(folder: Path, rank: int) -> Path:
    """Return where a task's outcome stands in a run's folder."""
    return folder / f"outcome-{rank:04d}.bin"
