"""Launcher "local": each task is a fork of the supervisor, on its host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from nbdist.cluster.launchers.spec import Launcher, LauncherSpec
from nbdist.cluster.supervisor.engine import run_engine

if TYPE_CHECKING:
    from nbdist.cluster.supervisor.process import SupervisorProcess


class ForkLauncher(Launcher):
    """Forks each task from the supervisor, which has imported the libraries already."""

    def start(
        self, supervisor: SupervisorProcess, rank: int, environment: Mapping[str, str], log: str
    ) -> Callable[[], None] | None:
        """Fork the process of a rank; see `Launcher.start`."""
        request = self.request
        engine = partial(
            run_engine,
            rank,
            environment,
            dict(request.connection),
            request.folder,
            request.timeout,
            partial(self.enter_child, rank),
        )
        return supervisor.fork(rank, engine, log)

    def enter_child(self, rank: int) -> None:
        """In the forked process of a rank, do what has to precede the engine. Its environment is set."""


SPEC = LauncherSpec("local", help="plain engines on this host", make=ForkLauncher)
