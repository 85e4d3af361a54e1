"""A socket whose proxy has ended is closed without the end of the process."""

from __future__ import annotations

import subprocess
import sys

ENDS = """
import socket, zmq
from nbdist.wire.proxy import use_proxy

listener = socket.create_server(("127.0.0.1", 0))
one = zmq.Context.instance().socket(zmq.DEALER)
monitor = one.get_monitor_socket()
proxy = f"127.0.0.1:{listener.getsockname()[1]}"
assert use_proxy(one, proxy)
listener.accept()[0].close()
one.connect("tcp://127.0.0.1:9")
connection, _ = listener.accept()
connection.recv(3)
connection.sendall(b"\\5\\0")
connection.recv(100)
connection.sendall(b"\\5\\0\\0\\1" + bytes(6))
connection.recv(1)
listener.close()
connection.close()
while not monitor.recv_multipart()[0].startswith(int(zmq.EVENT_DISCONNECTED).to_bytes(2, "little")):
    pass
assert not use_proxy(zmq.Context.instance().socket(zmq.DEALER), proxy)
assert not monitor.poll(500)
one.close(linger=0)
print("closed")
"""


def test_a_socket_whose_proxy_has_ended_is_closed() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("closed\n", "")
