"""What clusters have left on a host: the files of runs that wait for a client, and their end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nbdist.cluster.remnants import KEPT_DAYS, remove_remnants
from nbdist.home import home


def test_files_of_runs_wait_for_their_client_and_are_removed_after_days(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "nbdist"))
    spools = home() / "spool"
    long_ago = time.time() - (KEPT_DAYS + 1) * 86_400
    for name in ("old", "waiting"):
        folder = spools / name
        folder.mkdir(parents=True)
        (folder / "metrics-0000.log").touch()
    os.utime(spools / "old", (long_ago, long_ago))
    found = remove_remnants()
    assert (found.old, found.waiting) == (("old",), ("waiting",))
    assert found.text().endswith(
        "; clusters that live here: none; removed, as not fetched in 30 days, the files of runs: old; files "
        "are kept of runs that no client has copied: waiting (start a cluster on this host, and call "
        "nb.attach with the run's id)"
    )
    assert [one.name for one in spools.iterdir()] == ["waiting"]
    assert remove_remnants().old == ()
