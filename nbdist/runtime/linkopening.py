"""How a replica gets its connection to a shard: it asks for one, and waits until the chief has made it.

    link = open_link(peer, ShardRequest(shard="run/0", replica=0, ...), prefix="nbdist-c1", check=check)

Shared memory is taken where both tasks see it, else the socket, and the link's ``note`` says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbdist.errors import AbortedError, NotFoundError
from nbdist.optim import Optimizer
from nbdist.runtime.layout import Layout
from nbdist.runtime.linkkinds import SharedLink, SocketLink
from nbdist.runtime.links import LOOK_SECONDS, Link
from nbdist.runtime.rules import Rules
from nbdist.runtime.tables import chunks
from nbdist.wire.messages import error_from
from nbdist.wire.peers import Peer
from nbdist.wire.shm import Doorbell

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ShardRequest:
    """What a replica asks a parameter server for."""

    shard: str
    replica: int
    rules: Rules
    layout: Layout
    optimizer: Optimizer
    counts: bool
    """Whether each update of this shard counts in the global step."""
    initial: tuple[Array, ...] | None
    """The initial values, from the chief only."""
    first: bool = True
    """Whether this is the first of the training's shards."""
    tables: tuple[tuple[str, Array], ...] = ()
    """Tables by name; pulled rows are written into them, and the chief's values are the initial ones."""
    called: str = ""
    """Where the replica is, for the errors of others."""
    pids: tuple[int, ...] = ()
    """The process id of each replica, which the server polls; 0 for those on other hosts."""


def open_link(
    peer: Peer,
    request: ShardRequest,
    *,
    prefix: str | None,
    check: Callable[[], None],
    timeout: float = 600.0,
    lost: Callable[[list[int]], object] = lambda replicas: None,
) -> Link:
    """Connect a replica to a shard; waits until the chief has given the initial values.

    ``peer`` is a connection of this link's own, which closes it, also when this fails. ``prefix`` names
    shared files if both tasks are on one host; None asks for the socket. ``check`` raises AbortedError when
    the run has ended. ``lost`` is called with the numbers of all replicas that the server has found frozen;
    the others continue without them.
    """
    bell, note = _own_bell(None if request.tables else prefix)  # requests for rows need a socket
    try:
        link = _opened_link(peer, request, bell, check, timeout)
        link.note, link.lost = link.note or note, lost
        return link
    except BaseException:
        peer.close()
        if bell is not None:
            bell.close()
        raise


def _opened_link(
    peer: Peer, request: ShardRequest, bell: Doorbell | None, check: Callable[[], None], timeout: float
) -> Link:
    meta = {
        "shard": request.shard,
        "replica": request.replica,
        "called": request.called,
        "pids": list(request.pids),
        "rules": request.rules.to_wire(),
        "layout": request.layout.to_wire(),
        "tables": [[name, list(array.shape), array.dtype.str] for name, array in request.tables],
        "optimizer": request.optimizer.to_config(),
        "counts": request.counts,
        "first": request.first,
        "chief": request.initial is not None,
        "shared": bell is not None,
        "bell": bell.name if bell else None,
    }
    opened = _patiently(peer, meta, request, check, timeout)
    link: Link
    if bell is not None and opened["segment"]:
        try:
            link = SharedLink(
                request.layout, check, control=peer, shard=request.shard, opened=opened, bell=bell,
                replica=request.replica, rules=request.rules,
            )  # fmt: skip
            return link
        except NotFoundError:
            opened["note"] = "parameters travel over sockets: the shared memory is not visible here"
    if bell is not None:
        bell.close()
    link = SocketLink(
        request.layout, check, peer=peer, shard=request.shard, replica=request.replica,
        tables=[array for _, array in request.tables],
    )  # fmt: skip
    link.note = str(opened["note"])
    return link


def _own_bell(prefix: str | None) -> tuple[Doorbell | None, str]:
    """Return a doorbell if shared memory is wanted and there is room; else None, and what to say of it."""
    try:
        return (Doorbell.create(prefix), "") if prefix is not None else (None, "")
    except OSError as error:
        return None, f"parameters travel over sockets: no doorbell can be made in shared memory: {error}"


def _patiently(
    peer: Peer,
    meta: dict[str, Any],
    request: ShardRequest,
    check: Callable[[], None],
    timeout: float,
) -> dict[str, Any]:
    """Ask for a shard; the answer comes once the chief is there. Aborts are noticed while waiting."""
    peer.send("ps.open", meta, request.initial or ())
    if request.initial is not None:
        _fill(peer, request, check)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        frame = peer.receive(LOOK_SECONDS)
        if frame is None:
            check()
        elif frame.kind == "ps.opened":
            return dict(frame.meta)
        elif frame.kind == "error":
            raise error_from(frame)
    raise AbortedError(
        f"no initial values for {meta['shard']!r} within {timeout:.0f} s: the chief (worker 0) has not "
        "reached the same fit(); every worker has to call fit the same number of times"
    )


def _fill(peer: Peer, request: ShardRequest, check: Callable[[], None]) -> None:
    """Send the chief's initial values of the tables, part by part."""
    for number, (_, table) in enumerate(request.tables):
        for first, stop in chunks(table.shape, table.itemsize):
            check()
            meta = {"shard": request.shard, "table": number, "first": first}
            try:
                peer.call("ps.fill", meta, (table[first:stop],))
            except AbortedError:  # there is no shard: the error of the request is more precise
                frame = peer.receive(0)
                if frame is not None and frame.kind == "error":
                    raise error_from(frame) from None
                raise
