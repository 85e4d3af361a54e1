"""Choice of a group's collective, and formation of the group.

    member = Member(rank, hosts, names, incarnation, prefix, keys)
    group = form(member, exchange)          # exchange(info) returns the infos of all ranks, in their order

The choice depends only on values that every rank has: the hosts, and then the endpoint infos, which include
the GPUs. So all ranks choose the same collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nbdist.errors import (
    InvalidArgumentError,
    MissingExtra,
    NbdistError,
    ResourceExhaustedError,
    UnavailableError,
    choices,
)
from nbdist.wire.collective.base import Collective, Endpoint, Member
from nbdist.wire.collective.hierarchical import HierarchicalEndpoint
from nbdist.wire.collective.local import LocalEndpoint
from nbdist.wire.collective.mpi.collective import MpiEndpoint
from nbdist.wire.collective.nccl import NcclEndpoint, is_likely
from nbdist.wire.collective.ring import RingEndpoint
from nbdist.wire.collective.shm.collective import ShmEndpoint

Exchange = Callable[[dict[str, Any]], Sequence[dict[str, Any]]]


@dataclass(frozen=True)
class CollectiveSpec:
    """The properties of a collective that the rest of the system uses.

    ``make`` returns a rank's endpoint for a new group. ``single``: for one rank only. ``one_host``: for ranks
    on one host. ``takes_none``: why a process that starts later can be in no group, empty if it can.
    """

    name: str
    make: Callable[[Member], Endpoint]
    single: bool = False
    one_host: bool = False
    takes_none: str = ""


def _over_gpus(member: Member) -> Endpoint:
    return NcclEndpoint(member, COLLECTIVES[choose(member.hosts)].make)


COLLECTIVES: dict[str, CollectiveSpec] = {
    spec.name: spec
    for spec in (
        CollectiveSpec("local", LocalEndpoint, single=True, one_host=True),
        CollectiveSpec("shm", ShmEndpoint, one_host=True),
        CollectiveSpec("ring", RingEndpoint),
        CollectiveSpec("hierarchical", HierarchicalEndpoint),
        CollectiveSpec("nccl", _over_gpus),
        CollectiveSpec("mpi", MpiEndpoint, takes_none="an MPI world takes no new process"),
    )
}

KINDS = ("auto", *COLLECTIVES)
"""The values of ``--collective``."""


def choose(hosts: Sequence[str], kind: str = "auto") -> str:
    """Return the best collective for ranks on these hosts, or `kind` if they can use it.

    "auto" never chooses "mpi": on one host shared memory is faster, and ranks of several hosts have to start
    MPI before they know whether they are in one MPI world.

    >>> choose(["a"]), choose(["a", "a"]), choose(["a", "b"]), choose(["a", "a", "b"])
    ('local', 'shm', 'ring', 'hierarchical')
    """
    if kind not in KINDS:
        raise InvalidArgumentError(f"no collective {kind!r}; {choices(kind, KINDS)}")
    several = len(set(hosts)) > 1
    if kind != "auto":
        spec = COLLECTIVES[kind]
        if spec.single and len(hosts) > 1:
            raise InvalidArgumentError(f"collective {kind!r} is for one rank, not {len(hosts)}; use 'auto'")
        if spec.one_host and several:
            raise InvalidArgumentError(
                f"collective {kind!r} is for ranks of one host; use 'hierarchical' or 'auto'"
            )
        return kind
    if len(hosts) == 1:
        return "local"
    if not several:
        return "shm"
    return "hierarchical" if len(set(hosts)) < len(hosts) else "ring"


def form(member: Member, exchange: Exchange, kind: str = "auto", timeout: float = 30.0) -> Collective:
    """Return this rank's handle of a new group; all ranks call it together, with the same `kind`.

    `exchange` sends this rank's endpoint info (plain values) to all ranks and returns the infos of all. It is
    called a second time if `kind` is "auto" and a host has no room for shared memory: the group then is a
    ring of sockets, and its notes contain the reason. With "auto" and one GPU for each rank, CuPy arrays
    travel by NCCL. Raises DeadlineExceededError if a rank does not join within `timeout` seconds, and an
    error on all ranks if the named `kind` is not available on one of them.
    """
    chosen = choose(member.hosts, kind)
    if COLLECTIVES[chosen].single:
        return COLLECTIVES[chosen].make(member).join([{}])
    endpoint: Endpoint | None = None
    failure: NbdistError | None = None
    try:
        if kind == "auto" and is_likely():
            with suppress(MissingExtra, UnavailableError):
                endpoint = NcclEndpoint(member, COLLECTIVES[chosen].make, needed=False)
        endpoint = endpoint or COLLECTIVES[chosen].make(member)
    except NbdistError as error:
        failure = error
    try:
        own = {"failure": str(failure), "full": isinstance(failure, ResourceExhaustedError)}
        infos = exchange(endpoint.info if endpoint is not None else own)
        failures = {rank: info["failure"] for rank, info in enumerate(infos) if "failure" in info}
        if endpoint is not None and not failures:
            return endpoint.join(infos, timeout)
    except BaseException:
        if endpoint is not None:
            endpoint.close()
        raise
    if endpoint is not None:
        endpoint.close()
    reasons = "; ".join(f"{member.names[rank]}: {text}" for rank, text in failures.items())
    full = all(infos[rank]["full"] for rank in failures)
    if kind != "auto" or not full:
        if failure is not None and not full:
            raise failure
        raise (ResourceExhaustedError if full else UnavailableError)(
            f"collective {chosen!r} is not available: {reasons}"
        )
    if member.keys is None:
        raise UnavailableError(
            f"no room for shared memory, and a ring of sockets needs the cluster's keys: {reasons}"
        )
    group = form(member, exchange, "ring", timeout)
    group.notes.append(f"values travel over sockets because shared memory is full: {reasons}")
    return group
