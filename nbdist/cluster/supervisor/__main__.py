"""python -m nbdist.cluster.supervisor: start a keeper, let it fork its children, be one of the three.

The plan comes as the first line over the inherited socket, never in argv.
"""

from __future__ import annotations

import gc
import importlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from nbdist.cluster.supervisor.process import CONTROLLER, Keeper, read_line

# Imported once here, so that no engine has to. They are named, not imported by statement, for they lie on
# higher floors; one that fails here fails again, and is reported, where it is used.
PRELOADED = (
    "numpy.random",
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "nbdist.cluster.task_setup",
    "nbdist.data",
    "nbdist.nn",
    "nbdist.optim",
    "nbdist.train",
    "nbdist.distribute",
    "nbdist.runs.task.agent",
)
MOST_DESCRIPTORS = 1 << 16


def main() -> None:
    """Read the plan and start; returns in the keeper when all has ended, and in each child when it ends."""
    descriptor, lock = (int(argument) for argument in sys.argv[1:3])
    os.umask(0o077)
    raise_descriptor_limit()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD})
    client = socket.socket(fileno=descriptor)
    keeper = Keeper(client, read_line(client), lock)
    become = start_children(keeper) or keeper.run()
    if become is not None:
        become()


def raise_descriptor_limit() -> None:
    """Let this process and its children have as many descriptors as the system allows it, up to 65,536.

    Another user can hold connections to the loopback ports of a task for as long as a handshake may take
    (5 s). With the usual soft limit of 1,024 a thousand of them would keep a task from opening its files.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # macOS refuses values above its own maximum
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def start_children(keeper: Keeper) -> Callable[[], None] | None:
    """Fork the controller, if the plan has one, and the engines; returns in a child what it is to become."""
    plan = keeper.plan
    folder = plan["folder"]
    connection = plan.get("connection")
    client_side: dict[str, Any] | None = None
    if connection is None:
        import zmq

        from nbdist.cluster.supervisor.controller import choose_ports, connection_for, run_controller

        ports, keeper.held_ports = choose_ports()
        key = secrets.token_hex(32)
        public, secret = (half.decode() for half in zmq.curve_keypair())
        connection = connection_for(ports["engine"], key, public)
        client_side = connection_for(ports["client"], key, public)
        gone, keeper.hub = os.pipe()
        os.set_blocking(keeper.hub, False)
        start = partial(
            run_controller, ports, key, public, secret, plan["cluster_id"], folder, len(plan["tasks"]), gone
        )
        gc.freeze()
        child = keeper.fork(CONTROLLER, start, f"{folder}/log/controller.log")
        if child:
            return child
        os.close(gone)
    keeper.broadcast({"event": "started", "connection": client_side})
    import_ahead()
    if plan["mpi"]:
        from nbdist.cluster.mpi import ProcessManager

        keeper.world = ProcessManager(len(plan["tasks"]))
    gc.freeze()  # what the children share is never collected, so it is never copied either
    from nbdist.cluster.supervisor.engine import run_engine

    def engine(task: dict[str, Any], *entering: Callable[[], None]) -> Callable[[], None]:
        environment, timeout = task["environment"], plan["timeout"]
        return partial(run_engine, task["rank"], environment, connection, folder, timeout, *entering)

    keeper.engine = engine
    for task in plan["tasks"]:
        rank = task["rank"]
        entering = [] if keeper.world is None else [partial(keeper.world.enter, rank)]
        child = keeper.fork(rank, engine(task, *entering), f"{folder}/log/engine-{rank}.log")
        if child:
            return child
    if keeper.world is not None:
        keeper.serve_world()
    keeper.broadcast({"event": "forked", "pids": keeper.pids()})
    return None


def import_ahead() -> None:
    """Import what every engine needs, while there is still one process to do it."""
    import ipyparallel.engine.app  # noqa: F401 - for the children

    decline_debugger()
    for name in PRELOADED:
        with suppress(Exception):  # only speed is lost; who needs it imports it again and hears the error
            importlib.import_module(name)


def decline_debugger() -> None:
    """Have ipykernel find no debugpy: importing it takes 0.13 s, and engines offer no debugger anyway."""
    if "debugpy" not in sys.modules:
        sys.modules["debugpy"] = None  # type: ignore[assignment]  # Python's own way to forbid an import
        try:
            import ipykernel.debugger  # noqa: F401 - it looks for debugpy once, now
        finally:
            del sys.modules["debugpy"]


if __name__ == "__main__":
    main()
