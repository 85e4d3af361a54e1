"""Whether all replicas are about to train the same variables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.runtime.layout import Layout
from nbdist.wire.collective.base import Collective

Array = np.ndarray[Any, Any]


def digest_of(variables: Sequence[tuple[str, Array]]) -> str:
    """Return a text that is equal for the same names, shapes and dtypes in the same order."""
    return Layout.of((name, value.shape, value.dtype) for name, value in variables).digest()


def same_variables(group: Collective, variables: Sequence[tuple[str, Array]]) -> None:
    """Raise on all replicas, naming the first difference, unless they have the same variables."""
    texts = [f"{name} {value.shape} {value.dtype}" for name, value in variables]
    digests = group.all_gather(np.frombuffer(digest_of(variables).encode(), np.uint8))
    if (digests == digests[0]).all():
        return
    own = "\n".join(texts).encode()
    longest = int(group.all_reduce(np.array(len(own)), "max"))
    padded = np.zeros(longest, np.uint8)
    padded[: len(own)] = np.frombuffer(own, np.uint8)
    everyone = [row.tobytes().rstrip(b"\0").decode().split("\n") for row in group.all_gather(padded)]
    for rank, theirs in enumerate(everyone):
        for number, (a, b) in enumerate(zip_longest(everyone[0], theirs, fillvalue="nothing")):
            if a != b:
                raise InvalidArgumentError(
                    f"the replicas built different models: variable {number} is {a} on {group.labels[0]} and "
                    f"{b} on {group.labels[rank]}; build the same model on every worker"
                )
