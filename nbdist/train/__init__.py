"""The one training loop, its callbacks and its strategies' seam; where variables of a graph are put.

Sessions, their hooks and their checkpoints are in `nbdist.sessions`, on a floor above: their names are loaded
here at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

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

_SESSIONS = {
    "Coordinator": "nbdist.sessions.coordinator",
    "CheckpointSaverHook": "nbdist.sessions.hooks",
    "CheckpointSaverListener": "nbdist.sessions.hooks",
    "FeedFnHook": "nbdist.sessions.hooks",
    "FinalOpsHook": "nbdist.sessions.hooks",
    "GlobalStepWaiterHook": "nbdist.sessions.hooks",
    "LoggingTensorHook": "nbdist.sessions.hooks",
    "NanTensorHook": "nbdist.sessions.hooks",
    "ProfilerHook": "nbdist.sessions.hooks",
    "SecondOrStepTimer": "nbdist.sessions.hooks",
    "SessionRunArgs": "nbdist.sessions.hooks",
    "SessionRunContext": "nbdist.sessions.hooks",
    "SessionRunHook": "nbdist.sessions.hooks",
    "SessionRunValues": "nbdist.sessions.hooks",
    "StepCounterHook": "nbdist.sessions.hooks",
    "StopAtStepHook": "nbdist.sessions.hooks",
    "SummarySaverHook": "nbdist.sessions.hooks",
    "Scaffold": "nbdist.sessions.manager",
    "SessionManager": "nbdist.sessions.manager",
    "ChiefSessionCreator": "nbdist.sessions.monitored",
    "MonitoredSession": "nbdist.sessions.monitored",
    "MonitoredTrainingSession": "nbdist.sessions.monitored",
    "WorkerSessionCreator": "nbdist.sessions.monitored",
    "QueueRunner": "nbdist.sessions.queue_runner",
    "CheckpointState": "nbdist.sessions.saver",
    "Saver": "nbdist.sessions.saver",
    "checkpoint_state": "nbdist.sessions.saver",
    "latest_checkpoint": "nbdist.sessions.saver",
    "list_variables": "nbdist.sessions.saver",
    "load_variable": "nbdist.sessions.saver",
    "Supervisor": "nbdist.sessions.supervisor",
    "SyncReplicasOptimizer": "nbdist.sessions.sync_replicas",
}


def __getattr__(name: str) -> Any:
    if name not in _SESSIONS:
        raise AttributeError(f"module 'nbdist.train' has no name {name!r}; it has {', '.join(__all__)}")
    globals()[name] = value = getattr(import_module(_SESSIONS[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
