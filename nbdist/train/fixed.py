"""What no step changes, such as the weights of frozen layers: every replica has the chief's values.

    share_fixed(context, model)      # before a training begins

Replicas that form groups broadcast them. Replicas of parameter servers form none, for each may be lost while
the others continue: the chief keeps its values for the others, which ask for them. So does a process that
joins later, in place of a lost worker or as a new one. It asks one replica after another, since each keeps
what it has for those that come. If none has begun that training yet, it waits; where the others are past it,
the values do not matter, since the strategy leaves the training out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError, NotFoundError, UnavailableError
from nbdist.runtime.groups import World
from nbdist.runtime.server import Handler
from nbdist.train.context import Context
from nbdist.train.trainable import Trainable
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame

Array: TypeAlias = np.ndarray[Any, Any]
FIXED = "train.fixed"
"""A message from one worker to another: it asks for an array that no step of a training changes."""
POLL_SECONDS, GIVE_UP_SECONDS = 0.05, 600.0


def share_fixed(context: Context, model: Trainable) -> None:
    """Give this process the chief's values of what no step of the next training changes.

    Raises UnavailableError where no other worker begins this training.
    """
    world, fixed = context.world, model.fixed
    if not fixed or world.size == 1:
        return
    joins = world.rejoins and context.progress.joined is None
    if context.strategy.keeps_slots and not joins:
        _broadcast(world, fixed)
    elif world.index or joins:
        _ask(world, context.trainings, fixed)
    if world.task is not None:
        world.task.server.on(FIXED, lender(world.run, context.trainings, fixed))


def _broadcast(world: World, fixed: Sequence[Array]) -> None:
    group = world.group("frozen weights")
    try:
        for array in fixed:
            group.broadcast(array, root=0, out=array)
    except BaseException as error:
        group.abort(f"{type(error).__name__}: {error}")
        raise
    finally:
        group.close()


def lender(run: str, training: int, fixed: Sequence[Array]) -> Handler:
    """Return what answers processes that join, with the values of this replica's newest training.

    It answers without an array where the training that a process asks for is over here, and raises
    NotFoundError where it has not begun.
    """

    def lend(frame: Frame, sender: object) -> Frame:
        asked = int(frame.meta["training"])
        if frame.meta["run"] != run or asked > training:
            raise NotFoundError(f"training {asked} of run {frame.meta['run']} has not begun here")
        return Frame(FIXED, {}, (fixed[int(frame.meta["number"])],) if asked == training else ())

    return lend


def _ask(world: World, training: int, fixed: Sequence[Array]) -> None:
    """Take the values from another replica, once one of them has begun the training."""
    task = world.task
    assert task is not None
    until = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < until:
        for info in [one for one in task.roster if one.rank in world.ranks and one.rank != task.rank]:
            try:
                with Peer(info.address, task.keys, name=info.name) as peer:
                    for number, array in enumerate(fixed):
                        meta = {"run": world.run, "training": training, "number": number}
                        for theirs in peer.call(FIXED, meta).arrays:
                            np.copyto(array, theirs)
                return
            except (NotFoundError, UnavailableError, InvalidArgumentError):
                continue  # it has not begun, has died, or is not in this run
        world.check()
        threading.Event().wait(POLL_SECONDS)
    raise UnavailableError(
        f"{task.name} begins training {training} of the run, and no other worker has begun it within "
        f"{GIVE_UP_SECONDS:.0f} s: its frozen weights would not be the chief's. Call fit() equally often on "
        "every worker"
    )
