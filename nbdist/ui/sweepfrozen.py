"""A sweep's last output, which stays in the notebook: picture, table, text and data, with no kernel behind.

`frozen_sweep(sweep)` returns a MIME bundle of less than 150 kB, whatever the sweep was:

- ``image/png``: its charts, if a trial has a value
- ``text/html``: the same picture, the best trials, what failed first; all of it escaped
- ``text/plain``: the same as text
- ``application/vnd.nbdist.sweep+json``: a snapshot as the grid takes it, thinned (see sweepfrozendata.py)
"""

from __future__ import annotations

import base64
from html import escape
from typing import Any

from nbdist.ui.frozenhtml import PICTURE_WIDTH, line, rows_table
from nbdist.ui.frozentext import rows_text
from nbdist.ui.shorten import clip, shorten, well_formed
from nbdist.ui.sweepfigure import picture
from nbdist.ui.sweepfrozendata import size, trial_data, with_curves
from nbdist.ui.sweephead import SweepSeen
from nbdist.ui.sweepsummary import SweepSummary, summary_of

SWEEP = "application/vnd.nbdist.sweep+json"
LIMIT = 147_000  # bytes in a notebook file, with some left for what is around them
DATA_LIMIT = 30_000  # without the curves, which have the room that is left at the end
PICTURE_LIMIT = 34_000  # counts twice, and grows by a third as base64
ERROR_LIMIT, FAILURE_LIMIT, ROWS_LIMIT = 1_500, 1_500, 3_500
LEAST_WIDTH = 560  # CSS pixels: less cannot be read, a page can be scrolled


def frozen_sweep(sweep: SweepSeen) -> dict[str, Any]:
    """Return the MIME bundle of a sweep; called with its lock held."""
    summary = summary_of(sweep)
    png = picture(sweep.ledger, PICTURE_LIMIT)
    encoded = None if png is None else base64.b64encode(png).decode("ascii")
    bundle: dict[str, Any] = {} if encoded is None else {"image/png": encoded}
    bundle["text/html"] = well_formed(sweep_html(summary, encoded))
    bundle["text/plain"] = well_formed(sweep_text(summary))
    data = bundle[SWEEP] = well_formed(trial_data(sweep, DATA_LIMIT))
    bundle[SWEEP] = well_formed(with_curves(data, sweep.ledger, LIMIT - size(bundle)))
    return bundle


def sweep_html(summary: SweepSummary, picture: str | None) -> str:
    """Return the HTML: plain elements and few styles, since untrusted notebooks keep no others."""
    named = f" &nbsp; <small>{line(summary.id)}</small>" if summary.id not in ("", summary.name) else ""
    parts = [f"<p><strong>{line(summary.name)}</strong> &nbsp; {line(summary.headline, 400)}{named}</p>"]
    if summary.error:
        parts.append(f"<pre>{escape(shorten(summary.error, ERROR_LIMIT, escape))}</pre>")
    if picture is not None:
        parts.append(
            f'<p><img alt="Charts of {line(summary.name)}: {line(summary.headline, 200)}" '
            f'src="data:image/png;base64,{picture}" '
            f'style="width:100%; min-width:{LEAST_WIDTH}px; max-width:{PICTURE_WIDTH}px; height:auto"></p>'
        )
    parts.append(f"<p>{line(standing(summary), 200)}</p>")
    parts.append(rows_table(summary.rows, ROWS_LIMIT))
    if summary.failed is not None:
        error = escape(shorten(summary.failed.error, FAILURE_LIMIT, escape))
        parts.append(f"<p>{line(first_failure(summary), 200)}</p><pre>{error}</pre>")
    return "\n".join(part for part in parts if part)


def sweep_text(summary: SweepSummary) -> str:
    """Return the plain text: what a terminal, a diff or a search sees."""
    named = f"  ({clip(summary.id)})" if summary.id not in ("", summary.name) else ""
    parts = [f"{clip(summary.name)}  {clip(summary.headline, 400)}{named}"]
    if summary.error:
        parts.append(shorten(summary.error, ERROR_LIMIT))
    parts.append(standing(summary))
    parts.append(rows_text(summary.rows, ROWS_LIMIT))
    if summary.failed is not None:
        parts.append(f"{first_failure(summary)}\n{shorten(summary.failed.error, FAILURE_LIMIT)}".rstrip())
    return "\n\n".join(part for part in parts if part)


def standing(summary: SweepSummary) -> str:
    """Return how many trials ended how, and what the table shows."""
    if not summary.counts:
        return "no trial was asked for"
    what = "the best trials:" if summary.finished else "no trial finished; those with a value:"
    return f"{summary.counts}; {what}" if summary.rows else f"{summary.counts}; none has a value"


def first_failure(summary: SweepSummary) -> str:
    """Return what failed first, and how many did."""
    number = summary.failed.number if summary.failed else -1
    return f"trial {number} failed first, of {summary.failures:,}:" if summary.failures > 1 else (
        f"trial {number} failed:"
    )  # fmt: skip
