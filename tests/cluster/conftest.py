"""Resized clusters get their first shape again, for the next test; programs run in forked processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nbdist.cluster.cluster import Cluster
from nbdist.errors import NbdistError

Start = Callable[..., Cluster]
Elsewhere = Callable[..., str]


@pytest.fixture
def start(start: Start) -> Iterator[Start]:
    """Start clusters as elsewhere; see above."""
    taken: list[tuple[int, Cluster]] = []

    def start_one(workers: int = 1, ps: int = 0, **options: object) -> Cluster:
        cluster = start(workers, ps, **options)
        if not options:
            taken.append((workers, cluster))
        return cluster

    yield start_one
    for workers, cluster in taken:
        with suppress(NbdistError):  # it is not used again
            resize(cluster, workers)


def resize(cluster: Cluster, workers: int) -> None:
    if cluster.stopped or cluster.controller_died() is not None:
        return
    more = sum(info.job == "worker" for info in cluster.tasks) - workers
    if more > 0:
        cluster.shrink(more, report=str)
    elif more < 0:
        cluster.grow(-more, report=str)


@pytest.fixture(scope="session")
def elsewhere(own_home: Path) -> Iterator[Elsewhere]:
    """Run a program, given as code and arguments, in another process; return its output."""
    command = [sys.executable, str(Path(__file__).with_name("elsewhere.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        files = [own_home / "stdout", own_home / "stderr"]

        def run(code: str, *arguments: str, **environment: str) -> str:
            order = {
                "code": code, "arguments": arguments, "environment": {**os.environ, **environment},
                "files": [str(path) for path in files],
            }  # fmt: skip
            process.stdin.write(json.dumps(order) + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            assert process.stdout.readline(), "elsewhere.py has ended"  # type: ignore[union-attr]
            output, errors = (path.read_text() for path in files)
            assert output, errors
            return output

        yield run
        process.stdin.close()
