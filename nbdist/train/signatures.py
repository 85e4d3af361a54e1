"""What makes two calls of a function alike, so that one trace serves both. Pure.

A function is traced once for each form of its arguments (their structure, dtypes and constants) and each set
of sizes. After some sets of sizes it is traced once more, with those sizes left open that differ from call to
call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import Shape, show
from nbdist.graph.tensor import NUMBERS
from nbdist.train.trees import mapped

Form: TypeAlias = tuple[Any, ...]
Trace = TypeVar("Trace")

MOST_SIZES = 8  # of one form, before sizes are left open
MOST_FORMS = 16
MOST_FUNCTIONS = 64


def arrays_in(arguments: Any) -> Any:
    """Return arguments with NumPy's single numbers as arrays, all of them in C order."""

    def one(value: Any) -> Any:
        if not isinstance(value, (np.ndarray, np.generic)):
            return value
        array = np.asarray(value, order="C")
        if array.dtype.kind not in NUMBERS:
            raise InvalidArgumentError(f"run takes arrays of numbers, got one of {array.dtype}: {array!r}")
        return array

    return mapped(one, arguments)


def form_of(value: Any) -> Form:
    """Return what has to be equal for two values to be traced as one: everything but sizes."""
    if isinstance(value, np.ndarray):
        # A size of 0 is no size like others: means over nothing are not computed.
        return ("array", value.dtype.str, tuple(n == 0 for n in value.shape))
    if isinstance(value, dict):
        return (dict, *((name, form_of(part)) for name, part in value.items()))
    if isinstance(value, (tuple, list)):
        return (type(value), *map(form_of, value))
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return (type(value), value)
    return ("object", id(value))


def open_where_different(shapes: Sequence[Sequence[Shape]]) -> list[Shape]:
    """Return shapes that all of these fit, with None for sizes that differ.

    >>> open_where_different([[(4, 3)], [(5, 3)]])
    [(None, 3)]
    """
    return [
        tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*ones, strict=True))
        for ones in zip(*shapes, strict=True)
    ]


def fits(wanted: Iterable[Shape], shapes: Iterable[Shape]) -> bool:
    """Whether arrays of these shapes are among those that were traced."""
    pairs = [
        (w, s) for one, other in zip(wanted, shapes, strict=True) for w, s in zip(one, other, strict=True)
    ]
    return all(w in (None, s) for w, s in pairs)


@dataclass
class Traces(Generic[Trace]):
    """The traces of one function."""

    name: str
    exact: dict[Form, dict[tuple[Shape, ...], Trace]] = field(default_factory=dict)
    opened: dict[Form, tuple[list[Shape], Trace]] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    """Arguments that were told apart by who they are, which must not be somebody else meanwhile."""

    def __len__(self) -> int:
        return sum(map(len, self.exact.values())) + len(self.opened)

    def find(
        self, arguments: Any, shapes: tuple[Shape, ...], make: Callable[[Sequence[Shape]], Trace]
    ) -> Trace:
        """Return the trace for arguments whose arrays have these shapes; ``make`` traces what is missing."""
        form = form_of(arguments)
        ones = self.exact.get(form)
        if ones is None:
            self._check_forms(arguments)
            ones = self.exact[form] = {}
            self.kept.append(arguments)
        if shapes in ones:
            return ones[shapes]
        if form in self.opened and fits(self.opened[form][0], shapes):
            return self.opened[form][1]
        if len(ones) < MOST_SIZES:
            ones[shapes] = make(shapes)
            return ones[shapes]
        known = [self.opened[form][0]] if form in self.opened else []
        wide = open_where_different([*ones, *known, shapes])
        try:
            self.opened[form] = wide, make(wide)
            print(
                f"{self.name} was traced for {MOST_SIZES} sets of sizes; from here on one trace serves "
                f"{', '.join(map(show, wide))}"
            )
        except Exception as error:
            error.add_note(
                f"({self.name} was called with arrays of {MOST_SIZES + 1} different sets of sizes. From here "
                f"on it is traced for {', '.join(map(show, wide))}, where ? is a size that it must not use "
                "as a number; or cut batches to one size, with .batch(size, drop_remainder=True))"
            )
            raise
        return self.opened[form][1]

    def _check_forms(self, arguments: Any) -> None:
        if len(self.exact) >= MOST_FORMS:
            raise InvalidArgumentError(
                f"{self.name} was called with {MOST_FORMS} different forms of arguments, and is traced anew "
                f"for each: now {arguments!r}. Give numbers that change as arrays, such as np.float32(x)"
            )
