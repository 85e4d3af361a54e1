"""Tokens that replicas wait for, and who has taken which. A state machine without sockets or clocks.

A token holds the step that its taker goes on with. Where a step puts one for each replica, nobody takes two
of them: one that is fast would have its next gradient counted in the place of another's. Tokens of the
beginning are anybody's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from nbdist.errors import NbdistError, OutOfRangeError


class Tokens:
    """Whole numbers; ``now`` is in seconds of any clock.

    >>> tokens = Tokens()
    >>> tokens.begin(replicas=2, one_each=True)
    >>> tokens.put([7, 7])
    >>> [tokens.take("/job:worker/task:0", local_step, 0.0) for local_step in (6, 7)], len(tokens)
    ([7, None], 1)
    """

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        """Which replicas wait for a token now."""
        self._first: deque[int] = deque()
        self._tokens: deque[int] = deque()
        self._one_each = False
        self._ended: NbdistError | None = None
        self._begun = self._turn = 0
        self._replicas = 0
        self._seen: dict[str, tuple[int | None, float]] = {}  # the last token of each replica, and when

    def __len__(self) -> int:
        return len(self._first) + len(self._tokens)

    @property
    def open(self) -> bool:
        """Whether tokens are to be had: it was begun, and not closed since."""
        return self._begun > 0 and self._ended is None

    def begin(self, replicas: int, one_each: bool = False) -> None:
        """Empty and open it for so many replicas."""
        self._first.clear()
        self._tokens.clear()
        self._seen.clear()
        self._ended, self._replicas, self._one_each = None, replicas, one_each
        self._begun += 1
        self._turn += 1

    def serve(self) -> int:
        """Note that somebody is about to put tokens here; return a number for ``cut_off``."""
        self._turn += 1
        return self._turn

    def join(self, replica: str, now: float) -> bool:
        """Note that a replica is there, once tokens are to be had; return whether they are."""
        if self.open and replica:
            self._seen.setdefault(replica, (None, now))
        return self.open

    def put(self, tokens: Iterable[int], first: bool = False) -> None:
        """Add tokens, those of a step or the ``first`` ones; raises what it was closed with."""
        if self._ended is not None:
            raise self._ended
        if self._one_each and not first:
            self._tokens.clear()  # who has not taken one of the last step takes one of this
        (self._first if first else self._tokens).extend(tokens)

    def take(self, replica: str, local_step: int, now: float) -> int | None:
        """Return a token for a replica that is at ``local_step``, None if there is none for it yet.

        Raises what it was closed with instead of None.
        """
        if self._first:
            token = self._first.popleft()
        elif self._tokens and (not self._one_each or self._tokens[0] > local_step):
            token = self._tokens.popleft()
        elif self._ended is not None:
            raise self._ended
        else:
            return None
        if replica:
            self._seen[replica] = (token, now)
        return token

    def close(self, error: NbdistError | None = None) -> None:
        """End it: whoever finds it empty gets ``error``."""
        if self._ended is None:
            self._ended = error or OutOfRangeError(
                "the training has ended: its chief has closed the queue of tokens"
            )

    def cut_off(self, turn: int, error: NbdistError) -> None:
        """End it if nobody has begun or served it since that ``serve``."""
        if turn == self._turn:
            self.close(error)

    def missing(self, now: float) -> str:
        """Return, for people, which replicas have not come back for a token, and since when."""
        away = [
            f"{name} (" + ("joined" if token is None else f"took token {token}") + f" {now - at:.1f} s ago)"
            for name, (token, at) in self._seen.items()
            if not self.waiting[name]
        ]
        known = set(self._seen) | {name for name, count in self.waiting.items() if count}
        unknown = self._replicas - len(known)
        if self._begun and unknown > 0:
            away.append(f"{unknown} of {self._replicas} replicas that never came")
        return f"not waiting for one: {', '.join(away)}" if away else "every replica that is known waits"
