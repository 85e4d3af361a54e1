"""Fixtures: a folder for marker files, and sweeps that free their engines after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nbdist.errors import NbdistError
from nbdist.trials.start import start_sweep
from nbdist.trials.sweep import Sweep

Begin = Callable[..., Sweep]


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


@pytest.fixture
def held() -> Iterator[list[Sweep]]:
    """Return a list of sweeps that are closed after the test, with their engines freed."""
    sweeps: list[Sweep] = []
    yield sweeps
    for sweep in sweeps:
        if not sweep.left:
            if not sweep.over and not sweep.cluster.stopped:
                sweep.close()
                with suppress(NbdistError):
                    sweep.wait(30)
            sweep.leave()


@pytest.fixture
def begin(held: list[Sweep]) -> Begin:
    def begin_one(trial: Any, space: Any, **options: Any) -> Sweep:
        given = {"metric": "accuracy", "sampler": "grid", "seed": 3, "report": lambda line: None, **options}
        if given.get("trials") is not None and "sampler" not in options:
            given["sampler"] = "random"
        held.append(start_sweep(trial, space, **given))
        return held[-1]

    return begin_one
