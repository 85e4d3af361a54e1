"""One Slurm for all tests of the process; after each test its nodes are up and idle again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_nodes import SlurmNodes, why_not
from waiting import until


@pytest.fixture(scope="session")
def slurm_nodes() -> Iterator[SlurmNodes]:
    """A login host and three nodes."""
    if why := why_not():
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="slurm"))  # not below pytest's folders, whose paths are long
    nodes = SlurmNodes(folder)
    try:
        yield nodes
    finally:
        nodes.close()
        shutil.rmtree(folder)


@pytest.fixture
def slurm(slurm_nodes: SlurmNodes) -> Iterator[SlurmNodes]:
    """The same, for a test that may break nodes; it must leave no job, and nothing on a host."""
    slurm_nodes.reset()
    yield slurm_nodes
    until(lambda: not slurm_nodes.jobs(), 20, describe=lambda: slurm_nodes.run("squeue").stdout)
    until(lambda: not slurm_nodes.processes(), 20, describe=slurm_nodes.processes)
    left = {host: slurm_nodes.files(host) for host in slurm_nodes.up()}
    assert not any(left.values()), f"left on the hosts: {left}"
