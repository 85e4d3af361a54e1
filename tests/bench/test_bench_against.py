"""``--against COMMIT``: our side as it is and as a commit has it, in turn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import against, report
from bench.frame import Bar, Benchmark, Survey
from bench.script import NotThere, Side

pytestmark = pytest.mark.slow

SCRIPT = 'import json, thing\nprint(json.dumps({"value": thing.VALUE, "check": 1}))\n'


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose package is worth 2 in its one commit, and 3 in its checkout."""
    root = tmp_path / "project"
    (root / "bench").mkdir(parents=True)
    (root / "bench" / "__init__.py").touch()
    (root / "bench" / "side.py").write_text(SCRIPT)
    (root / "thing.py").write_text("VALUE = 2\n")
    git = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    (root / "thing.py").write_text("VALUE = 3\n")
    (root / "nbdist" / "ui" / "static").mkdir(parents=True)
    monkeypatch.setattr(against, "ROOT", root)
    return root


def benchmark(root: Path) -> Benchmark:
    side = Side(sys.executable, "side", root=root)
    return Benchmark("p0", "nothing", "s", "a peer", side, side, Bar(">=", 9))


def test_the_peer_is_the_package_of_the_commit(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results.jsonl")
    monkeypatch.setattr(report.keep, "__defaults__", (tmp_path / "results.jsonl",))
    assert command.run_against([benchmark(repository)] * 2, "HEAD", 1) == 0
    said = capsys.readouterr().out
    assert "p0@HEAD: nothing\n    against nbdist at HEAD\n" in said
    assert said.count("round 1: nbdist 3, peer 2 s, ratio 1.5") == 1
    assert "another one" not in said


def test_a_script_that_has_changed_is_named(repository: Path) -> None:
    (repository / "bench" / "side.py").write_text(SCRIPT + "\n")
    with against.unpacked("HEAD") as folder:
        assert "bench/side.py is another one" in against.difference(benchmark(repository), folder)
        assert (folder / "nbdist" / "ui" / "static").is_dir()
    assert not folder.exists()


def test_what_cannot_be_run_so_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    survey = Survey("p0", "nothing", (), dict)
    assert command.run_against([survey], "HEAD", 1) == 1
    assert command.run_against([benchmark(repository)], "no-such-commit", 1) == 1
    said = capsys.readouterr().out
    assert "only benchmarks whose side is a script" in said
    assert "no-such-commit" in said
    with pytest.raises(NotThere), against.unpacked("no-such-commit"):
        pass


def test_the_flags_do_not_contradict(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags in (["--against", "HEAD"], ["p2", "--against", "HEAD", "--peers-only"]):
        monkeypatch.setattr(sys, "argv", ["bench", *flags])
        with pytest.raises(SystemExit):
            command.main()
