"""A cluster of tasks with homes of their own: hosts that have no disk in common, on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nbdist.cluster import launch
from nbdist.cluster.cluster import Cluster
from nbdist.cluster.resources import TaskPlan


@contextmanager
def cluster_elsewhere(
    folder: Path, hosts: Sequence[int | None], workers: int, ps: int = 0, data: int = 0
) -> Iterator[Cluster]:
    """Start a cluster whose task of each rank is on the host of that number; None is the client's.

    The home of host 0 is ``folder / "host-0"``. Its tasks are processes of this machine all the same.
    """
    plan: Callable[..., tuple[TaskPlan, ...]] = launch.plan_placed

    def planned(*given: Any, **named: Any) -> tuple[TaskPlan, ...]:
        return tuple(
            one
            if host is None
            else replace(one, environment={**one.environment, "NBDIST_HOME": str(home_of(folder, host))})
            for one, host in zip(plan(*given, **named), hosts, strict=True)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "plan_placed", planned)
        cluster = launch.start_cluster(workers=workers, ps=ps, data=data, report=None)
    try:
        yield cluster
    finally:
        cluster.stop(force=True)


def home_of(folder: Path, host: int) -> Path:
    """Return the home of a host's tasks."""
    path = folder / f"host-{host}"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def spools(folder: Path) -> list[Path]:
    """Return what hosts still have of runs."""
    return sorted(folder.glob("host-*/spool/*"))
