"""The transcripts of docs/slurm.md and docs/batch.md: what their commands print on a real Slurm.

NBDIST_WRITE_TRANSCRIPTS=1 python -m pytest tests/slurm/test_slurm_docs.py      # writes them anew
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from slurm_nodes import SlurmNodes
from tiers import matrix
from waiting import until

pytestmark = pytest.mark.netns

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
FIRST_JOB = 12


class Transcript:
    """Runs commands. Numbers of jobs are those of the page, and lines that depend on chance are left out."""

    def __init__(self, slurm: SlurmNodes) -> None:
        self.slurm = slurm
        self.jobs: dict[str, str] = {}

    def of(self, command: str) -> str:
        """Return what a command prints."""
        python = f"alias python={sys.executable}"
        done = self.slurm.run("sh", "-c", f"{python}\n{command}", check=False)
        printed = re.sub(r"\bjob (\d+)|(?<=\"job\": \")(\d+)", self._numbered, done.stdout + done.stderr)
        printed = re.sub(r"; expected to start at [\d: -]+", "", printed)
        printed = re.sub(r'(?<="seconds_left": )7[12]\d\d\.0', "7200.0", printed)
        lines = [
            line
            for line in printed.splitlines()
            if not re.search(r"waiting.*\((None|Priority|PartitionConfig)\)", line)
        ]
        return "".join(f"{line}\n" for line in dict.fromkeys(lines))

    def _numbered(self, found: re.Match[str]) -> str:
        number = found[1] or found[2]
        return found[0].replace(number, self.jobs.setdefault(number, str(FIRST_JOB + len(self.jobs))))


@pytest.mark.parametrize("name", matrix(["slurm"], rest=["batch"]))
def test_the_transcripts_are_what_slurm_prints(slurm: SlurmNodes, name: str) -> None:
    if name == "batch" and not shutil.which("qsub"):
        pytest.skip("no qsub here: apt-get install slurm-wlm-torque")
    path = DOCS / f"{name}.md"
    page = path.read_text()
    transcript = Transcript(slurm)

    def block(found: re.Match[str]) -> str:
        until(slurm.is_idle)
        commands = re.findall(r"^\$ (.*)$", found[0], re.MULTILINE)
        return "".join(f"$ {command}\n{transcript.of(command)}" for command in commands)

    written = BLOCK.sub(block, page)
    if os.environ.get("NBDIST_WRITE_TRANSCRIPTS"):
        path.write_text(written)
    assert written == page
