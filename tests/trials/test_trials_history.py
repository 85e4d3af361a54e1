"""nb.sweeps(): the sweeps of this user as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbdist.sweep.event_log import EventLog
from nbdist.sweep.events import Asked, Closed, Created, Ended, Event, Started
from nbdist.sweep.space import Space
from nbdist.trials.history import sweeps
from nbdist.trials.store import LOG, sweeps_folder, write_about


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path))


def written(sweep: str, name: str, *events: Event) -> None:
    folder = sweeps_folder() / sweep
    folder.mkdir(mode=0o700)
    write_about(folder, {"name": name})
    with EventLog.create(folder / LOG) as log:
        log.append(Created(1e9, Space({"a": [1, 2]}), 2, 7, "accuracy"), *events)


def trial(number: int, value: float) -> list[Event]:
    return [
        Asked(1e9 + 1, number, {"a": 1}, 7),
        Started(1e9 + 2, number, 1, (0,)),
        Ended(1e9 + 60, number, 1, "finished", value),
    ]


def test_the_sweeps_are_a_table_the_newest_first() -> None:
    assert repr(sweeps()) == sweeps()._repr_html_() == "no sweeps yet"
    written("261120-000001-one", "one", *trial(0, 0.5), *trial(1, 0.25))
    written("261120-000002-two", "<b>two</b>", *trial(0, 0.5))
    written("261120-000003-three", "three", *trial(0, 0.5), Closed(1e9 + 99, "stopped"))
    written("261120-000004-four", "four", Closed(1e9 + 99, "all trials failed"))
    written("261120-000005-five", "five")
    (sweeps_folder() / "261120-000005-five" / LOG).write_bytes(b"no log")
    found = sweeps()
    assert [(one.name, one.status, one.best) for one in found] == [
        ("five", "damaged", None),
        ("four", "failed", None),
        ("three", "stopped", 0.5),
        ("<b>two</b>", "lost", 0.5),  # no process drives it
        ("one", "finished", 0.5),
    ]
    assert (found[-1].seconds, found[-2].seconds, found[0].created) == (60.0, None, None)
    head, *rows, more = repr(found).splitlines()
    assert head.split() == ["id", "name", "status", "started", "duration", "trials", "best", "error"]
    assert "1 min" in rows[-1]
    assert "2 of 2" in rows[-1]
    assert rows[-1].endswith("accuracy 0.5 (trial 0)")
    assert rows[1].endswith("all trials failed")
    assert more == "nb.attach(id) opens a sweep"
    html = found._repr_html_()
    assert html.count("<tr>") == 6
    assert "<td>&lt;b&gt;two&lt;/b&gt;</td>" in html


def test_a_table_has_twenty_rows_and_says_how_to_see_the_others() -> None:
    for number in range(23):
        written(f"261120-0000{number:02}-x", "x")
    assert len(repr(sweeps()).splitlines()) == 22
    assert "and 3 older: nb.sweeps()[20:]" in repr(sweeps())
