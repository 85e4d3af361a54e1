"""The metrics that a trial's body leaves: what it returned, or the names that it has bound. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbdist.train.callbacks import History

MOST_METRICS = 50


def metrics_of(found: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Return a trial's final metrics by name, from what its body has defined, or returned as "result".

    A single number that a function returned is the sweep's ``metric``. Of a history the last epoch counts,
    below what the body says itself.

    >>> metrics_of({"result": 0.9}, "accuracy")
    {'accuracy': 0.9}
    >>> metrics_of({"result": {"accuracy": 0.9, "loss": 0.3, "model": None}}, "accuracy")
    {'accuracy': 0.9, 'loss': 0.3}
    >>> metrics_of({"accuracy": 0.8, "width": 32}, "accuracy")
    {'accuracy': 0.8}
    """
    history = next((one for one in found.values() if isinstance(one, History)), None)
    values: dict[str, Any] = {}
    if history is not None:
        values.update({name: row[-1] for name, row in history.history.items() if row})
    result = found.get("result")
    if isinstance(result, Mapping):
        values.update({str(name): one for name, one in result.items() if is_metric(one)})
    elif result is not None and is_metric(result):
        values[metric] = result
    if is_metric(found.get(metric)):
        values[metric] = found[metric]
    kept = {name: float(one) for name, one in list(values.items())[:MOST_METRICS]}
    return {**kept, metric: float(values[metric])} if metric in values else kept


def is_metric(value: Any) -> bool:
    """Return whether a value is one number, Python's or an array's.

    >>> import numpy as np
    >>> [is_metric(one) for one in (1, 0.5, np.float32(2), np.zeros(1), True, "high", np.zeros(2), None)]
    [True, True, True, True, False, False, False, False]
    """
    if isinstance(value, (bool, str, bytes)) or value is None:
        return False
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    if kind not in "fiu" or getattr(value, "size", 1) != 1:
        return False
    return hasattr(value, "__float__") or hasattr(value, "__index__")
