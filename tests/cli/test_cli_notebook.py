"""The flags of a line in a notebook's cells, and which words are a script's own."""

from __future__ import annotations

import click
import pytest

from nbdist.cli.notebook import rewritten
from nbdist.cli.run import divided, run
from nbdist.errors import InvalidArgumentError

CELLS = ["%load_ext nbdist\n%cluster start --workers 2 --ps 1  # small", "%%time\n%%distribute --sync\nx = 1"]


@pytest.mark.parametrize(
    ("words", "start", "distribute"),
    [
        ([], "--workers 2 --ps 1", "--sync"),
        (["--workers=4"], "--ps 1 --workers=4", "--sync"),
        (["--async"], "--workers 2 --ps 1", "--async"),
        (["--data=2"], "--workers 2 --ps 1 --data=2", "--sync --data=service"),
        (["--data=workers"], "--workers 2 --ps 1", "--sync --data=workers"),
    ],
)
def test_flags_take_the_place_of_those_in_the_cells(words: list[str], start: str, distribute: str) -> None:
    assert rewritten(CELLS, words, None) == [
        f"%load_ext nbdist\n%cluster start {start}",
        f"%%time\n%%distribute {distribute}\nx = 1",
    ]


def test_a_notebook_on_a_cluster_that_is_up_leaves_it_up() -> None:
    found = rewritten([*CELLS, "%cluster stop --force"], [], "c1")
    assert found[0].endswith("%cluster attach c1")
    assert found[-1] == "%cluster detach"


def test_a_notebook_without_a_start_gets_one() -> None:
    assert rewritten(["x = 1"], ["--workers=3"], None)[0] == "%load_ext nbdist\n%cluster start --workers=3"


@pytest.mark.parametrize(
    ("cells", "words", "said"),
    [
        (["nb.start_cluster(2)"], ["--workers=3"], "by start_cluster.*leave out --workers=3"),
        (["%cluster start"], ["--async"], "no %%distribute cell that --async could change"),
        (CELLS, ["--min-workers=1"], "both have this flag"),
        (["%cluster start --id 'a"], [], "cannot be read: No closing quotation"),
    ],
)
def test_a_flag_without_a_place_is_refused(cells: list[str], words: list[str], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        rewritten(cells, words, None)


@pytest.mark.parametrize(
    ("line", "script", "arguments"),
    [
        ("-np 2 python {0} --lr 1", "{0}", ("--lr", "1")),
        ("{0} --workers 2 -- python", "{0}", ("python",)),
        ("{0} --python /usr/bin/python3 --hosts a:1", "{0}", ()),
        ("--sync python3.12 {0}", "{0}", ()),
    ],
)
def test_the_words_after_python_are_the_scripts(line: str, script: str, arguments: tuple[str, ...]) -> None:
    context = click.Context(run)
    run.parse_args(context, line.format(__file__).split())
    assert context.params["script"] == script.format(__file__)
    assert context.params["arguments"] == arguments


def test_hosts_take_the_least_number_of_workers() -> None:
    cluster, of_run = divided({"min_workers": 2, "launcher": "kubernetes", "pods": 4})
    assert (cluster["min_workers"], of_run) == (2, {"min_workers": 2})
    assert divided({"min_workers": 2, "workers": 3}) == ({"workers": 3}, {"min_workers": 2})
