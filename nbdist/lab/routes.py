"""All our routes, in one table."""

from __future__ import annotations

import re
from typing import Any

from nbdist.lab.handling import NoSuchRoute
from nbdist.lab.reading import About, CurrentState, OneFile, OneRun, OneSweep
from nbdist.lab.stream import Stream

API = "nbdist/api/v1"
ID = "([^/]+)"

TABLE: tuple[tuple[str, type[Any]], ...] = (
    ("/?", About),
    ("/state", CurrentState),
    ("/stream", Stream),
    (f"/runs/{ID}(/data)?", OneRun),
    (f"/runs/{ID}/files/(.+)", OneFile),
    (f"/sweeps/{ID}(/data)?", OneSweep),
)


def routes(base: str) -> list[tuple[str, type[Any]]]:
    """Return patterns and handlers below a server's base address, as tornado takes them."""
    start = re.escape(base.rstrip("/") + "/")
    return [
        *((start + API + path, handler) for path, handler in TABLE),
        (start + "nbdist/api(?:/.*)?", NoSuchRoute),
    ]
