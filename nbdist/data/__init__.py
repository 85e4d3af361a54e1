"""Datasets: sources, transforms, sharding."""

from nbdist.data.autotune import AUTOTUNE
from nbdist.data.bottleneck import InputPipeline, StageReading
from nbdist.data.dataset import Dataset
from nbdist.data.digits import digits
from nbdist.data.example import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
    make_example,
    parse_example,
    parse_sequence_example,
)
from nbdist.data.mnist import mnist
from nbdist.data.policy import SHARD_HINT, AutoShardPolicy
from nbdist.data.structure import ElementSpec
from nbdist.data.tfrecord import write_tfrecords

__all__ = [
    "AUTOTUNE",
    "SHARD_HINT",
    "AutoShardPolicy",
    "Dataset",
    "ElementSpec",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "InputPipeline",
    "StageReading",
    "VarLenFeature",
    "digits",
    "make_example",
    "mnist",
    "parse_example",
    "parse_sequence_example",
    "write_tfrecords",
]
