"""Hyperparameters, as TensorBoard's HParams page reads them.

    <folder>/                the experiment: which hyperparameters and metrics there are
    <folder>/trial-0003/     a session: its values, its metrics as scalars, and how it ended

Source of the messages and tags: tensorboard.plugins.hparams.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.metrics.event_file import protos
from nbdist.summary.values import metadata

EXPERIMENT, START, END = (
    "_hparams_/experiment",
    "_hparams_/session_start_info",
    "_hparams_/session_end_info",
)
STATUSES = {"success": "STATUS_SUCCESS", "failure": "STATUS_FAILURE", "running": "STATUS_RUNNING"}


@dataclass(frozen=True)
class HParam:
    """A hyperparameter: its name, and the values it takes: a few, or from the first to the second number.

    ``values`` may be empty; ``interval`` says that they are the two ends of a range.
    """

    name: str
    values: tuple[Any, ...] = ()
    interval: bool = False

    def info(self) -> Any:
        """Return its HParamInfo."""
        api = protos().experiment
        kinds = {kind_of(value) for value in self.values}
        kind = kinds.pop() if len(kinds) == 1 else "DATA_TYPE_STRING" if kinds else "DATA_TYPE_UNSET"
        info = api.HParamInfo(name=self.name, type=kind)
        if self.interval:
            info.domain_interval.min_value, info.domain_interval.max_value = map(float, self.values)
        elif self.values:
            as_text = kind == "DATA_TYPE_STRING"
            info.domain_discrete.extend([str(one) if as_text else plain(one) for one in self.values])
        return info


@dataclass(frozen=True)
class Experiment:
    """Which hyperparameters and metrics the sessions of a folder have."""

    hparams: Sequence[HParam]
    metrics: Sequence[str]
    name: str = ""
    began: float = 0.0

    @property
    def size(self) -> int:
        """How many bytes it takes, about."""
        return 100 * (len(self.hparams) + len(self.metrics))

    def messages(self, tag: str) -> list[Any]:
        """Return its message, whose tag is TensorBoard's."""
        api = protos().experiment
        metrics = [api.MetricInfo(name=api.MetricName(tag=name)) for name in self.metrics]
        infos = [one.info() for one in self.hparams]
        made = api.Experiment(
            name=self.name, time_created_secs=self.began, hparam_infos=infos, metric_infos=metrics
        )
        return [_message(EXPERIMENT, experiment=made)]


@dataclass(frozen=True)
class SessionStart:
    """The values of one session's hyperparameters: numbers, texts and bools."""

    hparams: Mapping[str, Any]
    group: str = ""
    began: float = 0.0

    @property
    def size(self) -> int:
        """How many bytes it takes, about."""
        return 100 * len(self.hparams)

    def messages(self, tag: str) -> list[Any]:
        """Return its message, whose tag is TensorBoard's."""
        made = protos().hparams.SessionStartInfo(group_name=self.group, start_time_secs=self.began)
        for name, value in self.hparams.items():
            given = plain(value)
            field = {str: "string_value", bool: "bool_value"}.get(type(given), "number_value")
            setattr(made.hparams[name], field, given)
        return [_message(START, session_start_info=made)]


@dataclass(frozen=True)
class SessionEnd:
    """How a session ended: "success", "failure", or "running"."""

    status: str = "success"
    ended: float = 0.0

    @property
    def size(self) -> int:
        """How many bytes it takes, about."""
        return 100

    def messages(self, tag: str) -> list[Any]:
        """Return its message, whose tag is TensorBoard's."""
        made = protos().hparams.SessionEndInfo(status=STATUSES[self.status], end_time_secs=self.ended)
        return [_message(END, session_end_info=made)]


def checked(values: Any, metrics: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """Return hyperparameters and metrics by name; InvalidArgumentError for other values."""
    for what, given in (("values", values), ("metrics", metrics)):
        if not isinstance(given, Mapping) or not all(isinstance(name, str) and name for name in given):
            raise InvalidArgumentError(f"summary.hparams: {what} is a dict by name, not {given!r:.100}")
    for name, value in metrics.items():
        if not isinstance(value, numbers.Real):
            raise InvalidArgumentError(f"summary.hparams: metric {name!r} is a number, not {value!r:.100}")
    return {name: plain(value) for name, value in values.items()}, {k: float(v) for k, v in metrics.items()}


def plain(value: Any) -> Any:
    """Return a hyperparameter as a number, a bool or a text."""
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        value = value.item()
    if isinstance(value, (bool, str)):
        return value
    return float(value) if isinstance(value, numbers.Real) else str(value)


def kind_of(value: Any) -> str:
    """Return the data type of a value.

    >>> kind_of(0.1), kind_of("adam"), kind_of(True)
    ('DATA_TYPE_FLOAT64', 'DATA_TYPE_STRING', 'DATA_TYPE_BOOL')
    """
    kinds = {str: "DATA_TYPE_STRING", bool: "DATA_TYPE_BOOL"}
    return kinds.get(type(plain(value)), "DATA_TYPE_FLOAT64")


def _message(tag: str, **content: Any) -> Any:
    data = protos().hparams.HParamsPluginData(version=0, **content).SerializeToString()
    return protos().Summary.Value(tag=tag, metadata=metadata("hparams", data))
