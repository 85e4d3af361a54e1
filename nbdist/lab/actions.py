"""What pages have begun: one action on an item at a time, each in a process of its own.

It is answered at once. How it goes is told by the item that it is about, and what went wrong stays there
until the next action on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from nbdist.errors import FailedPreconditionError, NbdistError
from nbdist.lab.actor import perform
from nbdist.lab.underway import Underway

SECONDS = {
    "start": 120.0, "stop": 45.0, "grow": 120.0, "shrink": 60.0, "restart": 120.0, "pause": 45.0,
    "resume": 45.0, "set": 45.0,
}  # fmt: skip
"""How long each may take; nothing of ours takes half of it."""
MOST_FAILED = 100  # that are remembered

Perform = Callable[[Mapping[str, Any], Callable[[str], object], float, str | None], Awaitable[None]]
Key = tuple[str, str]
log = logging.getLogger(__name__)


class Actions:
    """Begins actions and remembers how they went; all methods are called on the server's event loop.

    ``changed`` is called when there is something new to be seen. What is done runs in ``folder``.
    """

    def __init__(
        self, changed: Callable[[], object], folder: str | None = None, do: Perform = perform
    ) -> None:
        self._changed, self._folder, self._do = changed, folder, do
        self._underway: dict[Key, Underway] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    @property
    def underway(self) -> tuple[Underway, ...]:
        """What goes on, and what has failed. Any thread may ask."""
        return tuple(self._underway.copy().values())

    def find(self, about: str, id: str) -> Underway | None:
        """Return what is under way on an item, or has failed; None if nothing has."""
        return self._underway.get((about, id))

    def begin(
        self,
        about: str,
        id: str,
        doing: str,
        request: Mapping[str, Any],
        asked: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin an action on an item; raises FailedPreconditionError while another one goes on."""
        key = about, id
        now = self._underway.get(key)
        if now is not None and now.error is None:
            raise FailedPreconditionError(f"{id}: {now.why}; wait until that is done")
        self._underway.pop(key, None)  # so that it is the newest
        self._underway[key] = Underway(about, id, doing, time.time(), dict(asked or {}))
        self._tasks[key] = asyncio.get_running_loop().create_task(self._act(key, request))
        self._changed()

    def give_up(self, about: str, id: str) -> None:
        """Begin to end what goes on on an item, which undoes what it has begun; forget what has failed."""
        key = about, id
        if (task := self._tasks.get(key)) is None:
            self._underway.pop(key, None)
        else:
            self._underway[key] = replace(self._underway[key], doing="stop")
            task.cancel()
        self._changed()

    async def close(self) -> None:
        """End everything that goes on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _act(self, key: Key, request: Mapping[str, Any]) -> None:
        doing = self._underway[key].doing
        error: str | None = None
        try:
            await self._do(request, lambda line: self._tell(key, line), SECONDS[doing], self._folder)
        except asyncio.CancelledError:
            pass  # it was given up, and all of it is undone
        except NbdistError as failed:
            error = str(failed)
        except Exception as failed:
            log.exception("nbdist: %s %s of %s has failed", doing, *key[::-1])
            error = f"{type(failed).__name__}: {failed}"
        finally:
            del self._tasks[key]
        if error is None:
            del self._underway[key]
        else:
            self._underway[key] = self._underway[key].failed(error)
            self._forget_oldest()
        self._changed()

    def _tell(self, key: Key, line: str) -> None:
        self._underway[key] = self._underway[key].told(line)
        self._changed()

    def _forget_oldest(self) -> None:
        failed = [key for key, one in self._underway.items() if one.error is not None]
        for key in failed[:-MOST_FAILED]:
            del self._underway[key]
