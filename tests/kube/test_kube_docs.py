"""The transcripts of docs/kubernetes.md are what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nbdist.cluster.launchers.kubernetes.__main__ import main

DOCS = Path(__file__).parents[2] / "docs" / "kubernetes.md"
COMMAND = "$ python -m nbdist.cluster.launchers.kubernetes "
TRANSCRIPTS = re.findall(r"```console\n(.*?)\n(.*?)```", DOCS.read_text(), re.DOTALL)


@pytest.mark.parametrize(("command", "printed"), TRANSCRIPTS, ids=["role", "manifests"])
def test_a_transcript(command: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("kubernetes")
    assert command.startswith(COMMAND)
    assert main(command.removeprefix(COMMAND).split()) == 0
    assert capsys.readouterr().out == printed
