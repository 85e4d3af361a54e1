"""Helpers for tests of messages: wait for one, and run a process that writes or answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nbdist.errors import UnavailableError
from nbdist.wire import shm
from nbdist.wire.channel.message import Message
from nbdist.wire.channel.sender import Address, MessageReceiver, MessageSender
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.shm import shared_folder

HOST = "this host"
KEYS = ClusterKeys.create()
Open = Callable[..., MessageSender]


def files(prefix: str) -> list[str]:
    return sorted(path.name for path in shared_folder().glob(f"{prefix}*"))


def arrived(receiver: MessageReceiver) -> Message:
    message = receiver.next(20)
    assert message is not None, "no message arrived"
    return message


def expect_closed(
    sender: MessageSender, error: type[Exception] | tuple[type[Exception], ...] = UnavailableError
) -> None:
    deadline = time.monotonic() + 20
    with pytest.raises(error):  # noqa: PT012 - the time of detection varies
        while time.monotonic() < deadline:
            sender.check()


@contextmanager
def process(address: Address, prefix: str, transport: str) -> Iterator[subprocess.Popen[str]]:
    """A process that writes to `address`, or reads and answers there; killed at the end."""
    given = {"keys": KEYS.to_dict(), "address": address.to_dict(), "prefix": prefix, "transport": transport}
    command = [sys.executable, "-c", PROCESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        assert one.stdin
        one.stdin.write(json.dumps(given) + "\n")
        one.stdin.flush()
        yield one
        one.kill()
    shm.remove_all(prefix)  # as its cluster would


def ring(receiver: MessageReceiver, text: bytes) -> None:
    """Write to a receiver's pipe as any process of this user could."""
    pipe = shm.open_bell(receiver.address.bell)
    os.write(pipe, text)
    os.close(pipe)


PROCESS = """
import json, sys
import numpy as np
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.channel.sender import Address, MessageReceiver, MessageSender

given = json.loads(sys.stdin.readline())
keys, there = ClusterKeys.from_dict(given["keys"]), Address.from_dict(given["address"])
options = dict(host_identity="this host", prefix=given["prefix"])
if given["transport"]:
    sender = MessageSender(there, keys, transport=given["transport"], **options)
    for step in range(10 ** 9):
        sender.send(1, 7, step, step % 100, [np.zeros(step % 400)])
else:
    receiver = MessageReceiver(keys, **options)
    print(json.dumps(receiver.address.to_dict()), flush=True)
    sender = MessageSender(there, keys, **options)
    while True:
        message = receiver.next()
        sender.send(message.kind, message.plan, message.step)
"""
