"""The state of pages: its changes are sufficient, and it contains pending actions."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from labfakes import FakeLister, FakeTaskLister, applied, cluster_item, run_item, sweep_item, task_item

from nbdist.lab.actions.status import PendingAction
from nbdist.lab.state import PanelState, changes, ordered

START = PendingAction(
    "clusters", "c", "start", 5.0, {"workers": 2, "ps": 1, "launcher": "local"}, ("engines",)
)

created = st.one_of(st.none(), st.floats(0, 3))
items = st.dictionaries(st.sampled_from("abcde"), st.tuples(created, st.integers(0, 2))).map(
    lambda found: [{"id": id, "created": when, "step": step} for id, (when, step) in found.items()]
)
tasks = st.dictionaries(st.integers(0, 4), st.integers(0, 2)).map(
    lambda found: [{"rank": rank, "step": step} for rank, step in found.items()]
)


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    lists = {name: ordered(draw(items), name) for name in ("clusters", "runs", "sweeps")}
    cluster = draw(st.sampled_from([None, "a", "b"]))
    own = [] if cluster is None else [{**task, "cluster": cluster} for task in draw(tasks)]
    problems = draw(st.lists(st.sampled_from("xy"), max_size=2))
    return {"version": 1, **lists, "tasks": ordered(own, "tasks"), "cluster": cluster, "problems": problems}


@given(states(), states())
def test_changes_are_all_that_a_page_needs(before: dict[str, Any], after: dict[str, Any]) -> None:
    found = changes(before, after)
    assert applied(before, json.loads(json.dumps(found))) == after
    assert (found == {}) == (before == after)


@given(states(), states(), states())
def test_skipped_changes_are_merged(one: Any, two: Any, three: Any) -> None:
    """A slow page receives one message from its last state to the newest."""
    assert applied(one, changes(one, three)) == applied(applied(one, changes(one, two)), changes(two, three))


@given(states(), states())
def test_an_unchanged_state_sends_nothing(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name, change in changes(before, after).items():
        assert name not in ("clusters", "runs", "sweeps") or change["set"] or change["removed"]


def state_of(**listed: Any) -> PanelState:
    lists = {name: FakeLister(listed.get(name, [])) for name in ("clusters", "runs", "sweeps")}
    pending = listed.get("pending", ())
    return PanelState(
        lists["clusters"],
        FakeTaskLister(listed.get("tasks", {})),
        lists["runs"],
        lists["sweeps"],
        lambda: pending,
    )


def test_a_starting_cluster_is_listed_immediately() -> None:
    state = state_of(clusters=[cluster_item("a")], pending=[START]).poll()
    assert [(one["id"], one["state"], one["lines"]) for one in state["clusters"]] == [
        ("c", "starting", ["engines"]),
        ("a", "running", []),
    ]
    assert state["clusters"][0].keys() == cluster_item("a").keys()
    assert state["clusters"][0]["can"] == {"stop": True, "grow": False, "shrink": False, "restart": False}


def test_a_starting_cluster_with_a_file_is_still_starting() -> None:
    [one] = state_of(clusters=[cluster_item("c")], pending=[START]).poll()["clusters"]
    assert (one["state"], one["can"]["stop"], one["can"]["grow"]) == ("starting", True, False)


def test_a_failed_start_is_listed_with_its_error() -> None:
    [one] = state_of(pending=[START.failed("no room")]).poll()["clusters"]
    assert (one["state"], one["error"], one["can"]["stop"]) == ("failed", "no room", True)


def test_a_cluster_without_tasks_yet_has_its_planned_size() -> None:
    early = cluster_item("c", workers=0, ps=0, engines=0)
    [one] = state_of(clusters=[early], pending=[START]).poll()["clusters"]
    assert (one["state"], one["workers"], one["engines"]) == ("starting", 2, 3)


def test_actions_on_a_cluster_are_shown() -> None:
    stop = PendingAction("clusters", "a", "stop", 1.0)
    [one] = state_of(clusters=[cluster_item("a")], pending=[stop]).poll()["clusters"]
    assert (one["state"], one["can"]["grow"], one["why"]["grow"]) == (
        "stopping",
        False,
        "it is being stopped",
    )
    [one] = state_of(clusters=[cluster_item("a")], pending=[stop.failed("it hangs")]).poll()["clusters"]
    assert (one["state"], one["can"]["grow"], one["error"]) == ("running", True, "it hangs")


def test_actions_on_runs_and_sweeps_are_shown() -> None:
    pending = [
        PendingAction("runs", "r", "stop", 1.0),
        PendingAction("sweeps", "s", "pause", 1.0).failed("no"),
    ]
    state = state_of(runs=[run_item("r")], sweeps=[sweep_item("s"), sweep_item("r")], pending=pending).poll()
    assert set(state["runs"][0]["why"].values()) == {"it is being stopped"}
    assert [(one["id"], one["error"]) for one in state["sweeps"]] == [("s", "no"), ("r", None)]


def test_polls_are_frequent_while_items_are_active() -> None:
    assert not state_of(clusters=[cluster_item("a")], runs=[run_item("r")]).snapshot().active
    assert not state_of(runs=[run_item("r", status="paused"), run_item("s", status="lost")]).snapshot().active
    assert state_of(clusters=[cluster_item("a")], runs=[run_item("r", status="running")]).snapshot().active
    assert state_of(pending=[START]).snapshot().active


def test_tasks_of_the_clusters_that_pages_show() -> None:
    seen = state_of(tasks={"a": [task_item("a", 0)], "b": [task_item("b", 0)]}).snapshot(["a", "b"])
    assert [seen.for_cluster(one)["tasks"] for one in ("a", "b", None, "c")] == [
        [task_item("a", 0)],
        [task_item("b", 0)],
        [],
        [],
    ]
