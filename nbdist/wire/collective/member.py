"""Who takes part in a group: what a rank knows of itself and of the others before they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nbdist.errors import InvalidArgumentError, UnavailableError
from nbdist.wire.keys import ClusterKeys


@dataclass(frozen=True)
class Member:
    """One rank of a group to be: who it is, and what it needs to meet the others.

    `hosts` and `names` are all ranks', in their order; ranks of equal host can share memory. `incarnation`
    is the same for all ranks of this group and for no other group. Where there are several hosts, `keys` are
    the cluster's and `bind` is the address of this host that the others reach. `timeout` is how many seconds
    a call may take, None for as long as all ranks live. `numbers` are what people call the ranks, where the
    group is part of another. `check` is called from time to time while this rank waits in a call, every
    0.2 s at least; what it raises breaks the group, on all ranks, and is raised here.
    """

    rank: int
    hosts: tuple[str, ...]
    names: tuple[str, ...]
    incarnation: int
    prefix: str
    keys: ClusterKeys | None = None
    bind: str = "127.0.0.1"
    timeout: float | None = None
    numbers: tuple[int, ...] = ()
    check: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        if len(self.hosts) != len(self.names) or not 0 <= self.rank < len(self.hosts):
            raise InvalidArgumentError(
                f"rank {self.rank} of {len(self.hosts)} hosts and {len(self.names)} names; give one of each"
            )

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return len(self.hosts)

    @property
    def called(self) -> tuple[str, ...]:
        """How errors call the ranks, such as `rank 1 (/job:worker/task:1)`."""
        return call_ranks(self.names, self.numbers)


def call_ranks(names: Sequence[str], numbers: Sequence[int] = ()) -> tuple[str, ...]:
    """Return how errors call ranks of these names.

    >>> call_ranks(["ps", "worker"])
    ('rank 0 (ps)', 'rank 1 (worker)')
    """
    return tuple(f"rank {number} ({name})" for number, name in zip(numbers or range(len(names)), names))


def same_group(member: Member, cards: Sequence[dict[str, Any]]) -> None:
    """Refuse cards that are not those of this very group."""
    if len(cards) != member.size:
        raise UnavailableError(f"{len(cards)} cards for {member.size} ranks")
    for rank, card in enumerate(cards):
        if card.get("incarnation") != member.incarnation:
            raise UnavailableError(
                f"{member.called[rank]} is of incarnation {card.get('incarnation')!r} of the "
                f"group, this is {member.incarnation}"
            )
