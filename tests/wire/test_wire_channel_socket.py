"""Messages over sockets: authentication, refused messages, and the end of a sender."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from channel_peers import HOST, KEYS, Open, arrived

from nbdist.errors import NbdistError, ResourceExhaustedError, UnavailableError
from nbdist.wire.channel import sender as sender_module
from nbdist.wire.channel.sender import Address, MessageReceiver
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer


def test_another_host_is_reached_by_socket(receiver: MessageReceiver, opened: Open) -> None:
    sender = opened(Address("elsewhere", receiver.address.bell, receiver.address.socket))
    assert sender.kind == "socket"
    assert sender.notes == []
    hidden = opened(Address(HOST, "nbdist-not-here-0", receiver.address.socket))
    assert hidden.kind == "socket"
    assert "its pipe is not visible here" in hidden.notes[0]
    for one in (sender, hidden):
        one.send(1, 7, 1)
        assert arrived(receiver).step == 1


def test_a_sender_with_other_keys_is_not_admitted(receiver: MessageReceiver, opened: Open) -> None:
    stranger = opened(transport="socket", keys=ClusterKeys.create())
    stranger.send(1, 7, 666, 0, [np.ones(3)])
    friend = opened(transport="socket")
    for step in range(20):
        friend.send(1, 7, step)
        assert arrived(receiver).step == step
    assert receiver.next(0) is None


def test_other_messages_at_the_socket_are_answered_and_dropped(
    receiver: MessageReceiver, opened: Open
) -> None:
    sender = opened(transport="socket")
    with Peer(receiver.address.socket, KEYS) as peer:
        peer.send("ping")
        peer.send("message", {"message": "none"})
        peer._socket.send(b"garbage")
        sender.send(1, 7, 1)
        while receiver.damaged < 3:
            message = receiver.next(0)
            assert message is None or message.step == 1
        answer = threading.Thread(target=receiver.wake)
        caller = threading.Thread(target=lambda: failures.append(call(peer)))
        failures: list[str] = []
        caller.start()
        while receiver.damaged < 4:
            receiver.next(0)
        caller.join()
        answer.start()
        answer.join()
        assert failures == ["DataLossError"]


def call(peer: Peer) -> str:
    try:
        peer.call("ping")
    except NbdistError as error:
        return type(error).__name__
    return "answered"


def test_check_raises_for_an_unreachable_address(prefix: str) -> None:
    with Peer("127.0.0.1:9", KEYS, name="/job:worker/task:2") as peer:
        peer.check()
        with pytest.raises(
            UnavailableError, match=r"/job:worker/task:2 at 127\.0\.0\.1:9 could not be reached"
        ):
            peer.check(handshake_seconds=0)


def test_a_message_too_large_for_a_socket_is_refused_by_the_sender(
    receiver: MessageReceiver, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "MAX_BYTES", 10_000)
    sender = opened(transport="socket")
    with pytest.raises(ResourceExhaustedError, match="over a socket's limit of 5,000"):
        sender.send(1, 7, 1, 0, [np.zeros(1000)])
    sender.send(1, 7, 2)
    assert arrived(receiver).step == 2


def test_an_interrupted_message_ends_the_sender(
    receiver: MessageReceiver, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = opened(transport="socket")

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sender._peer, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sender.send(1, 7, 1)
    with pytest.raises(UnavailableError, match="was interrupted"):
        sender.send(1, 7, 2)
