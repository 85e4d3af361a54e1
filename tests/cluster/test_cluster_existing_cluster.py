"""The hosts of a cluster that is up, when some of them do not come, or come late."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
import zmq

from nbdist.cluster.launchers import existing_cluster
from nbdist.cluster.launchers.existing_cluster import ENDED_AT_ONCE, ExistingCluster, Supervisors
from nbdist.errors import UnavailableError

PLAN = json.dumps({"heads": ["127.0.0.1"]}).encode() + b"\n"
KEY = zmq.curve_keypair()[0].decode()


def done(value: str | Exception) -> Future[str]:
    future: Future[str] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


class FewHosts(ExistingCluster):
    """A cluster of which "gone" has left, "broken" fails, "ends" ends, and "busy" begins late."""

    notice = "it does not use TLS"

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self.late: Future[str] = Future()

    def names(self) -> list[str]:
        return ["gone", "broken", "ends", "free", "busy"]

    def start(self, name: str) -> Future[str]:
        if name == "gone":
            raise UnavailableError("it has no worker there any more")
        answers = {"broken": done(ModuleNotFoundError("No module named 'nbdist'")), "ends": done("")}
        return {**answers, "free": done(KEY), "busy": self.late}[name]

    def dial(self, name: str, addresses: Sequence[str]) -> Future[str]:
        assert all(address.startswith("127.0.0.1:") for address in addresses)
        self.dialled.append(name)
        return done("no route leads there") if name == "busy" else Future()

    def busy(self, names: Sequence[str]) -> str:
        assert self.dialled == ["free"], "it waited for the busy host"
        self.late.set_result(KEY)
        return f"{', '.join(names)} must be free"

    def close(self) -> None:
        pass


def test_a_busy_host_holds_back_no_other_and_each_that_does_not_come_is_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(existing_cluster, "BUSY_SECONDS", 0.0)
    monkeypatch.setattr(existing_cluster, "JOIN_SECONDS", 0.5)
    monkeypatch.setattr(existing_cluster, "END_SECONDS", 0.0)
    cluster = FewHosts()
    with pytest.raises(UnavailableError, match=r"^host free: its worker did not connect within 0\.5 s: "):
        Supervisors(cluster, PLAN).run(cluster.names())
    lost = {
        "gone": "it has no worker there any more",
        "broken": "its worker has no nbdist: install the same version there",
        "ends": ENDED_AT_ONCE,
        "busy": "no route leads there",
        "free": "its worker did not connect within 0.5 s: it is busy, or its log says why",
    }
    lines: dict[str, dict[str, Any]] = {
        name: {"lost": [name], "reasons": [f"host {name}: {why}"]} for name, why in lost.items()
    }
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"waiting": "it does not use TLS"},
        lines["gone"],
        lines["broken"],
        lines["ends"],
        {"hosts": ["free", "busy"]},
        {"waiting": "busy must be free"},
        lines["busy"],
        {"hosts": ["free"]},
        lines["free"],
    ]
