"""A run's last output, which stays in the notebook: picture, table, text and data, with no kernel behind.

`frozen(store, summary)` returns a MIME bundle of less than 150 kB, whatever the run was:

- ``image/png``: the curves, where there are any
- ``text/html``: the same picture, small tables, and what each task printed; all of it escaped
- ``text/plain``: the tables and the output as text
- ``application/vnd.nbdist.run+json``: the summary and the curves, thinned (see rundata.py); a cell that
  trained nothing has none, and shows its output

A note marks each place where content was cut.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbdist.ui.chartplan import plan_charts
from nbdist.ui.figure import columns_of, picture
from nbdist.ui.frozenhtml import html
from nbdist.ui.frozentext import text
from nbdist.ui.rundata import MOST_MARKS, run_data, size
from nbdist.ui.shorten import Room, well_formed
from nbdist.ui.summary import Summary, axis_words, is_plain

if TYPE_CHECKING:
    from nbdist.metrics.store import RunStore

RUN = "application/vnd.nbdist.run+json"
# Bytes in a notebook file. The picture is stored twice, and base64 makes it a third larger; so do the limits
# of the other parts. The curves have the rest.
LARGEST = 148_000
PICTURE_LIMIT = 32_000
BESIDE_A_PICTURE = Room(error=4_000, metrics=2_500, rows=3_000, outputs=7_000)
ALONE = Room(error=15_000, metrics=3_000, rows=6_000, outputs=32_000)


def frozen(store: RunStore, summary: Summary, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the MIME bundle of a run that is over; ``wanted`` names its charts, as ``--live`` does."""
    charts = plan_charts(store.series, wanted) or plan_charts(store.series)
    axis = axis_words(summary.unit, len(summary.tasks))
    png = None
    if charts:
        png = picture(
            store, charts, summary.tasks, limit=PICTURE_LIMIT, axis=axis, marks=summary.marks[:MOST_MARKS]
        )
    room = BESIDE_A_PICTURE if png else ALONE
    encoded = None if png is None else base64.b64encode(png).decode("ascii")
    bundle: dict[str, Any] = {} if encoded is None else {"image/png": encoded}
    bundle["text/html"] = well_formed(html(summary, encoded, room, columns_of(len(charts))))
    bundle["text/plain"] = well_formed(text(summary, room))
    if charts or not is_plain(summary):
        data = run_data(store, charts, summary, limit=LARGEST - size(bundle))
        bundle[RUN] = well_formed(data)
    return bundle
