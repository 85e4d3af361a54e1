"""A replica as a parameter server knows it, for one shard: `HostedReplica`, with its presence. No messages.

                 leaves
      TRAINS ───────────────► LEFT
       │  ▲
       │  └────── new process ───────┐
       ▼                             │
    AWAITED ──in vain──► LOST ───────┤        (a spare replica is LOST until it is added)
       └─────────────────────────────┘

A new process begins with nothing of the former one, but its number of incarnations: `HostedReplica.renew`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbdist.wire.rpc.client import Caller
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Ringer

Array = np.ndarray[Any, Any]


class Presence(enum.Enum):
    """Whether a replica takes part in the training of a shard."""

    TRAINS = "trains"
    """It takes part, or is expected to open the shard."""
    LEFT = "left"
    """It has ended its training, and receives the final values when all have."""
    AWAITED = "awaited"
    """It is dead or frozen, and the training waits for its new process."""
    LOST = "lost"
    """The others continue without it."""


@dataclass
class SocketGradient:
    """A gradient that came through a socket, and the answers to it."""

    number: int
    answers: list[dict[str, Any]] = field(default_factory=list)


@dataclass(eq=False)
class HostedReplica:
    """What a server knows of a replica of one shard."""

    number: int
    is_spare: bool = False
    """Whether it is added later, if it is at all."""
    presence: Presence = Presence.TRAINS
    incarnation: int = 0
    """How often its process was replaced; messages of earlier ones are refused."""
    called: str = ""
    """The name of its task."""
    sender: Caller | None = None
    """Its connection; None before it was admitted to the shard."""
    ringer: Ringer | None = None
    """Rings for it, if it uses shared memory."""
    slots: dict[int, list[Array]] = field(default_factory=dict)
    """Its gradients in shared memory, by slot."""
    received: int = 0
    """The number of its last gradient that came through a socket."""
    recent: dict[int, SocketGradient] = field(default_factory=dict)
    """By token: the last gradient, and the answers to it, which may be lost with a connection."""
    gone_since: float | None = None
    """Since when its connection is lost."""
    frozen_pid: int | None = None
    """Its process, if that is frozen."""
    awaited_until: float = 0.0
    is_abandoned: bool = False
    """Whether the training has waited for it in vain."""
    is_informed: bool = False
    """Whether it was last sent a list of awaited replicas (ps.awaited) that was not empty."""
    leaver: Caller | None = None
    """Where it has left, and receives the final values."""
    is_reading: bool = False
    """Whether it reads the final values."""

    def __post_init__(self) -> None:
        """Continue without a spare replica until it is added."""
        if self.is_spare:
            self.presence = Presence.LOST

    def renew(self) -> None:
        """Expect a new process, which knows nothing of the former one."""
        if self.ringer is not None:
            self.ringer.close()
        self.presence, self.sender, self.ringer, self.leaver = Presence.TRAINS, None, None, None
        self.received, self.recent = 0, {}
        self.gone_since = self.frozen_pid = None

    def is_gone(self) -> bool:
        """Whether a replica that was here has died, as far as can be seen. On the server's thread."""
        if self.ringer is not None:
            return not self.ringer.has_reader()
        try:
            assert self.sender is not None
            self.sender.push(Frame("ps.there"))
        except ConnectionError:
            return True
        return False
