"""Base class of losses and metrics: one number per example, a name, settings, a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.tensor import Tensor


@dataclass(frozen=True)
class Measure:
    """How far predictions are from what is true, for each example.

    ``measure(y, predicted)`` makes (batch, ...) of what is true and predictions (batch, ..., outputs).
    """

    name: ClassVar[str]
    """What it is called as text, for example in ``compile(loss="mean_squared_error")``."""
    sparse: ClassVar[bool] = False
    """Whether what is true are class numbers, not rows like the predictions."""
    any_labels: ClassVar[bool] = False
    """Whether it takes both."""
    function: ClassVar[Callable[..., Tensor]]
    """Computes it of y, predicted and the settings of the class that names it; or there is ``__call__``."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "function" in vars(cls) and "name" not in vars(cls):
            cls.name = cls.function.__name__

    def __call__(self, y: Tensor, predicted: Tensor) -> Tensor:
        """Return one number per example. Raises NotImplementedError for a class that does not say how."""
        owner: Any = next((one for one in type(self).__mro__ if "function" in vars(one)), None)
        if owner is None:
            raise NotImplementedError(f"{type(self).__name__} has no function of its own, and no __call__")
        settings = {field.name: getattr(self, field.name) for field in fields(owner)}
        values: Tensor = owner.function(y, predicted, **settings)
        return values

    def to_config(self) -> str | dict[str, Any]:
        """Return the name, or the name and the settings if one is unusual."""
        settings = asdict(self)
        usual = all(settings[f.name] == f.default for f in fields(self))
        return self.name if usual else {"name": self.name, **settings}


def measure(what: str, wanted: Any, table: Mapping[str, Measure]) -> Measure:
    """Return a loss or metric by name, by config, by class, or the one given."""
    if isinstance(wanted, type) and issubclass(wanted, Measure):
        return wanted()
    if isinstance(wanted, Measure):
        return wanted
    settings = dict(wanted) if isinstance(wanted, dict) else {"name": wanted}
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in table:
        raise InvalidArgumentError(f"no {what} {name!r}; {choices(name, sorted(table))}")
    return type(table[name])(**settings) if settings else table[name]


def one_per_example(values: Tensor) -> Tensor:
    """Return (batch,) from (batch, ...): the mean over what an example has several of."""
    return values if values.ndim < 2 else values.mean(axis=tuple(range(1, values.ndim)))
