"""All our routes, in one table."""

from __future__ import annotations

import re
from typing import Any

from nbdist.lab import tensorboardproxy
from nbdist.lab.acting import (
    Cleaning,
    ClusterWish,
    NewCluster,
    OneCluster,
    RunBoard,
    RunCommand,
    RunLabels,
    SweepWish,
)
from nbdist.lab.handling import NoSuchRoute
from nbdist.lab.reading import About, CurrentState, OneFile, OneRun, OneSweep
from nbdist.lab.stream import Stream
from nbdist.lab.tensorboard import Boards

API = "nbdist/api/v1"
ID = "([^/]+)"

TABLE: tuple[tuple[str, type[Any]], ...] = (
    ("/?", About),
    ("/state", CurrentState),
    ("/stream", Stream),
    ("/clusters", NewCluster),
    (f"/clusters/{ID}", OneCluster),
    (f"/clusters/{ID}/(grow|shrink|restart)", ClusterWish),
    (f"/runs/{ID}(/data)?", OneRun),
    (f"/runs/{ID}/(stop|pause|resume|set)", RunCommand),
    (f"/runs/{ID}/labels", RunLabels),
    ("/clean", Cleaning),
    (f"/runs/{ID}/files/(.+)", OneFile),
    (f"/runs/{ID}/tensorboard", RunBoard),
    (f"/sweeps/{ID}(/data)?", OneSweep),
    (f"/sweeps/{ID}/(stop|pause|resume)", SweepWish),
)


def routes(base: str, boards: Boards) -> list[tuple[Any, ...]]:
    """Return patterns and handlers below a server's base address, as tornado takes them."""
    start = re.escape(base.rstrip("/") + "/")
    return [
        *((start + API + path, handler) for path, handler in TABLE),
        *((start + path, *rest) for path, *rest in tensorboardproxy.handlers(boards)),
        (start + "nbdist(?:/.*)?", NoSuchRoute),
    ]
