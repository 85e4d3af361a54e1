"""A small test of a decision, and of a property; docs/testing.md explains them."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist.data.shares import share_of


def test_the_first_share_is_never_a_smaller_one() -> None:
    assert share_of(5, shares=2, index=0) == slice(0, 3)
    assert share_of(5, shares=2, index=1) == slice(3, 5)


@settings(max_examples=examples(200))
@given(size=st.integers(0, 1000), shares=st.integers(1, 20))
def test_shares_divide_a_batch(size: int, shares: int) -> None:
    rows = [row for index in range(shares) for row in range(size)[share_of(size, shares, index)]]
    assert rows == list(range(size))
