"""Which GPU a rank has, and whether every rank has one of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbdist.wire.collective.member import Member

DEVICES = ("/dev/nvidiactl", "/dev/dxg")


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process can use: CuPy and its NCCL, CuPy's number of it, and its place on the host."""

    cupy: Any
    nccl: Any
    number: int
    place: str


def is_likely() -> bool:
    """Return whether it is worth while to load CuPy and ask it for a GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return "cupy" in sys.modules or any(Path(one).exists() for one in DEVICES)


def not_one_each(member: Member, cards: Sequence[dict[str, Any]]) -> str:
    """Return why ranks with these cards have not one GPU each; empty if they have."""
    found: dict[tuple[str, Any], int] = {}
    for rank, card in enumerate(cards):
        if not card.get("gpu"):
            return f"{member.called[rank]} has no GPU that CuPy and NCCL can use"
        first = found.setdefault((member.hosts[rank], card["gpu"]), rank)
        if first != rank:
            return (
                f"{member.called[first]} and {member.called[rank]} share GPU {card['gpu']}; give each one of "
                "its own, as with CUDA_VISIBLE_DEVICES"
            )
    return ""
