"""A run view for tests: it records output, progress and status."""

from __future__ import annotations

from nbdist.run.progress import Standing
from nbdist.run.run import Run


class RecordingView:
    """Records the output of each task, the progress and the final status."""

    def __init__(self) -> None:
        self.text: dict[str, str] = {}
        self.standings: list[Standing] = []
        self.ended: list[str] = []

    def tick(self) -> None: ...

    def progress(self, standing: Standing) -> None:
        self.standings.append(standing)

    def output(self, task: str, text: str) -> None:
        self.text[task] = self.text.get(task, "") + text

    def end(self, run: Run) -> None:
        self.ended.append(run.status)
