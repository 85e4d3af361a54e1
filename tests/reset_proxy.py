"""A TCP proxy that resets its connections on request, in the middle of a message.

proxy = ResetProxy("127.0.0.1", address, port)
proxy.address                  # connect to this instead
proxy.reset_after(10_000)      # reset all connections once so many more bytes have passed
proxy.reset_after(100, 2_000)  # the second time 2,000 bytes after the first
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

RESET = struct.pack("ii", 1, 0)  # linger for 0 s: the peer receives a RST


class ResetProxy:
    """Listens on ``bind`` and forwards all bytes to an address; each connection has two threads."""

    def __init__(self, bind: str, address: str, port: int) -> None:
        self.resets = 0
        self._target, self._lock = (address, port), threading.Lock()
        self._connections: list[socket.socket] = []
        self._sizes: list[int] = []
        self._done = threading.Event()
        self._server = socket.create_server((bind, 0))
        self.address = f"{bind}:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def reset_after(self, *sizes: int) -> threading.Event:
        """Reset all connections once so many more bytes have passed; return an event that is set then.

        With several sizes each counts from the reset before it, and the event is set at the last one.
        """
        with self._lock:
            self._sizes, self._done = [*sizes], threading.Event()
            return self._done

    def reset(self) -> None:
        """Reset all connections now."""
        with self._lock:
            self._reset_all()

    def close(self) -> None:
        """End all connections, and accept no more."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            self._reset_all()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                try:
                    target = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._connections += [client, target]
                for source, sink in ((client, target), (target, client)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(1 << 14):
                sink.sendall(chunk)
                with self._lock:
                    self._count(len(chunk))
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _count(self, size: int) -> None:
        if not self._sizes:
            return
        self._sizes[0] -= size
        if self._sizes[0] <= 0:
            del self._sizes[0]
            self.resets += 1
            self._reset_all()
            if not self._sizes:
                self._done.set()

    def _reset_all(self) -> None:
        for one in self._connections:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                one.shutdown(socket.SHUT_RD)
            one.close()
        self._connections.clear()
