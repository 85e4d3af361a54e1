"""Strategies: how all replicas move to the next parameters, together."""

from nbdist.distribute.agreement import GroupAgreement
from nbdist.distribute.central import CentralStorageStrategy
from nbdist.distribute.elastic import ElasticAveragingStrategy
from nbdist.distribute.mirrored import MirroredStrategy
from nbdist.distribute.multi_worker import MultiWorkerMirroredStrategy
from nbdist.distribute.parameter_server import ParameterServerStrategy
from nbdist.distribute.sharded import ShardedStrategy
from nbdist.distribute.sharing import WorkerStrategy
from nbdist.distribute.tpu.strategy import TPUStrategy
from nbdist.train.context import get_strategy
from nbdist.train.custom.api import local_results
from nbdist.train.custom.dataset import InputContext
from nbdist.train.custom.reduce import PerReplica, ReduceOp, ReplicaContext, get_replica_context
from nbdist.train.one_device import OneDeviceReplica, OneDeviceStrategy
from nbdist.train.replica import Replica
from nbdist.train.strategy import Strategy

__all__ = [
    "CentralStorageStrategy",
    "ElasticAveragingStrategy",
    "GroupAgreement",
    "InputContext",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceReplica",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PerReplica",
    "ReduceOp",
    "Replica",
    "ReplicaContext",
    "ShardedStrategy",
    "Strategy",
    "TPUStrategy",
    "WorkerStrategy",
    "get_replica_context",
    "get_strategy",
    "local_results",
]
