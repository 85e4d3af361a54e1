"""Clusters with tasks that are processes on two hosts."""

from __future__ import annotations

import secrets
import time
from itertools import count
from typing import Any

from actors import Actor
from host_namespaces import ADDRESSES, TwoHosts
from waiting import limit

from nbdist.wire.keys import ClusterKeys

NOTICED_SECONDS = 2.0  # until a dead process is noticed
CUT_OFF_SECONDS = 10.0  # until a cut connection is noticed


class HostsCluster:
    """Tasks by name and host, such as `{"ps0": "a", "worker0": "a", "worker1": "b"}`.

    Those in `through_proxy`, such as `{"worker1": "ps0"}`, reach another task by a proxy on their host.
    """

    def __init__(
        self, hosts: TwoHosts, places: dict[str, str], through_proxy: dict[str, str] | None = None
    ) -> None:
        self.keys = ClusterKeys.create().to_dict()
        self.tasks = {name: hosts.run(host, "task_actor.py") for name, host in places.items()}
        self.id = secrets.token_hex(4)
        self._runs, self.run = count(), ""
        # Workers have the first ranks.
        for rank, name in enumerate(sorted(places, key=lambda name: (name.startswith("ps"), name))):
            self.tasks[name].ask(
                do="open_one", job=name[:-1], index=int(name[-1]), rank=rank, device="CPU:0",
                keys=self.keys, host=ADDRESSES[places[name]], cluster_id=self.id,
            )  # fmt: skip
        self.infos = {name: task.answer() for name, task in self.tasks.items()}
        self.proxies: dict[str, Actor] = {}
        for name, task in self.tasks.items():
            seen = dict(self.infos)
            if through_proxy and (other := through_proxy.get(name)):
                self.proxies[name] = hosts.run(places[name], "proxy_actor.py")
                bind, (address, _, port) = ADDRESSES[places[name]], self.address(other).partition(":")
                door = self.proxies[name].do(do="listen", bind=bind, address=address, port=int(port))
                seen[other] = {**seen[other], "address": door}
            task.ask(do="join", roster=list(seen.values()), cluster_id=self.id)
        assert [task.answer() for task in self.tasks.values()] == [
            f"/job:{name[:-1]}/task:{name[-1]}" for name in places
        ]

    def __getitem__(self, name: str) -> Actor:
        return self.tasks[name]

    @property
    def workers(self) -> dict[str, Actor]:
        return {name: task for name, task in self.tasks.items() if name.startswith("worker")}

    def address(self, name: str) -> str:
        """Return a task's address."""
        return str(self.infos[name]["address"])

    def target(self, name: str) -> str:
        """Return a task's target for a session."""
        return f"nbdist://{self.address(name)}"

    def begin(
        self, strategy: str, options: dict[str, Any], *, pause: bool = False, **model: Any
    ) -> list[list[str]]:
        """Begin a training on all workers, with ``pause`` up to its middle; return each one's transports."""
        self.run = f"run{next(self._runs)}"
        order = {"run": self.run, "strategy": strategy, "options": options, "pause": pause}
        for worker in self.workers.values():
            worker.ask(do="train", **order, **model)
        reached = self.results()
        assert not pause or set(self.results()) == {"in the middle"}
        return reached

    def resume(self) -> None:
        """Let living workers that have paused continue."""
        for worker in self.workers.values():
            if worker.process.poll() is None:
                worker.tell("continue")

    def results(self) -> list[Any]:
        """Return the answer of each worker."""
        return [worker.answer() for worker in self.workers.values()]

    def error(self, name: str, begun: float, within: float) -> str:
        """Return the error that ends a worker's training, at most ``within`` seconds after ``begun``."""
        found = self[name].answer()
        took = time.monotonic() - begun
        print(f"{name}: {took:.2f} s: {found}")
        assert "error" in found, f"{name}: {found}"
        kind, text = found["error"]
        assert kind in ("UnavailableError", "TaskDiedError"), found
        assert took < limit(within), found
        return str(text)

    def errors(self, within: float) -> list[str]:
        """Return the errors that end training on all living workers within ``within`` seconds."""
        begun = time.monotonic()
        alive = [name for name, worker in self.workers.items() if worker.process.poll() is None]
        return [self.error(name, begun, within) for name in alive]

    def close(self) -> None:
        """Close the living tasks."""
        alive = [task for task in self.tasks.values() if task.process.poll() is None]
        for task in alive:
            task.ask(do="close")
        for task in alive:
            assert task.answer() is None
