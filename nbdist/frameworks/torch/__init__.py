"""PyTorch: `fit` trains a module under the run's strategy; torch.distributed runs as under torchrun.

Torch itself is imported where it is used, in the tasks.
"""

from nbdist.frameworks.torch.training import fit

__all__ = ["fit"]
