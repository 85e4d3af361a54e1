"""Sweeps as the panel lists them, from valid and damaged logs."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbdist.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from nbdist.lab.readers import run_detail, sweep_detail
from nbdist.lab.readers import sweeps as sweeps_module
from nbdist.lab.readers.sweep_detail import sweep_bundle, sweep_details, sweep_saved
from nbdist.lab.readers.sweeps import Sweeps
from nbdist.sweep import event_log
from nbdist.sweep.event_log import FORMAT, MAGIC, EventLog, holder_of
from nbdist.sweep.events import (
    EVENT,
    Added,
    Asked,
    Closed,
    Ended,
    Event,
    Paused,
    Reported,
    Resumed,
    Started,
)
from nbdist.sweep.space import Space
from nbdist.sweep.start import open_sweep
from nbdist.trials.store import ABOUT, LOG, new_sweep_folder, write_about

KEYS = {
    "id", "name", "state", "created", "metric", "direction", "wanted", "counts", "best", "curve", "cluster",
    "session", "note", "error", "attach", "can", "why",
}  # fmt: skip
BEGAN = 1e9


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Driven:
    """A sweep with a locked log that the test writes."""

    def __init__(self, *, trials: int | None = 4, sampler: str = "random", name: str = "digits") -> None:
        self.folder = new_sweep_folder(name)
        owner = {"pid": os.getpid(), "session": "notebooks/sweep.ipynb"}
        names = {"0": "/job:worker/task:0"}
        about = {"name": name, "cluster": "c1", "ranks": [0, 1], "names": names, "owner": owner}
        write_about(self.folder, about)
        self.log = EventLog.create(self.folder / LOG)
        self.log.append(
            open_sweep(
                Space({"width": [8, 16]}), metric="accuracy", now=BEGAN, trials=trials, sampler=sampler,
                body="accuracy = train(width)",
            )
        )  # fmt: skip

    def add(self, *events: Event) -> None:
        self.log.append(*events)

    def trial(self, number: int, value: float | None, seconds: float = 1.0) -> None:
        at = BEGAN + seconds
        self.add(Asked(at, number, {"width": 8}, 5), Started(at, number, 1, (0,)))
        if value is not None:
            self.add(
                Reported(number, 1, 3, value, at),
                Ended(at, number, 1, "finished", value, {"accuracy": value}),
            )


@pytest.fixture
def drive() -> Iterator[Callable[..., Driven]]:
    made: list[Driven] = []

    def one(**settings: Any) -> Driven:
        made.append(Driven(**settings))
        return made[-1]

    yield one
    for driven in made:
        driven.log.close()


def only(sweeps: Sweeps) -> dict[str, Any]:
    (item,) = sweeps.poll()
    json.dumps(item, allow_nan=False)
    assert item.keys() == KEYS
    return item


def test_a_sweep_is_listed_until_its_end(drive: Callable[..., Driven]) -> None:
    one, sweeps = drive(), Sweeps()
    one.trial(0, 0.5, 1.0)
    one.trial(1, None, 2.0)
    item = only(sweeps)
    assert (item["name"], item["state"], item["metric"], item["direction"]) == (
        "digits",
        "running",
        "accuracy",
        "max",
    )
    assert (item["wanted"], item["counts"]["running"], item["counts"]["finished"]) == (4, 1, 1)
    assert item["best"] == {"number": 0, "value": 0.5, "parameters": {"width": 8}}
    assert item["session"] == "notebooks/sweep.ipynb"
    assert (item["cluster"], item["created"], item["note"], item["error"]) == ("c1", BEGAN, None, None)
    one.add(Ended(BEGAN + 4, 1, 1, "finished", 0.75))
    assert only(sweeps)["curve"] == {"x": [1.0, 4.0], "y": [0.5, 0.75]}
    one.trial(2, 0.1, 5.0)
    one.trial(3, 0.2, 6.0)
    item = only(sweeps)
    assert item["state"] == "finished"
    assert item["curve"] == {"x": [1.0, 4.0, 6.0], "y": [0.5, 0.75, 0.75]}
    assert set(item["why"].values()) == {"it has ended"}
    one.add(Added(BEGAN + 7, 2))
    assert (only(sweeps)["state"], only(sweeps)["wanted"]) == ("running", 6)


def test_commands_need_a_driver(drive: Callable[..., Driven]) -> None:
    one = drive()
    one.trial(0, None)
    item = only(Sweeps())
    assert item["can"] == {"pause": True, "resume": False, "stop": True}
    assert item["why"] == {"resume": "it is not paused"}
    assert item["session"] == "notebooks/sweep.ipynb"
    one.add(Paused(BEGAN + 1))
    item = only(Sweeps())
    assert item["can"] == {"pause": False, "resume": True, "stop": True}
    one.add(Resumed(BEGAN + 2), Closed(BEGAN + 3, "stopped"))
    item = only(Sweeps())
    assert (item["state"], set(item["can"].values())) == ("running", {False})
    assert item["why"]["stop"] == "it is being stopped: its last trials end"


def test_without_a_driver_there_are_no_commands(drive: Callable[..., Driven]) -> None:
    one = drive()
    one.trial(0, None)
    one.log.close()
    item = only(Sweeps())
    assert (item["state"], item["note"]) == ("lost", "no process drives it any more")
    assert item["can"] == {"pause": False, "resume": False, "stop": False}
    assert "takes it over" in item["why"]["stop"]
    compile(item["attach"], "<attach>", "exec")


def test_paused_stopped_failed_and_a_used_up_grid(drive: Callable[..., Driven]) -> None:
    one, sweeps = drive(), Sweeps()
    one.add(Paused(BEGAN + 1))
    assert only(sweeps)["state"] == "paused"
    one.add(Resumed(BEGAN + 2))
    assert only(sweeps)["state"] == "running"
    one.add(Closed(BEGAN + 3, "stopped"))
    assert (only(sweeps)["state"], only(sweeps)["error"]) == ("stopped", None)
    failed = drive(name="failed")
    failed.add(Closed(BEGAN, "all trials failed"))
    grid = drive(name="grid", trials=None, sampler="grid")
    for number, width in enumerate((8, 16)):
        grid.add(Asked(BEGAN, number, {"width": width}, 5), Started(BEGAN, number, 1, (0,)))
        grid.add(Ended(BEGAN + 1, number, 1, "finished", 0.1))
    found = {item["name"]: item for item in sweeps.poll()}
    assert (found["failed"]["state"], found["failed"]["error"]) == ("failed", "all trials failed")
    assert found["grid"]["state"] == "finished"


def test_nan_is_never_the_best(drive: Callable[..., Driven]) -> None:
    one = drive()
    one.trial(0, float("nan"))
    assert only(Sweeps())["best"] is None
    one.trial(1, float("inf"))
    item = only(Sweeps())
    assert item["best"] is None  # a diverged training is never the best, not even with --max
    assert item["curve"] == {"x": [], "y": []}


def test_a_curve_has_at_most_sixty_points(drive: Callable[..., Driven]) -> None:
    one = drive(trials=300)
    for number in range(200):
        one.trial(number, number * 1.0, float(number))
    curve = only(Sweeps())["curve"]
    assert len(curve["x"]) == 60
    assert (curve["x"][0], curve["y"][0], curve["x"][-1], curve["y"][-1]) == (0, 0, 199, 199)


def test_only_new_records_are_read(drive: Callable[..., Driven], monkeypatch: pytest.MonkeyPatch) -> None:
    one, sweeps = drive(), Sweeps()
    for number in range(4):
        one.trial(number, 0.5)
    first = only(sweeps)
    opened: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *a, **k: opened.append(a))
        assert sweeps.poll()[0] is first
    assert opened == []


@pytest.mark.slow
def test_a_long_log_is_read_over_several_polls(
    drive: Callable[..., Driven], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps_module, "LOG_BYTES", 1)
    one, sweeps = drive(trials=40_000), Sweeps()
    one.add(*(Asked(BEGAN, number, {"width": 8}, 5) for number in range(30_000)))
    assert sweeps.poll() == []
    looks = 1
    while not (items := sweeps.poll()):
        looks += 1
        assert looks < 50
    assert items[0]["counts"]["waiting"] == 30_000


def test_newest_first_with_a_limit(drive: Callable[..., Driven], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps_module, "MAX_SWEEPS", 2)
    for name in ("a", "b", "c"):
        drive(name=name)
    sweeps = Sweeps()
    assert len(sweeps.poll()) == 2
    assert sweeps.problems == ["1 older sweeps are not shown"]


# Invalid input.


def test_a_torn_log(drive: Callable[..., Driven]) -> None:
    one = drive()
    one.trial(0, 0.5)
    one.log.close()
    path = one.folder / LOG
    path.write_bytes(path.read_bytes()[:-9])
    item = only(Sweeps())
    assert item["state"] == "lost"
    assert "the last record was cut off" in item["note"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"hello, this is text", "is not a sweep log"),
        (MAGIC + FORMAT.frame(EVENT, b'{"event":"paused","time":1.0}'), "first record is lost"),
        (
            MAGIC + FORMAT.frame(EVENT, b"rubbish") + FORMAT.frame(EVENT, b'{"event":"paused","time":1.0}'),
            "first record is lost",
        ),
    ],
)
def test_a_file_that_is_not_a_log(drive: Callable[..., Driven], content: bytes, why: str) -> None:
    one, sweeps = drive(), Sweeps()
    one.log.close()
    (one.folder / LOG).write_bytes(content)
    item = only(sweeps)
    assert item["state"] == "damaged"
    assert why in item["error"]
    for view in (sweep_details, sweep_bundle):
        with pytest.raises(DataLossError, match="cannot be read"):
            view(one.folder.name)


def test_a_new_empty_log(drive: Callable[..., Driven]) -> None:
    one = drive()
    (one.folder / LOG).write_bytes(MAGIC[:5])
    assert Sweeps().poll() == []


@pytest.mark.parametrize(
    "about", [b"", b"[]", b"{", b'{"name": 7, "cluster": [], "owner": 3}', b"\xff" * 9, None]
)
def test_any_sweep_json(drive: Callable[..., Driven], about: bytes | None) -> None:
    one = drive()
    (one.folder / ABOUT).unlink()
    if about is not None:
        (one.folder / ABOUT).write_bytes(about)
    item = only(Sweeps())
    assert (item["name"], item["cluster"], item["session"]) == (one.folder.name, None, "")


def test_a_folder_that_vanishes(drive: Callable[..., Driven]) -> None:
    one, sweeps = drive(), Sweeps()
    only(sweeps)
    one.log.close()
    shutil.rmtree(one.folder)
    assert sweeps.poll() == []


def test_links_are_not_followed(drive: Callable[..., Driven], home: Path, tmp_path: Path) -> None:
    one = drive()
    one.log.close()
    one.folder.rename(tmp_path / "elsewhere")
    one.folder.symlink_to(tmp_path / "elsewhere")
    assert Sweeps().poll() == []
    one.folder.unlink()
    one.folder.mkdir()
    (one.folder / LOG).symlink_to(tmp_path / "elsewhere" / LOG)
    for item in Sweeps().poll():
        assert item["state"] == "damaged"
    (home / "sweeps").rename(tmp_path / "more")
    assert Sweeps().poll() == []


def test_a_missing_state_folder_is_not_created(home: Path) -> None:
    assert Sweeps().poll() == []
    assert not home.exists()
    for view in (sweep_details, sweep_bundle):
        with pytest.raises(NotFoundError):
            view("s1")
        with pytest.raises(InvalidArgumentError):
            view("../s1")


@settings(max_examples=examples(80), suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "event": st.sampled_from(
                    ["asked", "started", "ended", "closed", "promoted", "added", "created"]
                )
            },
            optional={
                "time": st.floats() | st.integers(),
                "number": st.integers(0, 3),
                "attempt": st.integers(0, 2),
                "trials": st.integers(0, 9),
                "parameters": st.dictionaries(
                    st.text(max_size=3), st.floats(allow_nan=False, allow_infinity=False)
                ),
                "seed": st.integers() | st.text(max_size=2),
                "ranks": st.lists(st.integers(0, 4), max_size=2),
                "state": st.sampled_from(["finished", "failed"]),
                "value": st.none() | st.floats() | st.text(max_size=2),
                "values": st.dictionaries(st.text(max_size=3), st.floats()) | st.integers(),
                "error": st.text(max_size=3) | st.integers(),
                "reason": st.text(max_size=3) | st.integers(),
            },
        ),
        max_size=8,
    )
)
def test_a_log_with_any_events_is_listed(home: Path, events: list[dict[str, Any]]) -> None:
    shutil.rmtree(home, ignore_errors=True)
    one = Driven()
    one.log.close()
    with (one.folder / LOG).open("ab") as file:
        for event in events:
            file.write(FORMAT.frame(EVENT, json.dumps(event).encode()))
    only(Sweeps())


def test_names_are_text(drive: Callable[..., Driven]) -> None:
    one = drive()
    write_about(one.folder, {"name": "<script>alert(1)</script>"})
    assert only(Sweeps())["name"] == "<script>alert(1)</script>"


# Details of a sweep.


def test_details_and_the_bundle(drive: Callable[..., Driven]) -> None:
    one = drive()
    for number in range(3):
        one.trial(number, 0.5 + number / 10, number + 1.0)
    found = sweep_details(one.folder.name)
    json.dumps(found, allow_nan=False)
    assert found.keys() > KEYS
    assert found["code"] == "accuracy = train(width)"
    assert (found["sampler"], found["pruner"], found["per_trial"]) == ("random", "none", 1)
    assert [row["trial"] for row in found["rows"]] == ["2", "1", "0"]
    bundle = sweep_bundle(one.folder.name)
    json.dumps(bundle, allow_nan=False)
    assert (bundle["kind"], bundle["shown"], bundle["of"]) == ("sweep", 3, 3)
    assert bundle["head"]["id"] == one.folder.name
    assert bundle["head"]["engines"] == [[0, "/job:worker/task:0"]]  # and not "rank 0"
    assert bundle["status"]["best"] == 2
    assert bundle["status"]["state"] == "running"


def test_the_output_of_a_sweep_is_as_a_notebook_saves_it(drive: Callable[..., Driven]) -> None:
    one = drive()
    one.trial(0, 0.5, 1.0)
    found = sweep_saved(one.folder.name)
    json.dumps(found, allow_nan=False)
    assert not found["over"]
    assert sorted(found["data"]) == ["application/vnd.nbdist.sweep+json", "text/html", "text/plain"]
    one.log.close()
    assert sweep_saved(one.folder.name)["over"]


def test_a_bundle_is_made_once_while_nothing_changes(
    drive: Callable[..., Driven], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = drive()
    one.trial(0, 0.5)
    first = sweep_bundle(one.folder.name)
    assert sweep_bundle(one.folder.name) is first
    one.trial(1, 0.75)
    assert sweep_bundle(one.folder.name)["of"] == 2
    one.log.close()
    assert sweep_bundle(one.folder.name)["status"]["state"] == "stopped"
    assert len(json.dumps(sweep_bundle(one.folder.name), indent=1)) < sweep_detail.LIMIT


def test_a_finished_sweep_has_all_details(drive: Callable[..., Driven]) -> None:
    one, sweeps = drive(), Sweeps()
    for number in range(4):
        one.trial(number, 0.5)
    only(sweeps)
    item, ledger = sweeps.read_all(one.folder.name)
    assert item["state"] == "finished"
    assert len(ledger.trials) == 4


# Its driver.


def test_a_new_driver_waits_for_readers(
    drive: Callable[..., Driven], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "LOCK_SECONDS", 60.0)
    one = drive()
    one.log.close()
    path = one.folder / LOG
    with path.with_name(f"{LOG}.lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        timer = threading.Timer(0.02, fcntl.flock, (looking, fcntl.LOCK_UN))
        timer.start()
        EventLog.reopen(path).close()
        timer.join()


def test_checking_a_lock_does_not_take_it(drive: Callable[..., Driven]) -> None:
    one = drive()
    path = one.folder / LOG
    assert holder_of(path) == os.getpid()
    with pytest.raises(FailedPreconditionError, match="one driver"):
        EventLog.reopen(path)
    one.log.close()
    assert holder_of(path) is None
    EventLog.reopen(path).close()
    assert holder_of(path.with_name("nothing")) is None
    with suppress(FileNotFoundError):
        path.with_name(f"{LOG}.lock").unlink()
    assert holder_of(path) is None


def test_the_bundle_of_an_ended_sweep_is_current(
    drive: Callable[..., Driven], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_detail, "SHARE", 1e-9)  # a built bundle is kept while the state is the same
    one, sweeps = drive(), Sweeps()
    one.trial(0, 0.5)
    sweeps.poll()
    assert sweep_bundle(one.folder.name, sweeps)["of"] == 1
    for number in range(1, 4):
        one.trial(number, 0.5)
        assert sweep_bundle(one.folder.name, sweeps)["of"] == 1
    sweeps.poll()
    for view in (sweep_bundle, sweep_details):
        assert view(one.folder.name, sweeps)
    assert sweep_bundle(one.folder.name, sweeps)["status"]["state"] == "finished"
