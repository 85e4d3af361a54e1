"""The versions that all processes of a cluster must share, and how much of each. Pure."""

from __future__ import annotations

SHARED = {"nbdist": 9, "python": 2, "numpy": 1, "ipyparallel": 1}
"""How many numbers of a version must be equal, such as 3.11 of Python's 3.11.7; of nbdist all."""


def shared_part(name: str, version: str) -> str:
    """Return the part of a version that must be equal; the whole one of a package that is not in `SHARED`.

    >>> shared_part("python", "3.11.7"), shared_part("numpy", "2.4.6"), shared_part("nbdist", "0.2.0")
    ('3.11', '2', '0.2.0')
    """
    return ".".join(version.split(".")[: SHARED.get(name)])
