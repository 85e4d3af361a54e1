"""Fixtures: a receiver and senders to it; they check that no shared files are left after a test."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from channel_peers import HOST, KEYS, Open, files

from nbdist.wire.channel.sender import Address, MessageReceiver, MessageSender
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.shm import shared_folder


@pytest.fixture
def prefix() -> Iterator[str]:
    one = f"nbdist-test{secrets.token_hex(4)}"
    yield one
    left = files(one)
    for name in left:
        (shared_folder() / name).unlink()
    assert not left, f"left behind: {left}"


@pytest.fixture
def receiver(prefix: str) -> Iterator[MessageReceiver]:
    one = MessageReceiver(KEYS, prefix, host_identity=HOST)
    yield one
    one.close()


@pytest.fixture
def opened(prefix: str, receiver: MessageReceiver) -> Iterator[Open]:
    """Open senders, to `receiver` by default; they are closed when the test ends."""
    every: list[MessageSender] = []

    def open_one(address: Address | None = None, keys: ClusterKeys = KEYS, **options: Any) -> MessageSender:
        every.append(
            MessageSender(address or receiver.address, keys, host_identity=HOST, prefix=prefix, **options)
        )
        return every[-1]

    yield open_one
    for one in every:
        one.close()
