"""Hosts that come when the cluster is up: the decisions, without hosts."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from nbdist.cluster import late_hosts
from nbdist.cluster.doctor.judge import CORE
from nbdist.cluster.doctor.observe import software


def test_a_late_host_that_cannot_have_tasks_leaves_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {**software(CORE), "shm": {"total": 8 << 30}}
    reports = {name: {"name": name, "identity": "one machine", "facts": facts} for name in ("a", "b")}
    supervisor = Mock(hosts=reports, closed=False)
    supervisor.take.return_value = ()
    monkeypatch.setattr(
        late_hosts, "read_description", lambda folder: Mock(asked={"hosts": "a,b"}, slots={"a": 1, "b": 1})
    )
    lines: list[str] = []
    cluster = Mock(id="c", stopped=False)
    late_hosts.LateHosts(cluster, supervisor, {"b": 1}, {}, Mock(), lines.append).run()
    supervisor.ask.assert_called_once_with("refuse_hosts", hosts=["b"])
    assert "it is the same machine as a" in "".join(lines)
