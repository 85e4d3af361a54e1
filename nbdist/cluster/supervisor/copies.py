"""The last copy of runs' files, before a cluster with other hosts ends because nothing uses it.

Clients copy what tasks write on other hosts. A run that ended while no client was there has its results on
its hosts only, and the disk of a pod is gone with the pod. So the head's supervisor ends such a cluster in
two steps: a process that it forks copies into the runs' folders what no client has copied, and then the hosts
end. Who stops it copies first: a client, the command line, the panel.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbdist.cluster.supervisor.process import SupervisorProcess

MOST_SECONDS = 1800.0  # for the copies; what is missing then stays on the hosts' disks


class CopyProcess:
    """The process that copies; ``copy`` is what it calls, None for a cluster without other hosts."""

    def __init__(self, supervisor: SupervisorProcess) -> None:
        self.copy: Callable[[], None] | None = None
        self._supervisor = supervisor
        self._pid = 0
        self._begun: float | None = None

    @property
    def under_way(self) -> bool:
        """Whether the process runs."""
        return self._pid != 0

    def begin(self) -> Callable[[], None] | None:
        """Start it, unless it has run since the last `forget`; returns the function to call in the child."""
        if self.copy is None or self._begun is not None:
            return None
        self._begun = time.monotonic()
        log = f"{self._supervisor.folder}/log/copies.log"
        self._pid, become = self._supervisor.fork_process(self.copy, log)
        return become

    def forget(self) -> None:
        """The cluster is used again: before its end the files are copied anew."""
        if not self.under_way:
            self._begun = None

    def reap(self) -> None:
        """Take in that it has ended; end one that takes too long."""
        if self._pid and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._pid = 0
        if self._pid and self._begun is not None and time.monotonic() > self._begun + MOST_SECONDS:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
