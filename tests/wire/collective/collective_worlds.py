"""Groups of threads of this process, and groups of processes."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from nbdist.wire.collective.base import Collective, Member
from nbdist.wire.collective.registry import COLLECTIVES
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.shm import shared_folder

KEYS = ClusterKeys.create()


def members(hosts: Sequence[str], **options: Any) -> list[Member]:
    names = tuple(f"/job:worker/task:{rank}" for rank in range(len(hosts)))
    incarnation, prefix = secrets.randbits(60), f"nbdist-test{secrets.token_hex(4)}"
    return [
        Member(rank, tuple(hosts), names, incarnation, prefix, KEYS, **options) for rank in range(len(hosts))
    ]


def formed(hosts: Sequence[str], kind: str, **options: Any) -> list[Collective]:
    """Return the ranks of a group, each to be used by one thread."""
    endpoints = [COLLECTIVES[kind].make(member) for member in members(hosts, **options)]
    infos = [endpoint.info for endpoint in endpoints]
    with ThreadPoolExecutor(len(endpoints)) as pool:
        return list(pool.map(lambda endpoint: endpoint.join(infos), endpoints))


class Rank:
    """One rank in its own process, which executes orders."""

    def __init__(self, start: Callable[..., subprocess.Popen[str]] = subprocess.Popen) -> None:
        command = [sys.executable, "-c", PROCESS]
        self.process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **order: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Processes:
    """A group of ranks, each in its own process that `start` starts, given its rank."""

    def __init__(
        self, hosts: Sequence[str], start: Callable[..., subprocess.Popen[str]] | None = None
    ) -> None:
        self.hosts = hosts
        self.ranks = [Rank(partial(start, rank) if start else subprocess.Popen) for rank in range(len(hosts))]
        self.prefix = ""

    def form(self, kind: str) -> None:
        """Form a group of all; it replaces an earlier one."""
        kind = kind.split()[0]
        everyone = members(self.hosts)
        self.prefix = everyone[0].prefix
        for rank, member in zip(self.ranks, everyone):
            assert member.keys is not None
            entries = {**asdict(member), "keys": member.keys.to_dict()}
            rank.ask(do="make_endpoint", kind=kind, member=entries)
        infos = [rank.answer() for rank in self.ranks]
        assert self.all(do="join", infos=infos) == [kind] * len(infos)

    def all(self, **order: Any) -> list[Any]:
        for rank in self.ranks:
            rank.ask(**order)
        return [rank.answer() for rank in self.ranks]

    def files(self) -> list[str]:
        return sorted(path.name for path in shared_folder().glob(f"{self.prefix}*"))

    def close(self) -> None:
        for rank in self.ranks:
            rank.kill()


PROCESS = """
import json, os, signal, sys, threading, time
import numpy as np
from nbdist.errors import NbdistError
from nbdist.wire.collective.mpi import world as mpi_world
from nbdist.wire.collective.base import Member
from nbdist.wire.collective.registry import COLLECTIVES
from nbdist.wire.keys import ClusterKeys

def send(value):
    print(json.dumps(value), flush=True)

def make_endpoint(kind, member):
    global endpoint
    member["keys"] = ClusterKeys.from_dict(member["keys"])
    member["hosts"], member["names"] = tuple(member["hosts"]), tuple(member["names"])
    endpoint = COLLECTIVES[kind].make(Member(**member))
    return endpoint.info

def join(infos):
    global group
    group = endpoint.join(infos)
    return group.kind

def reduce(count):
    return group.all_reduce(np.full(count, group.rank + 1.0), "sum").sum()

def reduce_without_end(count):
    send("begun")
    x = np.ones(count)
    while True:
        group.all_reduce(x)

def barrier():
    before = group.sequence
    def begun():
        while group.sequence == before:
            time.sleep(0.001)
        send("begun")
    threading.Thread(target=begun, daemon=True).start()
    group.barrier()

def barrier_without_end():
    while True:
        group.barrier()

def close():
    group.close()

def execute(order):
    try:
        return globals()[order.pop("do")](**order)
    except (NbdistError, KeyboardInterrupt) as error:
        return [type(error).__name__, str(error)]

def execute_and_survive(order):
    try:
        return execute(order)
    except KeyboardInterrupt as error:  # a second one, while the first is handled
        return [type(error).__name__, str(error)]

if mpi_world.is_started(os.environ):  # as engines of --launcher mpi do
    mpi_world.enter_world(finalize=False)
while line := sys.stdin.readline():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    value = execute_and_survive(json.loads(line))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    send(value)
"""
