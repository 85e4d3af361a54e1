"""Strategies with a group of all replicas, which lost ones leave and new processes join.

    self.begin_group(strategy, variables)       # form the group; a new process waits until it is admitted
    ...
    self.note_changes(waiting, leaving)         # what the last exchange has said of all replicas
    self.admit(leave)                           # before the next step, on all: others join, and some leave
    self.form_again(error)                      # after a death, on all that are left

A replica that is asked to leave says so with its next exchange (`say_leaving`), which tells all how many
leave, as it tells whether new processes wait (`others_wait`). Before the step that follows all re-form the
group.

Both re-form the group at the Server of the first remaining rank (:mod:`nbdist.runtime.groups`), and have a
replica send its state to all (`take_newest`), and to new ones also the position of the training.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from nbdist.distribute.agreement import digest_of
from nbdist.errors import FailedPreconditionError, UnavailableError
from nbdist.runtime.groups import World, described
from nbdist.runtime.ps.client import TrainingOver
from nbdist.runtime.task import TaskInfo
from nbdist.train.context import current
from nbdist.train.strategy import JoinedState, Replica, ReplicaLeft, Strategy
from nbdist.wire.collective.base import Collective

Array: TypeAlias = np.ndarray[Any, Any]


class GroupStrategy(Strategy):
    """A strategy with a group of all replicas of ``world``, by default those of the surrounding run."""

    purpose: ClassVar[str] = "gradients"
    """What the group is for; part of its name."""
    larger, smaller = " with larger shares", " with smaller shares"
    """What fewer and more replicas mean for each, for people."""

    def __init__(self, collective: str, world: World | None) -> None:
        self.world = current().world if world is None else world
        self.collective, self.replica_index = collective, self.world.index

    def form(self) -> Collective:
        """Return a new group of all replicas; every one asks for it."""
        while True:
            try:
                return self.world.group(self.purpose, self.collective)
            except UnavailableError as error:
                if not self.shrink():
                    raise error from None

    def join(self, digest: str) -> None:
        """Join the replicas that train variables with this digest; TrainingOver if they have ended."""
        if not self.world.join(current().trainings, digest):
            raise TrainingOver
        self.count_replicas()

    def joining(self, digest: str) -> list[int]:
        """Return the ranks of new processes that can be admitted now, on the first replica."""
        return self.world.joining(current().trainings, digest)

    def shrink(self, admits: Sequence[int] = (), leaves: bool = False) -> list[TaskInfo]:
        """Continue with the remaining replicas and new ones; raise TaskDiedError if they are too few.

        Return the lost tasks. Raises ReplicaLeft where this replica ``leaves``.
        """
        before = self.world.size
        changed = self.world.reform(admits, leaves)
        if leaves:
            raise ReplicaLeft
        lost, left = changed.lost, changed.left
        self.count_replicas()
        now = "1 replica" if self.world.size == 1 else f"{self.world.size} replicas"
        if self.replica_index == 0 and self.world.size > before - len(lost) - len(left):
            print(f"training continues on {now}{self.smaller}")
        if self.replica_index == 0 and left:
            names = " and ".join(info.name for info in left)
            print(f"{names} left: training continues on {now}{self.larger}")
        if self.replica_index == 0 and lost:
            current().progress.lost += [info.incarnation for info in lost]
            print(f"{described(lost)} lost: training continues on {now}{self.larger}")
        return lost

    def count_replicas(self) -> None:
        """Take the number of this replica; the first one has the duties of the chief."""
        self.replica_index = self.world.index
        current().is_chief = self.replica_index == 0


class GroupReplica(Replica):
    """A replica of a `GroupStrategy`."""

    is_new = False
    """Whether this process waits for the state of the others, which it joins."""
    changes = False
    """Whether the group changes before the next step: new processes wait, or replicas leave."""
    leaving = False
    """Whether this replica is to leave, which its next exchange says."""
    said_leaving = leaves = False
    """Whether the last exchange said so; and whether it leaves before the next step."""
    said = (0, 0)
    """How many knew of new processes that wait, and how many leave, as of the last exchange."""

    def begin_group(self, strategy: GroupStrategy, variables: Sequence[tuple[str, Array]]) -> None:
        """Form the group, or join that of the others; see :meth:`take_all`."""
        if strategy.world.rejoins and not current().fitting:
            raise FailedPreconditionError(
                "the process of a replaced worker joins the others in fit(), and the body trains in a loop "
                "of its own"
            )
        self._strategy, self._digest = strategy, digest_of(variables)
        self.is_new = strategy.world.rejoins
        if self.is_new:
            strategy.join(self._digest)
        self._group = strategy.form()

    @property
    def others_wait(self) -> bool:
        """Whether new processes wait to join, as far as the first replica knows."""
        return bool(self._strategy.joining(self._digest))

    def say_leaving(self) -> bool:
        """Return whether this replica is to leave, for an exchange that says so."""
        self.said_leaving = self.leaving
        return self.leaving

    def note_changes(self, waiting: int, leaving: int) -> None:
        """Note what an exchange has said: how many know of new processes that wait, and how many leave.

        As all replicas receive the same numbers, none leaves if too few would be left.
        """
        world = self._strategy.world
        self.said, may_leave = (
            (waiting, leaving),
            bool(leaving) and world.size - leaving >= max(world.least, 1),
        )
        self.leaves = self.said_leaving and may_leave
        self.changes = bool(waiting) or may_leave

    def admit(self, leave: bool = False) -> bool:
        """Have new processes join and others leave, if the last exchange said so; return whether it did.

        Raises ReplicaLeft where this replica has left.
        """
        self.leaving = leave
        if not self.changes:
            return False
        self.changes, self.said = False, (0, 0)
        self.form_again(admits=self._strategy.joining(self._digest), leaves=self.leaves)
        return True

    @abstractmethod
    def take_newest(self) -> None:
        """Take the newest state of all replicas, in a group that was just formed."""

    def form_again(
        self, error: UnavailableError | None = None, admits: Sequence[int] = (), leaves: bool = False
    ) -> None:
        """Form a group without the lost replicas and with the admitted ones; take the newest parameters.

        Raises ``error`` if it has another cause than a lost replica, ReplicaLeft where this one ``leaves``.
        """
        while True:
            self.close()
            size = self._group.size
            lost = self._strategy.shrink(admits, leaves)
            if error is not None and not lost and self._strategy.world.size == size:
                raise error  # every process is alive
            self._group, admits = self._strategy.form(), ()
            try:
                self.take_newest()
                self.is_new = False
                return
            except UnavailableError as another:  # one more death
                error = another

    def take_all(self) -> None:
        """Begin in a training that is under way, as the other replicas are; see :meth:`take_newest`."""
        try:
            self.take_newest()
            self.is_new = False
        except UnavailableError as error:
            self.form_again(error)

    def share_position(self, root: int) -> None:
        """Send where the training is from one replica to those that are new."""
        group, packed = self._group, np.zeros(0, np.uint8)
        if group.rank == root:
            assert self.position is not None
            packed = np.frombuffer(pack_joined(self.position()), np.uint8)
        size = np.array([len(packed)], np.int64)
        group.broadcast(size, root, out=size)
        sent = packed.copy() if group.rank == root else np.zeros(int(size[0]), np.uint8)
        group.broadcast(sent, root, out=sent)
        if self.is_new:
            self.joined = unpack_joined(sent.tobytes())


def pack_joined(joined: JoinedState) -> bytes:
    """Return a state as bytes, for `unpack_joined`.

    >>> state = JoinedState({"step": 7}, [np.arange(3.0)])
    >>> unpack_joined(pack_joined(state))
    JoinedState(state={'step': 7}, arrays=[array([0., 1., 2.])])
    """
    arrays = [np.ascontiguousarray(array) for array in joined.arrays]
    header = {"state": joined.state, "arrays": [[str(array.dtype), array.shape] for array in arrays]}
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(array.tobytes() for array in arrays)])


def unpack_joined(packed: bytes) -> JoinedState:
    """Return the state that `pack_joined` has packed."""
    start = 8 + int.from_bytes(packed[:8], "little")
    header = json.loads(packed[8:start])
    arrays = []
    for dtype, shape in header["arrays"]:
        count = math.prod(shape)
        arrays.append(np.frombuffer(packed, dtype, count, start).reshape(shape))
        start += count * np.dtype(dtype).itemsize
    return JoinedState(header["state"], arrays)
