"""python -m nbdist.cluster.nursery: start a keeper, let it fork its children, be one of the three.

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
from pathlib import Path
from typing import Any

from nbdist.cluster.keeper import CONTROLLER, MPIEXEC, Keeper, read_line

# Imported once here, so that no engine has to. They are named, not imported by statement, for they lie on
# higher floors; one that fails here fails again, and is reported, where it is used.
PRELOADED = (
    "numpy.random",
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "nbdist.cluster.tasks",
    "nbdist.data",
    "nbdist.nn",
    "nbdist.optim",
    "nbdist.train",
    "nbdist.distribute",
    "nbdist.runs.agent",
)


def main() -> None:
    """Read the plan and start; returns in the keeper when all has ended, and in each child when it ends."""
    descriptor, lock = (int(argument) for argument in sys.argv[1:3])
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD})
    client = socket.socket(fileno=descriptor)
    keeper = Keeper(client, read_line(client), lock)
    become = start_children(keeper) or keeper.run()
    if become is not None:
        become()


def start_children(keeper: Keeper) -> Callable[[], None] | None:
    """Fork the controller, if the plan has one, and the engines; returns in a child what it is to become."""
    plan = keeper.plan
    folder = plan["folder"]
    connection = plan.get("connection")
    client_side: dict[str, Any] | None = None
    if connection is None:
        import zmq

        from nbdist.cluster.controller import choose_ports, connection_for, run_controller

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
    door: Any = None
    if plan.get("mpiexec"):
        from nbdist.cluster.mpi import WorldDoor, enter, leave_seats

        door = WorldDoor(Path(folder))
        child = keeper.fork(
            MPIEXEC, partial(run_command, plan["mpiexec"], folder), f"{folder}/log/mpiexec.log"
        )
        if child:
            return child
    import_ahead()
    if door is not None:
        keeper.seats = door.seats(len(plan["tasks"]), plan["timeout"], keeper.check_mpiexec)
        door.close()
    gc.freeze()  # what the children share is never collected, so it is never copied either
    from nbdist.cluster.engine import run_engine

    def engine(task: dict[str, Any], *entering: Callable[[], None]) -> Callable[[], None]:
        environment, timeout = task["environment"], plan["timeout"]
        return partial(run_engine, task["rank"], environment, connection, folder, timeout, *entering)

    keeper.engine = engine
    for task in plan["tasks"]:
        rank = task["rank"]
        entering = [] if door is None else [partial(enter, keeper.seats, rank)]
        child = keeper.fork(rank, engine(task, *entering), f"{folder}/log/engine-{rank}.log")
        if child:
            return child
    if door is not None:
        leave_seats(keeper.seats)
    keeper.broadcast({"event": "forked", "pids": keeper.pids()})
    return None


def run_command(command: list[str], folder: str) -> None:
    """Become another program, in the cluster's folder. Runs in a fresh fork."""
    os.chdir(folder)
    os.execv(command[0], command)


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
