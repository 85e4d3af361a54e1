"""PyTorch: `fit` and `wrap` train a module under a strategy; torch.distributed runs as under torchrun.

Torch itself is imported where it is used, in the tasks.
"""

from nbdist.frameworks.torch.loops import wrap
from nbdist.frameworks.torch.training import fit
from nbdist.frameworks.torch.weights import StateDict

__all__ = ["StateDict", "fit", "wrap"]
