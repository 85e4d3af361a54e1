"""What is known of a sweep: its trials, and what they have left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbdist.errors import FailedPreconditionError
from nbdist.metrics.table import table
from nbdist.sweep import wishes
from nbdist.sweep.columns import columns, write_csv
from nbdist.sweep.space import Space
from nbdist.sweep.trial import Trial
from nbdist.trials.order import trial_folder
from nbdist.trials.record import Record

LONGEST_OUTPUT = 200_000  # characters of a trial's output that are read


class Known:
    """A sweep's trials, also while they run; all of it may be called from any thread."""

    def __init__(self, record: Record, name: str) -> None:
        self.id, self.name, self.folder = record.id, name, record.folder
        self.lock, self.ledger, self.touched = record.lock, record.ledger, record.touched
        self._record = record

    @property
    def space(self) -> Space:
        """What is searched, as it is now."""
        return self.ledger.space

    @property
    def metric(self) -> str:
        """The name of what counts."""
        return self.ledger.created.metric

    @property
    def best(self) -> Trial | None:
        """The finished trial with the best value; None while there is none."""
        with self.lock:
            return self.ledger.best

    @property
    def trials(self) -> list[Trial]:
        """All trials by number."""
        with self.lock:
            return [self.ledger.trials[number] for number in sorted(self.ledger.trials)]

    def trial(self, number: int) -> Trial:
        """Return a trial; raises `NotFoundError` if there is none of this number."""
        with self.lock:
            return wishes.known(self.ledger, number)

    def table(self) -> Any:
        """Return a row per trial: a DataFrame if pandas is installed, else a dict of NumPy columns.

        The columns are trial, state, value, step, seconds, attempts, seed, parent, error, then the parameters
        and the other metrics.
        """
        with self.lock:
            found = columns(self.ledger)
        return table(found)

    def to_csv(self, path: str | Path) -> Path:
        """Write the table into a CSV file; returns its path."""
        with self.lock:
            return write_csv(self.ledger, Path(path))

    def to_optuna(self, storage: str | Path, name: str | None = None) -> Any:
        """Write the trials into an Optuna study and return it; ``optuna-dashboard sweep.journal`` shows it.

        ``storage`` is a file ("sweep.journal", "sweep.db") or an URL that Optuna knows; needs
        `pip install nbdist[sweep]`.
        """
        from nbdist.sweep.optuna_export import export_study

        with self.lock:
            return export_study(self.ledger, storage, name or self.id)

    def checkpoint(self, number: int | None = None) -> Path:
        """Return the file with what a trial (without a number the best) has trained, for ``nb.nn.load``.

        Raises FailedPreconditionError if it has left none: its body calls no ``fit``, or it is on another
        machine.
        """
        trial = self._chosen(number)
        path = self._record.checkpoint(trial.number)
        if not path.exists():
            raise FailedPreconditionError(
                f"trial {trial.number} has no checkpoint at {path}: its body called no fit(), or it has not "
                "ended, or its folder is on another machine"
            )
        return path

    def has_trained(self, number: int) -> bool:
        """Whether a trial has left what it has trained, here."""
        return self._record.checkpoint(number).exists()

    def model(self, number: int | None = None) -> Any:
        """Return the model that a trial (without a number the best) has trained."""
        from nbdist.nn import load

        return load(self.checkpoint(number))

    def output(self, number: int) -> str:
        """Return what a trial has printed so far, its end if that is long."""
        self.trial(number)
        texts = []
        for path in sorted(trial_folder(self.folder, number).glob("output-*.log")):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LONGEST_OUTPUT))
                texts.append(file.read(LONGEST_OUTPUT).decode("utf-8", "replace"))
        return "\n".join(text for text in texts if text)

    def as_code(self, number: int | None = None) -> str:
        """Return a cell's text with the parameters of a trial (without a number the best).

        ``"# trial 7 of 261120-090000-digits: val_accuracy 0.9531\\nlr = 0.01\\nhidden = 64\\n"``
        """
        trial = self._chosen(number)
        value = "" if trial.value is None else f": {self.metric} {trial.value:.6g}"
        lines = [f"# trial {trial.number} of {self.id}{value}"]
        return "\n".join([*lines, *(f"{name} = {one!r}" for name, one in trial.parameters.items())]) + "\n"

    def _chosen(self, number: int | None) -> Trial:
        if number is not None:
            return self.trial(number)
        best = self.best
        if best is None:
            raise FailedPreconditionError("no trial has finished yet: name one by its number")
        return best
