"""A cluster for the tests of this folder: its engines load frameworks, which other tests should not meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster


@pytest.fixture(scope="package")
def cluster(own_home: Path) -> Iterator[Cluster]:
    """Three workers and a parameter server, which takes no part."""
    from nbdist.cluster.launch import start_cluster

    cluster = start_cluster(workers=3, ps=1, report=None)
    yield cluster
    cluster.stop()


@pytest.fixture
def no_gpus(cluster: Cluster) -> None:
    """Skips a test on a machine with a GPU, which all workers share there; most tests compute on it.

    With it go tests of what such workers refuse (stages 2 and 3 of ``sharded``), of how they are described
    to launchers (each is a node of one GPU), and of JAX's collectives, which are NCCL's: two ranks of NCCL
    cannot have the same GPU.
    """
    if any(task.device != "CPU:0" for task in cluster.tasks):
        pytest.skip("the workers share a GPU")
