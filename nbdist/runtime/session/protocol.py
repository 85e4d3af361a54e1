"""The content of a session's messages (a request for an executor, a piece to register) as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from nbdist.errors import DataLossError
from nbdist.graph.backend import Array
from nbdist.graph.compile.partition import Piece
from nbdist.graph.serialize.encode import decode, encode
from nbdist.runtime.session.resources import Client
from nbdist.wire.channel.sender import Address

Executors = dict[str, tuple[Address, str]]
"""By device: the address of its executor, and its task's name."""


@dataclass(frozen=True)
class ExecutorRequest:
    """A session's request to a task: an executor for its client, which runs the pieces of one device.

    Executors of one ``session`` read the same datasets; variables that are isolated are behind ``isolate``.
    ``dispatcher`` is the random name of the dispatcher that the executor serves. ``given_up`` are those of
    the session with abandoned steps: the executors of these steps make no further changes.
    ``incarnation`` and ``resets`` are those that the task had when the session began. ``patience`` is
    how many seconds an op may wait for other sessions. ``client_task`` is the task that the client is, in
    its process ``client_incarnation``; empty for a client that is not a task.
    """

    client: Address
    dispatcher: str
    device: str
    session: str
    isolate: str
    transport: Literal["auto", "socket"]
    incarnation: int
    resets: int
    patience: float | None = None
    given_up: tuple[str, ...] = ()
    client_task: str = ""
    client_incarnation: int = 0

    @property
    def driver(self) -> Client:
        """The process that drives the session."""
        return Client(self.client_task, self.client_incarnation)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for a message."""
        return {**asdict(self), "client": self.client.to_dict()}

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> ExecutorRequest:
        """Return what ``to_dict`` described; DataLossError for anything else."""
        try:
            given_up = tuple(entries.get("given_up", ()))
            client = Address.from_dict(entries["client"])
            wanted = cls(**{**entries, "client": client, "given_up": given_up})
        except (KeyError, TypeError, AttributeError):
            raise DataLossError(f"not a request for an executor: {sorted(entries)}") from None
        texts = (wanted.dispatcher, wanted.device, wanted.session, wanted.isolate, wanted.client_task)
        numbers = (wanted.incarnation, wanted.resets, wanted.client_incarnation)
        good = all(type(one) is str for one in texts) and all(type(one) is int for one in numbers)
        good = good and (wanted.patience is None or type(wanted.patience) is float)
        good = good and all(type(one) is str for one in wanted.given_up)
        if not good or wanted.transport not in ("auto", "socket"):
            raise DataLossError("not a request for an executor: a value has the wrong type")
        return wanted


def pack_piece(piece: Piece, executors: Executors) -> tuple[dict[str, Any], list[Array]]:
    """Return a piece, and the executors it sends to, as plain values and arrays."""
    graph, arrays = encode(piece.graph.tensors)
    at = {t: n for n, t in enumerate(piece.graph.tensors)}
    meta = {
        "device": piece.device,
        "graph": graph,
        "order": [at[t] for t in piece.order],
        "feeds": [[n, at[t]] for n, t in piece.feeds],
        "fetches": [[n, at[t]] for n, t in piece.fetches],
        "executors": {device: [address.to_dict(), name] for device, (address, name) in executors.items()},
    }
    return meta, arrays


def unpack_piece(meta: dict[str, Any], arrays: tuple[Array, ...]) -> tuple[Piece, Executors]:
    """Return what ``pack_piece`` packed; DataLossError for anything else."""
    try:
        graph = decode(meta["graph"], list(arrays))
        tensors = graph.tensors
        piece = Piece(
            str(meta["device"]),
            graph,
            [tensors[n] for n in meta["order"]],
            [(int(n), tensors[at]) for n, at in meta["feeds"]],
            [(int(n), tensors[at]) for n, at in meta["fetches"]],
        )
        executors = {
            str(device): (Address.from_dict(address), str(name))
            for device, (address, name) in meta["executors"].items()
        }
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataLossError(f"this is not a piece of a graph: {type(error).__name__}: {error}") from None
    return piece, executors
