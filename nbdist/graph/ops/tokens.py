"""A queue of tokens, on which replicas wait for the next step.

    queue = TokenQueue()                                # on the device of the enclosing scope
    queue.enqueue_many([step, step])
    queue.dequeue(local_step)                           # waits for a token for this replica

Like a variable, a queue is kept by its task, in a container, by name: sessions that use one name share it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import Spec, define_external, show
from nbdist.graph.ops.accumulators import COUNT, NOTHING, Resource, check_step, on_handle, whole
from nbdist.graph.tensor import Tensor


class TokenQueue(Resource):
    """A queue of whole numbers, each the step with which the replica that takes it continues.

    ``begin`` empties and opens it; ``join`` waits for that; ``serve`` marks the step that runs it as the one
    that adds tokens; ``close`` closes it. With ``one_each`` no replica takes two tokens of a step.

    >>> from nbdist.graph.tensor import Graph
    >>> with Graph().as_default():
    ...     queue = TokenQueue()
    ...     queue.enqueue_many([0, 0]), queue.dequeue()
    (<Tensor 'tokens/token_enqueue_many' () bool>, <Tensor 'tokens/token_dequeue' () int64>)
    """

    def __init__(self, name: str = "tokens") -> None:
        super().__init__("TokenQueue", name)

    def enqueue_many(self, tokens: Any, *, first: bool = False) -> Tensor:
        """Return the op that adds tokens to the queue, those of a step or the ``first`` ones.

        Raises OutOfRangeError if it is closed.
        """
        return self._record("token_enqueue_many", whole(tokens), first=first)

    def dequeue(self, local_step: Any = 0) -> Tensor:
        """Return the next token, once there is one for a replica that is at ``local_step``.

        Errors name the task that ``local_step`` comes from. If there is no token,
        raises the error that the queue was closed with, and DeadlineExceededError after the session's
        ``operation_timeout``; AbortedError if the queue was begun again since the session took part.
        """
        return self._record("token_dequeue", whole(local_step))

    def size(self) -> Tensor:
        """Return how many tokens are in the queue."""
        return self._record("token_count")

    def is_open(self) -> Tensor:
        """Return whether the queue is open."""
        return self._record("token_is_open")

    def begin(self, replicas: int, *, one_each: bool = False) -> Tensor:
        """Return the op that empties the queue and opens it for this number of replicas."""
        return self._record("token_begin", replicas=replicas, one_each=one_each)

    def join(self, replica: str, *, again: bool = False) -> Tensor:
        """Return the op that waits until the queue is open; ``replica`` is a device, for errors.

        A replica that takes part ``again`` gets an OutOfRangeError if the training has ended since.
        """
        return self._record("token_join", replica=replica, again=again)

    def serve(self) -> Tensor:
        """Return the op that ties its step to the queue: if it is aborted, all waiting replicas fail."""
        return self._record("token_serve")

    def close(self, *, failed: bool = False) -> Tensor:
        """Return the op that closes the queue: an OutOfRangeError when it is empty, or an error if failed."""
        return self._record("token_close", failed=failed)


def _put(handle: Spec, tokens: Spec, first: bool) -> Spec:
    if len(tokens.shape) != 1 or tokens.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"tokens are a list of whole numbers, got {show(tokens.shape)} {tokens.dtype}"
        )
    return NOTHING


def _taken(handle: Spec, local_step: Spec) -> Spec:
    check_step(local_step)
    return Spec((), np.dtype(np.int64))


define_external("TokenQueue", spec=lambda: NOTHING)  # the handle of the queue
on_handle("token_enqueue_many", _put, has_value=False)
on_handle("token_dequeue", _taken, waits=True)
on_handle("token_count", lambda handle: COUNT)
on_handle("token_is_open", lambda handle: NOTHING)
on_handle("token_begin", lambda handle, replicas, one_each: NOTHING, has_value=False)
on_handle("token_join", lambda handle, replica, again: NOTHING, waits=True, has_value=False)
on_handle("token_serve", lambda handle: NOTHING, has_value=False)
on_handle("token_close", lambda handle, failed: NOTHING, has_value=False)
