"""Other frameworks: their models under our strategies, and their own distribution in a body.

``nb.frameworks.torch.fit`` trains a module under the run's strategy, ``nb.frameworks.jax.fit`` a function of
JAX, ``nb.frameworks.keras.fit`` a compiled model of Keras. A cell with ``--framework torch`` runs
torch.distributed as torchrun does. The frameworks are imported where they are used.
"""

from nbdist.frameworks import jax, keras, torch

__all__ = ["jax", "keras", "torch"]
