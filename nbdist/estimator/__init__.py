"""Estimators: a model function that is trained, evaluated and exported from checkpoint to checkpoint."""

from nbdist.stubs import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
