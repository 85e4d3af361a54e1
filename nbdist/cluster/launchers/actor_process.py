"""`python -m nbdist.cluster.launchers.actor_process NAME`: run the supervisor of a host for a command.

    standard output   its public key, then "" or why it did not begin, each a line (the second of JSON)
    standard input    a line of JSON: the addresses of the command
    the connection    {"ready"} to the command, the plan from it, {"ended"} to it; "stop" ends the supervisor

A worker of a cluster that is up starts this process (`existing_cluster.SupervisorActor`). The connection to
the command is a CURVE socket, of which this end is the server: only the holder of the secret key, which never
leaves this process, can read the plan. It dials the command, as the supervisor dials the head. The supervisor
ends when the command says so, when the worker has ended (the end of standard input), and with this process.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import zmq

from nbdist.cluster.supervisor.relay import first_to_accept

ADDRESS_SECONDS = 60.0  # for the addresses of the command to arrive
CONNECT_SECONDS = 5.0  # for the command to accept a connection, and again for the plan
END_SECONDS = 6.0  # for the supervisor to end its tasks, before it is killed
LOOK_MS = 200  # between two looks whether the supervisor has ended
MOST_BYTES = 1 << 16  # of a message
ERROR_TAIL = 4000  # bytes of the supervisor's errors that are reported
STOP = b"stop"
PR_SET_PDEATHSIG = 1


def main(name: str) -> int:
    """Run the supervisor of the host ``name``; return this process's exit code."""
    public, secret = zmq.curve_keypair()
    try:
        print(public.decode(), flush=True)
    except BrokenPipeError:  # the worker has let go of this process
        os._exit(1)
    if not select.select([0], [], [], ADDRESS_SECONDS)[0]:
        return 1
    addresses = json.loads(sys.stdin.buffer.readline(MOST_BYTES) or b"[]")
    if not addresses:  # the worker has ended
        return 1
    context: zmq.Context[Any] = zmq.Context()
    link = context.socket(zmq.DEALER)
    link.maxmsgsize = MOST_BYTES
    link.curve_server, link.curve_secretkey = True, secret
    try:
        why, plan = "", b""
        if accepted := first_to_accept(addresses, CONNECT_SECONDS):
            link.connect(f"tcp://{accepted[0]}")
            link.send(json.dumps({"ready": True}).encode())
            plan = link.recv() if link.poll(int(CONNECT_SECONDS * 1000)) else b""
        if not plan:
            why = (
                f"host {name} cannot reach this one at {', '.join(addresses)} within {CONNECT_SECONDS:g} s: "
                "a firewall drops the connection, or no route leads there; open the ports for that host"
            )
        print(json.dumps(why), flush=True)
        if why or plan == STOP:
            return 1
        ended = run_supervisor(name, plan, link)
        link.send(json.dumps({"ended": ended}).encode())
    finally:
        link.close(linger=1000)
        context.term()
    return 0


def run_supervisor(name: str, plan: bytes, link: zmq.Socket[Any]) -> dict[str, Any]:
    """Run the supervisor to its end; return its exit code, whether it had joined, and its errors."""
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "nbdist.cluster.supervisor.host", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=end_with_parent,
    )
    assert supervisor.stdin is not None
    assert supervisor.stderr is not None
    with suppress(BrokenPipeError):  # it has ended; its errors follow
        supervisor.stdin.write(plan)
        supervisor.stdin.close()
    errors, joined, killed_at = b"", False, float("inf")
    error_pipe = supervisor.stderr.fileno()
    poller = zmq.Poller()
    for source in (link, 0, error_pipe):
        poller.register(source, zmq.POLLIN)
    while supervisor.poll() is None:
        for source, _ in poller.poll(LOOK_MS):
            if source == error_pipe:
                received = os.read(error_pipe, MOST_BYTES)
                errors = (errors + received)[-ERROR_TAIL:]
                if received:
                    continue
                poller.unregister(error_pipe)
                try:  # it leaves the pipe when it has joined, and when it ends
                    supervisor.wait(1.0)
                except subprocess.TimeoutExpired:
                    joined = True
                continue
            if source == 0:  # nothing else arrives there
                poller.unregister(0)
            elif link.recv() != STOP:
                continue
            supervisor.terminate()
            killed_at = min(killed_at, time.monotonic() + END_SECONDS)
        if time.monotonic() > killed_at:
            supervisor.kill()
    return {"code": supervisor.returncode, "joined": joined, "errors": errors.decode(errors="replace")}


def end_with_parent() -> None:
    """Run in the process that becomes the supervisor: it ends with its parent (Linux)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
