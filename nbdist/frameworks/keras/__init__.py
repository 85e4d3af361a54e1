"""Keras 3: `fit` and `wrap` train a compiled model under a strategy, with torch or JAX as its backend.

Keras itself is imported where it is used, in the tasks.
"""

from nbdist.frameworks.keras.training import fit, wrap

__all__ = ["fit", "wrap"]
