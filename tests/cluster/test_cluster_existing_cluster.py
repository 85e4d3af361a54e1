"""The hosts of a cluster that is up, when some of them do not come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import pytest

from nbdist.cluster.launchers.nodes import Failed, Nodes, Supervisors
from nbdist.errors import UnavailableError

PLAN = json.dumps({"heads": ["127.0.0.1"]}).encode() + b"\n"


class AbsentNodes(Nodes):
    """Hosts of which none comes."""

    notice = "it does not use TLS"

    def names(self) -> list[str]:
        return ["a", "b"]

    def start(self, names: Sequence[str], waiting: Callable[[str], None], failed: Failed) -> dict[str, str]:
        waiting("it is busy")
        for name in names:
            failed(name, "no space left")
        return {}

    def dial(self, addresses: Mapping[str, Sequence[str]], failed: Failed) -> None:
        pass

    def close(self) -> None:
        pass


def test_each_host_that_does_not_come_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnavailableError, match=r"^host b: no space left$"):
        Supervisors(AbsentNodes(), PLAN).run(["a", "b"])
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"waiting": "it does not use TLS"},
        {"waiting": "it is busy"},
        {"lost": ["a"], "reasons": ["host a: no space left"]},
        {"lost": ["b"], "reasons": ["host b: no space left"]},
    ]
