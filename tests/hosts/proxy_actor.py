"""A proxy on a host: it forwards bytes, and resets its connections on request."""

from __future__ import annotations

import socket
import struct
import threading

from actor import serve

RESET = struct.pack("ii", 1, 0)  # linger for 0 s: the peer receives a RST
connections: list[socket.socket] = []
passed = threading.Event()


def listen(bind: str, address: str, port: int) -> str:
    """Listen on an address; forward all bytes to another."""
    server = socket.create_server((bind, 0))
    threading.Thread(target=_accept, args=(server, address, port), daemon=True).start()
    return f"{bind}:{server.getsockname()[1]}"


def reset() -> None:
    """Reset all connections right after the next large chunk, in the middle of a message."""
    passed.clear()
    passed.wait(10.0)
    for one in connections:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        one.shutdown(socket.SHUT_RD)
        one.close()
    connections.clear()


def _accept(server: socket.socket, address: str, port: int) -> None:
    while True:
        client, _ = server.accept()
        server_side = socket.create_connection((address, port))
        connections.extend((client, server_side))
        for source, target in ((client, server_side), (server_side, client)):
            threading.Thread(target=_pass, args=(source, target), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket) -> None:
    try:
        while chunk := source.recv(1 << 14):
            target.sendall(chunk)
            if len(chunk) > 1 << 12:
                passed.set()
    except OSError:
        pass


serve({"listen": listen, "reset": reset})
