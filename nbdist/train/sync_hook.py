"""A worker's part in synchronous training, from its session's beginning to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from nbdist.errors import AbortedError, NbdistError
from nbdist.graph.tensor import Tensor
from nbdist.train.hooks import SessionRunHook
from nbdist.train.queue_runner import QueueRunner

if TYPE_CHECKING:
    from nbdist.runtime.session.session import Session
    from nbdist.train.sync_replicas import SyncReplicasOptimizer


class SyncReplicasHook(SessionRunHook):
    """What a worker does beside its steps; :meth:`training` does it for a plain session.

    The chief opens the queue of tokens and runs the aggregation in a thread of its own; the others wait for
    it. When the chief ends, or its session does, whoever waits for a token is told.
    """

    def __init__(self, optimizer: SyncReplicasOptimizer, is_chief: bool, num_tokens: int) -> None:
        self._optimizer, self.is_chief, self._num_tokens = optimizer, is_chief, num_tokens
        self._begin: Sequence[Tensor] = ()
        self._runner: QueueRunner | None = None

    def begin(self) -> None:
        """Make the ops; raises FailedPreconditionError before ``apply_gradients``.

        Too few tokens for a first step are an InvalidArgumentError.
        """
        self._optimizer.init_tokens(self._num_tokens)
        if self.is_chief:
            self._runner = self._optimizer.get_chief_queue_runner()
            tokens = self._optimizer.get_init_tokens_op(self._num_tokens)
            self._begin = self._optimizer.chief_init_op, tokens
        else:
            self._begin = self._optimizer.wait_for_chief_op, self._optimizer.local_step_init_op

    def after_create_session(self, session: Session, coord: Any = None) -> None:
        """Begin: as the chief, who has initialised all variables, or once the chief has begun."""
        for op in self._begin:
            session.run(op)
        if self._runner is not None:
            self._runner.create_threads(session, coord)

    def before_run(self, run_context: Any) -> None:
        """Raise what has ended the aggregation, if anything has."""
        self._check()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Raise what has ended the aggregation, if anything has."""
        self._check()

    def end(self, session: Session) -> None:
        """End: the chief closes the queue, so that whoever waits in vain gets an OutOfRangeError."""
        if self._runner is not None:
            with suppress(
                NbdistError
            ):  # the session is closed, or a task is gone, which the runner has heard
                session.run(self._optimizer.get_closing_op())
            self._runner.join()

    @contextmanager
    def training(self, session: Session) -> Iterator[Session]:
        """Take part in the training with a plain session, inside a ``with``."""
        if not self._begin:
            self.begin()
        self.after_create_session(session)
        try:
            yield session
        except AbortedError:  # perhaps by what ended the aggregation
            self.end(session)
            self._check()
            raise
        except BaseException:
            self.end(session)
            raise
        self.end(session)
        self._check()

    def _check(self) -> None:
        if self._runner is not None and self._runner.error is not None:
            raise self._runner.error
