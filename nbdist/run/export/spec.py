"""What an exporter is: a function that writes one run to a target, and its row, an `ExporterSpec`.

    def write(run: RunContents, request: ExportRequest) -> Exported:
        ...
        for batch in run.points():              # in parts: a long run takes little memory
            ...

The function reads the run's folder only, through `nbdist.run.export.contents.RunContents`; it asks no task.
An interrupt is raised in ``run.points()``: what was written until then is removed. A run that the target has
already is refused with `already_exported`, or replaced if ``request.replace``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from nbdist.errors import FailedPreconditionError, InvalidArgumentError, MissingExtra, choices

if TYPE_CHECKING:
    from nbdist.run.export.contents import RunContents


@dataclass(frozen=True)
class ExportSetting:
    """A setting of an exporter, a text: a parameter of ``run.export`` and a flag of ``nbdist runs export``.

    - ``shows``: what stands for its value in the help
    - ``choices``: its values; empty if any text is one
    """

    name: str
    help: str
    shows: str = "TEXT"
    choices: tuple[str, ...] = ()


PATH = "path"
"""The setting that ``run.export`` also takes as its first argument."""


@dataclass(frozen=True)
class ExportRequest:
    """What an exporter is asked for.

    - ``settings``: those that were given, by name
    - ``replace``: whether an earlier export of the run is replaced
    - ``files``: whether checkpoints and artifacts are copied, too
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    replace: bool = False
    files: bool = True


@dataclass(frozen=True, repr=False)
class Exported:
    """An export: what ``run.export`` returns.

    - ``to``, ``run``: the name of the target, the id of the run
    - ``where``: the path or the URI of what was written
    - ``points``: how many points were written
    - ``opens``: the command that shows it
    - ``notes``: sentences about what the target cannot hold
    """

    to: str
    run: str
    where: str
    points: int
    opens: str = ""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lines = [f"run {self.run}: {self.points:,} points exported to {self.to}, {self.where}"]
        lines += [f"open it: {self.opens}"] if self.opens else []
        return "\n".join([*lines, *self.notes])


@dataclass(frozen=True)
class ExporterSpec:
    """The row of an exporter.

    - ``help``: what it writes, for the help
    - ``write``: writes a run and returns what it has written
    - ``package``, ``extra``: the package that it imports, and the extra of nbdist that has it; "" for none
    - ``suffix``: the ending of a path by which ``run.export(path)`` finds it; "" for none
    """

    name: str
    help: str
    write: Callable[[RunContents, ExportRequest], Exported]
    package: str = ""
    extra: str = ""
    settings: tuple[ExportSetting, ...] = ()
    suffix: str = ""

    def require(self) -> None:
        """Raise MissingExtra, with pip's line, unless its package is installed."""
        if self.package and find_spec(self.package) is None:
            raise MissingExtra(self.extra, f"exports to {self.name}")

    def request(self, settings: Mapping[str, object], replace: bool, files: bool) -> ExportRequest:
        """Return a request; InvalidArgumentError names a setting that it does not have, or an invalid value.

        Settings that are None are left out.
        """
        known = {one.name: one for one in self.settings}
        given: dict[str, str] = {}
        for name, value in settings.items():
            if value is None:
                continue
            if name not in known:
                has = f"its settings are {', '.join(known)}" if known else "it has no settings"
                raise InvalidArgumentError(f"the export to {self.name} takes no {name}; {has}")
            if not isinstance(value, str) or not value.strip():
                raise InvalidArgumentError(
                    f"{name} of the export to {self.name} is a text, not {value!r:.80}"
                )
            valid = known[name].choices
            if valid and value not in valid:
                raise InvalidArgumentError(
                    f"no {name} {value!r} of the export to {self.name}; {choices(value, valid)}"
                )
            given[name] = value
        for flag, value in (("replace", replace), ("files", files)):
            if not isinstance(value, bool):
                raise InvalidArgumentError(f"{flag} is True or False, not {value!r:.60}")
        return ExportRequest(given, replace, files)


def check_own(where: object, is_own: bool, run: str, to: str, replace: bool) -> None:
    """Raise unless what is at a path is an export of the run, and may be replaced."""
    if not is_own:
        raise InvalidArgumentError(
            f"{str(where)!r} is there, and is no export of run {run}: give another path"
        )
    if not replace:
        raise already_exported(run, to, where)


def already_exported(run: str, to: str, where: object) -> FailedPreconditionError:
    """Return the error of an export that is there."""
    return FailedPreconditionError(
        f"run {run} was exported to {to} before, as {where}: its points would be there twice. "
        "replace=True (--replace) writes it again in the place of that"
    )
