"""The one training loop, its callbacks and its strategies' seam; where variables of a graph are put.

Names are loaded at their first use: sessions, their hooks and their checkpoints are in `nbdist.sessions`, on
a floor above.
"""

from nbdist.stubs import loader, stub_names

_NAMES = stub_names(__file__)

__all__ = sorted(_NAMES)
__getattr__ = loader(__name__, _NAMES)


def __dir__() -> list[str]:
    return __all__
