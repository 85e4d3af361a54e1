"""`python -m nbdist.cluster.supervisor SOCKET LOCK`: be the supervisor, or a process that it forks.

The arguments are inherited descriptors: the connection to the client, and the cluster's lock. The plan is the
first line from that connection, never in argv, where other users could read it. `main` returns in the
supervisor when the cluster has ended, and in each child when it ends.
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

from nbdist.cluster.supervisor.process import CONTROLLER, ChildProcess, SupervisorProcess, read_line

# Imported once here, before the engines are forked. These are names and not import statements, because the
# modules lie on higher floors. An import that fails here fails again, and is reported, where it is used.
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
    "nbdist.run.task.agent",
)
MOST_DESCRIPTORS = 1 << 16


def main() -> None:
    """Read the plan, fork the children, and serve."""
    descriptor, lock = (int(argument) for argument in sys.argv[1:3])
    os.umask(0o077)
    raise_descriptor_limit()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD})
    client = socket.socket(fileno=descriptor)
    supervisor = SupervisorProcess(client, read_line(client), lock)
    become = start_children(supervisor) or supervisor.run()
    if become is not None:
        become()


def raise_descriptor_limit() -> None:
    """Raise the limit on open descriptors of this process and its children to the hard limit, at most 65,536.

    Another user can hold connections to the loopback ports of a task for as long as a handshake may take
    (5 s). With the usual soft limit of 1,024 a thousand of them would keep a task from opening its files.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # macOS refuses values above its own maximum
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def start_children(supervisor: SupervisorProcess) -> Callable[[], None] | None:
    """Fork the controller, unless the plan names one, and the tasks; return a child's function.

    With other hosts, their supervisors are started instead of tasks; a client starts the tasks later.
    """
    plan = supervisor.plan
    folder, connection, hosts = plan["folder"], plan.get("connection"), plan.get("hosts", ())
    client_side: dict[str, Any] | None = None
    if connection is None:
        import zmq

        from nbdist.cluster.supervisor.controller import (
            LOOPBACK,
            choose_ports,
            connection_for,
            run_controller,
        )

        # Workers on other hosts send datasets to data tasks as clients of the controller.
        clients = EVERYWHERE if hosts and plan["data"] else LOOPBACK
        ports, supervisor.held_ports = choose_ports(EVERYWHERE if hosts else LOOPBACK, clients)
        key = secrets.token_hex(32)
        public, secret = (half.decode() for half in zmq.curve_keypair())
        connection = connection_for(ports["engine"], key, public)
        client_side = connection_for(ports["client"], key, public)
        ended, supervisor.hub_pipe = os.pipe()
        os.set_blocking(supervisor.hub_pipe, False)
        expected = plan.get("expected", len(plan["tasks"]))
        start = partial(
            run_controller, ports, key, public, secret, plan["cluster_id"], folder, expected, ended
        )
        gc.freeze()
        child = supervisor.fork(CONTROLLER, start, f"{folder}/log/controller.log")
        if child:
            return child
        os.close(ended)
    supervisor.engine_connection = connection
    supervisor.broadcast({"event": "started", "connection": client_side})
    # Imported after the controller was forked, which so starts earlier.
    from nbdist.cluster.launchers.registry import find_launcher
    from nbdist.cluster.launchers.spec import LaunchRequest

    supervisor.launcher_spec = spec = find_launcher(plan["launcher"])
    if hosts:
        return start_hosts(supervisor)
    if spec.forks:
        preload()
    tasks = plan["tasks"]
    request = LaunchRequest(
        len(tasks), connection, folder, plan["timeout"], plan["settings"], plan.get("address", "")
    )
    supervisor.launcher = spec.make(request)
    gc.freeze()  # the collector would write to shared pages, and copy them
    try:
        for task in tasks:
            supervisor.start_task(task, lambda reply: None)
    except ChildProcess as child:
        return child.become
    supervisor.broadcast({"event": "forked", "pids": supervisor.pids()})
    return None


EVERYWHERE = "0.0.0.0"


def start_hosts(supervisor: SupervisorProcess) -> Callable[[], None] | None:
    """Fork the relay, and run the commands that start the supervisors of other hosts."""
    from nbdist.cluster.supervisor.controller import hold_port
    from nbdist.cluster.supervisor.relay import run_head_relay
    from nbdist.wire.hosts import own_addresses

    plan, folder = supervisor.plan, supervisor.folder
    held = hold_port(EVERYWHERE)
    supervisor.held_ports.append(held)
    port = held.getsockname()[1]
    start = partial(run_head_relay, folder, plan["keys"], EVERYWHERE, port)
    child = supervisor.hosts.fork_relay(start, f"{folder}/log/relay.log")
    if child:
        return child
    told = {name: plan[name] for name in ("cluster_id", "keys", "timeout", "launcher")}
    assert supervisor.launcher_spec is not None
    packages = supervisor.launcher_spec.packages
    supervisor.hosts.plan = told | {"heads": own_addresses(), "port": port, "packages": packages}
    supervisor.copies.copy = partial(copy_files, folder)
    supervisor.hosts.bring_up(plan["hosts"])
    return None


def copy_files(folder: Path) -> None:
    """Copy what no client has copied of the runs of a cluster. Runs in a fork of its head's supervisor."""
    for sentence in importlib.import_module("nbdist.run.files.left").copy_all(folder):
        print(sentence, flush=True)


def preload() -> None:
    """Import what every engine needs, before the engines are forked."""
    import ipyparallel.engine.app  # noqa: F401 - for the children

    if "debugpy" not in sys.modules:  # importing it takes 0.13 s, and engines offer no debugger
        sys.modules["debugpy"] = None  # type: ignore[assignment]  # Python's own way to forbid an import
        try:
            import ipykernel.debugger  # noqa: F401 - it looks for debugpy once, now
        finally:
            del sys.modules["debugpy"]
    for name in PRELOADED:
        with suppress(Exception):  # an engine that needs the module imports it again, and raises
            importlib.import_module(name)


if __name__ == "__main__":
    main()
