"""nb.log: series of the user's own among those of the run.

    nb.log(lr=0.1, gradient_norm=g)             # in a body, a callback or a custom loop
    nb.log({"encoder/loss": 1.0}, step=12)

They go the way of the loss: into this replica's log in the run's folder, and to the charts of the live view.
"""

from __future__ import annotations

import math
import operator
import re
import time
from collections.abc import Mapping
from typing import Any

from nbdist.errors import AbortedError, InvalidArgumentError
from nbdist.graph.tensor import Tensor
from nbdist.metrics.recorder import LARGEST_STEP, Recorder, check_name
from nbdist.train.context import Context, current, note_left_behind

PRINT_SECONDS = 1.0
MOST_PRINTED = 8  # values in a line
_printed = float("-inf")


def log(series: Mapping[str, Any] | None = None, /, *, step: int | None = None, **more: Any) -> None:
    """Record values of this replica's own series, by name; one that is new gets a chart in the live view.

    A value is a number: a Python, NumPy or CuPy scalar, or an array of one element; NaN and infinity count. A
    name that is not a Python identifier, such as ``"encoder/loss"``, goes into a mapping, and so does
    ``"step"``; a series that begins with ``val_`` is drawn with the one that it is the validation of.
    ``step`` is where this replica is, if it is not given; before anything has trained each series counts its
    own values. A value costs about a microsecond, and waits for no disk and no notebook. Where no run is on,
    as in a plain cell, there is nothing to record into: the values are checked and printed, at most once a
    second. A thread records into the run in which it began; after the end of that run its values are dropped.

    In a trial of a sweep that is asked to stop it raises AbortedError, which ends the trial; in a callback it
    does not, for ``fit`` ends then, and what was trained can be continued.

    Raises InvalidArgumentError for text, None, complex numbers and larger arrays, ResourceExhaustedError for
    more than 65,535 names. Runs in a task, and in the notebook where the body does.

    >>> log(lr=0.1, step=12)
    step 12: lr 0.1 (nb.log prints where no run is on, once a second at most)
    """
    context = current()
    if context.ends_in_log and context.control.stop_requested and not context.fitting:
        raise AbortedError("this body was asked to stop: it is pruned, or a user has stopped it")
    at = context.step() if step is None else _checked(step)
    values = {name: as_number(name, value) for name, value in {**(series or {}), **more}.items()}
    if not all(map(math.isfinite, values.values())):
        see_not_finite(context, values, at)
    if context.on_log is not None:
        context.on_log(values)
    if context.recorder is None:
        _print(at or 0, values)
    elif context.recorder.closed:
        note_left_behind(context)
    else:
        _record(context, context.recorder, at, values)


NOT_TRAINED = re.compile(
    r"(?:^|[^a-z])(?:val(?![a-z])|valid|test|eval|dev(?![a-z])|best|min(?![a-z])|loss_scale)"
)
"""What the names of losses have with which nothing is trained."""


def losses_in(values: Mapping[str, float]) -> list[str]:
    """Return the names of losses with which something is trained.

    >>> losses_in({"train/loss": 0.5, "value_loss": 0.5, "val_loss": 0.5, "accuracy": 1.0})
    ['train/loss', 'value_loss']
    """
    return [name for name in values if "loss" in name and not NOT_TRAINED.search(name.lower())]


def see_not_finite(context: Context, values: Mapping[str, float], step: int | None) -> None:
    """Note the first loss that is NaN or infinite, unless it is of a training by nbdist, which handles it."""
    wrong = [name for name in losses_in(values) if not math.isfinite(values[name])]
    if wrong and not context.progress.not_finite and context.trainings == context.own_loops:
        at = context.logged.get(wrong[0], -1) + 1 if step is None else step
        context.progress.not_finite = [wrong[0], str(values[wrong[0]]), at]


def _record(context: Context, recorder: Recorder, step: int | None, values: Mapping[str, float]) -> None:
    numbers = [(name, recorder.series(name), value) for name, value in values.items()]
    counted = context.logged_steps
    for name, number, value in numbers:
        at = step
        if at is None:
            at = context.logged[name] = context.logged.get(name, -1) + 1
        recorder.add(number, at, value)
        if at not in counted:
            counted = context.logged_steps = range(min(counted.start, at), max(counted.stop, at + 1))


def as_number(name: str, value: Any) -> float:
    """Return ``value`` as a float; raises InvalidArgumentError that says what to do with series ``name``."""
    kind = type(value)
    if kind is float or kind is int or kind is bool:
        return _as_float(name, value)
    if isinstance(value, Tensor):
        raise wrong(
            name, f"the tensor {value.name!r} of a graph", "return it from the step, and log what comes"
        )
    if isinstance(value, (str, bytes)):
        raise wrong(name, f"text {value[:40]!r}", "print it: what a task prints is shown under its name")
    if value is None:
        raise wrong(name, "None", "leave it out of this call")
    size, dtype = getattr(value, "size", 1), getattr(value, "dtype", None)
    if isinstance(size, int) and size != 1:
        shape = getattr(value, "shape", (size,))
        raise wrong(name, f"an array of shape {shape}", f"log its mean, or elements as {name}/0, {name}/1")
    if isinstance(value, complex) or getattr(dtype, "kind", "f") == "c":
        raise wrong(name, f"the complex number {value!r}", "log abs(x), or x.real and x.imag")
    return _as_float(name, value.item() if dtype is not None and hasattr(value, "item") else value)


def wrong(name: str, what: str, instead: str) -> InvalidArgumentError:
    """Return the error for a value that is not a number, with what to do instead."""
    return InvalidArgumentError(f"nb.log: series {name!r} is given {what}, and takes a number: {instead}")


def _as_float(name: str, value: Any) -> float:
    if hasattr(value, "__float__") or hasattr(value, "__index__"):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise wrong(
                name, f"{type(value).__name__} ({error})", "log something that float() takes"
            ) from error
    raise wrong(name, f"{type(value).__name__} {value!r:.40}", "log each number in it under a name")


def _checked(step: Any) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number <= LARGEST_STEP:
        raise InvalidArgumentError(f"nb.log: step is a whole number from 0 to {LARGEST_STEP:,}, not {step!r}")
    return number


def _print(step: int, values: Mapping[str, float]) -> None:
    """Print values that no run records, at most once a second."""
    global _printed
    for name in values:
        check_name(name)
    now = time.monotonic()
    if not values or now - _printed < PRINT_SECONDS:
        return
    first = _printed == float("-inf")
    _printed = now
    shown = ", ".join(f"{name} {value:.4g}" for name, value in list(values.items())[:MOST_PRINTED])
    more = f" and {len(values) - MOST_PRINTED} more" if len(values) > MOST_PRINTED else ""
    note = " (nb.log prints where no run is on, once a second at most)" if first else ""
    print(f"step {step}: {shown}{more}{note}")
