"""``bench recovery``: our side of it on real tasks; the peers are not installed here."""

from __future__ import annotations

import pytest
from tiers import exhaustive

from bench.script import here


@exhaustive
@pytest.mark.engines
def test_the_first_worker_of_an_all_reduce_is_killed() -> None:
    figures = here("nbdist_recovery", "--program", "fit", "--kill", "chief", timeout=90)()
    assert figures["lost"] == 0
    assert 0 < figures["next_step"] <= figures["all_steps"]
