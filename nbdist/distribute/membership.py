"""Strategies with a group of all replicas, which lost ones leave and new processes join.

    self.begin_group(strategy, variables)       # form the group; a new process waits until it is admitted
    ...
    self.note_changes(waiting, leaving)         # what the last exchange has said of all replicas
    self.admit(leave)                           # before the next step, on all: others join, and some leave
    self.form_again(error)                      # after a death or a lost connection, on all that are left

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
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from nbdist.distribute.agreement import digest_of
from nbdist.distribute.sharing import WorkerStrategy
from nbdist.errors import DeadlineExceededError, FailedPreconditionError, TaskDiedError, UnavailableError
from nbdist.graph.backend import to_host
from nbdist.runtime.groups import LOOPS, World, described
from nbdist.runtime.ps.client import TrainingOver
from nbdist.runtime.task import TaskInfo
from nbdist.train.capabilities import JoinedState, Membership
from nbdist.train.context import current
from nbdist.train.replica import Replica, ReplicaLeft, itself
from nbdist.train.strategy import LoopJoining
from nbdist.wire.collective.base import Collective

Array: TypeAlias = np.ndarray[Any, Any]

MAX_REPAIRS = 3
"""How often a group of the same replicas is formed again in one step; what fails more often will not work."""
REPAIR_SECONDS = 2.0
"""For its connections to be made: a lost connection was perhaps noticed after 6 s of silence, and a link that
stays blocked has to end the training within 10 s."""


class GroupStrategy(WorkerStrategy, LoopJoining):
    """A strategy with a group of all replicas of ``world``, by default those of the surrounding run."""

    joining = itself
    purpose: ClassVar[str] = "gradients"
    """What the group is for; part of its name."""
    larger, smaller = " with larger shares", " with smaller shares"
    """What fewer and more replicas mean for each, for people."""

    def __init__(self, collective: str, world: World | None) -> None:
        super().__init__(world)
        self.collective = collective
        self.replicas: list[GroupReplica] = []
        """Those that train variables of loops of one's own now, in the order in which they began."""
        self._reduced = 0
        """How many values were reduced in loops since the group has last grown."""
        self._result = self._missed = np.zeros(0)
        self._lacks_result = False
        self._repairs, self._repaired_at = 0, (-1, -1)

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

    def waiting(self, digest: str) -> list[int]:
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

    def outlive(self, error: UnavailableError, progress: tuple[int, int]) -> None:
        """Continue with the replicas that are left after ``error``.

        If all are left, a connection was lost: their group is formed again, at most `MAX_REPAIRS` times
        without ``progress`` in between. Raises ``error`` after that, and for one replica alone.
        """
        size = self.world.size
        if self.shrink() or self.world.size != size:
            return
        self._repairs = self._repairs + 1 if progress == self._repaired_at else 1
        self._repaired_at = progress
        if size == 1 or self._repairs > MAX_REPAIRS:
            raise error
        if self.replica_index == 0:
            print(f"the {size} replicas connect again: {error}")
        self.world.connect_seconds = REPAIR_SECONDS

    def count_replicas(self) -> None:
        """Take the number of this replica; the first one has the duties of the chief."""
        self.replica_index, self._value_group = self.world.index, None
        current().is_chief = self.replica_index == 0

    def end(self) -> None:
        """Forget the replicas of a training that has ended."""
        self.replicas = []

    @property
    def joins_loops(self) -> bool:
        """Whether this is the new process of a lost worker, or an added one, that has not joined yet."""
        return self.world.rejoins

    def join_loop(self) -> JoinedState | None:
        """Wait until the others admit this process to their loops; return where they are."""
        if not self.world.join(current().trainings, LOOPS):
            return None
        self.count_replicas()
        return self._hand_over(None)

    def admit_to_loop(self, give: Callable[[], JoinedState]) -> None:
        """Have new processes join between two steps, and send them the state of the first of the others."""
        for replica in self.replicas:
            replica.close()
            replica.stale, replica.regroups_next, replica.said = True, False, (0, 0)
        self.shrink(self.waiting(LOOPS))
        self._hand_over(give)

    def _hand_over(self, give: Callable[[], JoinedState] | None) -> JoinedState | None:
        """Send what ``give`` returns on one replica to those that have nothing to give; return it there."""
        self._reduced, packed = 0, np.zeros(0, np.uint8)
        while True:
            try:
                group = self.world.group("position", self.collective)
                gives = group.all_gather(np.array([give is not None], np.int64))[:, 0]
                root = int(gives.argmax())
                if not gives[root]:
                    raise TaskDiedError(
                        "all workers that had parameters are lost, and the new ones have none"
                    )
                if not gives.all():
                    if give is not None and group.rank == root:
                        packed = np.frombuffer(pack_joined(give()), np.uint8)
                    packed = _sent(group, packed, root)
                group.close()
                return None if give is not None else unpack_joined(packed.tobytes())
            except UnavailableError as error:
                if not self.shrink():
                    raise error from None

    def reduce_value(self, array: Array, op: str) -> Array:
        """Return the sum or mean of a value over all replicas; those that are left, after a death."""
        while True:
            try:
                result = super().reduce_value(array, op)
            except UnavailableError as error:
                self.recover(error)
                if not self._lacks_result:
                    continue
                result, self._lacks_result = self._missed, False
            self._reduced, self._result = self._reduced + 1, result
            return result

    def recover(self, error: UnavailableError) -> None:
        """Continue loops without lost replicas; all that are left do the same, wherever each has failed.

        One may be a step, or a reduced value, ahead of the others, which get the parameters or the value.
        Raises ``error`` if it has another cause than a lost replica or connection.
        """
        while True:
            for replica in self.replicas:
                replica.close()
            steps = sum(replica.report.global_step for replica in self.replicas)
            self.outlive(error, (steps, self._reduced))
            try:
                if self.num_replicas_in_sync > 1:
                    self._share_value()
                for replica in self.replicas:
                    if not replica.stale:
                        replica.form_newest()
                return
            except DeadlineExceededError:
                raise error from None
            except UnavailableError as another:  # one more death
                error = another

    def _share_value(self) -> None:
        """Send the value that some have reduced to those that have failed meanwhile."""
        group = self.form_value_group()
        done = group.all_gather(np.array([self._reduced], np.int64))[:, 0]
        root = int(done.argmax())
        if (done == done[root]).all():
            return
        packed = np.zeros(0, np.uint8)
        if group.rank == root:
            packed = np.frombuffer(pack_joined(JoinedState({}, [self._result])), np.uint8)
        packed = _sent(group, packed, root)
        if self._reduced < done[root]:
            (self._missed,) = (array.copy() for array in unpack_joined(packed.tobytes()).arrays)
            self._lacks_result = True


