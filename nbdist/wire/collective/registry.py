"""Which collective a group uses, and how the group is formed.

    member = Member(rank, hosts, names, incarnation, prefix, keys)
    group = form(member, exchange)          # exchange(card) returns all ranks' cards, in the order of ranks

Only what every rank knows alike decides, so that all choose the same: the hosts, and then the cards, which
say who has a GPU.
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
    """All that the rest of the system asks about a collective.

    ``make`` returns what a rank brings to a new group. ``single``: it is for one rank alone. ``one_host``: it
    is for ranks of one host.
    """

    name: str
    make: Callable[[Member], Endpoint]
    single: bool = False
    one_host: bool = False


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
        CollectiveSpec("mpi", MpiEndpoint),
    )
}

KINDS = ("auto", *COLLECTIVES)
"""What ``--collective`` takes."""


def choose(hosts: Sequence[str], kind: str = "auto") -> str:
    """Return the best collective for ranks on these hosts, or `kind` if they can use that.

    "mpi" is for those who name it: on one host shared memory is faster, and whether ranks of several hosts
    are in one MPI world nobody knows before they have started MPI.

    >>> choose(["a"]), choose(["a", "a"]), choose(["a", "b"]), choose(["a", "a", "b"])
    ('local', 'shm', 'ring', 'hierarchical')
    """
    if kind not in KINDS:
        raise InvalidArgumentError(f"no collective {kind!r}; {choices(kind, KINDS)}")
    several = len(set(hosts)) > 1
    if kind != "auto":
        spec = COLLECTIVES[kind]
        if spec.single and len(hosts) > 1:
            raise InvalidArgumentError(f"collective {kind!r} is for one rank, not {len(hosts)}; take 'auto'")
        if spec.one_host and several:
            raise InvalidArgumentError(
                f"collective {kind!r} is for ranks of one host; take 'hierarchical' or 'auto'"
            )
        return kind
    if len(hosts) == 1:
        return "local"
    if not several:
        return "shm"
    return "hierarchical" if len(set(hosts)) < len(hosts) else "ring"


def form(member: Member, exchange: Exchange, kind: str = "auto", timeout: float = 30.0) -> Collective:
    """Return this rank's end of a new group; every rank calls it at once, with the same `kind`.

    `exchange` sends this rank's endpoint info (plain values) to all ranks and returns the info of all; it is
    called again when a host has no room for shared memory: then, if `kind` is "auto", the group is a ring of
    sockets, and its notes say so. With "auto" and a GPU for each rank values on GPUs travel by NCCL. Raises
    UnavailableError when a rank does not come within `timeout` seconds, and the reason on all ranks when the
    `kind` named cannot be had on one of them.
    """
    chosen = choose(member.hosts, kind)
    if COLLECTIVES[chosen].single:
        return COLLECTIVES[chosen].make(member).join([{}])
    endpoint: Endpoint | None = None
    failure: NbdistError | None = None
    try:
        endpoint = _sit(member, chosen, with_gpu=kind == "auto" and is_likely())
    except NbdistError as error:
        failure = error
    try:
        own = {"trouble": str(failure), "full": isinstance(failure, ResourceExhaustedError)}
        infos = exchange(endpoint.info if endpoint is not None else own)
        failures = {rank: info["trouble"] for rank, info in enumerate(infos) if "trouble" in info}
        if endpoint is not None and not failures:
            return endpoint.join(infos, timeout)
    except BaseException:
        if endpoint is not None:
            endpoint.close()
        raise
    if endpoint is not None:
        endpoint.close()
    said = "; ".join(f"{member.names[rank]}: {text}" for rank, text in failures.items())
    full = all(infos[rank]["full"] for rank in failures)
    if kind != "auto" or not full:
        if failure is not None and not full:
            raise failure
        raise (ResourceExhaustedError if full else UnavailableError)(f"no collective {chosen!r}: {said}")
    if member.keys is None:
        raise UnavailableError(f"no room for shared memory, and without keys no ring either: {said}")
    group = form(member, exchange, "ring", timeout)
    group.notes.append(f"values travel over sockets, there is no room for shared memory: {said}")
    return group


def _sit(member: Member, kind: str, with_gpu: bool) -> Endpoint:
    if with_gpu:
        with suppress(MissingExtra, UnavailableError):
            return NcclEndpoint(member, COLLECTIVES[kind].make, needed=False)
    return COLLECTIVES[kind].make(member)
