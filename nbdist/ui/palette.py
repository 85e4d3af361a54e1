"""The colours of a frozen picture: those of the live view on a light page."""

from __future__ import annotations

INK, MUTED, GRID, PAPER, FAN = "#1c1c1e", "#6b6b70", "#e8e8ec", "#ffffff", "#9aa1ab"
TRAIN, VALIDATION = "#1a66b8", "#b35605"
REPLICAS = ("#3a8a5f", "#8a5cc4", "#c04f86", "#8f7d1e", "#1f8f9c", "#b8473f", "#6b7a8f", "#7d6250")
STEPS = (1.0, 0.75, 0.5, 0.3, 0.15)


def shades() -> list[int]:
    """Return each colour in some shades towards the paper, as red, green, blue, red, green, blue, ...

    A palette made for one picture would give its few thin lines the grey of its many pale points.

    >>> shades()[-3:], len(shades()) // 3 <= 256
    ([255, 255, 255], True)
    """
    colours = [bytes.fromhex(colour[1:]) for colour in (INK, MUTED, FAN, TRAIN, VALIDATION, *REPLICAS)]
    mixed = [round(255 - share * (255 - part)) for colour in colours for share in STEPS for part in colour]
    return [*mixed, *bytes.fromhex(GRID[1:]), *bytes.fromhex(PAPER[1:])]
