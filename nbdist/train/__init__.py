"""The one training loop, its callbacks and its strategies' seam; where variables of a graph are put.

Names are loaded at their first use: sessions, their hooks and their checkpoints are in `nbdist.sessions`, on
a floor above.
"""

from nbdist.stubs import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
