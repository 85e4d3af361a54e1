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
