"""A timeline that shows itself: a chart and a table in a notebook, and files of it.

run.timeline()                         # in a notebook: the chart
run.timeline(steps=4).save("steps.png", theme="dark")
nb.timeline("261120-091512-mnist")     # of a run of another day
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.metrics.timeline import Timeline
from nbdist.run.backfill import stored
from nbdist.ui.timeline import gantt
from nbdist.ui.timeline.gantt import html, text

PICTURE_LIMIT = 45_000  # bytes in a notebook, where it stands twice and grows by a third as base64
SUFFIXES = (".png", ".svg", ".json")


class TimelineView(Timeline):
    """What `Run.timeline` returns in a notebook or a script; drawn on demand.

    ``theme`` is "light" or "dark", for the page that it is shown on.
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
                f"{path.name!r} has no format: a timeline is saved as a chart (.png, .svg) or as a Chrome "
                "trace (.json)"
            )
        if path.suffix == ".json":
            return super().save(path)
        path.write_bytes(self.svg(theme) if path.suffix == ".svg" else self.png(theme))
        return path

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        png = base64.b64encode(gantt.png(self, self.theme, PICTURE_LIMIT)).decode("ascii")
        return {"image/png": png, "text/html": html(self, png), "text/plain": text(self)}

    def __str__(self) -> str:
        return text(self)


def timeline(run: str | None = None, step: int | None = None, steps: int = 1) -> TimelineView:
    """Return the timeline of a run that is over, by its id, whether its cluster is there or not.

    Without an id it is the latest run that trained. Otherwise as `Run.timeline`. Runs in the client.
    """
    return stored(run, step, steps, TimelineView)
