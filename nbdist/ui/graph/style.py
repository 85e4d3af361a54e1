"""The styles of a graph's picture on light and dark pages: one table for SVG and PNG."""

from __future__ import annotations

from dataclasses import dataclass

from nbdist.ui.frozen.run_figure import FAN, INK, MUTED, PAPER, REPLICAS, TRAIN, VALIDATION

FONT = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif'
# name -> (on a light page, on a dark page); the dark ones are those of the live view.
COLOURS = {
    "ink": (INK, "#ececf0"),
    "muted": (MUTED, "#a2a2ab"),
    "thread": (FAN, "#767d87"),
    "paper": (PAPER, "#121215"),
    "frame": ("#d4d4da", "#3d3d44"),
    "ground": ("#fafafb", "#18181c"),
    "inside": ("#f3f3f6", "#212127"),
    "raised": ("#ffffff", "#26262c"),
    "accent": (TRAIN, "#6cb2f5"),
    "variable": (VALIDATION, "#f0a35a"),
    "placeholder": (REPLICAS[0], "#72c096"),
    "gradient": (REPLICAS[1], "#b99ae8"),
}
DEVICES = ("#1f8f9c", "#c04f86", "#8f7d1e", "#b8473f", "#6b7a8f", "#7d6250")  # dots, as of the live view
TINT = 0.14  # of a colour, mixed into the paper


def tint(colour: str, paper: str, share: float = TINT) -> str:
    """Return a colour mixed into a paper.

    >>> tint("#000000", "#ffffff", 0.5)
    '#808080'
    """
    parts = zip(bytes.fromhex(colour[1:]), bytes.fromhex(paper[1:]), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in parts)


SCOPES = (
    ".nbd-opened>.nbd-shut,.nbd-box:not(.nbd-opened)>.nbd-open{display:none}"
    ".nbd-shut,.nbd-close{cursor:pointer;outline:none}.nbd-area{fill:transparent}"
    ".nbd-shut:hover>rect{stroke-width:2px}.nbd-close:hover text{text-decoration:underline}"
    ":is(.nbd-shut,.nbd-close):focus-visible>rect{stroke:currentColor;stroke-width:2.5px}"
)
"""The rules that a page's script needs."""


@dataclass(frozen=True, slots=True)
class Look:
    """A shape's style: colours by name (with ``~`` its tint), line width, dashes."""

    fill: str = ""
    line: str = ""
    width: float = 1.0
    dash: tuple[float, ...] = ()


LOOKS = {
    "device": Look("ground", "frame", 1.0),
    "inside": Look("inside", "thread", 1.0, (4, 3)),
    "op": Look("raised", "thread", 1.0),
    "variable": Look("~variable", "variable", 1.2),
    "placeholder": Look("~placeholder", "placeholder", 1.2),
    "constant": Look("inside", "thread", 1.0),
    "scope": Look("raised", "muted", 1.2),
    "gradient": Look("~gradient", "gradient", 1.2),
    "rest": Look("ground", "", 0),
    "rest-inside": Look("inside", "", 0),
    "chip": Look("inside", "", 0),
    "sign": Look("", "muted", 1.3),
    "flow": Look("", "thread", 1.3),
    "send": Look("", "accent", 1.6),
    "after": Look("", "thread", 1.2, (3, 3)),
    "flow-head": Look("thread", "", 0),
    "send-head": Look("accent", "", 0),
    "after-head": Look("thread", "", 0),
}


@dataclass(frozen=True, slots=True)
class Letters:
    """A text's style."""

    size: float
    colour: str = "ink"
    bold: bool = False


WORDS = {
    "name": Letters(12.0, bold=True),
    "detail": Letters(10.5, "muted"),
    "chip-text": Letters(9.5, "muted"),
    "label": Letters(10.0, "muted"),
    "send-label": Letters(10.0, "accent"),
    "key": Letters(10.5, "muted"),
}


def colour(name: str, dark: bool = False) -> str:
    """Return a colour of the tables as ``#rrggbb``; "" is "none"."""
    if not name:
        return "none"
    if name.startswith("#"):
        return name
    plain = COLOURS[name.lstrip("~")][dark]
    return tint(plain, COLOURS["paper"][dark], TINT + 0.06 * dark) if name.startswith("~") else plain


def style(page: bool) -> str:
    """Return the style sheet: for a notebook's ``page`` and its theme, or for a standalone file."""
    light = "".join(_rules(dark=False))
    dark = "".join(_colours(dark=True))
    if not page:
        return f"{light}@media (prefers-color-scheme:dark){{{dark}}}"
    themes = ('[data-jp-theme-light="false"]', ".vscode-dark", ".theme-dark", "html[theme=dark]")
    return light + "".join(f"{theme} {rule}" for rule in _colours(dark=True) for theme in themes) + SCOPES


def _rules(dark: bool) -> list[str]:
    rules = [f".nbd-graph text{{font-family:{FONT};fill:{colour('ink', dark)}}}"]
    for role, look in LOOKS.items():
        dash = f";stroke-dasharray:{' '.join(f'{n:g}' for n in look.dash)}" if look.dash else ""
        rules.append(f".nbd-graph .nbd-{role}{{stroke-width:{look.width:g}{dash}}}")
    for role, letters in WORDS.items():
        bold = ";font-weight:600" if letters.bold else ""
        rules.append(f".nbd-graph .nbd-{role}{{font-size:{letters.size:g}px{bold}}}")
    return rules + _colours(dark)


def _colours(dark: bool) -> list[str]:
    rules = [
        f".nbd-graph .nbd-{role}{{fill:{colour(look.fill, dark)};stroke:{colour(look.line, dark)}}}"
        for role, look in LOOKS.items()
    ]
    for role, letters in WORDS.items():
        rules.append(f".nbd-graph text.nbd-{role}{{fill:{colour(letters.colour, dark)}}}")
    return [*rules, f".nbd-graph .nbd-page{{fill:{colour('paper', dark)}}}"]
