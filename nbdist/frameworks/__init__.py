"""Other frameworks: their models under our strategies, and their own distribution in a body.

``nb.frameworks.torch.fit`` trains a module under the run's strategy, and ``nb.frameworks.jax.fit`` a function
of JAX; a cell with ``--framework torch`` runs torch.distributed as torchrun does. The frameworks are imported
where they are used.
"""

from nbdist.frameworks import jax, torch

__all__ = ["jax", "torch"]
