"""The tables of docs/sizing.md are what its commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tiers import matrix

from nbdist.distribute.simulation.__main__ import WORKERS, main

PAGE = (Path(__file__).parent.parent.parent / "docs" / "sizing.md").read_text()
COMMAND = re.compile(
    r"^```bash\npython -m nbdist\.distribute\.simulation(.*)\n```\n\n((?:\|.*\n)+)", re.MULTILINE
)
TABLES = dict(COMMAND.findall(PAGE))


@pytest.mark.parametrize("most", matrix([64], rest=[1000]))
@pytest.mark.parametrize("arguments", TABLES)
def test_a_command_of_the_page_prints_its_table(
    arguments: str, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = [count for count in WORKERS if count <= most]
    assert main([*shlex.split(arguments), "--workers", ",".join(map(str, workers))]) == 0
    head, rule, *rows = TABLES[arguments].splitlines()
    assert capsys.readouterr().out.splitlines() == [head, rule, *rows[: len(workers)]]
    assert len(rows) == len(WORKERS)


def test_the_page_has_tables() -> None:
    assert len(TABLES) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gbit", "0"], "link_bytes_per_s is 0.0; it has to be above 0"),
        (["--batch-s=-1"], "compute_s is -1.0; it has to be above 0"),
        (["--workers", "8,0"], "'0' is not a whole number of 1 or more"),
        (["--workers", "8,"], "'' is not a whole number of 1 or more"),
        (["--per-host", "2.5"], "'2.5' is not a whole number of 1 or more"),
    ],
)
def test_values_that_no_cluster_has_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([*arguments, *([] if "--workers" in arguments else ["--workers", "2"])])
    except SystemExit as refused:
        code = refused.code
    assert code == 2
    assert sentence in capsys.readouterr().err
