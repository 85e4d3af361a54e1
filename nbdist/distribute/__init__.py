"""Strategies: how all replicas move to the next parameters, together."""

from nbdist.distribute.central import CentralStorageStrategy
from nbdist.distribute.elastic import ElasticAveragingStrategy
from nbdist.distribute.mirrored import MirroredStrategy
from nbdist.distribute.multi_worker import MultiWorkerMirroredStrategy
from nbdist.distribute.parameter_server import ParameterServerStrategy
from nbdist.train.context import get_strategy
from nbdist.train.strategy import OneDeviceStrategy, Strategy

__all__ = [
    "CentralStorageStrategy",
    "ElasticAveragingStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "Strategy",
    "get_strategy",
]
