"""A run's last output, which stays in the notebook: picture, table, text and data, with no kernel behind.

`frozen(store, summary)` returns a MIME bundle of less than 150 kB, whatever the run was:

- ``image/png``: the curves, where there are any
- ``text/html``: the same picture, small tables, and what each task printed; all of it escaped
- ``text/plain``: the tables and the output as text
- ``application/vnd.nbdist.run+json``: the summary and the curves, thinned (see rundata.py)

What had to be cut is said where it is missing.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbdist.ui.chartplan import plan_charts
from nbdist.ui.figure import columns_of, picture
from nbdist.ui.frozenhtml import html
from nbdist.ui.frozentext import text
from nbdist.ui.rundata import run_data
from nbdist.ui.shorten import Room
from nbdist.ui.summary import Summary, axis_words

if TYPE_CHECKING:
    from nbdist.metrics.store import RunStore

RUN = "application/vnd.nbdist.run+json"
# Bytes, of 150,000 in all. The picture counts twice, and grows by a third as base64; so do the rooms.
PICTURE_LIMIT = 32_000
DATA_LIMIT = 18_000
BESIDE_A_PICTURE = Room(error=4_000, metrics=2_500, rows=3_000, outputs=7_000)
ALONE = Room(error=15_000, metrics=3_000, rows=6_000, outputs=32_000)


def frozen(store: RunStore, summary: Summary, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the MIME bundle of a run that is over; ``wanted`` names its charts, as ``--live`` does."""
    charts = plan_charts(store.series, wanted) or plan_charts(store.series)
    axis = axis_words(summary.unit, len(summary.tasks))
    png = picture(store, charts, summary.tasks, limit=PICTURE_LIMIT, axis=axis) if charts else None
    room = BESIDE_A_PICTURE if png else ALONE
    encoded = None if png is None else base64.b64encode(png).decode("ascii")
    bundle = {
        "text/html": html(summary, encoded, room, columns_of(len(charts))),
        "text/plain": text(summary, room),
        RUN: run_data(store, charts, summary, limit=DATA_LIMIT),
    }
    return bundle if encoded is None else {"image/png": encoded, **bundle}
