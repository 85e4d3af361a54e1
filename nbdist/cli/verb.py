"""What a verb of the command line is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nbdist.ui.flags import Flag


@dataclass(frozen=True)
class Verb:
    """A verb.

    - ``help``: one line
    - ``flags``: the flags of its line, by name
    - ``run(**options)``: executes it with the options of the flags, prints, and returns the exit status: 0,
      or 1 if it found a problem
    """

    name: str
    help: str
    flags: Mapping[str, Flag]
    run: Callable[..., int]
