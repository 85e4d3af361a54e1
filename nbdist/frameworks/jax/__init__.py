"""JAX in a body: our strategies on a function of parameters (`fit`), and its own distribution (`Jax`)."""

from nbdist.frameworks.jax.distributed import Jax
from nbdist.frameworks.jax.loop import wrap
from nbdist.frameworks.jax.training import fit
from nbdist.frameworks.jax.tree import load_state_dict, state_dict

__all__ = ["Jax", "fit", "load_state_dict", "state_dict", "wrap"]
