"""How a frame crosses a socket: its envelope, the limits both ends set, and errors on their way back."""

from __future__ import annotations

import struct

import numpy as np
import zmq

from nbdist import errors
from nbdist.errors import DataLossError, NbdistError, ResourceExhaustedError
from nbdist.wire.rpc.frame import MAX_ARRAYS, Buffer, Frame, decode

ENVELOPE = struct.Struct("<BQ")  # role, sequence number
CALL, SEND, REPLY, FAILURE, PUSH = range(1, 6)
HEARTBEAT_MS = 1_000
SILENCE_MS = 5_000  # after which a far end counts as frozen or cut off
CONNECT_MS = 3_000  # else the kernel tries ever more rarely, and misses a host that is back
COPY_BELOW = 1 << 16  # smaller buffers cost less to copy than to track
PIECE = 1 << 20  # nothing larger crosses a socket at once


def set_limits(socket: zmq.Socket[bytes]) -> None:
    """Set what both ends share: sizes, patience, and the heartbeat that finds a frozen far end."""
    socket.linger = 0
    socket.maxmsgsize = PIECE + 256  # ZeroMQ takes so much memory for whoever connects, known or not
    socket.handshake_ivl = 5_000
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = SILENCE_MS
    # Heartbeats queue behind a large message that is under way, so that TCP itself has to give up as well.
    socket.tcp_maxrt = SILENCE_MS
    socket.connect_timeout = CONNECT_MS
    socket.reconnect_ivl = 20
    socket.reconnect_ivl_max = 1_000


def send_parts(socket: zmq.Socket[bytes], parts: list[Buffer], share: bool) -> None:
    """Send the parts of one message without blocking; `share` lends large buffers instead of copying them.

    What is lent must not change until the far side has answered.
    """
    pieces = [piece for part in parts for piece in cut(part)]
    last = len(pieces) - 1
    for index, piece in enumerate(pieces):
        more = zmq.SNDMORE if index < last else 0
        lend = share and len(piece) >= COPY_BELOW
        socket.send(piece, zmq.NOBLOCK | more, copy=not lend)


def cut(part: Buffer) -> list[Buffer]:
    """Cut a part into pieces: a full one is followed by another of the same part, a shorter one ends it."""
    size = len(part)
    if size < PIECE:
        return [part]
    view = memoryview(part)
    return [view[at : at + PIECE] for at in range(0, size + 1, PIECE)]


def receive_parts(socket: zmq.Socket[bytes], limit: int) -> tuple[list[Buffer], int]:
    """Return the parts of a message that is there, put together again, and how many bytes it held.

    Large parts of one piece are not copied. A message larger than `limit` bytes is dropped. Raises
    ResourceExhaustedError for a message of more pieces than a frame within the limit has; it is dropped.
    """
    left = 2 + MAX_ARRAYS + limit // PIECE  # the head, the arrays, and the full pieces before their last ones
    piece: Buffer = socket.recv(zmq.NOBLOCK)
    parts: list[Buffer] = []
    pieces: list[Buffer] = []
    total = 0
    while True:
        total += len(piece)
        if total <= limit:
            pieces.append(piece)
            if len(piece) < PIECE:
                parts.append(joined(pieces))
                pieces = []
        if not socket.rcvmore:
            return parts, total
        left -= 1
        if not left:
            raise ResourceExhaustedError(
                f"a message of {discard(socket):,} more pieces than a frame may have"
            )
        piece = socket.recv(copy=False).buffer


def discard(socket: zmq.Socket[bytes]) -> int:
    """Drop the rest of a message, and return the number of dropped pieces."""
    count = 1
    while socket.recv(copy=False).more:
        count += 1
    return count


def joined(pieces: list[Buffer]) -> Buffer:
    """Return pieces as one buffer; a single one as it is."""
    if len(pieces) == 1:
        return pieces[0]
    whole = np.empty(sum(map(len, pieces)), np.uint8)
    at = 0
    for piece in pieces:
        whole[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return whole.data


def read_envelope(parts: list[Buffer]) -> tuple[int, int]:
    """Return a message's role and sequence number."""
    if not parts or len(parts[0]) < ENVELOPE.size:
        raise DataLossError("a message without an envelope")
    role, sequence = ENVELOPE.unpack_from(parts[0])
    return role, sequence


def read_frame(parts: list[Buffer], total: int, limit: int) -> Frame:
    """Return the frame that a message carries."""
    if total > limit:
        raise ResourceExhaustedError(
            f"a message of {total:,} bytes is over the limit of {limit:,}; send it in several"
        )
    return decode([bytes(parts[0])[ENVELOPE.size :], *parts[1:]], limit)


def error_frame(error: BaseException, where: str = "") -> Frame:
    """Return the frame that carries an error to the caller."""
    if isinstance(error, NbdistError):
        return Frame("error", {"type": type(error).__name__, "message": str(error)})
    place = f" on {where}" if where else ""
    return Frame("error", {"type": "NbdistError", "message": f"{type(error).__name__}{place}: {error}"})


def error_from(frame: Frame) -> NbdistError:
    """Return the error that a failure frame carries, as the class of nbdist.errors that it names."""
    kind = getattr(errors, str(frame.meta.get("type")), NbdistError)
    if not (isinstance(kind, type) and issubclass(kind, NbdistError)) or kind is errors.MissingExtra:
        kind = NbdistError
    return kind(str(frame.meta.get("message", "no message")))
