"""LocalTaskLauncher: our engines for plain ipyparallel, `ipyparallel.Cluster(engines="nbdist", n=4)`.

Unlike ipyparallel's local launcher, it gives every engine its own environment and a fixed id (rank), signals
single engines, and detects deaths at once. `start_cluster` uses the supervisor directly; this class is for
users that start clusters through ipyparallel, and for its panel, which stops clusters through it. Set
IPP_ENABLE_CURVE=1 in the environment first: without it other users of the host could read the output.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from threading import Thread
from typing import Any

from ipyparallel.cluster.launcher import EngineLauncher, NotRunning
from traitlets import Bool, Integer, Unicode

from nbdist.cluster.affinity import worker_cores
from nbdist.cluster.folder import claim, remove_traces
from nbdist.cluster.gpus import choose_gpus, kernel_cache, list_gpus
from nbdist.cluster.launchers.registry import DEFAULT_LAUNCHER, find_launcher
from nbdist.cluster.resources import plan_tasks
from nbdist.cluster.supervisor.client import CONTROLLER, SupervisorClient, describe_exit
from nbdist.errors import FailedPreconditionError, UnavailableError
from nbdist.machine import count_cores

START_TIMEOUT = 60.0
STOP_TIMEOUT = 5.0


class LocalTaskLauncher(EngineLauncher):  # type: ignore[misc]  # ipyparallel has no types
    """A set of engines on this host, one task each, below one supervisor."""

    name = Unicode("nbdist")
    ps = Integer(0, config=True, help="How many of the engines are parameter servers (the last ones).")
    threads = Integer(0, config=True, help="Threads per engine; 0 shares the cores.")
    gpus = Unicode("auto", config=True, help="auto, none, how many GPUs to use, or their UUIDs.")
    launcher = Unicode(DEFAULT_LAUNCHER, config=True, help="The launcher of `start_cluster` to use.")
    mpi = Bool(False, config=True, help="The same as launcher='mpi'.")
    supervisor_folder = Unicode("").tag(to_dict=True)
    supervisor: SupervisorClient | None = None

    @classmethod
    def from_dict(cls, d: dict[str, Any], **kwargs: Any) -> LocalTaskLauncher:
        """Return a launcher for engines that run already; raises NotRunning if they do not."""
        self: LocalTaskLauncher = super().from_dict(d, **kwargs)
        if not self.supervisor_folder:  # the file is of an older version
            self.supervisor_folder = str(d.get("keeper_folder", ""))
        try:
            # ipyparallel's panel connects to all clusters while its page is open: observe, keep none alive.
            self.supervisor = SupervisorClient.connect(Path(self.supervisor_folder), observe=True)
        except UnavailableError as error:
            raise NotRunning(str(error)) from None
        self._watch()
        return self

    def find_args(self) -> list[str]:
        """Return the text that ipyparallel's logs show instead of a command line."""
        return ["nbdist cluster process"]

    def start(self, n: int) -> list[int]:
        """Start `n` engines; ipyparallel has left the controller's connection info in the environment.

        Raises FailedPreconditionError if the controller runs without CURVE.
        """
        spec = find_launcher("mpi" if self.mpi else self.launcher)
        spec.check()
        self.n = n
        environment = dict(self.get_env())
        connection = json.loads(environment.pop("IPP_CONNECTION_INFO"))
        if not connection.get("curve_serverkey"):
            raise FailedPreconditionError(
                "the controller of this ipyparallel cluster runs without CURVE: other users of this host "
                "could read the results of its engines. Set IPP_ENABLE_CURVE=1 in the environment, and start "
                "it again"
            )
        use = choose_gpus(self.gpus, list_gpus())
        plans = plan_tasks(
            n - self.ps,
            self.ps,
            cores=count_cores(),
            gpus=use,
            bound=worker_cores(n - self.ps, use),
            threads=self.threads or None,
        )
        folder, lock = claim(re.sub(r"\W", "_", f"{self.cluster_id}_{self.engine_set_id}")[-48:])
        self.supervisor_folder = str(folder)
        plan = {
            "cluster_id": folder.name,
            "folder": str(folder),
            "connection": connection,
            "orphan_timeout": None,
            "timeout": START_TIMEOUT,
            "launcher": spec.name,
            "settings": spec.read_settings({}),
            "tasks": [plan.to_dict() for plan in plans],
        }
        shared = {name: value for name, value in plans[0].environment.items() if name.endswith("_THREADS")}
        shared |= kernel_cache() if use else {}
        try:
            self.supervisor = SupervisorClient.start(folder, lock, plan, {**environment, **shared})
        finally:
            os.close(lock)
        while not self.supervisor.pids and not self.supervisor.closed:
            self.supervisor.listen(START_TIMEOUT)
        if self.supervisor.closed:
            log = self.supervisor.log_tail()
            remove_traces(folder, folder.name)
            raise UnavailableError(f"the engines did not start:\n{log}")
        pids: list[int] = self.notify_start(
            [self.supervisor.pids[rank] for rank in sorted(self.supervisor.pids)]
        )
        self._watch()
        return pids

    def signal(self, sig: int) -> None:
        """Send a signal to every engine."""
        supervisor = self._connected()
        supervisor.ended()
        for rank in living(supervisor):  # workers may have been added or removed
            self.signal_engine(rank, sig)

    def signal_engine(self, rank: int, sig: int) -> bool:
        """Send a signal to one engine; return whether its process existed."""
        return bool(self._connected().ask("signal", rank=rank, signum=int(sig))["sent"])

    async def stop(self) -> None:
        """End the engines and remove their files; does nothing if `start` has failed."""
        supervisor = self.supervisor
        if supervisor is None:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(None, supervisor.end, STOP_TIMEOUT)
        except RuntimeError:  # the interpreter is ending, and starts no more threads
            supervisor.end(STOP_TIMEOUT)
        remove_traces(Path(self.supervisor_folder), Path(self.supervisor_folder).name)
        self._ended({"exit_code": 0, "engines": {}})

    async def join(self, timeout: float | None = None) -> None:
        """Wait until the engines have ended."""
        supervisor = self._connected()
        wait = timeout if timeout is not None else float("inf")
        if not await asyncio.get_running_loop().run_in_executor(None, supervisor.wait_closed, wait):
            raise TimeoutError(f"the engines did not end in {timeout} seconds")

    def _connected(self) -> SupervisorClient:
        assert self.supervisor is not None, "start() comes first"
        return self.supervisor

    def _watch(self) -> None:
        """Notify ipyparallel when all engines have ended, from a thread with a connection of its own."""
        loop, supervisor = self.loop, SupervisorClient.connect(Path(self.supervisor_folder), observe=True)

        def listen() -> None:
            while not supervisor.closed and living(supervisor):
                supervisor.listen(3600.0)
            ended = supervisor.ended()
            codes = [how["code"] or 0 for rank, how in ended.items() if rank != CONTROLLER]
            data = {
                "exit_code": max(codes, default=0),
                "engines": {str(rank): describe_exit(how) for rank, how in ended.items()},
            }
            supervisor.close()
            loop.add_callback(self._ended, data)

        Thread(target=listen, name=f"watch {self.cluster_id}", daemon=True).start()

    def _ended(self, data: dict[str, Any]) -> None:
        if self.state != "after":
            self.notify_stop(data)


def living(supervisor: SupervisorClient) -> list[int]:
    """Return the ranks of the engines that live, by the events that have arrived."""
    return [
        rank
        for rank, pid in supervisor.pids.items()
        if rank != CONTROLLER and supervisor.exits.get(rank, {}).get("pid") != pid
    ]
