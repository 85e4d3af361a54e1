"""Shows the objects that a run's tasks display, as outputs of the cell: `DisplayedObjects`.

worker 0, worker 1        the heading: the tasks that have displayed this very object
[figure]                  an output of its own, so that the front end's rules for trust apply to its HTML,
                          and the notebook file has it in a form that opens anywhere
"""

from __future__ import annotations

import uuid
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from html import escape
from pathlib import Path

from IPython import display as ipython
from IPython.core.getipython import get_ipython

from nbdist.run.displays import DISPLAYS_FOLDER, Displayed
from nbdist.text import clip
from nbdist.ui.frozen.summary import short_task

MOST_SHOWN = 500  # objects of one run in one cell
SHOWN_LIMIT = 48 << 20  # characters of them: what the notebook's file gets
MOST_NAMED = 8  # tasks in a heading; more are counted


@dataclass
class _Shown:
    """An object in the cell, and the tasks that have displayed it."""

    id: str
    digest: str
    tasks: list[str] = field(default_factory=list)


class DisplayedObjects:
    """The objects of one run in one cell. Calls come from one thread at a time.

    ``folder`` is the run's, which has the objects that the cell does not show.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._cell = folder, uuid.uuid4().hex[:12]
        # ipykernel finds the cell of an output by a context variable, and without one takes the newest cell:
        # the wrong one for a run in the background.
        self._context = copy_context()
        self._count = 0
        self._shown: dict[str, _Shown] = {}  # by key
        self._equal: dict[str, _Shown] = {}  # by digest, of objects without updates
        self._size = 0
        self._is_full = False

    def show(self, task: str, shown: Displayed) -> None:
        """Show an object under its task's name; one of a known key is its new state.

        Equal objects of several tasks are shown once, under all their names. Outside a notebook the object's
        text is printed.
        """
        label = short_task(task)
        digest = sha256(repr(sorted(shown.data.items())).encode("utf-8", "replace")).hexdigest()
        known = self._shown.get(shown.key)
        if known is not None and known.digest == digest:
            return
        if getattr(get_ipython(), "kernel", None) is None:
            self._shown[shown.key] = _Shown("", digest)
            print(f"[{label}] {shown.data.get('text/plain', '')}")
            return
        if known is not None and known.tasks == [label]:
            if self._equal.get(known.digest) is known:
                del self._equal[known.digest]
            known.digest = digest
            self._publish(shown.data, known.id, update=True)
            return
        equal = self._equal.get(digest) if not shown.name else None  # those with names may change, each alone
        if equal is not None and label not in equal.tasks:
            equal.tasks.append(label)
            self._shown[shown.key] = equal
            self._head(equal, update=True)
            return
        if not self._has_room(shown.size):
            return
        self._count += 1
        new = _Shown(f"{self._cell}-{self._count}", digest, [label])
        self._shown[shown.key] = new
        if not shown.name:
            self._equal[digest] = new
        self._head(new)
        self._publish(shown.data, new.id)

    def _head(self, shown: _Shown, update: bool = False) -> None:
        names = heading(shown.tasks)
        data = {"text/plain": f"{names}:", "text/html": f"<small>{escape(names)}</small>"}
        self._publish(data, f"{shown.id}-head", update)

    def _publish(self, data: dict[str, str], name: str, update: bool = False) -> None:
        publish = partial(ipython.publish_display_data, data, transient={"display_id": name}, update=update)
        self._context.run(publish)

    def _has_room(self, size: int) -> bool:
        """Whether another object is shown; the first that is not leaves a sentence."""
        self._size += size
        if self._size <= SHOWN_LIMIT and self._count < MOST_SHOWN:
            return True
        if not self._is_full:
            self._is_full = True
            what = f"{MOST_SHOWN:,} objects" if self._size <= SHOWN_LIMIT else f"{SHOWN_LIMIT >> 20} MiB"
            folder = self._folder / DISPLAYS_FOLDER
            words = f"[this cell shows {what} of its tasks; others are in {folder} and on the run's page]"
            html = f"<small>{escape(words)}</small>"
            self._publish({"text/plain": words, "text/html": html}, f"{self._cell}-full")
        return False


def heading(tasks: list[str]) -> str:
    """Return the names of tasks in one line.

    >>> heading(["worker 0", "worker 1"]), heading([f"worker {n}" for n in range(20)])[-26:]
    ('worker 0, worker 1', 'worker 7 and 12 more tasks')
    """
    more = f" and {len(tasks) - MOST_NAMED} more tasks" if len(tasks) > MOST_NAMED else ""
    return ", ".join(clip(task, 40) for task in tasks[:MOST_NAMED]) + more
