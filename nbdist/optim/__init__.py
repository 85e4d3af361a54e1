"""Optimizers: arrays in, arrays out; and in a graph, ops that do so where each variable lives.

An optimizer changes one flat parameter array in place, from one flat gradient of the same length. It runs
wherever the parameters live: in the worker on one device, in the parameter server's task otherwise.
"""

from __future__ import annotations

from nbdist.optim import ops as _ops  # a graph from afar may hold them
from nbdist.optim import schedules
from nbdist.optim.adam import Adam, AdamW
from nbdist.optim.adaptive import Adagrad, RMSprop
from nbdist.optim.base import Optimizer
from nbdist.optim.precision import LossScaleOptimizer
from nbdist.optim.sgd import SGD
from nbdist.optim.table import OPTIMIZERS, from_config, get

__all__ = [
    "OPTIMIZERS", "SGD", "Adagrad", "Adam", "AdamW", "LossScaleOptimizer", "Optimizer", "RMSprop",
    "from_config", "get", "schedules",
]  # fmt: skip

assert _ops
