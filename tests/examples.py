"""The number of examples of a property test: 15 % of them in `make test`, all in `make test-all`.

    @settings(max_examples=examples(300))

``NBDIST_TEST_EXAMPLES`` is the share, 1 by default; `scripts/run_layer.py` sets it. Hypothesis draws new
examples in every run, except in CI.
"""

from __future__ import annotations

import os

SHARE = float(os.environ.get("NBDIST_TEST_EXAMPLES") or 1)
LEAST = 5  # examples, for any share: the first ones are the simplest values


def examples(count: int) -> int:
    """Return how many of ``count`` examples this run takes."""
    return min(count, max(LEAST, round(count * SHARE)))
