"""How a timeline looks on a light and on a dark page: each kind has a colour, a shade and a hatching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nbdist.errors import InvalidArgumentError, choices
from nbdist.ui.palette import FAN, GRID, INK, MUTED, PAPER, REPLICAS, TRAIN, VALIDATION

HATCHES: Mapping[str, str] = {
    "data": "----",
    "compute": "",
    "send": "/////",
    "receive": "\\\\\\\\\\",
    "wait": "",
    "apply": "xxxxx",
    "drop": "+++++",
}


@dataclass(frozen=True)
class Theme:
    """The colours of a page, and of the kinds of spans on it."""

    ink: str
    muted: str
    grid: str
    paper: str
    arrow: str
    faint: str
    stripes: str
    kinds: Mapping[str, str]


THEMES: Mapping[str, Theme] = {
    "light": Theme(
        INK, MUTED, GRID, PAPER, MUTED, FAN, "#ffffff70",
        {"data": REPLICAS[3], "compute": TRAIN, "send": VALIDATION, "receive": REPLICAS[4],
         "wait": "#dcdfe4", "apply": REPLICAS[1], "drop": REPLICAS[5]},
    ),
    "dark": Theme(
        "#eceef2", "#a3a9b4", "#2b2e36", "#16181d", "#c3c8d1", "#6d7482", "#16181d80",
        {"data": "#cdb95a", "compute": "#62a8ee", "send": "#f2994e", "receive": "#4fc1cd",
         "wait": "#3b404a", "apply": "#b893f2", "drop": "#ef7d72"},
    ),
}  # fmt: skip


def theme_of(name: str) -> Theme:
    """Return a theme by its name."""
    if name not in THEMES:
        raise InvalidArgumentError(f"no theme {name!r}; {choices(name, THEMES)}")
    return THEMES[name]
