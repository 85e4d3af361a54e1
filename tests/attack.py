"""Attacks of another user on a port; run as that user with `-c`. Prints every byte that it received.

python -c <this text> host port[,port...] [public key of the server]
"""

import itertools
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import zmq

host, ports = sys.argv[1], [int(port) for port in sys.argv[2].split(",")]
public = sys.argv[3].encode() if len(sys.argv) > 3 else None
greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)
KNOCKS = (
    b"GET / HTTP/1.1\r\n\r\n",
    bytes(range(256)) * 64,
    # A correct greeting, then a frame that claims to be 2**40 bytes long, then a lot of it.
    greeting + b"\x06" + struct.pack(">Q", 1 << 40) + bytes(1 << 20),
    greeting + b"\x06" + struct.pack(">Q", 1 << 29) + bytes(1 << 20),
    greeting[:10],  # incomplete, then silence
)


def answer_to(port: int, knock: bytes) -> bytes:
    """Return what a port sends to a client that knocks so."""
    received = b""
    with socket.create_connection((host, port), timeout=2) as one:
        one.settimeout(0.2)
        try:
            one.sendall(knock)
            while chunk := one.recv(4096):
                received += chunk
        except OSError:
            pass
    return received


attacks = list(itertools.product(ports, KNOCKS))
with ThreadPoolExecutor(len(attacks)) as threads:
    got = b"".join(threads.map(answer_to, *zip(*attacks)))

context = zmq.Context()
sockets = []
for port in ports:
    for kind in (zmq.DEALER, zmq.SUB, zmq.REQ):
        for server_key in (None, zmq.curve_keypair()[0], public):
            one = context.socket(kind)
            one.linger = 0
            if server_key:
                one.curve_publickey, one.curve_secretkey = zmq.curve_keypair()
                one.curve_serverkey = server_key
            if kind == zmq.SUB:
                one.subscribe(b"")
            one.connect(f"tcp://{host}:{port}")
            if kind != zmq.SUB:
                one.send(b"hello")
            sockets.append(one)
poller = zmq.Poller()
for one in sockets:
    poller.register(one, zmq.POLLIN)
for one, _ in poller.poll(1000):
    got += b"ANSWERED" + b"".join(one.recv_multipart())
for one in sockets:
    one.close()
context.term()
sys.stdout.buffer.write(got)
