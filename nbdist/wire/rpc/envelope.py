"""The envelope of a frame on a socket, the limits that both ends set, and the frames that carry errors.

The envelope stands before part 0 of the frame (frame.py): a role (CALL, SEND, REPLY, FAILURE or PUSH) and a
sequence number. REPLY and FAILURE repeat the number of their CALL; SEND and PUSH have 0.

Each frame part is cut into ZeroMQ message parts of PIECE bytes. A shorter piece ends a frame part, so one of
n * PIECE bytes ends with an empty piece. ZeroMQ allocates up to `maxmsgsize` for a message part before the
peer is authenticated; the pieces keep that limit near 1 MiB although a frame may have 1 GiB.
"""

from __future__ import annotations

import struct

import numpy as np
import zmq

from nbdist.errors import DataLossError, NbdistError, ResourceExhaustedError, error_class
from nbdist.wire.rpc.frame import MAX_ARRAYS, Buffer, Frame, decode

ENVELOPE = struct.Struct("<BQ")  # role, sequence number
CALL, SEND, REPLY, FAILURE, PUSH = range(1, 6)
HEARTBEAT_MS = 1_000
SILENCE_MS = 5_000  # without a heartbeat's answer; the connection then counts as lost
CONNECT_MS = 3_000  # else the kernel doubles its retry interval and misses a host that is reachable again
COPY_BELOW = 1 << 16  # bytes; ZeroMQ copies a smaller buffer faster than it tracks its release
PIECE = 1 << 20  # bytes of the largest message part on a socket
MOST_UNREAD = 100_000
"""How many messages of a connection may wait to be read. With more, its input stops, and when the other
process then closes it, the next heartbeat of libzmq 4.3.5 ends this one ("Assertion failed: !_io_error")."""


def set_limits(socket: zmq.Socket[bytes]) -> None:
    """Set the options of both ends: sizes, timeouts, and the heartbeat that detects a stopped process."""
    socket.linger = 0
    socket.maxmsgsize = PIECE + 256  # ZeroMQ allocates it for every connection, authenticated or not
    socket.rcvhwm = MOST_UNREAD
    socket.handshake_ivl = 5_000
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = SILENCE_MS
    # A heartbeat queues behind a large message, so TCP itself has to time out as well.
    socket.tcp_maxrt = SILENCE_MS
    socket.connect_timeout = CONNECT_MS
    socket.reconnect_ivl = 20
    socket.reconnect_ivl_max = 1_000


def send_parts(socket: zmq.Socket[bytes], parts: list[Buffer], share: bool) -> None:
    """Send the parts of one message without blocking; with `share`, ZeroMQ sends large buffers uncopied.

    The caller must not change such buffers before the reply arrives.
    """
    pieces = [piece for part in parts for piece in cut(part)]
    last = len(pieces) - 1
    for index, piece in enumerate(pieces):
        more = zmq.SNDMORE if index < last else 0
        zero_copy = share and len(piece) >= COPY_BELOW
        socket.send(piece, zmq.NOBLOCK | more, copy=not zero_copy)


def cut(part: Buffer) -> list[Buffer]:
    """Cut a part into pieces: a full one is followed by another of the same part, a shorter one ends it."""
    size = len(part)
    if size < PIECE:
        return [part]
    view = memoryview(part)
    return [view[at : at + PIECE] for at in range(0, size + 1, PIECE)]


def receive_parts(socket: zmq.Socket[bytes], limit: int) -> tuple[list[Buffer], int]:
    """Return the frame parts of a received message, joined from their pieces, and its size in bytes.

    A part of one piece is not copied. Pieces beyond `limit` bytes are dropped: the returned size is then over
    the limit. Raises ResourceExhaustedError for a message of more pieces than a frame within the limit has,
    after all of it was dropped.
    """
    left = 2 + MAX_ARRAYS + limit // PIECE  # the head, the last piece of each array, and the full pieces
    frame = socket.recv(zmq.NOBLOCK, copy=False)
    piece: Buffer = frame.bytes
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
        if not frame.more:
            return parts, total
        left -= 1
        if not left:
            raise ResourceExhaustedError(
                f"a message of {discard(socket):,} more pieces than a frame may have"
            )
        frame = socket.recv(copy=False)
        piece = frame.buffer


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
            f"a message of {total:,} bytes is over the limit of {limit:,}; send several smaller messages"
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
    kind = error_class(str(frame.meta.get("type"))) or NbdistError
    return kind(str(frame.meta.get("message", "no message")))
