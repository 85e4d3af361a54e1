"""Hosts that come when the cluster is up: the decisions, without hosts."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from nbdist.cluster import late_hosts
from nbdist.cluster.doctor.judge import CORE
from nbdist.cluster.doctor.observe import software
from nbdist.cluster.supervisor.hosts import Hosts


def test_a_late_host_that_cannot_have_tasks_leaves_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {**software(CORE), "shm": {"total": 8 << 30}}
    reports = {name: {"name": name, "identity": "one machine", "facts": facts} for name in ("a", "b")}
    supervisor = Mock(hosts=reports, closed=False, awaits_job=False)
    supervisor.take.return_value = ()
    monkeypatch.setattr(
        late_hosts, "read_description", lambda folder: Mock(asked={"hosts": "a,b"}, slots={"a": 1, "b": 1})
    )
    lines: list[str] = []
    cluster = Mock(id="c", stopped=False, tasks=[])
    late_hosts.LateHosts(cluster, supervisor, {"b": 1}, {}, Mock(), lines.append).run()
    supervisor.ask.assert_called_once_with("refuse_hosts", hosts=["b"])
    assert "it is the same machine as a" in "".join(lines)


@pytest.mark.parametrize(
    ("launcher", "awaited", "again"), [("ssh", ["a", "b", "c"], ["c"]), ("slurm", ["a", "b"], [])]
)
def test_an_attached_client_awaits_the_hosts_that_never_had_a_task(
    monkeypatch: pytest.MonkeyPatch, launcher: str, awaited: list[str], again: list[str]
) -> None:
    """Those that have come without tasks, those whose command runs, and those whose command can run again."""
    slots = {"a": 1, "b": 2, "c": 1, "other": 1}
    monkeypatch.setattr(
        late_hosts, "read_description", lambda folder: Mock(launcher=launcher, slots=slots, asked={})
    )
    monkeypatch.setattr(late_hosts.LateHosts, "start", lambda self: None)
    supervisor = Mock(hosts={"a": {}})
    supervisor.ask.return_value = {"late": ["a", "b", "c"], "awaited": ["b"]}
    found = late_hosts.LateHosts.begin(Mock(id="c"), supervisor, print)
    assert found is not None
    assert (found.awaited, list(found._tried)) == (awaited, again)
    supervisor.ask.return_value = {"late": [], "awaited": []}
    assert late_hosts.LateHosts.begin(Mock(id="c"), supervisor, print) is None


def test_a_host_that_another_client_has_given_tasks_is_awaited_no_more() -> None:
    supervisor = Mock(hosts={"b": {}}, closed=False, awaits_job=False)
    supervisor.take.return_value = ()
    lines: list[str] = []
    cluster = Mock(id="c", stopped=False, tasks=[Mock(node="b")])
    late_hosts.LateHosts(cluster, supervisor, {"b": 1}, {}, Mock(), lines.append).run()
    supervisor.ask.assert_not_called()
    assert lines == ["host b has come, and has tasks already"]


def test_the_supervisor_runs_one_command_for_a_host() -> None:
    plan = {"hosts": ["a", "b", "c"], "settings": {}, "tasks": [{"rank": 0, "host": "a"}]}
    spec = Mock()
    spec.commands.return_value = ()
    hosts = Hosts(Mock(plan=plan, launcher_spec=spec, kill_at=None))
    hosts.note_tasks()
    assert hosts.late() == ["b", "c"]
    hosts.by_name["a"] = Mock()
    hosts.commands.append(Mock(hosts=("b",)))
    hosts.bring_up(["a", "b"])
    spec.commands.assert_not_called()
    hosts.bring_up(["b", "c"])
    spec.commands.assert_called_once_with({}, ["c"])
    hosts.served.add("b")  # refused
    assert hosts.late() == ["c"]
