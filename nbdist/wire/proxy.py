"""ZeroMQ's connections through a SOCKS proxy, such as a tunnel's ssh.

libzmq 4.3.5 ends the whole process ("Bad file descriptor (src/epoll.cpp:86)") when a socket is closed whose
last attempt to connect found no proxy: `socks_connecter_t::error` keeps a handle that is closed. So a socket
connects only while the proxy listens, and never by itself again. It need not: a connection through ssh ends
with the tunnel, or with the process at its other end. One that may have failed in between is not closed.
"""

from __future__ import annotations

import socket

import zmq

PROXY_SECONDS = 2.0  # for a proxy of this host to accept
_open: list[zmq.Context[zmq.Socket[bytes]] | zmq.Socket[bytes]] = []


def use_proxy(target: zmq.Context[zmq.Socket[bytes]] | zmq.Socket[bytes], proxy: str) -> bool:
    """Have a socket, or all of a context, connect through ``proxy`` (HOST:PORT); "" for none.

    Returns False if the proxy does not listen, because its tunnel has ended: then nothing may connect.
    """
    if not proxy:
        return True
    host, _, port = proxy.rpartition(":")
    target.setsockopt(zmq.SOCKS_PROXY, proxy.encode())
    target.setsockopt(zmq.RECONNECT_IVL, -1)
    try:
        socket.create_connection((host, int(port)), PROXY_SECONDS).close()
    except OSError:
        return False
    return True


def keep_open(one: zmq.Context[zmq.Socket[bytes]] | zmq.Socket[bytes]) -> None:
    """Keep a socket or context that has a proxy, and may not have connected, until the process ends."""
    _open.append(one)


def check_proxy(proxy: str, host: str, port: int, seconds: float) -> None:
    """Raise OSError if a SOCKS proxy (HOST:PORT) does not lead to a server of ZeroMQ, which speaks first.

    A proxy of ssh accepts each connection, and ends it when the other side does not take it.
    """
    at, _, number = proxy.rpartition(":")
    with socket.create_connection((at, int(number)), PROXY_SECONDS) as one, one.makefile("rb") as answers:
        one.settimeout(seconds)
        one.sendall(b"\x05\x01\x00")  # version 5, one method: no authentication
        name = host.encode()
        one.sendall(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + port.to_bytes(2, "big"))
        method, reply = answers.read(2), answers.read(10)  # ssh replies with an IPv4 address
        if method != b"\x05\x00" or reply[:2] != b"\x05\x00" or not answers.read(1):
            raise ConnectionRefusedError(f"the proxy {proxy} does not reach {host}:{port}")
