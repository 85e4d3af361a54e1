"""Clusters whose tasks are processes on two hosts."""

from __future__ import annotations

import secrets
from typing import Any

from two_hosts import ADDRESSES, Actor, TwoHosts

from nbdist.wire.keys import ClusterKeys


class HostsCluster:
    """Tasks by name and host, such as `{"ps0": "a", "worker0": "a", "worker1": "b"}`."""

    def __init__(self, hosts: TwoHosts, places: dict[str, str]) -> None:
        self.keys = ClusterKeys.create().to_dict()
        self.tasks = {name: hosts.run(host, "task_actor.py") for name, host in places.items()}
        self.id = secrets.token_hex(4)
        self._runs = 0
        # Workers have the first ranks.
        for rank, name in enumerate(sorted(places, key=lambda name: (name.startswith("ps"), name))):
            self.tasks[name].ask(
                do="open_one", job=name[:-1], index=int(name[-1]), rank=rank, device="CPU:0",
                keys=self.keys, host=ADDRESSES[places[name]], cluster_id=self.id,
            )  # fmt: skip
        self.roster = [task.answer() for task in self.tasks.values()]
        for task in self.tasks.values():
            task.ask(do="join", roster=self.roster, cluster_id=self.id)
        assert {task.answer() for task in self.tasks.values()} == {
            f"/job:{name[:-1]}/task:{name[-1]}" for name in places
        }

    def __getitem__(self, name: str) -> Actor:
        return self.tasks[name]

    @property
    def workers(self) -> dict[str, Actor]:
        return {name: task for name, task in self.tasks.items() if name.startswith("worker")}

    def target(self, name: str) -> str:
        """What names a task for a session."""
        named = (info for info in self.roster if f"{info['job']}{info['index']}" == name)
        return f"nbdist://{next(named)['address']}"

    def begin(self, **training: Any) -> tuple[str, list[list[str]]]:
        """Begin a training on all workers; return its run, and how each reaches the parameters."""
        self._runs += 1
        run = f"run{self._runs}"
        for worker in self.workers.values():
            worker.ask(do="train", run=run, **training)
        return run, [worker.answer() for worker in self.workers.values()]

    def close(self) -> None:
        """End the tasks that live, in peace."""
        alive = [task for task in self.tasks.values() if task.process.poll() is None]
        for task in alive:
            task.ask(do="close")
        for task in alive:
            assert task.answer() is None
