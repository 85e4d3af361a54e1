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
from nbdist.estimator.evaluation import train_and_evaluate
from nbdist.estimator.exporting import BestExporter, ExportedModel, Exporter, LatestExporter
from nbdist.estimator.metrics import AUC
from nbdist.estimator.models import model_to_estimator
from nbdist.estimator.spec import EstimatorSpec, EvalSpec, ModeKeys, RunConfig, TrainSpec

__all__ = [
    "AUC",
    "BestExporter",
    "DNNClassifier",
    "DNNLinearCombinedClassifier",
    "DNNRegressor",
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "ExportedModel",
    "Exporter",
    "LatestExporter",
    "LinearClassifier",
    "LinearRegressor",
    "ModeKeys",
    "RunConfig",
    "TrainSpec",
    "bucketized_column",
    "categorical_column_with_hash_bucket",
    "categorical_column_with_vocabulary_list",
    "crossed_column",
    "embedding_column",
    "indicator_column",
    "input_layer",
    "linear_model",
    "model_to_estimator",
    "numeric_column",
    "train_and_evaluate",
    "transform_features",
]
