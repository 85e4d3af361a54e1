"""Checkpoints of a run, written while it trains: each is a folder that is there whole or not at all.

    checkpoints = Checkpoints(run_folder / "checkpoints")
    path = checkpoints.write(training=1, step=120, save=lambda folder: model.save(folder / MODEL))

A draft is written, brought to the disk and renamed. What fails leaves nothing behind.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from nbdist.graph.backend import Array
from nbdist.home import private_folder
from nbdist.train.tensorfile import write_tensors

MODEL, VARIABLES = "model.safetensors", "variables.safetensors"
Save: TypeAlias = Callable[[Path], Path]
"""Writes files into a folder that is there, and returns the one that counts."""


class Checkpoints:
    """The checkpoints of one run, in a folder of mode 0700; one writer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[tuple[int, int], Path] = {}

    def write(self, training: int, step: int, save: Save) -> Path:
        """Write the checkpoint of a step, unless it is there; return the path of what ``save`` has written.

        Raises what ``save`` raises, and OSError.
        """
        found = self._written.get((training, step))
        if found is None:
            found = self._written[training, step] = self._write(training, step, save)
        return found

    def _write(self, training: int, step: int, save: Save) -> Path:
        private_folder(self.folder)
        final = self.folder / f"step-{step}"
        if final.exists():  # an earlier training of the run has ended with this step
            final = self.folder / f"step-{step}-training-{training}"
        draft = self.folder / f".{final.name}.{secrets.token_hex(4)}.draft"
        draft.mkdir(mode=0o700)
        try:
            name = save(draft).name
            for path in draft.iterdir():
                path.chmod(0o600)
                _to_disk(path)
            _to_disk(draft)
            draft.rename(final)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        _to_disk(self.folder)
        return final / name


def save_variables(named: Iterable[tuple[str, Array]], folder: Path) -> Path:
    """Write arrays by name into one safetensors file, with a checksum of each; returns its path."""
    path = folder / VARIABLES
    write_tensors(path, dict(named), {})
    return path


def _to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
