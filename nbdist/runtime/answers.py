"""What a parameter server tells replicas of their gradients; each is a byte on its way."""

from __future__ import annotations

from typing import NamedTuple

APPLIED = 1
"""The update that the gradient is part of has been made."""
COUNTED = 2
"""A step of all servers together was counted."""
STOPPED = 3
"""The synchronous step cannot complete any more, for too many replicas have left; the gradient is dropped."""
DROPPED = 4
"""The gradient is older than the step that is being collected, and is dropped."""
KEPT = 5
"""The gradient is collected, and its replica goes on: the step has room for another of its batches."""
TAKEN = 6
"""The gradient is collected; another answer follows when its step is complete."""
STEPPED = 7
"""A step is complete, for those whose gradients were kept."""
REFUSED = 8
"""The replica was frozen or cut off, and the others have continued: its gradients are refused."""


class Answer(NamedTuple):
    """What became of one gradient: who sent it, and how many updates its parameters were behind."""

    replica: int
    token: int
    staleness: int = 0
    what: int = APPLIED
