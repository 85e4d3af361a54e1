"""PyTorch's own distribution in a body: a fresh store for each run, and groups that can be left.

``torch.distributed.init_process_group("gloo")``, DistributedDataParallel, FSDP and what is built on them find
a rendezvous as under torchrun: the task of the first rank serves the store (torchrun's agent store), and
init_process_group connects to it.

Torch can abort NCCL's communicators, but not a gloo group: ``ProcessGroupGloo.abort()`` and ``shutdown()``
return, and a thread in ``all_reduce`` continues to wait, for up to 30 minutes (measured with torch 2.13). So
`Torch.abort` also shuts the connections down, those of gloo and those to the store.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar

from nbdist.errors import FailedPreconditionError
from nbdist.frameworks.base import Framework, Place, import_on_a_thread, is_loaded
from nbdist.frameworks.connections import (
    is_lost_connection,
    shut_down_accepted,
    shut_down_connections_to,
    sockets,
)

STORE_SECONDS = 300.0  # torch's own timeout of a store


class Torch(Framework):
    """torch.distributed around one body."""

    name = package = "torch"
    least = "2.13"

    _served: ClassVar[Any] = None
    """The store of the last run: other ranks may use it for longer than this one, which may end first."""

    def __init__(self) -> None:
        self._before = set(sockets())
        self._port, self._host = 0, ""
        self._store_port = 0
        self._aborted: list[Any] = []
        self._loaded = False
        self._listening: socket.socket | None = None
        self._store: Any = None

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
        _reset_accelerate()
        # Ranks find each other by this number, and a group that could not be made has counted in some.
        torch.distributed.distributed_c10d._world.group_count = 0
        self._loaded = True  # from here on groups are the body's
        if self._listening is not None:
            Torch._served = self._store or self._start_store(self._listening)

    def serve(self, host: str) -> int:
        """Start the store at the address ``host``, on a free port.

        If this process has not loaded torch yet, it only listens there, and `load` starts the store: other
        ranks, which may have loaded it, connect and wait.
        """
        self._host = host.strip("[]")
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listening = socket.socket(family, socket.SOCK_STREAM)
        self._listening.bind((self._host, 0))
        self._listening.listen(socket.SOMAXCONN)
        self._port = int(self._listening.getsockname()[1])
        if is_loaded("torch.distributed") and sys.modules["torch.distributed"].is_available():
            self._store = self._start_store(self._listening)
        return self._port

    def withdraw(self) -> None:
        """Stop listening."""
        self._store = None
        if self._listening is not None:
            self._listening.close()  # does nothing if the store has taken the socket over

    def _start_store(self, listening: socket.socket) -> Any:
        from torch.distributed import TCPStore

        return TCPStore(
            self._host, self._port, None, is_master=True, wait_for_workers=False,
            timeout=timedelta(seconds=STORE_SECONDS), master_listen_fd=listening.detach(),
        )  # fmt: skip

    def variables(self, place: Place, host: str, port: int) -> Mapping[str, str]:
        """Return what torchrun sets beside the ranks; gloo stays on the loopback device of a single host."""
        self._store_port = port
        return {
            "TORCHELASTIC_RUN_ID": place.run,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            **({"GLOO_SOCKET_IFNAME": loopback_device()} if place.one_host else {}),
        }

    def abort(self) -> None:
        """Abort all groups, and shut their connections down."""
        from torch.distributed import distributed_c10d

        for group in list(distributed_c10d._world.pg_names):
            if group not in self._aborted:
                self._aborted.append(group)
                with suppress(RuntimeError):  # a backend without abort, or a group that has just ended
                    group.abort()
        shut_down_accepted(self._before)
        shut_down_connections_to(self._store_port, self._before)  # it may wait there for a rank that has left

    def close(self, ended: bool) -> None:
        """Destroy the groups, with their connections; those to the store, too, if the body has failed.

        The store stays until the next run: a rank that connects only now would try again for minutes.
        """
        self.withdraw()
        if self._loaded and (distributed := sys.modules["torch.distributed"]).is_initialized():
            distributed.destroy_process_group()
        # A module that the namespace keeps keeps its group as well, and other ranks may wait for it.
        shut_down_accepted(self._before, kept=self._port if ended else 0)
        _reset_accelerate()

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
