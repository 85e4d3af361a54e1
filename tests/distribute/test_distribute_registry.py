"""The table of strategies: each row's strategy, flags and refusals. Without a cluster."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, cast

import pytest

import nbdist.distribute as public
from nbdist.distribute.registry import (
    MIN_WORKERS,
    SETTINGS,
    STRATEGIES,
    default_strategy,
    make_strategy,
    owners,
    training_spec,
    trial_strategies,
)
from nbdist.distribute.spec import Setting, StrategySpec
from nbdist.errors import InvalidArgumentError
from nbdist.run.options import Options
from nbdist.runtime.groups import World
from nbdist.runtime.task import Task, TaskInfo
from nbdist.train.strategy import Strategy
from nbdist.ui.api import launch
from nbdist.ui.flags import DISTRIBUTE_FLAGS, usage

CLASSES = {
    "ps": "ParameterServerStrategy",
    "mirrored": "MirroredStrategy",
    "multi_worker": "MultiWorkerMirroredStrategy",
    "central": "CentralStorageStrategy",
    "elastic": "ElasticAveragingStrategy",
    "sharded": "ShardedStrategy",
    "tpu": "TPUStrategy",
    "one_device": "OneDeviceStrategy",
}
"""The public class of each strategy."""


class OneWorkerTask:
    """The attributes of a worker's task that strategies read, with two parameter servers."""

    roster = (
        TaskInfo("ps", 0, 0, "here", 1, "127.0.0.1:1", "CPU:0", 1),
        TaskInfo("worker", 0, 1, "here", 2, "127.0.0.1:2", "CPU:0", 2),
        TaskInfo("ps", 1, 2, "here", 3, "127.0.0.1:3", "CPU:0", 3),
    )
    info, rank, name, segment_prefix = roster[1], 1, "/job:worker/task:0", "nb"


def made(spec: StrategySpec, **settings: Any) -> Strategy:
    world = World(cast("Task", OneWorkerTask()), (1,))
    return make_strategy(training_spec(spec.name, settings), world)


each = pytest.mark.parametrize("spec", STRATEGIES.values(), ids=lambda spec: spec.name)
each_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)


def example(setting: Setting) -> Any:
    """Return a value of the setting that is not its default."""
    for value in (True, 1, 0.5, *setting.choices[1:]):
        try:
            setting.check(value)
        except InvalidArgumentError:
            continue
        return value
    raise AssertionError(f"no value is valid for {setting.flag}")


@each
def test_make_returns_the_public_class(spec: StrategySpec) -> None:
    assert CLASSES.keys() == STRATEGIES.keys()
    strategy = made(spec)
    assert type(strategy) is getattr(public, CLASSES[spec.name])
    assert strategy.name == spec.name


@each
def test_make_takes_the_settings(spec: StrategySpec) -> None:
    for setting in spec.settings:
        if not setting.ignored_elsewhere and setting.synchronous is None:
            made(spec, **{setting.name: example(setting)})


@each
def test_sync_and_async_are_refused_where_they_have_no_meaning(spec: StrategySpec) -> None:
    for synchronous in (True, False):
        if spec.synchronous in (None, synchronous):
            Options(strategy=spec.name, synchronous=synchronous)
        else:
            flag = "sync" if synchronous else "async"
            with pytest.raises(InvalidArgumentError, match=f"--strategy {spec.name} .*drop --{flag}"):
                Options(strategy=spec.name, synchronous=synchronous)


@each
def test_in_graph_replication_is_refused_where_it_has_no_meaning(spec: StrategySpec) -> None:
    if spec.in_graph:
        Options(strategy=spec.name, replication="in-graph")
    else:
        with pytest.raises(InvalidArgumentError, match=f"--strategy {spec.name} has every worker keep"):
            Options(strategy=spec.name, replication="in-graph")


@each
def test_a_missing_parameter_server_is_refused(spec: StrategySpec) -> None:
    spec.check_servers(1)
    if spec.uses_parameter_servers:
        with pytest.raises(InvalidArgumentError, match=f"--strategy {spec.name} needs a parameter server"):
            spec.check_servers(0)
    else:
        spec.check_servers(0)


@each
def test_training_continues_without_a_worker_or_not(spec: StrategySpec) -> None:
    left = Options(strategy=spec.name).least(workers=3, servers=1)
    assert left == (1 if spec.survives_worker_loss else None)


@each
def test_each_setting_is_accepted_or_refused(spec: StrategySpec) -> None:
    for setting in SETTINGS.values():
        options: dict[str, Any] = {setting.name: example(setting), "strategy": spec.name}
        if setting.synchronous is not None and spec.synchronous is None:
            options["synchronous"] = setting.synchronous
        if spec.name in owners(setting) or setting.ignored_elsewhere:
            Options(**options)
        else:
            with pytest.raises(InvalidArgumentError, match=f"^{setting.flag} belongs to --strategy"):
                Options(**options)


@each_setting
def test_a_setting_is_an_option_a_parameter_and_a_flag(setting: Setting) -> None:
    defaults = {field.name: field.default for field in fields(Options)}
    parameters = inspect.signature(launch).parameters
    assert setting.name in defaults, f"add {setting.name} to Options"
    assert setting.name in parameters, f"add {setting.name} to nb.launch"
    assert defaults[setting.name] == parameters[setting.name].default == setting.default
    assert f"``{setting.name}``" in str(launch.__doc__)
    assert DISTRIBUTE_FLAGS[setting.flag].option == setting.name
    assert f"    {setting.flag}" in usage(DISTRIBUTE_FLAGS)


@each_setting
def test_an_invalid_value_is_refused(setting: Setting) -> None:
    if setting.choices or setting.expected:
        with pytest.raises(InvalidArgumentError, match=setting.flag):
            setting.check("smoke")


def test_strategies_by_default() -> None:
    assert default_strategy(servers=True, together=True) == "ps"
    assert trial_strategies()[0] == default_strategy(together=True)
    assert owners(MIN_WORKERS) == ("mirrored", "multi_worker", "elastic", "ps")
