"""Asynchronous bodies: top-level ``await``, ``asyncio.run()`` and functions that are coroutines.

    with EventLoop() as loop:      # on an engine, whose main thread runs one: it is hidden meanwhile
        loop.execute(code, names)  # awaits what the code awaits at its top level
        value = loop.result(value) # awaits it if it is a coroutine

An engine calls a body inside the event loop that receives its messages. Another loop cannot run there before
that one is hidden, nor can a body await in it, since the engine has to answer its client after an interrupt.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any


class EventLoop:
    """One event loop for a body, made when it awaits at its top level."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> EventLoop:
        return self

    def __exit__(self, *error: object) -> None:
        if self._runner is not None:
            self._runner.close()

    def execute(self, code: CodeType, namespace: dict[str, Any]) -> Any:
        """Execute code in a namespace, and return its value, if it is an expression."""
        value = eval(code, namespace)  # exec() would drop the coroutine
        return self.result(value) if code.co_flags & inspect.CO_COROUTINE else value

    def result(self, value: Any) -> Any:
        """Return a value, or what it returns if it is a coroutine."""
        if not inspect.iscoroutine(value):
            return value
        self._runner = self._runner or asyncio.Runner()
        return self._runner.run(value)


@contextmanager
def no_running_loop() -> Iterator[None]:
    """Hide the event loop that runs in this thread, inside a ``with``: another one can run in it."""
    running = asyncio._get_running_loop()
    if running is None:
        yield
        return
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)
        asyncio.set_event_loop(running)  # asyncio.run() leaves the thread without one
