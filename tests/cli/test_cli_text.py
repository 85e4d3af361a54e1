"""The command line: its verbs, its help, and mistakes on the line."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nbdist.cli.__main__ import VERBS, main
from nbdist.cli.run import NOTEBOOK_ONLY as RUN_NOTEBOOK_ONLY
from nbdist.cli.sweep import NOTEBOOK_ONLY as SWEEP_NOTEBOOK_ONLY
from nbdist.home import own_version
from nbdist.ui.flags import CLEAN_FLAGS, DISTRIBUTE_FLAGS, DOCTOR_FLAGS, START_FLAGS, SWEEP_FLAGS, Flag

PROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"


def test_the_program_is_installed() -> None:
    module, _, name = tomllib.loads(PROJECT.read_text())["project"]["scripts"]["nbdist"].partition(":")
    assert getattr(importlib.import_module(module), name) is main


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        re.search(rf"^  {name} +{re.escape(text)}$", shown, re.MULTILINE) for name, text in VERBS.items()
    )
    assert main([]) == 2
    for name in VERBS:
        assert main([name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert f"Usage: nbdist {name} " in shown
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{own_version()}\n"


def test_help_loads_no_verb() -> None:
    code = "import sys; from nbdist.cli.__main__ import main; main(['--help'])\n"
    code += "print([name for name in sys.modules if name in ('numpy', 'zmq', 'IPython', 'nbdist.ui.flags')])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        ("cluster start", START_FLAGS),
        ("run", {**START_FLAGS, **DISTRIBUTE_FLAGS}),
        ("sweep", {**START_FLAGS, **SWEEP_FLAGS}),
        ("doctor", DOCTOR_FLAGS),
        ("clean", CLEAN_FLAGS),
    ],
)
def test_a_verb_has_the_flags_of_its_magic(
    verb: str, flags: dict[str, Flag], capsys: pytest.CaptureFixture[str]
) -> None:
    """But for those that speak of a notebook."""
    assert main([*verb.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    left_out = {*RUN_NOTEBOOK_ONLY, *SWEEP_NOTEBOOK_ONLY} if verb in ("run", "sweep") else set()
    assert [name for name in flags if name not in left_out and f"  {name} " not in shown] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("doktor", "no verb 'doktor'; choose from run, sweep, "),
        ("doctor --host a", "No such option '--host'"),
        ("doctor a:2", "Got unexpected extra argument (a:2)"),
        ("cluster start --workers two", "nbdist cluster start: --workers 'two': expected a whole number"),
        ("cluster start --workers 2 --workers 3", "--workers is given twice"),
        ("cluster stop a --all", "--all stops every cluster: leave out a"),
        ("run no-such.py", "File 'no-such.py' does not exist"),
        ("run - --sync --async", "--sync and --async exclude each other"),
        ("run - --cluster a --workers 2", "--cluster a is up already: leave out --workers"),
        ("run - --output b.ipynb", "--output b.ipynb is for a notebook"),
        ("sweep - lr=[1,2]", "the metric is missing"),
        ("sweep - lr=log(1 --metric loss", "')' is missing"),
        ("runs list --status gone", "'gone' is not one of"),
        ("runs tag", "Missing argument 'RUN'"),
        ("runs set a --learning-rate -1", "-1.0 is not in the range"),
        ("simulate --workers 0", "0 is not in the range"),
        ("simulate --gbit 0", "link_bytes_per_s"),
        ("doctor --hosts a:0", "--hosts 'a:0': hosts: 'a:0' asks for 0 workers; a host has 1 to 4096"),
        ("doctor --hosts @/no/such", "/no/such cannot be read"),
        ("doctor --gpus many", "--gpus 'many': gpus is 'auto'"),
        ("doctor --extras tors", "no extra 'tors'"),
    ],
)
def test_a_mistake_on_the_line(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_doctor_examines_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor"])
    head, here, *sentences = capsys.readouterr().out.splitlines()
    assert head.startswith("host ")
    assert here.startswith("this host ")
    assert status == bool(sentences)
