"""Exporter "mlflow": a run of an experiment on a tracking server, or in its SQLite file.

The run has the tag ``nbdist.run``, by which a second export finds it, and at its end ``nbdist.points``: a run
without that is an export that was cut off, and is written again. MLflow keeps times in milliseconds.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from nbdist.metrics.log import Batch
from nbdist.run.export.contents import RunContents
from nbdist.run.export.spec import Exported, ExporterSpec, ExportRequest, ExportSetting, already_exported

EXPERIMENT = "nbdist"
MOST_METRICS, MOST_PARAMS = 1000, 100  # in one request; MLflow's limits
LONGEST_KEY, LONGEST_TAG = 250, 5000  # characters; MLflow's limits
LARGEST = 1.7976931348623157e308
RUN, POINTS = "nbdist.run", "nbdist.points"
NOT_ALLOWED = re.compile(r"[^\w\-. :/]", re.ASCII)
STATUSES = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "damaged": "FAILED"}


def write(run: RunContents, request: ExportRequest) -> Exported:
    """Write the run into an experiment, which is made if it is missing."""
    import mlflow
    from mlflow import MlflowClient
    from mlflow.entities import Param, RunTag

    uri = request.settings.get("tracking_uri") or mlflow.get_tracking_uri()
    client = MlflowClient(tracking_uri=uri)
    experiment = _experiment(client, request.settings.get("experiment", EXPERIMENT))
    for there in client.search_runs([experiment], f"tags.`{RUN}` = '{run.id}'"):
        if POINTS in there.data.tags and not request.replace:
            raise already_exported(run.id, "mlflow", f"run {there.info.run_id} of {uri}")
        client.delete_run(there.info.run_id)
    tags = {RUN: run.id, "mlflow.source.name": "nbdist", "nbdist.tags": ", ".join(run.tags)}
    tags |= {"mlflow.note.content": run.note[:LONGEST_TAG]} if run.note else {}
    made = client.create_run(experiment, _ms(run.record.created), tags, run.name or run.id)
    number = made.info.run_id
    try:
        config = list(zip(keys_of(run.config), run.config.values(), strict=True))
        for at in range(0, len(config), MOST_PARAMS):
            params = [Param(key, str(value)) for key, value in config[at : at + MOST_PARAMS]]
            client.log_batch(number, params=params)
        labels = [run.label(*key) for key in run.index.curves]
        keys = dict(zip(run.index.curves, keys_of(labels), strict=True))
        for batch in run.points():
            metrics = _metrics(batch, keys)
            while part := [one for _, one in zip(range(MOST_METRICS), metrics, strict=False)]:
                client.log_batch(number, metrics=part)
        if request.files:
            for name, path in run.files():
                client.log_artifact(number, os.fspath(path), PurePosixPath(name).parent.as_posix())
        client.log_batch(number, tags=[RunTag(POINTS, str(run.index.points))])
        if not run.is_under_way:
            status = STATUSES.get(run.record.status, "FAILED")
            client.set_terminated(number, status, _ms(run.record.ended or run.record.created))
    except BaseException:
        with suppress(Exception):
            client.delete_run(number)
        raise
    notes = [*run.notes, "MLflow keeps times in milliseconds, and of equal points of one time only one"]
    if infinite := run.not_finite:
        notes.append(f"MLflow keeps an infinite value as {LARGEST:.4g} (in {', '.join(infinite[:5])})")
    if changed := [name for name, key in zip(labels, keys.values(), strict=True) if name != key]:
        notes.append(
            f"MLflow allows fewer characters than {', '.join(changed[:5])} has: '_' stands for others"
        )
    opens = f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
    where = f"run {number} of experiment {client.get_experiment(experiment).name} at {uri}"
    return Exported("mlflow", run.id, where, run.index.points, opens, tuple(notes))


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if found is None else found.experiment_id)


def _metrics(batch: Batch, keys: dict[tuple[int, str], str]) -> Iterable[Any]:
    """Return an iterator over MLflow's metrics of a batch."""
    from mlflow.entities import Metric

    names = {series: keys[batch.replica, name] for series, name in batch.names.items()}
    columns = (batch.points[name].tolist() for name in ("series", "step", "value", "time"))
    return (
        Metric(names[series], value, _ms(time), step)
        for series, step, value, time in zip(*columns, strict=True)
    )


def keys_of(names: Iterable[str]) -> list[str]:
    """Return names as MLflow allows them, all different.

    >>> keys_of(["loss", "loss %", "loss &", "a//b", "../c"])
    ['loss', 'loss _', 'loss _ 2', 'a/b', '_/c']
    """
    found: dict[str, None] = {}
    for name in names:
        parts = [part.replace("..", "_") if part in (".", "..") else part for part in name.split("/") if part]
        key = base = NOT_ALLOWED.sub("_", "/".join(parts))[: LONGEST_KEY - 10] or "_"
        number = 1
        while key in found:
            number += 1
            key = f"{base} {number}"
        found[key] = None
    return list(found)


def _ms(at: float) -> int:
    return round(at * 1000)


SPEC = ExporterSpec(
    "mlflow",
    "a run of an experiment on an MLflow tracking server, or in its SQLite file",
    write,
    package="mlflow",
    extra="mlflow",
    settings=(
        ExportSetting("experiment", f"the experiment; default: {EXPERIMENT}", "NAME"),
        ExportSetting(
            "tracking_uri", "the server, or sqlite:///FILE; default: MLflow's, as MLFLOW_TRACKING_URI", "URI"
        ),
    ),
)
