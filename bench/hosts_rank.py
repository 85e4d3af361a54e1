"""A process on one of the hosts of `bench.between_hosts`: it executes orders, and answers with times."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "hosts"))
from actor import receive, send, serve

from nbdist.optim import SGD
from nbdist.runtime.heap import keep_freed_memory
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import ShardRequest, open_link
from nbdist.runtime.ps.service import ParameterService
from nbdist.runtime.ps.sync import Rules
from nbdist.runtime.server import Server
from nbdist.wire.collective.base import Member
from nbdist.wire.collective.buckets import Buckets, plan_buckets
from nbdist.wire.collective.registry import form
from nbdist.wire.hosts import host_identity
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer

LAYERS = 10
held: dict[str, Any] = {}
Timed = list[list[float]]


def timed(work: Callable[[], object], before: Callable[[], object], calls: int) -> Timed:
    """Return the seconds, and this process's CPU seconds, of each call; all ranks begin one together."""
    found = []
    for _ in range(calls):
        before()
        begun, spent = time.perf_counter(), time.process_time()
        work()
        found.append([time.perf_counter() - begun, time.process_time() - spent])
    return found


def where() -> dict[str, str]:
    """Return what ranks of one host have in common."""
    return {"name": socket.gethostname(), "identity": host_identity()}


def meet(kind: str, member: dict[str, Any]) -> str:
    """Form a group with the other ranks; the infos of all are the next line of input."""

    def exchange(info: dict[str, Any]) -> Sequence[dict[str, Any]]:
        send({"info": info})
        return list(receive())

    keys = ClusterKeys.from_dict(member.pop("keys"))
    hosts, names = tuple(member.pop("hosts")), tuple(member.pop("names"))
    held["group"] = form(Member(hosts=hosts, names=names, keys=keys, **member), exchange, kind)
    return str(held["group"].kind)


def all_reduce(nbytes: int, calls: int) -> Timed:
    """Sum float32 in place."""
    group, x = held["group"], np.zeros(nbytes // 4, np.float32)
    group.all_reduce(x, "sum", out=x)
    return timed(lambda: group.all_reduce(x, "sum", out=x), group.barrier, calls)


def prepare(nbytes: int, seconds: float) -> None:
    """Make gradient buckets for a backward pass of so many seconds."""
    plan = plan_buckets([(str(layer), (nbytes // LAYERS // 4,), np.float32) for layer in range(LAYERS)])
    held["buckets"], held["seconds"] = Buckets(held["group"], plan, "sum"), seconds


def step(computes: bool, reduces: bool, calls: int) -> Timed:
    """Make backward passes, all-reduces, or both: each of its bucket as soon as it is full.

    A layer takes time and no core, as on a GPU: what else runs here would decide otherwise.
    """
    buckets, seconds = held["buckets"], held["seconds"]

    def once() -> None:
        for layer in range(LAYERS):
            time.sleep(seconds / LAYERS * computes)
            if reduces:
                buckets.mark(str(layer))
        if reduces:
            buckets.finish()

    return timed(once, held["group"].barrier, calls)


def meet_gloo(rank: int, size: int, address: str) -> bool:
    """Form a group of torch.distributed."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://{address}", rank=rank, world_size=size)
    held["gloo"] = dist
    return True


def all_reduce_gloo(nbytes: int, calls: int) -> Timed:
    """Sum float32 in place, by gloo."""
    import torch

    dist, x = held["gloo"], torch.zeros(nbytes // 4)
    dist.all_reduce(x)
    return timed(lambda: dist.all_reduce(x), dist.barrier, calls)


def serve_parameters(host: str, keys: dict[str, str]) -> str:
    """Be a parameter server; return its address."""
    server = Server({"ps": {0: f"{host}:0"}}, "ps", 0, keys=ClusterKeys.from_dict(keys), host=host)
    held["service"] = ParameterService(server, "nbdist-bench")
    return str(server.address)


def open_shard(address: str, keys: dict[str, str], nbytes: int) -> str:
    """Open a shard of float32 on the server."""
    x = np.zeros(nbytes // 4, np.float32)
    connect = partial(Peer, address, ClusterKeys.from_dict(keys), name="/job:ps/task:0")
    layout = Layout.of([("x", x.shape, x.dtype)])
    request = ShardRequest("r/0", 0, Rules(1, False), layout, SGD(0.1), True, (x,))
    held["link"] = open_link(connect, request, prefix=None, check=lambda: None)
    return str(held["link"].kind)


def push_and_pull(calls: int) -> Timed:
    """Push a gradient of the whole shard, wait until it is applied, and pull the parameters."""

    def step() -> None:
        link.push(0)
        link.wait(0)
        link.pull()

    link = held["link"]
    link.pull()
    return timed(step, lambda: None, calls)


def listen(host: str, nbytes: int) -> int:
    """Exchange as many bytes with each connection, both ways at once; return the port."""
    sockets = socket.create_server((host, 0))

    def answer() -> None:
        while True:
            swap(sockets.accept()[0], nbytes)

    threading.Thread(target=answer, daemon=True).start()
    return int(sockets.getsockname()[1])


def swap(connection: socket.socket, nbytes: int) -> None:
    """Send and receive as many bytes, at the same time."""
    chunk, left = bytearray(1 << 18), nbytes
    sending = threading.Thread(target=lambda: connection.sendall(bytes(nbytes)))
    sending.start()
    while left:
        left -= connection.recv_into(chunk, min(left, len(chunk)))
    sending.join()


def plain_tcp(host: str, port: int, nbytes: int, calls: int) -> Timed:
    """Exchange bytes over a plain connection each time, both ways at once, unencrypted."""

    def once() -> None:
        with socket.create_connection((host, port)) as connection:
            swap(connection, nbytes)

    once()
    return timed(once, lambda: None, calls)


ORDERS = (
    where, meet, all_reduce, prepare, step, meet_gloo, all_reduce_gloo,
    serve_parameters, open_shard, push_and_pull, listen, plain_tcp,
)  # fmt: skip
keep_freed_memory()  # as tasks do
serve({order.__name__: order for order in ORDERS})
