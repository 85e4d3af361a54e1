"""A cluster for the tests of this folder: its engines load frameworks, which other tests should not meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests of Keras by backend; workers import Keras anew for each change."""
    of_keras = [item for item in items if item.path.name == "test_frameworks_keras.py"]
    if of_keras:
        first = items.index(of_keras[0])
        items[first : first + len(of_keras)] = sorted(of_keras, key=backend_of, reverse=True)


def backend_of(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("backend", "jax")) if callspec else "jax"


@pytest.fixture(scope="package")
def cluster(own_home: Path) -> Iterator[Cluster]:
    """Three workers and a parameter server, which takes no part."""
    from nbdist.cluster.launch import start_cluster

    cluster = start_cluster(workers=3, ps=1, report=None)
    yield cluster
    cluster.stop()


@pytest.fixture
def no_gpus(cluster: Cluster) -> None:
    """Skip a test if the workers share a GPU.

    Such workers refuse stages 2 and 3 of ``sharded``, are described to launchers as nodes of one GPU each,
    and cannot form an NCCL group (two ranks on one GPU).
    """
    if any(task.device != "CPU:0" for task in cluster.tasks):
        pytest.skip("the workers share a GPU")


@pytest.fixture
def no_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give ranks more time to leave a run than a busy machine needs, before their processes are replaced."""
    monkeypatch.setattr("nbdist.run.recovery.shutdown.REPLACE_AFTER", 60.0)


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What several trainings compute is compiled for the first one only."""
    import jax

    kept: dict[str, Any] = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("jax")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in kept}
    for name, value in kept.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
