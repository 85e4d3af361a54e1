"""Run folders for TensorBoard, and requests to TensorBoard."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import psutil
from tornado.httpclient import HTTPRequest

from nbdist.lab.tensorboard.manager import Boards
from nbdist.metrics.event_file import events_folder
from nbdist.metrics.log import log_path
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.run_folder import RunFile, new_run_id, run_folder, write_run


def make_run(*, own: bool, steps: int, ended: bool = True) -> str:
    """Create the folder of a run of two workers, with or without event files; return its id."""
    run = new_run_id("shown")
    folder = run_folder(run)
    members = [{"rank": rank, "job": "worker", "index": rank} for rank in range(2)]
    status: dict[str, Any] = {"status": "finished", "ended": 2e9} if ended else {"status": "running"}
    write_run(RunFile(run, name="shown", cluster={"workers": [0, 1], "members": members}, **status))
    for replica in range(2):
        events = events_folder(folder, f"/job:worker/task:{replica}") if own else None
        recorder = Recorder(log_path(folder, replica), replica=replica, events=events)
        for step in range(1, steps + 1):
            recorder.add(recorder.series("loss"), step, 1 / step)
        if replica == 0:
            recorder.add(recorder.series("val_loss"), steps, 0.25)
        recorder.close()
    return run


async def ask_json(boards: Boards, run: str, path: str) -> Any:
    """Return the JSON answer of a board of a server at /base/."""
    answer = await boards.fetch(run, HTTPRequest(f"http://board/base/nbdist/tensorboard/{run}/{path}"))
    assert answer.code == 200, answer.body
    return json.loads(answer.body)


async def scalars(boards: Boards, run: str, task: str, tag: str) -> dict[int, float]:
    """Return a curve: values by step."""
    path = f"data/plugin/scalars/scalars?run={quote(task, safe='')}&tag={tag}"
    return {step: value for _, step, value in await ask_json(boards, run, path)}


def processes() -> list[psutil.Process]:
    """Return the living TensorBoard processes of this state folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_board = "nbdist.lab.tensorboard.child" in process.cmdline()
            ours = is_board and process.environ().get("NBDIST_HOME") == os.environ["NBDIST_HOME"]
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
