"""The command line: its verbs, its help, and mistakes on the line."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

from nbdist.cli.__main__ import VERBS, main
from nbdist.home import own_version

PROJECT = Path(__file__).parent.parent.parent / "pyproject.toml"


def test_the_program_is_installed() -> None:
    module, _, name = tomllib.loads(PROJECT.read_text())["project"]["scripts"]["nbdist"].partition(":")
    assert getattr(importlib.import_module(module), name) is main


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"    {name} " in shown and verb.help in shown for name, verb in VERBS.items())
    assert main([]) == 2
    assert capsys.readouterr().out == shown
    for name, verb in VERBS.items():
        assert main([name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert all(f"    {flag} " in shown for flag in verb.flags)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{own_version()}\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("doktor", "nbdist: no verb 'doktor'; did you mean doctor?"),
        ("doctor --host a", "nbdist doctor: no flag '--host'; did you mean --hosts?"),
        ("doctor a:2", "nbdist doctor: unexpected word 'a:2'; the flags are --hosts, "),
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
