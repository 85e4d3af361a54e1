"""What a dataset is made of, as plain values: its source, then each transform. Pure.

    (("from_arrays",), ("shuffle", 1000, 1, True, 5021), ("batch", 32, False))

A step is a name with plain values. Steps of other datasets may be among them (zip, concatenate). A step that
draws random numbers ends with its *token*: a number drawn when the dataset was made, which tells such steps
apart in the counts of a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

Step: TypeAlias = tuple[Any, ...]
"""A source or a transform: its name, then plain values that say the rest."""

RANDOM = ("shuffle", "sample_from", "interleave")
"""Steps of random order, with a token. Of ``interleave`` it counts the passes of the datasets inside."""


class Inner(tuple[Step, ...]):
    """The steps of another dataset, as a value of a step."""

    __slots__ = ()


def all_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield each step, those of datasets inside a step before it.

    >>> inner = Inner((("from_arrays",), ("batch", 2, False)))
    >>> [step[0] for step in all_steps((("from_arrays",), ("zip", inner)))]
    ['from_arrays', 'from_arrays', 'batch', 'zip']
    """
    for step in steps:
        for value in step[1:]:
            if isinstance(value, Inner):
                yield from all_steps(value)
        yield step


def has_token(step: Step) -> bool:
    """Whether a step ends with a token: a random one, or a map in processes, whose functions may be random.

    >>> has_token(("shuffle", 4, None, True, 77)), has_token(("map", 77)), has_token(("map",))
    (True, True, False)
    """
    return step[0] in RANDOM or (step[0] == "map" and len(step) > 1)


def tokens(steps: Sequence[Step]) -> list[int]:
    """Return all tokens, in order."""
    return list(dict.fromkeys(step[-1] for step in all_steps(steps) if has_token(step)))


def comparable(steps: Sequence[Step], without: Sequence[str] = ()) -> list[list[Any]]:
    """Return steps without tokens, and without the steps named: equal for equal datasets.

    >>> comparable((("from_arrays",), ("shuffle", 4, None, True, 77), ("prefetch", 2)), ["prefetch"])
    [['from_arrays'], ['shuffle', 4, None, True]]
    """
    found = []
    for step in steps:
        if step[0] not in without:
            values = step[:-1] if has_token(step) else step
            found.append(
                [comparable(value, without) if isinstance(value, Inner) else value for value in values]
            )
    return found


def unseeded(steps: Sequence[Step]) -> bool:
    """Whether an order may follow from no seed: it is another one in each process."""
    return any(
        step[0] == "interleave" or (step[0] in RANDOM and step[-2 if step[0] == "sample_from" else 2] is None)
        for step in all_steps(steps)
    )
