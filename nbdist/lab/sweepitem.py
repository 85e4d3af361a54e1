"""A sweep as the panel shows it: how far it is and what was best, as plain JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nbdist.lab.pace import rounded
from nbdist.lab.record import mapping, number, text
from nbdist.lab.runitem import LONGEST_NAME, again, attach_code, shortened
from nbdist.sweep.ledger import Ledger
from nbdist.sweep.trial import STATES
from nbdist.ui.jsonable import jsonable
from nbdist.ui.sweephead import ended_at

MOST = 60  # points of a curve
MOST_PARAMETERS = 50
DIGITS = 6
OVER = ("finished", "stopped", "failed")
DONE = (*OVER, "damaged")
WISHES = ("pause", "resume", "stop")


def item_of(
    sweep: str,
    name: str,
    ledger: Ledger,
    state: str,
    holder: int | None,
    about: Mapping[str, Any],
    reason: str,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the item of a sweep; ``holder`` is the process that has it, ``about`` its sweep.json."""
    created, best = ledger.created, ledger.best
    owner, why = mapping(about.get("owner")), why_not(sweep, state, holder, bool(ledger.closed))
    session = text(owner.get("session")) if holder in (None, owner.get("pid")) else ""
    notes = [
        *(["no process drives it any more"] if holder is None and state in ("lost", "paused") else []),
        *notes,
    ]
    return {
        "id": sweep,
        "name": name[:LONGEST_NAME],
        "state": state,
        "created": number(created.time) or 0.0,
        "metric": text(created.metric),
        "direction": created.direction,
        "wanted": ledger.wanted + len(ledger.trials) - ledger.sampled,  # clones are wanted as well
        "counts": dict(ledger.counts),
        "best": None if best is None else {
            "number": best.number,
            "value": jsonable(ledger.best_value),
            "parameters": jsonable(dict(list(best.parameters.items())[:MOST_PARAMETERS])),
        },
        "curve": best_so_far(ledger),
        "cluster": text(about.get("cluster")) or None,
        "session": session,
        "note": "; ".join(notes) or None,
        "error": shortened(reason) if state == "failed" else None,
        "attach": attach_code(sweep),
        "can": {wish: wish not in why for wish in WISHES},
        "why": why,
    }  # fmt: skip


def broken_item(sweep: str, name: str, why: str, about: Mapping[str, Any], changed: float) -> dict[str, Any]:
    """Return the item of a sweep whose log, last ``changed`` then, cannot be read."""
    return {
        "id": sweep,
        "name": name[:LONGEST_NAME],
        "state": "damaged",
        "created": changed,
        "metric": "",
        "direction": "max",
        "wanted": None,
        "counts": dict.fromkeys(STATES, 0),
        "best": None,
        "curve": {"x": [], "y": []},
        "cluster": text(about.get("cluster")) or None,
        "session": "",
        "note": None,
        "error": shortened(why),
        "attach": attach_code(sweep),
        "can": dict.fromkeys(WISHES, False),
        "why": dict.fromkeys(WISHES, "its log cannot be read"),
    }


def why_not(sweep: str, state: str, holder: int | None, closed: bool) -> dict[str, str]:
    """Return what cannot be wished of a sweep, and why; its log has one writer, who has to be there.

    >>> why_not("s1", "running", 42, closed=False)
    {'resume': 'it is not paused'}
    >>> why_not("s1", "lost", None, closed=False)["stop"]
    "no process drives it any more: nb.attach('s1') takes it over"
    """
    if state in OVER:
        return dict.fromkeys(WISHES, "it has ended")
    if holder is None:
        return dict.fromkeys(WISHES, f"no process drives it any more: {again(sweep)} takes it over")
    if closed:
        return dict.fromkeys(WISHES, "it is being stopped: its last trials end")
    return {"pause": "it is paused"} if state == "paused" else {"resume": "it is not paused"}


def best_so_far(ledger: Ledger) -> dict[str, list[float]]:
    """Return the best value by seconds since the sweep began: at most sixty points, the newest among them."""
    began = ledger.created.time
    points = [
        (round(at - began, 3), value)
        for at, _, value in ledger.improvements
        if math.isfinite(value) and math.isfinite(at - began)
    ]
    if points and math.inf > (end := round(ended_at(ledger) - began, 3)) > points[-1][0]:
        points.append((end, points[-1][1]))
    if len(points) > MOST:
        last = len(points) - 1
        points = [points[index * last // (MOST - 1)] for index in range(MOST)]
    return {"x": [at for at, _ in points], "y": [rounded(value, DIGITS) for _, value in points]}
