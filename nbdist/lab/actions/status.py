"""What a page has begun and what came of it, as the items that it is about show it. Decides only.

A cluster that starts is an item at once, before there is a file of it. What went wrong stays with its item
until the next action on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Item = dict[str, Any]
STATES = {"start": "starting", "stop": "stopping"}
"""The state of a cluster while this is done to it."""


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
"""Why something else cannot be done meanwhile."""


@dataclass(frozen=True)
class Underway:
    """One action on one item: what is done, how far it is, and how it went wrong, if it did."""

    about: str
    """The list that the item is in: "clusters", "runs" or "sweeps"."""
    id: str
    doing: str
    since: float
    asked: dict[str, Any] = field(default_factory=dict)
    """Of a cluster that starts: what it is to be."""
    lines: tuple[str, ...] = ()
    error: str | None = None
    """What went wrong; None while it goes on."""

    @property
    def why(self) -> str:
        """Why nothing else can be done to the item now."""
        return DOING[self.doing]

    def told(self, line: str, most: int = 40) -> Underway:
        """Return this with another line of its progress, the oldest ones left out."""
        return replace(self, lines=(*self.lines, line)[-most:])

    def failed(self, error: str) -> Underway:
        """Return this, ended by an error."""
        return replace(self, error=error)


def merged(name: str, items: Iterable[Item], underway: Sequence[Underway]) -> list[Item]:
    """Return a list's items with what is under way on them; clusters that start, or did not, join them."""
    mine = {one.id: one for one in underway if one.about == name}
    result = [shown(item, mine.pop(item["id"])) if item["id"] in mine else item for item in items]
    return result + [starting(one) for one in mine.values() if one.asked]


def shown(item: Item, one: Underway) -> Item:
    """Return an item as it is while something is done to it, or after that has failed."""
    if one.error is not None:
        line = {"error_line": None} if "error_line" in item else {}  # of a run's own end
        return {**item, "error": one.error, **line}
    can = {wish: wish == "stop" and one.doing == "start" for wish in item["can"]}
    changed = {**item, "can": can, "why": {wish: one.why for wish, may in can.items() if not may}}
    if one.about == "clusters":
        changed |= {"state": STATES.get(one.doing, item["state"]), "lines": list(one.lines)}
        if (
            one.doing == "start" and one.asked
        ):  # its file is there before its tasks are in it: what it will have is what was asked for
            changed |= counts(one)
    return changed


def starting(one: Underway) -> Item:
    """Return the item of a cluster of which there is no file yet, or none any more, for it did not start.

    >>> item = starting(Underway("clusters", "a", "start", 1.0, {"workers": 2, "ps": 1, "launcher": "local"}))
    >>> item["state"], item["engines"]
    ('starting', 3)
    """
    why = one.why if one.error is None else "it did not start"
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
        "attach": attach_code(one.id),
        # A start can be given up, and one that failed dismissed: both by stopping it.
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


def counts(one: Underway) -> Item:
    """Return how many workers, parameter servers and engines a new cluster is to have."""
    workers, ps = int(one.asked["workers"]), int(one.asked["ps"])
    return {"workers": workers, "ps": ps, "engines": workers + ps}
