# The names that nbdist/estimator/__init__.py loads, with their types for editors and type checkers.
from nbdist.estimator.canned import DNNClassifier as DNNClassifier
from nbdist.estimator.canned import DNNLinearCombinedClassifier as DNNLinearCombinedClassifier
from nbdist.estimator.canned import DNNRegressor as DNNRegressor
from nbdist.estimator.canned import LinearClassifier as LinearClassifier
from nbdist.estimator.canned import LinearRegressor as LinearRegressor
from nbdist.estimator.columns import bucketized_column as bucketized_column
from nbdist.estimator.columns import (
    categorical_column_with_hash_bucket as categorical_column_with_hash_bucket,
)
from nbdist.estimator.columns import (
    categorical_column_with_vocabulary_list as categorical_column_with_vocabulary_list,
)
from nbdist.estimator.columns import crossed_column as crossed_column
from nbdist.estimator.columns import embedding_column as embedding_column
from nbdist.estimator.columns import indicator_column as indicator_column
from nbdist.estimator.columns import input_layer as input_layer
from nbdist.estimator.columns import linear_model as linear_model
from nbdist.estimator.columns import numeric_column as numeric_column
from nbdist.estimator.columns import transform_features as transform_features
from nbdist.estimator.estimator import Estimator as Estimator
from nbdist.estimator.evaluation import train_and_evaluate as train_and_evaluate
from nbdist.estimator.exporting import BestExporter as BestExporter
from nbdist.estimator.exporting import ExportedModel as ExportedModel
from nbdist.estimator.exporting import Exporter as Exporter
from nbdist.estimator.exporting import LatestExporter as LatestExporter
from nbdist.estimator.metrics import AUC as AUC
from nbdist.estimator.models import model_to_estimator as model_to_estimator
from nbdist.estimator.spec import EstimatorSpec as EstimatorSpec
from nbdist.estimator.spec import EvalSpec as EvalSpec
from nbdist.estimator.spec import ModeKeys as ModeKeys
from nbdist.estimator.spec import RunConfig as RunConfig
from nbdist.estimator.spec import TrainSpec as TrainSpec
