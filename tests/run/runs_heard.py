"""What tests of runs look at them with: a view that keeps what it is shown."""

from __future__ import annotations

from nbdist.run.progress import Standing
from nbdist.run.run import Run


class Heard:
    """A view that keeps what it is shown."""

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
