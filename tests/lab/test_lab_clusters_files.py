"""Parsing of cluster files, ours and ipyparallel's, with any content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_clusters import a_task

from nbdist.cluster.description import ClusterDescription, parse_description, parse_tasks
from nbdist.cluster.hub import standard_description
from nbdist.lab.readers.clusters import (
    ClusterStatus,
    describe_death,
    describe_deaths,
    host_items,
    nbdist_item,
)
from nbdist.lab.readers.ipyparallel import EngineSet, parallel_item, parse_parallel
from nbdist.lab.readers.supervisor import SupervisorStatus, parse_status, parse_usage

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


def shaped(*names: str) -> st.SearchStrategy[Any]:
    """Return objects with these keys and any values, nested like the files."""
    return st.recursive(
        JSON,
        lambda inner: st.dictionaries(st.sampled_from(names), inner) | st.lists(inner, max_size=2),
        max_leaves=12,
    )


OURS = shaped("id", "tasks", "owner", "pid", "started", "gpus", "asked", "versions", "job", "index", "rank")
THEIRS = shaped(
    "cluster",
    "controller",
    "state",
    "engines",
    "sets",
    "class",
    "a",
    "pid",
    "n",
    "supervisor_folder",
    "keeper_folder",
)
WORDS = shaped(
    "reply",
    "pids",
    "exits",
    "stopping",
    "tasks",
    "0",
    "-1",
    "code",
    "signal",
    "log",
    "by",
    "hosts",
    "ends",
    "unused_ends",
    "name",
    "gpus",
)


@given(JSON | OURS)
def test_any_description_is_shown_or_refused(content: object) -> None:
    description = parse_description(content)
    if description is not None:
        item = nbdist_item(ClusterStatus("mine", "running", 1.0, description), {})
        json.dumps(item, allow_nan=False)


@given(JSON | THEIRS)
def test_any_file_of_ipyparallel_is_shown_or_ignored(content: object) -> None:
    one = parse_parallel(content, "mine")
    if one is not None:
        item = parallel_item(Path("/a/profile_b/security/cluster-mine.json"), one, frozenset(), 0, 1.0)
        json.dumps(item, allow_nan=False)


@given(JSON | WORDS)
def test_any_message_of_a_supervisor_is_accepted_or_refused(content: object) -> None:
    word = parse_status(content)
    if word is not None:
        tasks = parse_tasks([a_task(0, 7), a_task(1, 8)])
        assert tasks is not None
        assert all(isinstance(how, str) for how in describe_deaths(tasks, word).values())
        description = ClusterDescription(1.0, 2, 0, "ssh", tasks, slots={"a": 1})
        json.dumps(host_items(description, word, parse_usage(content, 1.0)), allow_nan=False)


def test_an_mpi_world_cannot_grow() -> None:
    description = ClusterDescription(1.0, 2, 0, "mpi", ())
    item = nbdist_item(ClusterStatus("mine", "running", 1.0, description), {})
    assert item["can"] == {"stop": True, "grow": False, "shrink": False, "restart": True}
    assert "MPI world" in item["why"]["grow"]


def test_the_text_for_the_end_of_a_process() -> None:
    assert describe_death({"by": "its supervisor has ended"}) == "its supervisor has ended"
    assert describe_death({"signal": 99, "code": None, "log": "\n \n"}) == "killed by 99"
    assert describe_death({"signal": "?", "log": "one\n" + "x" * 300}).endswith("x" * 200)


def test_a_rank_without_a_process_of_the_supervisor_is_dead() -> None:
    tasks = parse_tasks([a_task(0, 7), a_task(1, 8)])
    assert tasks is not None
    assert describe_deaths(tasks, SupervisorStatus({0: 7})) == {1: "its process has ended"}


@pytest.mark.parametrize("launcher", ["nbdist.cluster.ipyparallel_launcher.LocalTaskLauncher", "nbdist"])
def test_our_own_listing_is_read_as_ours(launcher: str) -> None:
    """Also after ipyparallel's panel has rewritten it with the entry point's name."""
    content = standard_description(Path("/home/clusters/mine"), 5, 3)
    content["engines"]["class"] = launcher
    one = parse_parallel(content, "mine")
    assert one is not None
    assert one.by_nbdist
    assert (one.launcher, one.controller) == ("nbdist", 5)
    assert one.sets == (EngineSet(3, (), "/home/clusters/mine"),)


def test_pids_of_other_hosts_are_ignored() -> None:
    state = {"pid": 5, "hostname": "remote", "state": "running"}
    content = {
        "cluster": {"cluster_id": "a"},
        "controller": {"class": "ssh", "state": state},
        "engines": {"class": "ssh", "sets": {"1": {"n": 2, "engines": {"0": state, "1": state}}}},
    }
    one = parse_parallel(content, "a")
    assert one is not None
    assert (one.controller, one.sets) == (None, (EngineSet(2),))
    path = Path("/me/.ipython/profile_ssh/security/cluster-a.json")
    item = parallel_item(path, one, frozenset(), 2, 7.0)
    assert (item["state"], item["id"], item["created"]) == ("running", "ipp:ssh:a", 7.0)
    assert item["attach"].splitlines()[1] == f'rc = ipp.Cluster.from_file("{path}").connect_client_sync()'
