"""The table of exporters, one row each, and what follows from it.

    find_exporter("wandb").write(contents, request)

To add an exporter, write its file (a function and its `ExporterSpec`) and add its row here. ``run.export``,
``--log-to``, ``nbdist runs export`` and their errors follow the table; ``tests/run/test_run_export.py``
exports a run by each row and reads it back.
"""

from __future__ import annotations

from nbdist.errors import InvalidArgumentError, choices
from nbdist.run.export import archive, mlflow, parquet, tensorboard, trackio, wandb
from nbdist.run.export.spec import ExporterSpec, ExportSetting

EXPORTERS: dict[str, ExporterSpec] = {
    spec.name: spec
    for spec in (archive.SPEC, trackio.SPEC, wandb.SPEC, mlflow.SPEC, tensorboard.SPEC, parquet.SPEC)
}


def find_exporter(name: object) -> ExporterSpec:
    """Return the row of an exporter; InvalidArgumentError lists the exporters if there is none.

    >>> find_exporter("parquet").suffix
    '.parquet'
    """
    if name not in tuple(EXPORTERS):  # by comparison: the name may be of any type
        raise InvalidArgumentError(f"no export to {name!r}; {choices(name, EXPORTERS)}")
    return EXPORTERS[str(name)]


def check_exporters(names: tuple[str, ...]) -> None:
    """Raise InvalidArgumentError unless each name has a row."""
    for name in names:
        find_exporter(name)


def exporter_of(path: object) -> ExporterSpec:
    """Return the exporter that writes a path with this ending; InvalidArgumentError if none does.

    >>> exporter_of("runs/a.parquet").name
    'parquet'
    """
    found = [spec for spec in EXPORTERS.values() if spec.suffix and str(path).endswith(spec.suffix)]
    if not found:
        endings = ", ".join(
            f"{spec.suffix} is to={name!r}" for name, spec in EXPORTERS.items() if spec.suffix
        )
        raise InvalidArgumentError(
            f"export {'needs' if path is None else f'to {str(path)!r} needs'} to=: one of "
            f"{', '.join(EXPORTERS)} ({endings})"
        )
    return found[0]


def all_settings() -> dict[str, tuple[ExportSetting, list[str]]]:
    """Return the settings of all exporters by name, each with the exporters that have it."""
    found: dict[str, tuple[ExportSetting, list[str]]] = {}
    for spec in EXPORTERS.values():
        for setting in spec.settings:
            found.setdefault(setting.name, (setting, []))[1].append(spec.name)
    return found
