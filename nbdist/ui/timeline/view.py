"""Displays a timeline in a notebook as a chart and a table, and saves it to a file.

run.timeline()                         # in a notebook: the chart
run.timeline(steps=4).save("steps.png", theme="dark")
nb.timeline("261120-091512-mnist")     # of an earlier run
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.metrics.timeline import Timeline
from nbdist.run.values.backfill import stored
from nbdist.ui.timeline import gantt
from nbdist.ui.timeline.gantt import html, text

PICTURE_LIMIT = 45_000  # bytes of the PNG, which a notebook stores twice, in base64
SUFFIXES = (".png", ".svg", ".json")


class TimelineView(Timeline):
    """The result of `Run.timeline`; drawn on demand.

    ``theme`` is "light" or "dark", to match the page.
    """

    theme = "light"

    def png(self, theme: str | None = None) -> bytes:
        """Return the chart as a PNG."""
        return gantt.png(self, theme or self.theme)

    def svg(self, theme: str | None = None) -> bytes:
        """Return the chart as an SVG."""
        return gantt.svg(self, theme or self.theme)

    def save(self, path: str | Path, theme: str | None = None) -> Path:
        """Write the chart (.png, .svg) or the Chrome trace (.json) to ``path``; returns the path."""
        path = Path(path)
        if path.suffix not in SUFFIXES:
            raise InvalidArgumentError(
                f"{path.name!r} has no format: use .png or .svg for a chart, .json for a Chrome trace"
            )
        if path.suffix == ".json":
            return super().save(path, theme)
        path.write_bytes(self.svg(theme) if path.suffix == ".svg" else self.png(theme))
        return path

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        png = base64.b64encode(gantt.png(self, self.theme, PICTURE_LIMIT)).decode("ascii")
        return {"image/png": png, "text/html": html(self, png), "text/plain": text(self)}

    def __str__(self) -> str:
        return text(self)


def timeline(run: str | None = None, step: int | None = None, steps: int = 1) -> TimelineView:
    """Return the timeline of a finished run by its id, also after its cluster has stopped.

    None is the latest run that trained. Otherwise as `Run.timeline`. Runs in the client.
    """
    return stored(run, step, steps, TimelineView)
