"""Parameter servers in this process, and replicas of a strategy that are threads with a context each."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any

from nbdist.distribute import ParameterServerStrategy
from nbdist.runtime.ps.service import ParameterService
from nbdist.runtime.server import Server
from nbdist.runtime.task import Task, TaskInfo
from nbdist.train.context import Context, Control, use_here
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.shm import shared_folder

PATIENCE = 30.0
SEED = 11


class Town:
    """Parameter servers in this process, and replicas that are threads with a context each."""

    def __init__(self, ps: int, replicas: int, devices: Sequence[str] = ()) -> None:
        self.prefix = f"nbdist-town{secrets.token_hex(4)}"
        self.keys = ClusterKeys.create()
        self.servers = [Server({"ps": ["127.0.0.1:0"]}, keys=self.keys) for _ in range(ps)]
        self.services = [ParameterService(server, self.prefix) for server in self.servers]
        devices = devices or ["CPU:0"] * replicas
        workers = [self.info("worker", i, i, "127.0.0.1:1", device) for i, device in enumerate(devices)]
        places = [self.info("ps", i, replicas + i, s.address) for i, s in enumerate(self.servers)]
        self.workers, self.roster = workers, (*workers, *places)
        self.controls = [Control() for _ in range(replicas)]
        self.contexts: list[Context] = []

    @staticmethod
    def info(job: str, index: int, rank: int, address: str, device: str = "CPU:0") -> TaskInfo:
        return TaskInfo(job, index, rank, "here", 0, address, device, 1)

    def strategy(self, replica: int, **options: Any) -> ParameterServerStrategy:
        task = Task(self.workers[replica], self.roster, self.servers[0], self.keys, "town")
        return ParameterServerStrategy(
            task,
            ranks=[info.rank for info in self.workers],
            run="r",
            prefix=self.prefix,
            check=self.controls[replica].check,
            **options,
        )

    def train(self, body: Callable[[int], Any], **options: Any) -> list[Any]:
        """Run a body on every replica; return each one's result or exception."""
        results: list[Any] = [None] * len(self.workers)
        self.contexts = [
            Context(
                strategy=self.strategy(i, **options),
                control=self.controls[i],
                is_chief=i == 0,
                seed=SEED,
                quiet=True,
            )
            for i in range(len(self.workers))
        ]

        def run(index: int) -> None:
            with use_here(self.contexts[index]):
                try:
                    results[index] = body(index)
                except BaseException as error:
                    results[index] = error

        threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a replica hangs"
        return results

    def close(self) -> None:
        for service, server in zip(self.services, self.servers, strict=True):
            service.close()
            server.close()
        left = [path.name for path in shared_folder().glob(f"{self.prefix}-*")]
        assert not left, f"left behind: {left}"
