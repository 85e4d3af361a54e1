"""What a pipeline computes, as a digest: its functions, the arrays and settings of its sources.

    fingerprint(dataset._stage.blocks)      # "5c1f...": equal in later runs, until one of them changes

A cache file has it beside the pipeline's steps. Code counts as bytecode, with the values that it closes over
and the globals that it names; of installed packages only names count, and of random generators only that they
are there, because their state is another one each time. The contents of files do not count.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Iterator
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from nbdist.data.autotune import BufferTuner, CallsTuner
from nbdist.data.blocks import Shuffle
from nbdist.data.elements import scanned
from nbdist.data.meter import Measured
from nbdist.data.random_state import outer_values
from nbdist.data.rows import ArrayRows
from nbdist.data.structure import rebuild

DEEPEST = 40  # of objects in each other
_NAMED = (type, ModuleType, BuiltinFunctionType, np.ufunc)
_STATEFUL = (np.random.Generator, np.random.RandomState, random.Random)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(blocks: Any) -> str:
    """Return the digest of the pipeline that makes ``blocks``, 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for part in _Parts().of(blocks, 0):
        digest.update(part)
    return digest.hexdigest()


class _Parts:
    """Yields what objects consist of, each object once."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}  # the object too, so that no other has its id

    def of(self, one: Any, depth: int) -> Iterator[bytes]:
        if isinstance(one, _PLAIN) or (isinstance(one, np.generic) and one.dtype.kind != "O"):
            yield f"{type(one).__name__} {one!r};".encode()
            return
        if id(one) in self._seen or depth > DEEPEST:
            yield b"again %d;" % self._seen.get(id(one), (-1, None))[0]
            return
        self._seen[id(one)] = len(self._seen), one
        yield f"{type(one).__name__}(".encode()
        for part in self._inside(one):
            yield from self.of(part, depth + 1)
        yield b")"

    def _inside(self, one: Any) -> Iterator[Any]:
        if isinstance(one, Measured):
            yield one.made
        elif isinstance(one, partial):
            # What nbdist's own functions do is in the steps, with all numbers but those of threads.
            yield from () if _is_ours(one.func) else (one.func,)
            numbers = _is_ours(one.func) and one.func is not scanned
            yield from (part for part in one.args if not (numbers and isinstance(part, (int, Shuffle))))
            yield from one.keywords.items()
        elif isinstance(one, _NAMED):
            yield getattr(one, "__module__", ""), getattr(one, "__qualname__", getattr(one, "__name__", ""))
        elif isinstance(one, FunctionType):
            yield from (one.__module__, one.__qualname__) if _is_ours(one) or _is_installed(one) else ()
            if not _is_installed(one):
                yield one.__code__
                yield from (one.__defaults__, one.__kwdefaults__)
                yield from outer_values(one)
        elif isinstance(one, CodeType):
            yield from (one.co_code, one.co_names, one.co_varnames, *one.co_consts)
        elif isinstance(one, MethodType):
            yield from (one.__func__, one.__self__)
        elif isinstance(one, ArrayRows):
            yield from (rebuild(one.structure, list(range(len(one.arrays)))), one.arrays)
        elif isinstance(one, np.ndarray):
            yield from (one.dtype.str, one.shape, one.tolist() if one.dtype.kind == "O" else _crc(one))
        elif isinstance(one, dict):
            yield from one.items()
        elif isinstance(one, (set, frozenset)):
            yield from sorted(one, key=repr)
        elif isinstance(one, (tuple, list)):
            yield from one
        elif hasattr(one, "detach"):  # a tensor
            yield one.detach().cpu().numpy()
        elif not isinstance(one, (*_STATEFUL, BufferTuner, CallsTuner)):
            yield from _state(one)


def _state(one: Any) -> Iterator[Any]:
    """Yield what tells an object of a class apart: what Hugging Face's say themselves, or its state."""
    yield type(one)
    methods = [value for value in vars(type(one)).values() if isinstance(value, FunctionType)]
    yield [method for method in methods if not _is_installed(method)]
    own = getattr(one, "_fingerprint", None)
    if isinstance(own, str):
        yield own
        return
    try:
        yield one.__getstate__()
    except Exception:
        return  # an object without a state, such as an open file: its class has to tell it apart


def _crc(array: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("nbdist.")


def _is_installed(function: FunctionType) -> bool:
    return "site-packages" in function.__code__.co_filename or _is_ours(function)
