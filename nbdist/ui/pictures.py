"""The histograms and images of a run's summaries, for the live view and the saved output.

    entries = entries_of(run.gallery)
    entries[0]   # {"task": "worker 0", "tag": "weights", "kind": "histogram",
                 #  "items": [{"step": 10, "low": -1.2, "high": 0.9, "counts": "1 4 2"}]}
    entries[1]   # {"task": "worker 0", "tag": "digits", "kind": "image",
                 #  "items": [{"step": 10, "png": "iVBORw0..."}]}                       one item an image

Counts are text because a notebook file puts each item of a list on a line of its own. Buckets have one width.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from nbdist.summary.pictures import HISTOGRAM, Gallery, Picture, smaller
from nbdist.text import clip
from nbdist.ui.frozen.summary import short_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Entries = list[dict[str, Any]]
SIDES = (320, 160, 96, 48)  # pixels of images, tried in this order to save room
SAVED_LIMIT = 24_000  # bytes of a saved output, in its data and in its HTML each
DRAWN_LIMIT = 14_000  # bytes of the picture of all histograms in the HTML
MOST_DRAWN = 6  # histograms in that picture
HEIGHT_OF_ONE, WIDTH_OF_ONE = 1.5, 2.6  # inches
RISE = 0.55  # of a ridge above the line of the next one, in distances between lines


def entries_of(gallery: Gallery) -> Entries:
    """Return what a page draws, an entry for each task and tag."""
    found = []
    for source, tag in gallery.names():
        pictures = gallery.of(source, tag)
        items = [item for picture in pictures for item in items_of(picture)]
        found.append({"task": short_task(source), "tag": tag, "kind": pictures[-1].kind, "items": items})
    return found


def items_of(picture: Picture) -> Entries:
    """Return the histogram, or each image, of a picture."""
    if picture.kind == HISTOGRAM:
        edges, counts = picture.arrays
        low, high = float(edges[0]), float(edges[-1])
        return [
            {"step": picture.step, "low": low, "high": high, "counts": " ".join(map(str, counts.tolist()))}
        ]
    encoded = [base64.b64encode(one.tobytes()).decode("ascii") for one in picture.arrays]
    return [{"step": picture.step, "png": one} for one in encoded]


def fewer(entries: Sequence[dict[str, Any]], limit: int = SAVED_LIMIT) -> Entries:
    """Return the entries in at most ``limit`` bytes of JSON: smaller images first, then fewer entries."""
    shown = [dict(entry) for entry in entries]
    for side in SIDES:
        if size(shown) <= limit:
            return shown
        for entry in shown:
            if entry["kind"] != HISTOGRAM:
                entry["items"] = [{**item, "png": resized(item["png"], side)} for item in entry["items"]]
    while shown and size(shown) > limit:
        if len(last := shown[-1]["items"]) > 1:
            shown[-1]["items"] = last[-max(1, len(last) // 2) :]
        else:
            shown.pop()
    return shown


def size(value: Any) -> int:
    """Return the size of a value in a notebook file, in bytes."""
    return len(json.dumps(value, indent=1))


def resized(encoded: str, side: int) -> str:
    """Return an image, a PNG in base64, with sides of at most ``side`` pixels."""
    return base64.b64encode(smaller(base64.b64decode(encoded), side, optimize=True)).decode("ascii")


def pictures_html(entries: Sequence[dict[str, Any]], limit: int = SAVED_LIMIT) -> str:
    """Return HTML with one picture of the histograms, and the images with their tags; "" for no entries."""
    histograms = [entry for entry in entries if entry["kind"] == HISTOGRAM]
    parts = []
    if histograms:
        png = base64.b64encode(drawn(histograms[:MOST_DRAWN])).decode("ascii")
        names = ", ".join(clip(entry["tag"], 40) for entry in histograms[:MOST_DRAWN])
        parts.append(f'<p><img alt="Histograms: {escape(names)}" src="data:image/png;base64,{png}"></p>')
    for entry in fewer([one for one in entries if one["kind"] != HISTOGRAM], limit - len("".join(parts))):
        images = "".join(
            f'<img alt="{escape(clip(entry["tag"], 60))}" src="data:image/png;base64,{item["png"]}" '
            'style="height:96px; image-rendering:pixelated; margin-right:6px">'
            for item in entry["items"]
        )
        parts.append(f"<p><small>{escape(title(entry))}</small><br>{images}</p>")
    return "\n".join(parts)


def title(entry: dict[str, Any]) -> str:
    """Return the tag, the task and the step of an entry."""
    return f"{clip(entry['tag'], 60)} · {clip(entry['task'], 24)} · step {entry['items'][-1]['step']:,}"


def drawn(histograms: Sequence[dict[str, Any]], limit: int = DRAWN_LIMIT) -> bytes:
    """Return one PNG with each histogram's ridges, of at most about ``limit`` bytes."""
    from matplotlib.figure import Figure

    from nbdist.ui.frozen.run_figure import PAPER, encode

    columns = min(3, len(histograms))
    rows = -(-len(histograms) // columns)
    shape = (WIDTH_OF_ONE * columns, HEIGHT_OF_ONE * rows)
    figure = Figure(figsize=shape, facecolor=PAPER, layout="constrained")
    for number, entry in enumerate(histograms):
        draw_ridges(figure.add_subplot(rows, columns, number + 1), entry)
    dots = 110.0
    while len(png := encode(figure, dots)) > limit and dots > 60:
        dots *= 0.85
    return png


def draw_ridges(axes: Axes, entry: dict[str, Any]) -> None:
    """Draw the histograms of a tag above one another, the newest in front."""
    import numpy as np

    from nbdist.ui.frozen.run_figure import INK, MUTED, PAPER, TRAIN

    items = entry["items"]
    counts = [np.array(item["counts"].split(), float) for item in items]
    most = max(float(one.max()) for one in counts) or 1.0
    for number, (item, heights) in enumerate(zip(items, counts, strict=True)):
        base = len(items) - 1 - number
        low, high = item["low"], item["high"]
        if low == high:
            low, high = low - 0.5, high + 0.5
        width = (high - low) / len(heights)
        xs = np.concatenate(([low], low + width * (np.arange(len(heights)) + 0.5), [high]))
        ys = base + (1 + RISE) * np.concatenate(([0], heights, [0])) / most
        axes.fill_between(xs, base, ys, facecolor=PAPER, zorder=number)
        axes.fill_between(xs, base, ys, facecolor=TRAIN, alpha=0.3, zorder=number + 0.3)
        axes.plot(xs, ys, color=TRAIN, linewidth=0.9, zorder=number + 0.6)
    axes.set_title(clip(entry["tag"], 34), loc="left", fontsize=8, color=INK, parse_math=False)
    axes.set_yticks([0, len(items) - 1] if len(items) > 1 else [0])
    steps = [items[-1]["step"], items[0]["step"]] if len(items) > 1 else [items[0]["step"]]
    axes.set_yticklabels([f"{step:,}" for step in steps])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=7, labelcolor=MUTED)
