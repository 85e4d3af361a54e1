"""Initial values of weights, by their Keras names: each is called with a shape and a generator.

    glorot_uniform((784, 100), np.random.default_rng(0))

They are the rows of ``graph.initial.KINDS``, so that a variable of a graph can be given them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from nbdist.graph.initial import KINDS, InitializerKind, fans, kind_of

__all__ = [
    "INITIALIZERS", "Initializer", "fans", "get", "glorot_normal", "glorot_uniform", "he_normal",
    "he_uniform", "lecun_normal", "lecun_uniform", "ones", "random_normal", "random_uniform",
    "standard_normal", "zeros",
]  # fmt: skip

Array: TypeAlias = np.ndarray[Any, Any]
Initializer: TypeAlias = Callable[[Sequence[int], np.random.Generator | None], Array]

INITIALIZERS: dict[str, InitializerKind] = KINDS
"""Every initializer by name."""

get = kind_of

glorot_uniform = KINDS["glorot_uniform"]
glorot_normal = KINDS["glorot_normal"]
he_uniform = KINDS["he_uniform"]
he_normal = KINDS["he_normal"]
lecun_uniform = KINDS["lecun_uniform"]
lecun_normal = KINDS["lecun_normal"]
random_uniform = KINDS["random_uniform"]
random_normal = KINDS["random_normal"]
standard_normal = KINDS["standard_normal"]
zeros = KINDS["zeros"]
ones = KINDS["ones"]
