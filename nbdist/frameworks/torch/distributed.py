"""PyTorch's own distribution in a body: a fresh store for each run, and groups that can be left.

``torch.distributed.init_process_group("gloo")``, DistributedDataParallel, FSDP and what is built on them find
a rendezvous as under torchrun: init_process_group gets a store that this cluster's tasks alone can reach
(`nbdist/frameworks/torch/store.py`).

Torch can abort NCCL's communicators, but not a gloo group: ``ProcessGroupGloo.abort()`` and ``shutdown()``
return, and a thread in ``all_reduce`` continues to wait, for up to 30 minutes (measured with torch 2.13). So
`Torch.abort` also shuts the connections of gloo down.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from nbdist.errors import AbortedError, FailedPreconditionError
from nbdist.frameworks.base import Framework, Place, import_on_a_thread
from nbdist.frameworks.connections import is_lost_connection, made_since, shut_down_accepted
from nbdist.frameworks.torch.store import connect_store, rendezvous_at
from nbdist.runtime.groups import World
from nbdist.wire.rpc.client import Peer
from nbdist.wire.sockets import close_listeners, sockets


class Torch(Framework):
    """torch.distributed around one body."""

    name = package = "torch"
    least = "2.13"

    def __init__(self) -> None:
        self._before = set(sockets())
        self._connections: set[int] = set()
        """Inodes of the sockets that groups of this body have made."""
        self._aborted: list[Any] = []
        self._is_aborted = self._loaded = False
        self._ends = ExitStack()

    def load(self, device: str) -> None:
        """Import torch; if the task has a GPU, it must be a build with CUDA that the driver can run."""
        import_on_a_thread("torch.distributed")
        import torch
        import torch.distributed

        version = str(torch.__version__)
        if device != "CPU:0" and torch.version.cuda is None:
            raise FailedPreconditionError(
                f"this worker has a GPU, and torch {version} is a build without CUDA: install one with CUDA "
                "(https://pytorch.org/get-started), or start the cluster with --gpus none"
            )
        if device != "CPU:0" and (reason := _why_without_cuda(torch)):
            raise FailedPreconditionError(
                f"torch {version} cannot use this worker's GPU: {reason}. Install a build for the driver "
                "(nvidia-smi; https://pytorch.org/get-started), or start the cluster with --gpus none"
            )
        if not torch.distributed.is_available():
            raise FailedPreconditionError(
                f"torch {version} is a build without torch.distributed: install another one"
            )
        if torch.distributed.is_initialized():
            raise FailedPreconditionError(
                "a process group is open in this task, from a cell without --framework torch: end it there "
                "with torch.distributed.destroy_process_group()"
            )
        import_on_a_thread("torch._dynamo")  # which the first optimizer or DistributedDataParallel would do
        _reset_accelerate()
        # Ranks find each other by this number, and a group that could not be made has counted in some.
        torch.distributed.distributed_c10d._world.group_count = 0
        self._loaded = True  # from here on groups are the body's

    def variables(self, world: World, place: Place, host: str, port: int) -> Mapping[str, str]:
        """Connect to the store; return what torchrun sets beside the ranks.

        gloo stays on the loopback device of a single host. TORCHELASTIC_USE_AGENT_STORE is not set: groups
        of processes that a body starts by itself have no store of an agent. Without a GPU, Accelerate and the
        Trainer of transformers see ranks only where they are told to use the CPU. No rank leaves
        init_process_group() before all have made the group: one whose body ends then would close connections
        that another is still making.
        """
        assert world.task is not None
        first, on_cpu = world.infos[0], world.task.device == "CPU:0"
        peer = self._ends.enter_context(Peer(first.address, world.task.keys, name=first.name))
        store = connect_store(peer, world.run, self._check)
        self._ends.enter_context(rendezvous_at(store, port))
        servers = {info.address for info in world.task.roster}
        self._ends.enter_context(self._connections_noted(world.task.info.address, servers))
        return {
            "TORCHELASTIC_RUN_ID": place.run,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCH_DIST_INIT_BARRIER": os.environ.get("TORCH_DIST_INIT_BARRIER", "1"),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            **({"GLOO_SOCKET_IFNAME": loopback_device()} if place.one_host else {}),
            **({"ACCELERATE_USE_CPU": os.environ.get("ACCELERATE_USE_CPU", "true")} if on_cpu else {}),
        }

    @contextmanager
    def _connections_noted(self, own: str, servers: Collection[str]) -> Iterator[None]:
        """Note the connections of each group that is made, of which gloo makes some and accepts others.

        Meanwhile another rank may connect to one of the tasks' Servers, which listen at these addresses.
        """
        from torch.distributed import distributed_c10d

        original = distributed_c10d._new_process_group_helper

        def noted(*args: Any, **options: Any) -> Any:
            before = set(sockets())
            try:
                return original(*args, **options)
            finally:
                self._connections |= made_since(before, own, servers)

        distributed_c10d._new_process_group_helper = noted
        try:
            yield
        finally:
            distributed_c10d._new_process_group_helper = original

    def _check(self) -> None:
        if self._is_aborted:
            raise AbortedError("another rank has left the run")

    def abort(self) -> None:
        """Abort all groups, shut their connections down, and end the waits for keys of the store."""
        from torch.distributed import distributed_c10d

        self._is_aborted = True
        for group in list(distributed_c10d._world.pg_names):
            if group not in self._aborted:
                self._aborted.append(group)
                with suppress(RuntimeError):  # a backend without abort, or a group that has just ended
                    group.abort()
        shut_down_accepted(self._before, own=self._connections)

    def close(self, ended: bool) -> None:
        """Destroy the groups, with their connections, and leave the store."""
        with self._ends:
            if self._loaded and (distributed := sys.modules["torch.distributed"]).is_initialized():
                distributed.destroy_process_group()
            # A module that the namespace keeps keeps its group as well, and other ranks may wait for it.
            shut_down_accepted(self._before, own=self._connections)
            close_listeners(self._before)
            _reset_accelerate()

    @classmethod
    def release(cls, run: str) -> None:
        """Do nothing: the values of the store are dropped with the run's groups."""

    def is_consequence(self, error: BaseException) -> bool:
        """Return whether gloo, NCCL or the store has lost another process."""
        return is_lost_connection(error)


def _reset_accelerate() -> None:
    """Have Accelerate look for a process group anew: its classes keep the place of the process."""
    if (state := sys.modules.get("accelerate.state")) is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def _why_without_cuda(torch: Any) -> str:
    """Return why CUDA cannot be used, in torch's words; empty if it can."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return ""
    said = " ".join(str(one.message) for one in caught).partition(" (Triggered internally")[0]
    return said.rstrip(". ") or "torch.cuda.is_available() is False"


def loopback_device() -> str:
    """Return the name of this host's loopback device.

    >>> loopback_device() in ("lo", "lo0")
    True
    """
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")
