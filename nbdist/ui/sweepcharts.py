"""What the charts of a sweep's picture have in common: a quiet frame, labels, a legend, a bar of colours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.ui.figure import LARGEST
from nbdist.ui.palette import GRID, INK, MUTED, PAPER
from nbdist.ui.shorten import clip
from nbdist.ui.sweepaxes import Axis
from nbdist.ui.sweepramp import RAMP, Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def frame(axes: Axes, title: str) -> None:
    """Give a panel its title and a quiet frame."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK, parse_math=False)
    axes.set_facecolor(PAPER)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)


def within(axes: Axes, values: Any) -> None:
    """Leave what is far off outside, so that one trial that diverged does not flatten all others."""
    finite = values[np.isfinite(values)]
    if len(finite) < 8:
        return
    low, middle, high = np.quantile(finite, [0.05, 0.5, 0.95])
    reach = 4 * max(high - low, 1e-12)
    bottom, top = axes.get_ylim()
    inside = finite[(finite >= middle - reach) & (finite <= middle + reach)]
    if len(inside) < len(finite) and bottom < top < LARGEST:
        room = 0.14 * max(float(inside.max() - inside.min()), 1e-12)
        axes.set_ylim(float(inside.min()) - room, float(inside.max()) + room)


def ticks_on(put: Callable[..., Any], axis: Axis) -> None:
    """Put an axis's labels where they belong; what a user named is no formula."""
    ticks = axis.ticks()
    put([place for place, _ in ticks], [text for _, text in ticks], parse_math=False)


def legend(axes: Axes, *keys: Any, **style: Any) -> None:
    """Add a small legend."""
    found = axes.legend(
        *keys, fontsize=7.5, frameon=True, framealpha=0.85, edgecolor="none", labelcolor=MUTED,
        handlelength=1.4, borderpad=0.2, columnspacing=1.0, **style,
    )  # fmt: skip
    for text in found.get_texts():
        text.set_parse_math(False)


def colour_bar(axes: Axes, scale: Scale, name: str) -> None:
    """Say what the colours mean."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    low, high = scale.ends
    if not low < high:
        return
    ramp = RAMP if scale.direction == "max" else RAMP[::-1]
    bar = axes.figure.colorbar(
        ScalarMappable(Normalize(low, high), ListedColormap(list(ramp))), ax=axes, fraction=0.05, pad=0.02
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=7.5, labelcolor=MUTED)
    bar.set_label(clip(name, 30), fontsize=8, color=MUTED, parse_math=False)
