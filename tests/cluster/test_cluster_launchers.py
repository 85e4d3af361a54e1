"""The table of launchers: each row, and no other code that names a launcher."""

from __future__ import annotations

import ast
import inspect
import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import until

from nbdist.cluster.launch import start_cluster
from nbdist.cluster.launchers.registry import (
    DEFAULT_LAUNCHER,
    LAUNCHERS,
    all_settings,
    choose_launcher,
    find_launcher,
)
from nbdist.cluster.launchers.spec import LauncherSetting, LauncherSpec
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, MissingExtra
from nbdist.lab.readers.capabilities import about
from nbdist.ui.flags import START_FLAGS, usage

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "nbdist"
each = pytest.mark.parametrize("spec", LAUNCHERS.values(), ids=lambda spec: spec.name)
here = pytest.mark.parametrize(
    "spec", [spec for spec in LAUNCHERS.values() if not spec.is_elsewhere()], ids=lambda spec: spec.name
)


def refuse_hosts(value: Any) -> None:
    if not value:
        raise InvalidArgumentError(f"hosts is a comma-separated list of host names, not {value!r}")


def not_installed() -> None:
    raise MissingExtra("ssh", "launcher 'remote'")


REMOTE = LauncherSpec(
    "remote",
    help="engines on other hosts",
    make=lambda request: LAUNCHERS[DEFAULT_LAUNCHER].make(request),
    check=not_installed,
    settings=(LauncherSetting("hosts", "the hosts", lambda v: v.split(","), "A,B", check=refuse_hosts),),
)


@each
def test_the_help_and_the_errors_list_a_row(spec: LauncherSpec) -> None:
    assert spec.name in START_FLAGS["--launcher"].shows.split("|")
    assert f"{spec.name}: {spec.help}" in " ".join(usage(START_FLAGS).split())
    with pytest.raises(InvalidArgumentError, match=rf"no launcher 'rocket'; choose from .*\b{spec.name}\b"):
        start_cluster(1, launcher="rocket", report=None)
    assert find_launcher(spec.name) is spec


@each
def test_a_setting_is_a_flag_of_its_launchers_only(spec: LauncherSpec) -> None:
    parameters = inspect.signature(start_cluster).parameters
    names = [name for name, (_, owners) in all_settings().items() if spec.name in owners]
    assert sorted(names) == sorted(setting.name for setting in spec.settings)
    for setting in spec.settings:
        assert setting is all_settings()[setting.name][0], "launchers with a flag in common share the setting"
        assert setting.name not in parameters
        assert START_FLAGS[setting.flag].option == setting.name
    assert spec.read_settings({}) == {setting.name: setting.default for setting in spec.settings}


