"""Run folders as tasks and clients write them, created by nbdist's own code."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nbdist.cluster.folder import this_process
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.run_folder import RunFile, write_run
from nbdist.run.progress_file import ProgressFile, progress_path
from nbdist.runtime.task import TaskInfo
from nbdist.train.context import Progress
from nbdist.wire.hosts import host_identity


class RunFolder:
    """One run in NBDIST_HOME, with workers of rank 0, 1, ..."""

    def __init__(self, run_id: str, *, workers: int = 2, cluster: str = "c1", **more: Any) -> None:
        home = Path(os.environ["NBDIST_HOME"])
        self.folder = home / "runs" / run_id
        self.folder.mkdir(mode=0o700, parents=True)
        home.chmod(0o700)
        (home / "runs").chmod(0o700)
        members = [
            {"job": "worker", "index": i, "rank": i, "host": "h", "pid": 1, "address": "a:1",
             "device": "CPU:0", "incarnation": 100 + i}
            for i in range(workers)
        ]  # fmt: skip
        self.record = RunFile(
            **{
                "id": run_id,
                "name": "mnist",
                "status": "running",
                "code": "model.fit(...)",
                "seed": 7,
                "versions": {"nbdist": "0.1.0"},
                "cluster": {
                    "id": cluster,
                    "tasks": [f"/job:worker/task:{i}" for i in range(workers)],
                    "members": members,
                    "workers": list(range(workers)),
                    "owner": {**this_process(), "session": "notebooks/mnist.ipynb"},
                },
                "options": {"strategy": "multi_worker", "synchronous": True, "replication": "between-graph"},
                **more,
            }
        )
        self._files: dict[int, ProgressFile] = {}
        self.write()

    def write(self, **changes: Any) -> None:
        """Write run.json, with these changes."""
        self.record = RunFile(**{**vars(self.record), **changes})
        write_run(self.record, wait=False)

    def raw(self, name: str, content: bytes | str) -> Path:
        """Write a file into the folder."""
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def log(self, rank: int, points: Sequence[tuple[str, int, float]], close: bool = True) -> Recorder:
        """Write a metrics log: (series, step, value)."""
        recorder = Recorder(self.folder / f"metrics-{rank:04d}.log", replica=rank)
        add(recorder, points)
        if close:
            recorder.close()
        return recorder

    def progress(self, rank: int, step: int, **more: Any) -> None:
        """Write a progress file."""
        content = asdict(Progress(step=step, total=100, trainings=1, state="running")) | more
        path = progress_path(self.folder, rank)
        self._files.setdefault(rank, ProgressFile(path, rank)).see(content, ended=True)

    def raw_progress(self, rank: int, **content: Any) -> None:
        """Write a progress file with only this content."""
        self.raw(f"progress-{rank:04d}.json", json.dumps({"version": 1, "time": time.time(), **content}))


def add(recorder: Recorder, points: Sequence[tuple[str, int, float]]) -> None:
    for series, step, value in points:
        recorder.add(recorder.series(series), step, value)
    recorder.flush()


def losses(count: int, value: float = 1.0) -> list[tuple[str, int, float]]:
    return [("loss", step, value) for step in range(count)]


def cluster_folder(cluster: str = "c1", incarnations: Sequence[int] = (100, 101)) -> tuple[Path, int]:
    """Create a cluster folder with a held lock; return it and the lock's descriptor."""
    from nbdist.cluster.description import write_description
    from nbdist.cluster.folder import claim

    folder, lock = claim(cluster)
    tasks = [
        TaskInfo("worker", i, i, host_identity(), os.getpid(), "", "CPU:0", n).to_dict()
        for i, n in enumerate(incarnations)
    ]
    write_description(folder, {"id": cluster, "tasks": tasks})
    return folder, lock
