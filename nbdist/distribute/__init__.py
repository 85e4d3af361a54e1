"""Strategies: how all replicas move to the next parameters, together."""

from nbdist.distribute.central import CentralStorageStrategy
from nbdist.distribute.elastic import ElasticAveragingStrategy
from nbdist.distribute.mirrored import MirroredStrategy
from nbdist.distribute.multi_worker import MultiWorkerMirroredStrategy
from nbdist.distribute.parameter_server import ParameterServerStrategy
from nbdist.train.context import get_strategy
from nbdist.train.distributed import InputContext
from nbdist.train.reduction import PerReplica, ReduceOp
from nbdist.train.replica_context import ReplicaContext, get_replica_context
from nbdist.train.scope import local_results
from nbdist.train.strategy import OneDeviceStrategy, Strategy

__all__ = [
    "CentralStorageStrategy",
    "ElasticAveragingStrategy",
    "InputContext",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PerReplica",
    "ReduceOp",
    "ReplicaContext",
    "Strategy",
    "get_replica_context",
    "get_strategy",
    "local_results",
]