class GroupReplica(Replica, Membership):
    """A replica of a `GroupStrategy`."""

    membership = itself
    stale = False
    """Whether :meth:`renew` is due before the next step, because others were admitted."""

    is_new = False
    """Whether this process waits for the state of the others, which it joins."""
    leaving = False
    """Whether this replica is to leave, which its next exchange says."""
    said_leaving = leaves = False
    """Whether the last exchange said so; and whether it leaves before the next step."""
    said = (0, 0)
    """How many knew of new processes that wait, and how many leave, as of the last exchange."""

    def begin_group(self, strategy: GroupStrategy, variables: Sequence[tuple[str, Array]]) -> None:
        """Form the group, or join that of the others; see :meth:`take_all`."""
        fits = current().fitting
        if strategy.world.rejoins and not fits:
            raise FailedPreconditionError(
                "the process of a replaced worker joins the others in fit(), in nb.train.epochs(...) or in a "
                "loop over strategy.distribute_dataset(...), and the body trains in another loop"
            )
        self._strategy, self._digest = strategy, digest_of(variables) if fits else LOOPS
        self._looped = not fits
        if self._looped:
            self.is_new = strategy.enters_training
            strategy.replicas.append(self)
        else:
            self.is_new = strategy.world.rejoins
            if self.is_new:
                strategy.join(self._digest)
        self._group = strategy.form()

    @property
    def others_wait(self) -> bool:
        """Whether new processes wait to join, as far as the first replica knows."""
        return self.hooks.position is not None and bool(self._strategy.waiting(self._digest))

    def say_leaving(self) -> bool:
        """Return whether this replica is to leave, for an exchange that says so."""
        self.said_leaving = self.leaving
        return self.leaving

    def note_changes(self, waiting: int, leaving: int) -> None:
        """Note what an exchange has said: how many know of new processes that wait, and how many leave.

        As all replicas receive the same numbers, none leaves if too few would be left.
        """
        world = self._strategy.world
        self.said = waiting, leaving
        may_leave = bool(leaving) and world.size - leaving >= max(world.least, 1)
        self.leaves = self.said_leaving and may_leave
        self.regroups_next = bool(waiting) or may_leave

    def admit(self, leave: bool = False) -> bool:
        """Have new processes join and others leave, if the last exchange said so; return whether it did.

        Those that wait to join loops of one's own are admitted by the loop, and others wait on where the
        training has no position. Raises ReplicaLeft where this
        replica has left.
        """
        self.leaving = leave
        joins = self.hooks.position is not None
        if not self.regroups_next or self._looped or not (joins or self.said[1]):
            return False
        self.regroups_next, self.said = False, (0, 0)
        self.form_again(admits=self._strategy.waiting(self._digest) if joins else (), leaves=self.leaves)
        return True

    @abstractmethod
    def take_newest(self) -> None:
        """Take the newest state of all replicas, in a group that was just formed."""

    def form_again(
        self, error: UnavailableError | None = None, admits: Sequence[int] = (), leaves: bool = False
    ) -> None:
        """Form a group without the lost replicas and with the admitted ones; take the newest parameters.

        Raises ``error`` if it has another cause than a lost replica or connection, ReplicaLeft where this one
        ``leaves``.
        """
        if self._looped and error is not None:
            self._strategy.recover(error)
            return
        while True:
            self.close()
            if error is None:
                self._strategy.shrink(admits, leaves)
            else:
                self._strategy.outlive(error, (self.report.global_step, 0))
            try:
                self.form_newest()
                return
            except DeadlineExceededError:
                if error is None:
                    raise
                raise error from None
            except UnavailableError as another:  # one more death
                error = another

    def form_newest(self) -> None:
        """Form the group and take the newest state of its replicas."""
        self._group = self._strategy.world.group(self._strategy.purpose, self._strategy.collective)
        self.take_newest()
        self.is_new = self.stale = False

    def renew(self) -> None:
        """Form the group with the processes that were admitted, before the next step."""
        if self.stale:
            self._group, self.stale = self._strategy.form(), False
            self.take_all()

    def take_all(self) -> None:
        """Begin in a training that is under way, as the other replicas are; see :meth:`take_newest`."""
        try:
            self.take_newest()
            self.is_new = False
        except UnavailableError as error:
            self.form_again(error)

    def abort(self, error: BaseException) -> None:
        """Break the group, with the reason: the others must not wait for this replica."""
        self._group.abort(f"{type(error).__name__}: {error}")

    def share_position(self, root: int) -> None:
        """Send where the training is from one replica to those that are new."""
        group, packed = self._group, np.zeros(0, np.uint8)
        if group.rank == root:
            assert self.hooks.position is not None
            packed = np.frombuffer(pack_joined(self.hooks.position()), np.uint8)
        sent = _sent(group, packed, root)
        if self.is_new:
            self.joined = unpack_joined(sent.tobytes())


def _sent(group: Collective, packed: np.ndarray[Any, Any], root: int) -> np.ndarray[Any, Any]:
    """Return the bytes that one rank of a group sends to all."""
    size = np.array([len(packed)], np.int64)
    group.broadcast(size, root, out=size)
    sent = packed.copy() if group.rank == root else np.zeros(int(size[0]), np.uint8)
    group.broadcast(sent, root, out=sent)
    return sent


def pack_joined(joined: JoinedState) -> bytes:
    """Return a state as bytes, for `unpack_joined`.

    >>> state = JoinedState({"step": 7}, [np.arange(3.0)])
    >>> unpack_joined(pack_joined(state))
    JoinedState(state={'step': 7}, arrays=[array([0., 1., 2.])])
    """
    arrays = [np.ascontiguousarray(to_host(array)) for array in joined.arrays]
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
