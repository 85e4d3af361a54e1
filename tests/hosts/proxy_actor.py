"""A proxy on a host: it passes bytes on, and resets its connections when told."""

from __future__ import annotations

import socket
import struct
import threading

from actor import serve

RESET = struct.pack("ii", 1, 0)  # to linger for no time: the far side gets a RST
connections: list[socket.socket] = []
passed = threading.Event()


def stand(bind: str, address: str, port: int) -> str:
    """Listen on an address; pass all that comes on to another."""
    server = socket.create_server((bind, 0))
    threading.Thread(target=_accept, args=(server, address, port), daemon=True).start()
    return f"{bind}:{server.getsockname()[1]}"


def reset() -> None:
    """Reset all connections as soon as the next bytes have been passed on, so in the middle of something."""
    passed.clear()
    passed.wait(10.0)
    for one in connections:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        one.shutdown(socket.SHUT_RD)
        one.close()
    connections.clear()


def _accept(server: socket.socket, address: str, port: int) -> None:
    while True:
        near, _ = server.accept()
        far = socket.create_connection((address, port))
        connections.extend((near, far))
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=_pass, args=(source, target), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket) -> None:
    try:
        while chunk := source.recv(1 << 14):
            target.sendall(chunk)
            if len(chunk) > 1 << 12:
                passed.set()
    except OSError:
        pass


serve({"stand": stand, "reset": reset})
