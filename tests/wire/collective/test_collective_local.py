"""Collectives of threads, and of a single rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from own_collective import SIZES, OwnCollective

from nbdist.errors import UnavailableError
from nbdist.testing import CollectiveContract
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.local import thread_group


class TestLocal(OwnCollective, CollectiveContract):
    sizes = SIZES

    def make_world(self, size: int, **options: Any) -> Sequence[Collective]:
        return thread_group([f"replica {rank}" for rank in range(size)], **options)


def test_a_rank_that_does_not_make_the_call_is_named() -> None:
    with pytest.raises(
        UnavailableError, match=r"rank 1 \(b\) did not make the call within 0.01 s: barrier\(\)"
    ):
        thread_group("ab", timeout=0.01)[0].barrier()
