"""The one training loop, its callbacks and its strategies' seam; where variables of a graph are put."""

from nbdist.graph.partitioners import (
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)
from nbdist.graph.placement import (
    GreedyLoadBalancingStrategy,
    RandomStrategy,
    byte_size_load_fn,
    replica_device_setter,
)
from nbdist.graph.variables import get_or_create_global_step
from nbdist.train.callbacks import Callback, EarlyStopping, History
from nbdist.train.context import get_strategy
from nbdist.train.custom.resume import epochs, state
from nbdist.train.graph_dataset import next_batch
from nbdist.train.graph_sync.queue_runner import QueueRunner
from nbdist.train.graph_sync.sync_replicas import SyncReplicasOptimizer
from nbdist.train.monitored.coordinator import Coordinator
from nbdist.train.monitored.hooks import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    LoggingTensorHook,
    NanTensorHook,
    ProfilerHook,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from nbdist.train.monitored.manager import Scaffold, SessionManager
from nbdist.train.monitored.session import (
    ChiefSessionCreator,
    MonitoredSession,
    MonitoredTrainingSession,
    WorkerSessionCreator,
)
from nbdist.train.monitored.supervisor import Supervisor
from nbdist.train.saver import (
    CheckpointState,
    Saver,
    checkpoint_state,
    latest_checkpoint,
    list_variables,
    load_variable,
)
from nbdist.train.tensorboard import TensorBoard

__all__ = [
    "Callback",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "CheckpointState",
    "ChiefSessionCreator",
    "Coordinator",
    "EarlyStopping",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "GreedyLoadBalancingStrategy",
    "History",
    "LoggingTensorHook",
    "MonitoredSession",
    "MonitoredTrainingSession",
    "NanTensorHook",
    "ProfilerHook",
    "QueueRunner",
    "RandomStrategy",
    "Saver",
    "Scaffold",
    "SecondOrStepTimer",
    "SessionManager",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "Supervisor",
    "SyncReplicasOptimizer",
    "TensorBoard",
    "WorkerSessionCreator",
    "byte_size_load_fn",
    "checkpoint_state",
    "epochs",
    "fixed_size_partitioner",
    "get_or_create_global_step",
    "get_strategy",
    "latest_checkpoint",
    "list_variables",
    "load_variable",
    "min_max_variable_partitioner",
    "next_batch",
    "replica_device_setter",
    "state",
    "variable_axis_size_partitioner",
]
