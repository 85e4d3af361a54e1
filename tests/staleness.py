"""The bound on the measured staleness of a gradient that follows from the rules of a training."""

from __future__ import annotations

from nbdist.runtime.ps.sync import Rules


def most_stale(rules: Rules) -> int | None:
    """Return the bound in updates; None for none.

    When a replica reads for its step n, the others have had at least n - S steps applied; when its gradient
    is applied, at most n + S + 1. Its own gradients under way come on top.

    >>> most_stale(Rules(replicas=3, staleness=2)), most_stale(Rules(replicas=3, staleness=0))
    (11, 2)
    """
    if rules.synchronous:
        return 0
    if rules.staleness is None:
        return None
    return (rules.replicas - 1) * (2 * rules.staleness + 1) + rules.depth - 1
