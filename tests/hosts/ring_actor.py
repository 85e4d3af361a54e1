"""A rank of a group of collectives on one of the hosts; `form` exchanges endpoint infos with all ranks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from actor import receive, send, serve

from nbdist.wire.collective.base import Collective, Member
from nbdist.wire.collective.registry import form
from nbdist.wire.hosts import host_identity
from nbdist.wire.keys import ClusterKeys

REDUCED = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}
CASES: list[tuple[str, tuple[int, ...]]] = [
    ("f4", (5,)), ("f8", (3, 4)), ("i4", (7, 2)), ("f2", (6, 1)), ("c8", (4,)), ("i8", (2, 0)),
    ("f4", (300_001,)),
]  # fmt: skip
held: dict[str, Collective] = {}


def where() -> dict[str, str]:
    return {"name": socket.gethostname(), "identity": host_identity()}


def meet(kind: str, member: dict[str, Any], timeout: float = 20.0) -> str:
    def exchange(info: dict[str, Any]) -> Sequence[dict[str, Any]]:
        send({"info": info})
        return list(receive())

    keys = member.pop("keys")
    lists = {name: tuple(member.pop(name)) for name in ("hosts", "names")}
    one = Member(**lists, **member, keys=None if keys is None else ClusterKeys.from_dict(keys))
    held["group"] = form(one, exchange, kind, timeout)
    return held["group"].kind


def sits_without_keys(bind: str) -> str:
    hosts, names = (host_identity(), "elsewhere"), ("one", "two")
    one = Member(0, hosts, names, 1, "nbdist-keyless", bind=bind)
    form(replace(one), lambda info: [info, info])
    return "formed"


def calls() -> list[str]:
    """Make every kind of call; return those with a result other than NumPy's."""
    wrong = []
    for number, (dtype, shape) in enumerate(CASES):
        wrong += _calls(held["group"], number, dtype, shape)
    return wrong


def _calls(group: Collective, seed: int, dtype: str, shape: tuple[int, ...]) -> list[str]:
    rank, size = group.rank, group.size
    random = np.random.default_rng(seed)
    values = [random.normal(0, 3, shape).astype(dtype) for _ in range(size)]
    rows = np.array_split(np.arange(shape[0]), size)[rank]
    mine = values[rank]
    results: dict[str, tuple[Any, Any]] = {
        "all_gather": (group.all_gather(mine), np.stack(values)),
    }
    for root in range(size):
        results[f"broadcast {root}"] = group.broadcast(mine, root), values[root]
    for op in ("sum", "product") if dtype == "c8" else (*REDUCED, "mean"):
        if op == "mean":
            whole = np.mean(np.stack(values), axis=0)
        else:
            whole = REDUCED[op].reduce(np.stack(values), axis=0)
        results[f"all_reduce {op}"] = group.all_reduce(mine, op), whole
        results[f"reduce_scatter {op}"] = group.reduce_scatter(mine, op), whole[rows]
    out = mine.copy()
    group.all_reduce(out, "sum", out=out)
    results["all_reduce in place"] = out, np.add.reduce(np.stack(values), axis=0)
    group.barrier()
    tolerance = 2e-2 if dtype == "f2" else 1e-5
    return [
        f"{what} of {dtype} {shape} on rank {rank}"
        for what, (found, expected) in results.items()
        if found.shape != expected.shape or not np.allclose(found, expected, tolerance, tolerance)
    ]


def add_up(count: int, times: int) -> list[float]:
    """Return the sums of some all-reduces, each of the previous result."""
    x = np.full(count, held["group"].rank + 1.0)
    send("begun")
    for _ in range(times):
        held["group"].all_reduce(x, "mean", out=x)
    return [float(x.min()), float(x.max())]


def for_ever(count: int) -> None:
    x = np.ones(count, np.float32)
    held["group"].all_reduce(x)
    send("begun")
    while True:
        held["group"].all_reduce(x)


def wait() -> None:
    before = held["group"].sequence

    def begun() -> None:
        while held["group"].sequence == before:
            pass
        send("begun")

    threading.Thread(target=begun, daemon=True).start()
    held["group"].barrier()


def close() -> None:
    held.pop("group").close()


serve({f.__name__: f for f in (where, meet, sits_without_keys, calls, add_up, for_ever, wait, close)})
