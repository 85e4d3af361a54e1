"""A mock of Kubernetes for each test, in which nothing may be left."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import until

if TYPE_CHECKING:
    from mock_cluster import MockCluster


@pytest.fixture
def kube() -> Iterator[MockCluster]:
    """A Kubernetes whose pods are processes of this host."""
    for name in ("kubernetes", "kmock", "kubernetes_validate"):
        pytest.importorskip(name)
    from mock_cluster import MockCluster

    folder = Path(tempfile.mkdtemp(prefix="kube"))  # short: paths of sockets are limited
    try:
        with MockCluster(folder) as cluster:
            yield cluster
            until(lambda: not cluster.left(), 20, describe=cluster.left)
            until(lambda: all(one.poll() is not None for one in cluster.pods.values()), 20)
            assert not cluster.files()
    finally:
        shutil.rmtree(folder)
