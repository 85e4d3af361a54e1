"""JAX's own distribution in a body: ``jax.distributed.initialize()`` without arguments, in each run anew.

JAX finds a cluster by the subclasses of its ``ClusterEnv``; `_cluster_environment` makes one, which knows the
place of this task. The first rank runs JAX's coordination service. It answers every user that can connect to
it. So on a single host it listens at a socket in the cluster's folder, which other users cannot enter, and at
no port (`_addresses`); a proxy of the environment is not asked for the way there either.

JAX is made for processes that end with the training. Left as it is, it ends the process of every rank, not
only its body, when one fails (``client.h: Terminating process``), and it catches SIGTERM. So

- tasks are recoverable (``jax_enable_recoverability``): a rank may fail or end before the others;
- the preemption service, which waits for SIGTERM, is off;
- the service stays until the run has ended on all tasks (`release`), since a rank that loses it is ended
  by JAX. This still happens if the process of the first rank dies.

Arrays of the body belong to the devices of its run, which are dropped at its end. They can still be read.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

from nbdist.cluster.folder import folder_of_task
from nbdist.cluster.supervisor.process import short_path
from nbdist.errors import FailedPreconditionError
from nbdist.frameworks.base import Framework, Place, host_of, import_on_a_thread
from nbdist.frameworks.connections import is_lost_connection, shut_down_accepted
from nbdist.frameworks.patches import Patches
from nbdist.runtime.groups import World
from nbdist.wire.sockets import close_listeners, sockets

NO_PROXY, NO_PROXIES = "no_grpc_proxy", "no_proxy"  # gRPC reads the second one only without the first
PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm7_plugin")  # JAX without one computes on CPUs


class Jax(Framework):
    """jax.distributed around one body."""

    name = package = "jax"
    least = "0.10"
    place: ClassVar[Place | None] = None
    """The place of this task in the run that is under way, if there is one."""
    address: ClassVar[str] = ""
    """Where the coordination service of that run is."""
    _served: ClassVar[tuple[str, Any] | None] = None
    """A run, and its coordination service, until all its ranks have left it; in the first one's process."""

    def __init__(self) -> None:
        self._before = set(sockets())
        self._port = 0
        self._ends = ExitStack()

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
        jax.config.update("jax_check_proxy_envs", False)  # no_grpc_proxy, below, is no cause to warn
        jax.extend.backend.clear_backends()  # initialize() is refused after a computation of an earlier cell
        jax.config.update("jax_num_cpu_devices", -1)  # --strategy tpu may have made several
        Jax.release()
        _cluster_environment()

    def variables(self, world: World, place: Place, host: str, port: int) -> Mapping[str, str]:
        """Return the address of the service, and that no proxy is asked for the way to it."""
        assert world.task is not None
        self._port = port
        Jax.place, Jax.address = place, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        at = Jax.address
        if place.one_host:
            folder = self._ends.enter_context(short_path(folder_of_task(world.task.cluster_id)))
            at = f"unix:{folder}/jax-{world.ranks[0]}.sock"
        _addresses(self._ends.enter_context(Patches({})), port, at, host_of(world.task.info))
        without = os.environ.get(NO_PROXY) or os.environ.get(NO_PROXIES)
        hosts = dict.fromkeys(host_of(info) for info in world.infos)
        return {
            "JAX_COORDINATOR_ADDRESS": Jax.address,
            "JAX_COORDINATOR_BIND_ADDRESS": Jax.address,
            NO_PROXY: ",".join(filter(None, [without, *hosts])),
        }

    def abort(self) -> None:
        """Shut down the connections of collective calls, but not those of the coordination service."""
        shut_down_accepted(self._before, kept=self._port)

    def close(self, ended: bool) -> None:
        """Leave the coordination service, which stays, and drop the devices of the run."""
        place, Jax.place = Jax.place, None
        jax = sys.modules.get("jax")
        with self._ends:
            if jax is not None and jax.distributed.is_initialized():
                state = sys.modules["jax._src.distributed"].global_state
                if state.service is not None and place is not None:
                    Jax._served, state.service = (place.run, state.service), None
                jax.distributed.shutdown()
                jax.extend.backend.clear_backends()
            shut_down_accepted(self._before, kept=self._port)
            close_listeners(self._before, kept=self._port)

    @classmethod
    def release(cls, run: str | None = None) -> None:
        """End the coordination service of a run, which all its ranks have left; None: of any run."""
        if cls._served is not None and run in (None, cls._served[0]):
            (_, service), cls._served = cls._served, None
            service.shutdown()

    def is_consequence(self, error: BaseException) -> bool:
        """Return whether a collective call has lost another process."""
        return is_lost_connection(error)


def _addresses(patches: Patches, port: int, at: str, own: str) -> None:
    """Have JAX use the address ``at`` for the service, and gloo the address ``own`` of this task.

    The service is that at ``port``, under whatever name of the host the body gives to
    ``jax.distributed.initialize()``. gloo would otherwise listen where the host's name points to, which may
    be nowhere, or at an interface that other hosts reach.
    """
    from jax._src.lib import _jax

    def at_port(call: Any, address: str, *args: Any, **kwargs: Any) -> Any:
        return call(at if address.rpartition(":")[2] == str(port) else address, *args, **kwargs)

    patches.wrap(_jax, "get_distributed_runtime_service", at_port)
    patches.wrap(_jax, "get_distributed_runtime_client", at_port)
    patches.replace(_jax, "make_gloo_tcp_collectives", lambda call: partial(call, hostname=own))


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
