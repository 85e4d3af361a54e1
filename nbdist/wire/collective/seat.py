"""What a rank holds before its group is formed; each kind of collective has one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbdist.wire.collective.base import Collective


class Seat(ABC):
    """What one rank brings to a group before it knows the others."""

    @property
    @abstractmethod
    def card(self) -> dict[str, Any]:
        """Plain values for the others, which the caller hands to every rank."""

    @abstractmethod
    def join(self, cards: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Meet the others, whose cards are given in the order of ranks; return the group once all are there.

        Raises UnavailableError when one does not come within `timeout` seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up what was brought, if `join` was not called."""
