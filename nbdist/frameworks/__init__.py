"""Other frameworks: their models under our strategies, and their own distribution in a body.

``nb.frameworks.torch.fit`` trains a module under the run's strategy; a cell with ``--framework torch`` runs
torch.distributed as torchrun does. The frameworks are imported where they are used.
"""

from nbdist.frameworks import torch

__all__ = ["torch"]
