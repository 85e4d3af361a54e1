# The names that nbdist/__init__.py loads, with their types for editors and type checkers.
from nbdist import collective as collective
from nbdist import data as data
from nbdist import distribute as distribute
from nbdist import errors as errors
from nbdist import estimator as estimator
from nbdist import frameworks as frameworks
from nbdist import horovod as horovod
from nbdist import nn as nn
from nbdist import optim as optim
from nbdist import summary as summary
from nbdist import sweep as sweep
from nbdist import testing as testing
from nbdist import train as train
from nbdist.cluster.cluster import Cluster as Cluster
from nbdist.cluster.launch import start_cluster as start_cluster
from nbdist.graph.device import DeviceSpec as DeviceSpec
from nbdist.graph.gradients import gradients as gradients
from nbdist.graph.ops.accumulators import ConditionalAccumulator as ConditionalAccumulator
from nbdist.graph.ops.accumulators import SparseConditionalAccumulator as SparseConditionalAccumulator
from nbdist.graph.ops.state import group as group
from nbdist.graph.partitioned import PartitionedVariable as PartitionedVariable
from nbdist.graph.replicated import VariableAggregation as VariableAggregation
from nbdist.graph.replicated import VariableSynchronization as VariableSynchronization
from nbdist.graph.scopes import colocate_with as colocate_with
from nbdist.graph.scopes import container as container
from nbdist.graph.scopes import control_dependencies as control_dependencies
from nbdist.graph.scopes import device as device
from nbdist.graph.scopes import name_scope as name_scope
from nbdist.graph.scopes import reset_default_graph as reset_default_graph
from nbdist.graph.sparse import IndexedSlices as IndexedSlices
from nbdist.graph.tensor import Graph as Graph
from nbdist.graph.tensor import Tensor as Tensor
from nbdist.graph.tensor import Variable as Variable
from nbdist.graph.tensor import constant as constant
from nbdist.graph.tensor import placeholder as placeholder
from nbdist.graph.variables import get_variable as get_variable
from nbdist.graph.variables import global_variables as global_variables
from nbdist.graph.variables import global_variables_initializer as global_variables_initializer
from nbdist.graph.variables import set_random_seed as set_random_seed
from nbdist.graph.variables import trainable_variables as trainable_variables
from nbdist.run.history import clean as clean
from nbdist.run.run import Run as Run
from nbdist.run.stop import stop_cluster as stop_cluster
from nbdist.runtime.server import Server as Server
from nbdist.runtime.session.session import Session as Session
from nbdist.runtime.spec import ClusterSpec as ClusterSpec
from nbdist.runtime.task import Task
from nbdist.train.context import get_strategy as get_strategy
from nbdist.train.custom.reduce import get_replica_context as get_replica_context
from nbdist.train.logging import log as log
from nbdist.trials.history import sweeps as sweeps
from nbdist.trials.sweep import Sweep as Sweep
from nbdist.ui.api import attach as attach
from nbdist.ui.api import launch as launch
from nbdist.ui.api import run_sweep as run_sweep
from nbdist.ui.compare.comparison import compare as compare
from nbdist.ui.graph.view import show_graph as show_graph
from nbdist.ui.inspect import inspect as inspect
from nbdist.ui.runs import runs as runs
from nbdist.ui.space_editor.editor import SpaceEditor as SpaceEditor
from nbdist.ui.timeline.view import timeline as timeline
from nbdist.wire.keys import ClusterKeys as ClusterKeys

__version__: str
task: Task

def load_ipython_extension(shell: object) -> None: ...
