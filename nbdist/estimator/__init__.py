"""Estimators: a model function that is trained, evaluated and exported from checkpoint to checkpoint."""

from nbdist.estimator.estimator import Estimator
from nbdist.estimator.spec import EstimatorSpec, ModeKeys, RunConfig

__all__ = ["Estimator", "EstimatorSpec", "ModeKeys", "RunConfig"]
