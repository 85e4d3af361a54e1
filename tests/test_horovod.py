"""Loops in Horovod's style, outside of a run; with several workers: tests/run/test_run_body_strategies.py."""

from __future__ import annotations

import pytest

from nbdist import horovod
from nbdist.errors import FailedPreconditionError


@pytest.mark.parametrize("name", ["rank", "size", "local_rank", "local_size"])
def test_ranks_are_asked_for_after_init(name: str) -> None:
    ask = getattr(horovod, name)
    horovod.shutdown()
    for _ in range(2):
        with pytest.raises(
            FailedPreconditionError, match=rf"horovod.{name}\(\): .*call horovod.init\(\) first"
        ):
            ask()
        horovod.init()
        assert ask() == (1 if name.endswith("size") else 0)
        horovod.shutdown()
