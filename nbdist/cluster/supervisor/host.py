"""`python -m nbdist.cluster.supervisor.host [NAME]`: be the supervisor of a host, of a head elsewhere.

NAME is the host's name in the cluster; without it, Slurm's, or the host's own. The plan is one JSON line on
standard input: the cluster's id, keys and launcher, the head's addresses and port, and the packages whose
versions it reports. The process runs until the cluster ends, or the head is not heard any more. What keeps it
from starting is one sentence on standard error, "host NAME: ...", with exit code `SENTENCE`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

from nbdist.cluster.affinity import describe_topology
from nbdist.cluster.doctor.judge import CORE, FOLDER, Examined, Wanted, judge
from nbdist.cluster.doctor.observe import shared_memory, software, writable
from nbdist.cluster.folder import host_folder
from nbdist.cluster.gpus import kernel_cache, list_gpus
from nbdist.cluster.hosts import SENTENCE
from nbdist.cluster.hub import own_versions
from nbdist.cluster.remnants import remove_remnants
from nbdist.cluster.resources import THREAD_VARIABLES
from nbdist.cluster.supervisor.__main__ import raise_descriptor_limit, start_children
from nbdist.cluster.supervisor.process import SupervisorProcess, read_line
from nbdist.errors import NbdistError
from nbdist.home import home_path
from nbdist.machine import count_cores
from nbdist.wire.hosts import host_identity

END_SECONDS, LOOK_SECONDS = 5.0, 0.05  # for the supervisor to end, without its relay
CONNECT_SECONDS = 5.0  # for the head to accept a connection
MOST_BYTES = 1 << 16  # of the plan


def main() -> None:
    """Join the cluster of the plan, and serve until it ends."""
    os.umask(0o077)
    raise_descriptor_limit()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the connection that started it may end before the cluster
    name = next(iter(sys.argv[1:]), "") or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        plan = json.loads(sys.stdin.buffer.readline(MOST_BYTES))
        folder_facts = {"home": writable(home_path())}
        if found := judge(Examined(name, folder_facts), Examined(""), Wanted(), FOLDER):
            refuse(name, found[0].text)
        remove_remnants()
        folder, lock = host_folder(plan["cluster_id"], name)
    except (NbdistError, OSError, ValueError, KeyError) as error:
        refuse(name, f"{type(error).__name__}: {error}")
    if list_gpus():
        os.environ.update(kernel_cache())
    for variable in THREAD_VARIABLES:  # a task sets its own share of the cores; see `set_blas_threads`
        os.environ.setdefault(variable, "1")
    log = os.open(folder / "log" / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        ours.close()
        os.close(lock)
        _relay(name, plan, theirs, log)
    theirs.close()
    supervisor = _join(name, plan, str(folder), lock, ours, log, pid)
    become = start_children(supervisor) or supervisor.run()
    if become is not None:
        become()


def _join(
    name: str, plan: dict[str, Any], folder: str, lock: int, relay: socket.socket, log: int, relay_pid: int
) -> SupervisorProcess:
    """Report this host to the head, and return the supervisor that serves it."""
    try:
        found = read_line(relay)
        if "error" in found:
            raise EOFError(found["error"])
        gpus = list_gpus()
        report = {
            "name": name,
            "hostname": socket.gethostname(),
            "identity": host_identity(),
            "head": found["head"],
            "address": found["address"],
            "cores": count_cores(),
            "gpus": list(gpus),
            "topology": describe_topology(gpus),
            "versions": own_versions(),
            "pid": os.getpid(),
            "facts": {**software([*CORE, *plan["packages"]]), "shm": shared_memory()},
            "clock": time.time(),
        }
        relay.sendall(json.dumps({"id": 1, "request": "host", "report": report}).encode() + b"\n")
        while "reply" not in (answer := read_line(relay)):
            pass  # an event for all clients of the head
        if "error" in answer:
            raise EOFError(answer["error"])
    except (EOFError, NbdistError, OSError) as error:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        refuse(name, str(error))
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    own = {
        "host": name,
        "relay": relay_pid,
        "cluster_id": plan["cluster_id"],
        "folder": folder,
        "connection": answer["connection"],
        "timeout": answer["timeout"],
        "launcher": plan["launcher"],
        "address": found["address"],
        "settings": {},
        "tasks": [],
    }
    return SupervisorProcess(relay, own, lock)


def refuse(name: str, why: str) -> NoReturn:
    """End with the sentence why this host does not join the cluster."""
    print(f"host {name}: {why}", file=sys.stderr)
    sys.exit(SENTENCE)


def _relay(name: str, plan: dict[str, Any], supervisor: socket.socket, log: int) -> None:
    """Be the relay of this host. Runs in a fork, and never returns."""
    from nbdist.cluster.supervisor.relay import HostRelay
    from nbdist.wire.keys import ClusterKeys

    status, parent = 1, os.getppid()
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the supervisor ends it, by its end of the stream
        for descriptor in (0, 1, 2):
            os.dup2(log, descriptor)
        # The address at which this host sees the client of its ssh connection is the likeliest.
        seen = os.environ.get("SSH_CONNECTION", "").split()[:1]
        known = [f"[{one}]" if ":" in one else one for one in (*seen, *plan["heads"])]
        heads = [f"{one}:{plan['port']}" for one in known]
        relay = HostRelay(name, heads, ClusterKeys.from_dict(plan["keys"]), supervisor)
        try:
            head = relay.connect(CONNECT_SECONDS)
        except NbdistError as error:
            supervisor.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
            return
        found = {"head": head.rpartition(":")[0], "address": relay.own_address}
        supervisor.sendall(json.dumps(found).encode() + b"\n")
        relay.run()
        status = 0
    finally:
        supervisor.close()
        end_process(parent)
        os._exit(status)


def end_process(parent: int) -> None:
    """Wait for the supervisor, whose relay this is, to end; kill it if it is frozen, and so its tasks."""
    deadline = time.monotonic() + END_SECONDS
    while os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)


if __name__ == "__main__":
    main()
