"""Programs that XLA has compiled in this process, found again by their text: the same one compiles once.

    program, seconds = compile_once(jax.jit(function, keep_unused=True), (x, w), devices)
    program(x, w)

Another `fit` of the same model or another trial of a sweep records and traces its graph anew (a fraction of a
second) and gets the same StableHLO text. The text has all that XLA compiles: ops, shapes, constants,
shardings, donated buffers. Beside it the key has the devices, and the structure of arguments and results. So
a program is never taken for another one, whatever made it.

Between processes JAX's own cache does the same, if JAX_COMPILATION_CACHE_DIR names a folder.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from hashlib import sha256
from typing import Any

MOST = 32
"""Programs that are kept: those used last."""
_programs: OrderedDict[Hashable, Any] = OrderedDict()
_lock = threading.Lock()


def compile_once(
    jitted: Any,
    arguments: Sequence[Any],
    devices: Sequence[Any],
    begin: Callable[[], object] = lambda: None,
) -> tuple[Callable[..., Any], float | None]:
    """Return the compiled program of a jitted function, and how many seconds XLA took; None if it was there.

    - ``jitted``: what ``jax.jit(..., keep_unused=True)`` has returned
    - ``arguments``: arrays, or trees of them, with the shapes and shardings that calls will have
    - ``devices``: the devices of JAX that it runs on, in the order of their mesh
    - ``begin``: called before XLA compiles
    """
    lowered = jitted.lower(*arguments)
    text = sha256(lowered.as_text().encode()).hexdigest()
    key = text, str(lowered.in_tree), str(lowered.out_tree), tuple(devices)
    with _lock:
        if key in _programs:
            _programs.move_to_end(key)
            return _programs[key], None
    begin()
    begun = time.perf_counter()
    program = lowered.compile()
    seconds = time.perf_counter() - begun
    with _lock:
        _programs[key] = program
        while len(_programs) > MOST:
            _programs.popitem(last=False)
    return program, seconds
