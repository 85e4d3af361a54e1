"""JAX's own distribution in a body: ``jax.distributed.initialize()`` without arguments, in each run anew.

JAX finds a cluster by the subclasses of its ``ClusterEnv``; `_cluster_environment` makes one, which knows the
place of this task. The first rank runs JAX's coordination service.

JAX is made for processes that end with the training. Left as it is, it ends the process of every rank, not
only its body, when one fails (``client.h: Terminating process``), and it catches SIGTERM. So

- tasks are recoverable (``jax_enable_recoverability``): a rank may fail or end before the others;
- the preemption service, which waits for SIGTERM, is off;
- the service stays until the next run of its process, since a rank that loses it is ended by JAX. This still
  happens if the process of the first rank dies.

Arrays of the body belong to the devices of its run, which are dropped at its end. They can still be read.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Mapping
from typing import Any, ClassVar

from nbdist.errors import FailedPreconditionError
from nbdist.frameworks.base import Framework, Place, import_on_a_thread
from nbdist.frameworks.connections import is_lost_connection, shut_down_accepted, sockets

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin")  # JAX without one computes on CPUs


class Jax(Framework):
    """jax.distributed around one body."""

    name = package = "jax"
    least = "0.10"
    place: ClassVar[Place | None] = None
    """The place of this task in the run that is under way, if there is one."""
    address: ClassVar[str] = ""
    """Where the coordination service of that run is."""
    _served: ClassVar[Any] = None
    """The coordination service of the last run of this process, if it was the first rank."""

    def __init__(self) -> None:
        self._before = set(sockets())
        self._port = 0

    def load(self, device: str) -> None:
        """Import jax, with backends that no computation has opened; with CUDA if the task has a GPU."""
        import_on_a_thread("jax.extend")
        import jax
        import jax.extend

        version = str(jax.__version__)
        if device != "CPU:0" and not any(importlib.util.find_spec(name) for name in PLUGINS):
            raise FailedPreconditionError(
                f"this worker has a GPU, and jax {version} is installed for CPUs: pip install "
                '"jax[cuda13]", or start the cluster with --gpus none'
            )
        if jax.distributed.is_initialized():
            raise FailedPreconditionError(
                "jax.distributed is initialized in this task, from a cell without --framework jax: end it "
                "there with jax.distributed.shutdown()"
            )
        jax.config.update("jax_enable_recoverability", True)
        jax.config.update("jax_enable_preemption_service", False)
        jax.extend.backend.clear_backends()  # initialize() is refused after a computation of an earlier cell
        jax.config.update("jax_num_cpu_devices", -1)  # --strategy tpu may have made several
        if Jax._served is not None:
            Jax._served.shutdown()
            Jax._served = None
        _cluster_environment()

    def serve(self, host: str) -> int:
        """Return a free port; ``jax.distributed.initialize()`` starts the service there."""
        with socket.create_server((host, 0), family=_family(host)) as found:
            return int(found.getsockname()[1])

    def withdraw(self) -> None:
        """Do nothing: the port is free until the service starts."""

    def variables(self, place: Place, host: str, port: int) -> Mapping[str, str]:
        """Return the address of the service, which listens there and on no other interface."""
        self._port = port
        Jax.place, Jax.address = place, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return {"JAX_COORDINATOR_ADDRESS": Jax.address, "JAX_COORDINATOR_BIND_ADDRESS": Jax.address}

    def abort(self) -> None:
        """Shut down the connections of collective calls, but not those of the coordination service."""
        shut_down_accepted(self._before, kept=self._port)

    def close(self, ended: bool) -> None:
        """Leave the coordination service, which stays, and drop the devices of the run."""
        Jax.place = None
        jax = sys.modules.get("jax")
        if jax is not None and jax.distributed.is_initialized():
            state = sys.modules["jax._src.distributed"].global_state
            if state.service is not None:
                Jax._served, state.service = state.service, None
            jax.distributed.shutdown()
            jax.extend.backend.clear_backends()
        shut_down_accepted(self._before, kept=self._port)

    def is_consequence(self, error: BaseException) -> bool:
        """Return whether a collective call has lost another process."""
        return is_lost_connection(error)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _cluster_environment() -> None:
    """Have ``jax.distributed.initialize()`` ask `Jax.place` before it looks for Slurm and its like."""
    from jax._src.clusters import ClusterEnv

    if any(one.name == "nbdist" for one in ClusterEnv._cluster_types):
        return

    class Tasks(ClusterEnv):  # type: ignore[misc]  # jax is Any to mypy here
        name = "nbdist"

        @classmethod
        def is_env_present(cls) -> bool:
            return Jax.place is not None

        @classmethod
        def get_coordinator_address(
            cls, timeout_secs: int | None, override_coordinator_port: str | None
        ) -> str:
            return Jax.address

        @classmethod
        def get_process_count(cls) -> int:
            return 1 if Jax.place is None else Jax.place.size

        @classmethod
        def get_process_id(cls) -> int:
            return 0 if Jax.place is None else Jax.place.rank

    ClusterEnv._cluster_types.insert(0, ClusterEnv._cluster_types.pop())
