"""A cluster's item for the sidebar, made of what was seen. Decides only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nbdist.lab.clusterfile import Description
from nbdist.lab.underway import attach_code
from nbdist.lab.watched import Seen

Item = dict[str, Any]
NOT_RUNNING = {
    "starting": "it is starting",
    "stopping": "it is being stopped",
    "failed": "what it is cannot be read",
    "stale": "its processes have ended",
}


def our_item(seen: Seen, here: Mapping[str, str], runs: Iterable[str] = ()) -> Item:
    """Return the item of a cluster of ours; ``here`` are the versions that can talk to it.

    ``runs`` go on on it beside those that its tasks tell of.
    """
    description = seen.description or Description(None, 0, 0, "local", ())
    owner = description.owner
    can, why = possible(seen, here)
    return {
        "id": seen.id,
        "kind": "nbdist",
        "title": seen.id,
        "state": seen.state,
        "launcher": description.launcher,
        "workers": description.workers,
        "ps": description.ps,
        "engines": len(description.tasks) - len(seen.dead) if seen.state != "stale" else 0,
        "created": seen.created,
        "owner": None
        if owner is None
        else {"pid": owner.pid, "session": owner.session, "alive": seen.owner_alive},
        "detached": owner is None,
        "dead": [task.short for task in description.tasks if task.rank in seen.dead],
        "runs": list(dict.fromkeys([*seen.runs, *runs])),
        "attach": attach_code(seen.id),
        "can": can,
        "why": why,
        "lines": [],
        "error": seen.error,
    }


def possible(seen: Seen, here: Mapping[str, str]) -> tuple[dict[str, bool], dict[str, str]]:
    """Return what can be done to a cluster, and why the rest cannot."""
    reason = NOT_RUNNING.get(seen.state)
    theirs = seen.description.versions if seen.description is not None else {}
    if reason is None and theirs != here:
        other = next((name for name in here if theirs.get(name) != here[name]), "nbdist")
        reason = (
            f"it runs {other} {theirs.get(other, '?')}, and the Jupyter server {here.get(other, '?')}: "
            "use a notebook with its environment"
        )
    why = {} if reason is None else {"grow": reason, "shrink": reason, "restart": reason}
    if seen.description is not None and seen.description.launcher == "mpi":
        why.setdefault("grow", "an MPI world cannot add processes: start a new cluster")
        why.setdefault("shrink", "an MPI world cannot remove processes: start a new cluster")
    if seen.description is not None and seen.description.workers < 2:
        why.setdefault("shrink", "its only worker, the chief, cannot be removed")
    if seen.state == "stopping":
        why["stop"] = NOT_RUNNING["stopping"]
    return {wish: wish not in why for wish in ("stop", "grow", "shrink", "restart")}, why
