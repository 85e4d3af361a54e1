"""How items show pending and failed actions. Pure.

A cluster that starts is an item at once, before it has a file. An error stays in its item until the next
action on it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nbdist.home import home_path

Item = dict[str, Any]
STATES = {"start": "starting", "stop": "stopping"}
"""The state of a cluster during these actions."""


DOING = {
    "start": "it is starting",
    "stop": "it is being stopped",
    "grow": "it is growing",
    "shrink": "it is shrinking",
    "restart": "tasks of it are being restarted",
    "pause": "it is being paused",
    "resume": "it is being resumed",
    "set": "its learning rate is being changed",
}
"""The reason why an item accepts no other command during an action."""


@dataclass(frozen=True)
class PendingAction:
    """A running or failed action on one item."""

    about: str
    """The list that the item is in: "clusters", "runs" or "sweeps"."""
    id: str
    doing: str
    since: float
    asked: dict[str, Any] = field(default_factory=dict)
    """The options of a cluster that starts."""
    lines: tuple[str, ...] = ()
    error: str | None = None
    """The error of a failed action; None while it runs."""

    @property
    def why(self) -> str:
        """The reason why the item accepts no other command."""
        return DOING[self.doing]

    def failed(self, error: str) -> PendingAction:
        """Return the action with an error."""
        return replace(self, error=error)


def merge_pending(name: str, items: Iterable[Item], pending: Sequence[PendingAction]) -> list[Item]:
    """Return items with their pending actions, and add clusters that start or failed to start."""
    mine = {one.id: one for one in pending if one.about == name}
    result = [shown(item, mine.pop(item["id"])) if item["id"] in mine else item for item in items]
    return result + [starting(one) for one in mine.values() if one.asked]


def shown(item: Item, one: PendingAction) -> Item:
    """Return an item during an action, or after the action has failed."""
    if one.error is not None:
        line = {"error_line": None} if "error_line" in item else {}  # of a run's own end
        return {**item, "error": one.error, **line}
    can = {command: command == "stop" and one.doing == "start" for command in item["can"]}
    changed = {**item, "can": can, "why": {command: one.why for command, may in can.items() if not may}}
    if one.about == "clusters":
        changed |= {"state": STATES.get(one.doing, item["state"]), "lines": list(one.lines)}
        if one.doing == "start" and one.asked:
            # Its file may exist without tasks yet: show the requested numbers.
            changed |= counts(one)
    return changed


def starting(one: PendingAction) -> Item:
    """Return the item of a cluster without a file: it has not written one yet, or it failed to start.

    >>> asked = {"workers": 2, "ps": 1, "launcher": "local"}
    >>> item = starting(PendingAction("clusters", "a", "start", 1.0, asked))
    >>> item["state"], item["engines"]
    ('starting', 3)
    """
    why = one.why if one.error is None else "it failed to start"
    return {
        "id": one.id,
        "kind": "nbdist",
        "title": one.id,
        "state": STATES[one.doing] if one.error is None else "failed",
        "launcher": one.asked["launcher"],
        **counts(one),
        "created": one.since,
        "owner": None,
        "detached": True,
        "dead": [],
        "runs": [],
        "hosts": [],
        "ends": None,
        "unused_ends": None,
        "attach": attach_code(one.id),
        # "stop" cancels a start, and dismisses one that failed.
        "can": {"stop": one.doing == "start", "grow": False, "shrink": False, "restart": False},
        "why": {
            "grow": why,
            "shrink": why,
            "restart": why,
            **({} if one.doing == "start" else {"stop": why}),
        },
        "lines": list(one.lines),
        "error": one.error,
    }


def attach_code(cluster: str) -> str:
    """Return the code that attaches a notebook to a cluster.

    >>> print(attach_code("20261121_010203_abcdef"))
    import nbdist as nb
    %load_ext nbdist
    %cluster attach 20261121_010203_abcdef
    """
    return f"import nbdist as nb\n%load_ext nbdist\n%cluster attach {cluster}"


def counts(one: PendingAction) -> Item:
    """Return the requested numbers of workers, parameter servers and engines; None for what hosts decide."""
    workers, ps = one.asked["workers"], int(one.asked["ps"])
    return {"workers": workers, "ps": ps, "engines": None if workers is None else workers + ps}


def disk_error(error: OSError) -> str:
    """Return the message for an error of a disk or folder: where, what, and what to do.

    >>> disk_error(OSError(28, "No space left on device", "/home/ada/nbdist"))
    '/home/ada/nbdist: No space left on device; make room there, or set NBDIST_HOME to another folder'
    """
    where = error.filename or home_path()
    first = "make room there, or " if error.errno == errno.ENOSPC else ""
    return f"{where}: {error.strerror or error}; {first}set NBDIST_HOME to another folder"
