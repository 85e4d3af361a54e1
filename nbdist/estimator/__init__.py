"""Estimators: a model function that is trained, evaluated and exported from checkpoint to checkpoint."""

from nbdist.estimator.canned import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
)
from nbdist.estimator.columns import (
    bucketized_column,
    categorical_column_with_hash_bucket,
    categorical_column_with_vocabulary_list,
    crossed_column,
    embedding_column,
    indicator_column,
    input_layer,
    linear_model,
    numeric_column,
    transform_features,
)
from nbdist.estimator.estimator import Estimator
from nbdist.estimator.spec import EstimatorSpec, ModeKeys, RunConfig

__all__ = [
    "DNNClassifier",
    "DNNLinearCombinedClassifier",
    "DNNRegressor",
    "Estimator",
    "EstimatorSpec",
    "LinearClassifier",
    "LinearRegressor",
    "ModeKeys",
    "RunConfig",
    "bucketized_column",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_vocabulary_list",
    "crossed_column",
    "embedding_column",
    "indicator_column",
    "input_layer",
    "linear_model",
    "numeric_column",
    "transform_features",
]
