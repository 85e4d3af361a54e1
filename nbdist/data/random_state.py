"""Random numbers in forked processes: a fork copies all generators, so each process gets states of its own.

    python = random.getstate()                  # Python gives a fork's `random` another state by itself
    if os.fork() == 0:
        reseed(function, python, [pass_number, process_number])

The new state follows from the old one and from the numbers. So seeds that were set before the pass, such as
``np.random.seed(0)``, fix what the processes draw, and other passes and processes draw other numbers. Both
the global generators of NumPy, Python and PyTorch are seeded so, and those that the function holds.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

MOST_HELD = 10_000  # objects of a function that are looked at
_LEAVES = (ModuleType, type, str, bytes, int, float, complex, type(None), np.ndarray, np.generic)


def reseed(function: Callable[..., Any], python: object, numbers: Sequence[int]) -> None:
    """Seed the generators that ``function`` may draw from, by their states and ``numbers``.

    ``python`` is the state of Python's global generator before the fork.
    """
    np.random.seed(_seed(np.random.get_state(), numbers) % 2**32)
    random.seed(_seed(python, numbers))
    torch = sys.modules.get("torch")
    if torch is not None:
        _reseed_torch(torch.default_generator, numbers)
    for one in held_by(function):
        if isinstance(one, np.random.Generator):
            bits = one.bit_generator
            bits.state = type(bits)(_seed(bits.state, numbers)).state
        elif isinstance(one, np.random.RandomState):
            one.seed(_seed(one.get_state(), numbers) % 2**32)
        elif isinstance(one, random.Random):
            one.seed(_seed(one.getstate(), numbers))
        elif torch is not None and isinstance(one, torch.Generator) and one.device.type == "cpu":
            _reseed_torch(one, numbers)


def held_by(function: Any) -> Iterator[Any]:
    """Yield the objects that a function holds: in closures, defaults, globals that it names, and attributes.

    >>> generator = np.random.default_rng()
    >>> generator in list(held_by(lambda: generator.normal()))
    True
    """
    waiting, seen = [function], set[int]()
    while waiting and len(seen) < MOST_HELD:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _LEAVES):
            continue
        seen.add(id(one))
        yield one
        waiting += _parts_of(one)


def _parts_of(one: Any) -> list[Any]:
    if isinstance(one, FunctionType):
        return [*outer_values(one), *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
    if isinstance(one, MethodType):
        return [one.__self__, one.__func__]
    if isinstance(one, partial):
        return [one.func, *one.args, *one.keywords.values()]
    if isinstance(one, dict):
        return list(one.values())
    if isinstance(one, (list, tuple, set, frozenset)):
        return list(one)
    called = vars(type(one)).get("__call__")
    return [*getattr(one, "__dict__", {}).values(), *([called] if isinstance(called, FunctionType) else [])]


def outer_values(function: FunctionType) -> list[Any]:
    """Return what a function closes over, and the globals that its code names."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # a name that is not assigned yet
            continue
    names, known = dict.fromkeys(_names(function.__code__)), function.__globals__
    return found + [known[name] for name in names if name in known]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _reseed_torch(generator: Any, numbers: Sequence[int]) -> None:
    generator.manual_seed(_seed(generator.get_state().numpy().tobytes(), numbers) % 2**63)


def _seed(state: object, numbers: Sequence[int]) -> int:
    """Return a number of 128 bits that follows from a generator's state and from ``numbers``."""
    with np.printoptions(threshold=sys.maxsize):  # all of a state that is an array
        text = repr((state, list(numbers)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")
