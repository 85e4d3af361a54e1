"""Whether a step has come to numbers: a loss or gradient that is NaN or infinite must not be applied."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.backend import Array, backend_of
from nbdist.train.context import Progress

POLICIES = ("stop", "skip")
MOST_SAID = 5  # skipped steps of a run that are printed


def check_policy(policy: str) -> bool:
    """Return whether steps that come to no numbers are skipped; they end the training otherwise.

    >>> check_policy("skip"), check_policy("stop")
    (True, False)
    """
    if policy not in POLICIES:
        raise InvalidArgumentError(f"no nan={policy!r}; {choices(policy, POLICIES)}")
    return policy == "skip"


def say_skipped(progress: Progress, step: int, wrong: str) -> None:
    """Count a step that leaves this replica's gradient out, and print the first few."""
    progress.skipped += 1
    if progress.skipped <= MOST_SAID:
        more = "; further ones are counted without a line" if progress.skipped == MOST_SAID else ""
        print(f"step {step}: {wrong}: this replica's gradient is left out{more}")


def what_is_wrong(loss: float, gradients: Sequence[Array]) -> str:
    """Return what of a step is no finite number, in words; nothing if all is well.

    >>> import numpy as np
    >>> what_is_wrong(1.0, [np.ones(3, np.float32), np.array([1.0, np.inf])])
    'a gradient is infinite'
    """
    if not math.isfinite(loss):
        return f"the loss is {_called(math.isnan(loss))}"
    if not gradients:
        return ""
    xp = backend_of(gradients[0])
    # One pass at memory speed; a square that overflows is looked at again.
    total = sum(xp.dot(g, g) for g in (gradient.reshape(-1) for gradient in gradients))
    if math.isfinite(float(total)):
        return ""
    if any(bool(xp.isnan(g).any()) for g in gradients):
        return f"a gradient is {_called(True)}"
    return f"a gradient is {_called(False)}" if any(bool(xp.isinf(g).any()) for g in gradients) else ""


def _called(nan: bool) -> str:
    return "NaN" if nan else "infinite"
