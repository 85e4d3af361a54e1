"""An option of a run is declared once: `RunOption` is its row, and a field of a class of options has it.

    @dataclass(frozen=True, kw_only=True)
    class TrainingOptions:
        epochs: int | None = option(None, "overrides fit(epochs=...)", "N", **whole(1))

Name and type are those of the field. The flags of %%distribute and their help, the signature and
documentation of nb.launch, the check of a value, the record of a run and what its tasks receive follow. To
add an option, add a field to the class of its readers, and read it there:

- `TrainingOptions`: what trains, on the task, as ``current().options.NAME``
- the options class beside a strategy: the strategy; it gets the value as a keyword
- `nbdist.run.options.LaunchOptions`: the client, and on the task what runs the body (``spec.options.NAME``)

``rows(Options)`` is the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from nbdist.errors import InvalidArgumentError, choices
from nbdist.numbers import is_whole
from nbdist.optim.precision import PRECISIONS

T = TypeVar("T")
RUN = "The run"


def names(text: str) -> tuple[str, ...]:
    """Read ``a,b,c``."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


READERS: dict[Any, Callable[[str], Any] | None] = {
    bool: None,  # a switch, which has no value
    int: int,
    float: float,
    str: str,
    tuple: names,
}
"""What makes a value of a flag's text, by the type of the option."""


@dataclass(frozen=True)
class RunOption:
    """What is declared of an option beside its name, type and default.

    - ``help`` and ``shows``: the flag's explanation, and what stands for its value in the help, by
      default its choices
    - ``doc``: the explanation of nb.launch's parameter, by default ``help``
    - ``choices``: its values; else ``is_valid`` holds for a value, which ``expected`` says in words; else
      ``check_value`` raises InvalidArgumentError for an invalid one
    - ``group``: its heading in the help, by default that of its strategy, or `RUN`
    - ``switches``: flags without a value, each with the option's value and an explanation, in place of the
      one that has the option's name
    - ``trains``: whether only a body that trains reads it
    - ``between_graph``: why it belongs to --replication between-graph; empty if in-graph takes it, too
    - ``synchronous``: True or False if it belongs to --sync or to --async
    - ``strategies``: those that allow it; empty for those that list it, or for all if none does
    - ``ignored_elsewhere``: whether a strategy that does not list it ignores it, and does not refuse it
    """

    help: str
    shows: str = ""
    doc: str = ""
    choices: tuple[Any, ...] = ()
    is_valid: Callable[[Any], bool] = field(default=lambda value: True)
    expected: str = ""
    check_value: Callable[[Any], object] = field(default=lambda value: None)
    group: str = ""
    switches: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    trains: bool = False
    between_graph: str = ""
    synchronous: bool | None = None
    strategies: tuple[str, ...] = ()
    ignored_elsewhere: bool = False
    name: str = ""
    type: Any = str
    default: Any = None

    @property
    def flag(self) -> str:
        """Its flag, such as "--min-workers"."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def shown(self) -> str:
        """What stands for its value in the help."""
        return self.shows or "|".join(map(str, self.choices))

    @property
    def read(self) -> Callable[[str], Any] | None:
        """What makes its value of a flag's text; None for a switch.

        >>> rows(TrainingOptions)["epochs"].read
        <class 'int'>
        """
        kind = next((one for one in get_args(self.type) if one not in (NoneType, ...)), self.type)
        return READERS[tuple if tuple in (get_origin(self.type), get_origin(kind)) else kind]

    @property
    def is_text(self) -> bool:
        """Whether its values are texts."""
        return {*(get_args(self.type) or (self.type,))} in ({str}, {str, NoneType})

    def check(self, value: Any) -> None:
        """Raise InvalidArgumentError unless this is a value of the option, or None where that is its default.

        >>> rows(TrainingOptions)["epochs"].check(0)
        Traceback (most recent call last):
        nbdist.errors.InvalidArgumentError: --epochs is a whole number of 1 or more, got 0
        """
        if value is None and self.default is None:
            return
        if self.choices and value not in self.choices:
            raise InvalidArgumentError(f"no {self.flag} {value!r}; {choices(value, self.choices)}")
        if not self.is_valid(value):
            raise InvalidArgumentError(f"{self.flag} is {self.expected}, got {value!r}")
        self.check_value(value)
        if not self.choices and self.is_text and not isinstance(value, str):
            raise InvalidArgumentError(f"{self.flag} is a text, got {value!r}")


def option(default: T, help: str, shows: str = "", doc: str = "", **declared: Any) -> T:
    """Return a field of a class of options, with its row: see `RunOption`."""
    row = RunOption(help, shows, doc, default=default, **declared)
    found: Any = field(default=default, metadata={RunOption: row})
    return cast("T", found)


@cache
def rows(options: type) -> dict[str, RunOption]:
    """Return the rows of a class of options, by name, with those of the classes that it is made of.

    >>> rows(TrainingOptions)["precision"].default
    'float32'
    """
    types = get_type_hints(options)
    return {
        one.name: replace(one.metadata[RunOption], name=one.name, type=types[one.name])
        for one in fields(options)
        if RunOption in one.metadata
    }


def whole(least: int, most: int | None = None) -> dict[str, Any]:
    """Return what a row says of a whole number of ``least`` or more, and of ``most`` at most."""
    return {
        "is_valid": lambda value: is_whole(value, least) and (most is None or value <= most),
        "expected": f"a whole number of {least} or more"
        if most is None
        else f"a whole number, {least} to {most}",
    }


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options that a training reads on its task, through `nbdist.train.context.Context.options`."""

    seed: int | None = option(None, "seed of initial weights and shuffles", "N", **whole(0))
    epochs: int | None = option(None, "overrides fit(epochs=...)", "N", **whole(1), trains=True)
    artifact_quota: int = option(
        1000,
        "megabytes that nb.save_artifact may take on each host (default 1000)",
        "MB",
        "megabytes that the files of nb.save_artifact may take on each host, 1 or more",
        **whole(1),
    )
    precision: str = option(
        "float32",
        "what models compute in (default float32)",
        doc='what models compute in that are compiled without one: "float32", "mixed_float16" (see '
        'docs/gpus.md), or "mixed_bfloat16" with strategy "tpu" (docs/tpu.md)',
        choices=tuple(PRECISIONS),
        trains=True,
        between_graph="in-graph replicas compute in float32. Drop one of the two",
    )
