"""Functions and classes of a body in processes that it spawns, such as the workers of a DataLoader.

    with sent_by_value():
        multiprocessing.get_context("spawn").Process(target=function_of_the_body)

A spawned process gets its target by pickle, which names functions and classes by their module: it would look
for them in its own ``__main__``, where they are not. Here they are described as for ``--push``, and rebuilt
there once. A forked process has them, and continues to get their names.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

from nbdist.errors import InvalidArgumentError, NbdistError
from nbdist.run.values.push import build, pack


@contextmanager
def sent_by_value() -> Iterator[None]:
    """Have spawned processes get the functions and classes of ``__main__`` themselves, inside a ``with``."""
    spawns = False

    def reduced(pickler: Any, value: Any) -> Any:
        nonlocal spawns  # what follows in a queue is for such a process, too
        spawns = spawns or get_spawning_popen() is not None
        mine = isinstance(value, (FunctionType, type)) and value.__module__ == "__main__"
        return described(value) if spawns and mine else NotImplemented

    forking: Any = ForkingPickler
    forking.reducer_override = reduced
    try:
        yield
    finally:
        del forking.reducer_override


def described(value: Any) -> tuple[Any, tuple[bytes, str]]:
    """Return a call that rebuilds a function or class of a body in another process.

    Raises InvalidArgumentError if it uses values that cannot be sent.
    """
    name = value.__qualname__
    try:
        packed = pack({name: value})
    except NbdistError as error:
        raise InvalidArgumentError(
            f"a spawned process cannot get {name} of this body: {error}. Or define {name} in a module, or "
            'start processes with multiprocessing_context="fork"'
        ) from None
    memory = bytearray(packed.size)
    for at, data in packed.buffers:
        memory[at : at + data.nbytes] = data
    return rebuilt, (pickle.dumps((packed.nodes(), memory)), name)


_built: dict[tuple[bytes, str], Any] = {}


def rebuilt(description: bytes, name: str) -> Any:
    """Return what `described` has described; it also gets its name in ``__main__``, for results by pickle."""
    found = _built.get((description, name))
    if found is None:
        packed, memory = pickle.loads(description)
        found = _built[description, name] = build(packed, memoryview(memory))[name]
        found.__module__ = "__main__"
        setattr(sys.modules["__main__"], name, found)
    return found
