"""`Framework`: what a task does for one framework around a body, and `Place`: where the task is in the run.

class Mine(Framework):
    name, package, least = "mine", "mine", "1.0"
    def load(self, device): ...           # import it
    def variables(self, world, ...): ...  # connect to the rendezvous: environment variables of its own
    def abort(self): ...                  # from another thread: break the calls that wait for other ranks
    def close(self, ended): ...           # after the body: leave nothing of the run in the process
"""

from __future__ import annotations

import importlib
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from nbdist.runtime.groups import World
from nbdist.runtime.task import TaskInfo


@dataclass(frozen=True)
class Place:
    """Where one task is among those of a run, as launchers such as torchrun describe it.

    - ``rank`` of ``size`` tasks; ``local_rank`` of the ``local_size`` tasks of its node
    - ``node`` of ``nodes``: a node is a host, or one task if tasks have GPUs
    - ``run``: the run's id
    - ``one_host``: whether all tasks are on one host
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int
    run: str
    one_host: bool

    @classmethod
    def of(cls, world: World) -> Place:
        """Return the place of this task in a run.

        A worker with a GPU sees this one alone, as device 0. Scripts choose their device by LOCAL_RANK, so
        each such task is a node of one GPU, as a container that is given one.
        """
        hosts = world.hosts
        own_gpus = any(info.device != "CPU:0" for info in world.infos)
        nodes = tuple(map(str, range(world.size))) if own_gpus else hosts
        here = nodes[world.index]
        distinct = list(dict.fromkeys(nodes))
        return cls(
            rank=world.index,
            size=world.size,
            local_rank=nodes[: world.index].count(here),
            local_size=nodes.count(here),
            node=distinct.index(here),
            nodes=len(distinct),
            run=world.run,
            one_host=len(set(hosts)) == 1,
        )


class Framework(ABC):
    """What a task does for a framework around one body.

    Another thread than the body's calls ``abort``; the body's own thread calls all other methods.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    """The package that has to be installed."""
    least: ClassVar[str]
    """The oldest version that nbdist has been run with, as two numbers; the extra's version, too."""

    @abstractmethod
    def load(self, device: str) -> None:
        """Import the framework. Raises FailedPreconditionError if it cannot use ``device``."""

    @abstractmethod
    def variables(self, world: World, place: Place, host: str, port: int) -> Mapping[str, str]:
        """Return the environment variables of its own, for a rendezvous at ``host`` and ``port``."""

    @abstractmethod
    def abort(self) -> None:
        """Break the calls of this process that wait for other ranks.

        Called on another thread, again and again until the body ends.
        """

    @abstractmethod
    def close(self, ended: bool) -> None:
        """End what the body has left open, so that the next body can begin anew in this process.

        ``ended`` says whether the body has ended without an error.
        """

    @classmethod
    @abstractmethod
    def release(cls, run: str) -> None:
        """End what this process keeps of a run, which has ended on all tasks. On the Server's thread."""

    @abstractmethod
    def is_consequence(self, error: BaseException) -> bool:
        """Return whether an error says that another rank has left a call that this one waited in."""


def host_of(task: TaskInfo) -> str:
    """Return the address at which other tasks reach a task's host.

    >>> host_of(TaskInfo("worker", 0, 0, "node-1", 1, "[::1]:4711", "CPU:0", 1))
    '::1'
    """
    return task.address.rpartition(":")[0].strip("[]")


def free_port(host: str) -> int:
    """Return a port of this host that is free now, at the address ``host``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as found:
        return int(found.getsockname()[1])


def is_loaded(module: str) -> bool:
    """Return whether a module has been imported to its end.

    >>> is_loaded("os"), is_loaded("no.such.module")
    (True, False)
    """
    found = sys.modules.get(module)
    return found is not None and not getattr(found.__spec__, "_initializing", False)


def import_on_a_thread(module: str) -> None:
    """Import a module such that an interrupt ends the wait for it, but not the import.

    A large extension module (torch, jaxlib) that was interrupted halfway cannot be imported a second time.
    """
    if is_loaded(module):
        return
    errors: list[BaseException] = []

    def work() -> None:
        try:
            importlib.import_module(module)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name=f"import {module}", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.05)  # an interrupt of this thread is raised between two waits
    if errors:
        raise errors[0]
