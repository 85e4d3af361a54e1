"""How one writes down what a parameter may be, and what plain values mean.

>>> round(log(1e-4, 1e-1).draw(0.5), 9)
0.003162278
>>> choice("sgd", "adam").contains("adam")
True
>>> print(when(uniform(0, 0.9), optimizer="sgd"))
when(uniform(0.0, 0.9), optimizer=['sgd'])
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.sweep.numeric import Integer, Real
from nbdist.sweep.parameters import Choice, Fixed, Parameter, When
from nbdist.sweep.values import plain


def uniform(low: float, high: float, points: int | None = None) -> Real:
    """Return a float between two numbers; ``points`` says how many values a grid takes."""
    return Real(low, high, points=points)


def log(low: float, high: float, points: int | None = None) -> Real:
    """Return a positive float between two numbers, every factor as likely as another (for learning rates)."""
    return Real(low, high, log=True, points=points)


loguniform = log
"""The same by the name that SciPy and Ray have for it."""


def integer(low: int, high: int, log: bool = False, step: int = 1, points: int | None = None) -> Integer:
    """Return a whole number between two, both included."""
    return Integer(low, high, log, step, points)


def choice(*values: object) -> Choice:
    """Return one of several values: ``choice("sgd", "adam")`` or ``choice(["sgd", "adam"])``."""
    if len(values) == 1 and isinstance(values[0], (list, tuple)):
        values = tuple(values[0])
    return Choice(values)  # type: ignore[arg-type]  # Choice checks and cleans what it is given


def fixed(value: object) -> Fixed:
    """Return one value for all trials; needed for a list only, other plain values mean it of themselves."""
    return Fixed(value)  # type: ignore[arg-type]  # Fixed checks and cleans what it is given


def when(parameter: object, conditions: Mapping[str, object] | None = None, /, **more: object) -> When:
    """Return a parameter that exists only when others have given values.

    ``when(uniform(0, 0.99), opt="sgd")`` and ``when(uniform(0, 0.99), {"opt": ["sgd"]})`` are the same.
    """
    if conditions is not None and not isinstance(conditions, Mapping):
        raise InvalidArgumentError(
            f'the conditions of when() are names and values, such as opt="sgd", got {conditions!r}'
        )
    twice = more.keys() & (conditions or {}).keys()
    if twice:
        raise InvalidArgumentError(f"when() has two conditions on {', '.join(sorted(twice))}; give one")
    only = [
        (str(name), tuple(plain(one) for one in (wanted if isinstance(wanted, (list, tuple)) else [wanted])))
        for name, wanted in {**(conditions or {}), **more}.items()
    ]
    return When(as_parameter(parameter), tuple(only))


def as_parameter(value: object) -> Parameter:
    """Return what a value means in a space: a list or a row of an array is a choice, a plain value is fixed.

    >>> import numpy as np
    >>> print(as_parameter(np.logspace(-2, 0, 3)))
    [0.01, 0.1, 1.0]
    """
    if isinstance(value, Parameter):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return Choice(tuple(value.tolist()))
    if isinstance(value, (list, tuple, range)):
        return Choice(tuple(value))
    return Fixed(value)  # type: ignore[arg-type]  # as above


def parameter_from_json(data: object) -> Parameter:
    """Return the parameter that `Parameter.to_json` wrote, or raise `InvalidArgumentError`."""
    if not isinstance(data, dict):
        raise InvalidArgumentError(f"a parameter is an object with a kind, got {data!r:.80}")
    given = {key: value for key, value in data.items() if key != "kind"}
    try:
        match data.get("kind"):
            case "float":
                return Real(**given)
            case "int":
                return Integer(**given)
            case "choice":
                return choice(list(given.pop("values")), **given)
            case "fixed":
                return Fixed(**given)
            case "when":
                return when(parameter_from_json(given.pop("parameter")), given.pop("when"), **given)
    except (TypeError, KeyError) as error:
        raise InvalidArgumentError(f"{data!r:.200} is no parameter: {error}") from None
    raise InvalidArgumentError(
        f"no kind of parameter {data.get('kind')!r:.80}; there are float, int, choice, fixed, when"
    )