def test_the_documentation_has_a_row_for_each_launcher() -> None:
    page = (ROOT / "docs" / "hosts.md").read_text()
    section = page.partition("\n## Launchers\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if "|" in line]
    documented = {row[0].strip("`"): row[1:] for row in rows[2:]}  # below the head
    assert list(documented) == list(LAUNCHERS)
    for name, (starts, _, settings, tried, _) in documented.items():
        spec = LAUNCHERS[name]
        assert starts == spec.help, name
        assert settings == (", ".join(f"`{one.flag}`" for one in spec.settings) or "none"), name
        tests = re.findall(r"`(tests/[\w./]+)`", tried)
        assert tests, f"{name}: name the tests that run it"
        assert all((ROOT / path).exists() for path in tests), f"{name}: {tests}"


@each
def test_the_sidebar_offers_what_is_installed(spec: LauncherSpec) -> None:
    assert (spec.name in about()["launchers"]) == spec.is_installed()


@pytest.mark.parametrize(
    ("settings", "variables", "chosen"),
    [
        ({}, {}, ("local", "")),
        ({"hosts": "a:2"}, {}, ("ssh", "hosts are given")),
        ({"hosts": None, "nodes": 2}, {}, ("slurm", "--nodes is given")),
        ({}, {"SLURM_JOB_ID": "7"}, ("slurm", "this process is in job 7 of Slurm")),
        ({"hosts": "a:2"}, {"SLURM_JOB_ID": "7"}, ("ssh", "hosts are given")),
        ({}, {"PBS_JOBID": "7", "PBS_NODEFILE": "/7"}, ("batch", "this process is in job 7 of PBS")),
        ({"queue": "gpu"}, {}, ("batch", "--queue is given")),
    ],
)
def test_the_launcher_that_fits_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    variables: dict[str, str],
    chosen: tuple[str, str],
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr("nbdist.cluster.launchers.slurm.request.shutil.which", lambda name: name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    spec, why = choose_launcher("auto", settings)
    assert (spec.name, why) == chosen
    assert choose_launcher("mpi", settings)[0].name == "mpi"


def test_settings_are_checked_before_anything_starts(monkeypatch: pytest.MonkeyPatch, own_home: Path) -> None:
    monkeypatch.setitem(LAUNCHERS, "remote", REMOTE)
    with pytest.raises(
        InvalidArgumentError, match="hosts is not a setting of launcher 'local', which has none"
    ):
        start_cluster(1, launcher="local", report=None, hosts=["a"])
    for refused, settings in {
        r"python \(--python\) is for other hosts, and launcher 'mpi' starts its tasks on this": {
            "python": "/p"
        },
        "min_workers=2 with launcher 'mpi': an MPI world can neither add": {
            "hosts": "a:2,b:2",
            "min_workers": 2,
        },
        "nodes is not a setting of launcher 'mpi', which has hosts, python, .*choose another": {"nodes": 2},
    }.items():
        with pytest.raises(InvalidArgumentError, match=refused):
            start_cluster(launcher="mpi", report=None, **settings)
    with pytest.raises(
        InvalidArgumentError, match=r"hosts is a comma-separated list of host names, not \[\]"
    ):
        start_cluster(1, launcher="remote", report=None, hosts=[])
    with pytest.raises(TypeError, match="unexpected keyword argument 'wrokers'"):
        start_cluster(1, report=None, wrokers=2)
    with pytest.raises(MissingExtra, match="needed for launcher 'remote'"):
        start_cluster(1, launcher="remote", report=None, hosts=["a"])
    assert REMOTE.read_settings({"hosts": ["a"]}) == {"hosts": ["a"]}
    assert "remote" not in about()["launchers"]
    assert not (own_home / "clusters").exists() or not list((own_home / "clusters").iterdir())


@pytest.mark.engines
@here
def test_tasks_start_are_replaced_and_end(spec: LauncherSpec, own_home: Path) -> None:
    phases: list[str] = []
    cluster = start_cluster(2, launcher=spec.name, report=phases.append)
    try:
        assert [line.split(" ")[0] for line in phases[:3]] == ["controller", "2", "servers"]
        assert phases[-1].startswith("ready in ")  # the handle has the name; a cell shows it below
        assert cluster.run("import nbdist; nbdist.task.rank") == [0, 1]
        assert cluster.run("import os; os.environ['NBDIST_RANK']") == ["0", "1"]
        if spec.not_replaced:
            with pytest.raises(FailedPreconditionError, match=spec.not_replaced):
                cluster.restart(1)
        else:
            os.kill(cluster.tasks[1].pid, signal.SIGKILL)
            until(lambda: [info.rank for info in cluster.dead()] == [1])
            lines: list[str] = []
            cluster.restart(report=lines.append)
            assert spec.lost_by_replacement in lines[0]
        if spec.fixed_size:
            for resize in (cluster.grow, cluster.shrink):
                with pytest.raises(FailedPreconditionError, match=spec.fixed_size):
                    resize(report=None)
        else:
            cluster.grow(report=str)
            cluster.shrink(report=str)
        assert cluster.run("import nbdist; nbdist.task.rank") == [0, 1]
        pids = [info.pid for info in cluster.tasks]
    finally:
        cluster.stop()
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def compared_names(tree: ast.AST) -> list[str]:
    """Return the comparisons of a launcher variable with a launcher's name."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and "launcher" in ast.unparse(node)
        and any(isinstance(one, ast.Constant) and one.value in LAUNCHERS for one in ast.walk(node))
    ]


def imported_launchers(tree: ast.AST) -> list[str]:
    """Return the imports of a launcher's own module."""
    modules = {spec.make.__module__ for spec in LAUNCHERS.values()}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            found += sorted(names & modules)
    return found


def test_only_the_table_names_launchers() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_relative_to(PACKAGE / "cluster" / "launchers"):
            continue
        text = path.read_text()
        if "launcher" not in text:  # neither of the two has one then
            continue
        tree = ast.parse(text)
        assert not compared_names(tree), f"{path} compares a launcher's name: add a field to LauncherSpec"
        assert not imported_launchers(tree), f"{path} imports a launcher: use LAUNCHERS"
    for path in (PACKAGE.parent / "labextension" / "src").rglob("*.ts*"):
        lines = "\n".join(line for line in path.read_text().splitlines() if "auncher" in line)
        others = [name for name in LAUNCHERS if name != DEFAULT_LAUNCHER and f"'{name}'" in lines]
        assert not others, f"{path} names launcher {others}: use about.launchers"
