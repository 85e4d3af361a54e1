"""The table of strategies: each row's strategy, flags and refusals. Without a cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest

import nbdist.distribute as public
from nbdist.distribute.registry import STRATEGIES, default_strategy, make_strategy, trial_strategies
from nbdist.distribute.spec import StrategySpec
from nbdist.errors import InvalidArgumentError
from nbdist.run.membership import MembershipRules
from nbdist.run.options import SETTINGS, Options
from nbdist.runtime.groups import World
from nbdist.runtime.task import Task, TaskInfo
from nbdist.train.options import RunOption
from nbdist.train.strategy import Strategy

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
    return make_strategy(spec.name, Options(strategy=spec.name, **settings), world)


each = pytest.mark.parametrize("spec", STRATEGIES.values(), ids=lambda spec: spec.name)
each_setting = pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)


def example(setting: RunOption) -> Any:
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
    for setting in spec.settings.values():
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
    rules = MembershipRules.of(Options(strategy=spec.name), workers=3, servers=1)
    assert rules.least() == (1 if spec.survives_worker_loss else None)


@each
def test_each_setting_is_accepted_or_refused(spec: StrategySpec) -> None:
    for setting in SETTINGS.values():
        options: dict[str, Any] = {setting.name: example(setting), "strategy": spec.name}
        if setting.synchronous is not None and spec.synchronous is None:
            options["synchronous"] = setting.synchronous
        if spec.name in setting.strategies or setting.ignored_elsewhere:
            Options(**options)
        else:
            with pytest.raises(InvalidArgumentError, match=f"^{setting.flag} belongs to --strategy"):
                Options(**options)


@each
def test_the_settings_of_a_strategy_are_options_of_a_run(spec: StrategySpec) -> None:
    assert spec.settings.keys() <= SETTINGS.keys(), f"add its options to the bases of LaunchOptions: {spec}"


@each_setting
def test_an_invalid_value_is_refused(setting: RunOption) -> None:
    if setting.choices or setting.expected:
        with pytest.raises(InvalidArgumentError, match=setting.flag):
            setting.check("smoke")


def test_strategies_by_default() -> None:
    assert default_strategy(servers=True, together=True) == "ps"
    assert trial_strategies()[0] == default_strategy(together=True)
    assert SETTINGS["min_workers"].strategies == ("mirrored", "multi_worker", "elastic", "ps")
