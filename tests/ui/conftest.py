"""A store for curves, a kernel with a cluster. Every folder has a `conftest`, so none is imported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ui_kernel import Kernel

from nbdist.metrics.store import RunStore


@pytest.fixture
def store() -> RunStore:
    return RunStore()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path_factory.mktemp("kernel") / "home")
    assert kernel.run("%load_ext nbdist\n%cluster start --workers 2 --ps 1")["status"] == "ok"
    yield kernel
    kernel.close()
