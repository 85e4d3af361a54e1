"""`TensorBoard`: the callback of ``fit`` that writes summaries of the model."""

from __future__ import annotations

import os

import numpy as np

from nbdist.errors import InvalidArgumentError, StorageError
from nbdist.graph.backend import Array, to_host
from nbdist.summary.values import Histogram, Images, Scalar, Value
from nbdist.summary.writer import FileWriter, SummaryWriter
from nbdist.train.callbacks import Callback
from nbdist.train.context import current


class TensorBoard(Callback):
    """Write the weights' histograms, the graph and the epochs' means for TensorBoard, on the chief.

    - ``log_dir``: a folder; None for that of the run, or "logs" outside of runs. In a run's own folder the
      loss and the metrics are there already, for each step, and are not written again
    - ``histogram_freq``: after how many epochs the histograms of all weights are written, from 1; 0 for never
    - ``write_graph``: whether the model's graph is written
    - ``write_images``: whether weights of two dimensions, and filters, are written as images, too

    Histograms are made and written by a thread. Source of the interface: Keras' TensorBoard callback.

    >>> import tempfile
    >>> from nbdist.train import TensorBoard
    >>> TensorBoard(tempfile.mkdtemp(), histogram_freq=2).histogram_freq
    2
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        histogram_freq: int = 1,
        write_graph: bool = True,
        write_images: bool = False,
    ) -> None:
        if isinstance(histogram_freq, bool) or not isinstance(histogram_freq, int) or histogram_freq < 0:
            raise InvalidArgumentError(
                f"TensorBoard: histogram_freq is a number of epochs, from 0 (never), not {histogram_freq!r}"
            )
        self.log_dir, self.histogram_freq = log_dir, histogram_freq
        self.write_graph, self.write_images = write_graph, write_images
        self._writer: SummaryWriter | None = None
        self._own: FileWriter | None = None
        self._purged = False

    def on_train_begin(self) -> None:
        """Open the writer, and write the graph."""
        context = current()
        if not context.is_chief:
            return
        self._writer, self._own = context.summaries, None
        if self.log_dir is not None or self._writer is None:
            self._writer = self._own = FileWriter("logs" if self.log_dir is None else self.log_dir)
        self._purged = False
        if self.write_graph and self.model is not None and self.model.network is not None:
            self._writer.add_graph(self.model.graph)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Write the epoch's means, and the weights' histograms if it is time."""
        if self._writer is None or self.model is None:
            return
        values: dict[str, Value] = {}
        if self._own is not None:
            if not self._purged:  # of an earlier training, perhaps one that this one continues
                self._purged = True
                self._own.purge(epoch)
            values = {f"epoch_{name}": Scalar(float(value)) for name, value in logs.items()}
        if self.histogram_freq and (epoch + 1) % self.histogram_freq == 0:
            for variable, weight in zip(self.model.network.variables, self.model.weights, strict=True):
                if weight.size:
                    values[variable.name] = Histogram.of(variable.name, weight)
                if self.write_images and weight.ndim in (2, 4):
                    values[f"{variable.name}/image"] = as_images(variable.name, weight)
        self._writer.add_summary(values, epoch if self._own is not None else None)

    def on_train_end(self) -> None:
        """Write what waits, and close a writer of its own."""
        if self._own is not None:
            try:
                self._own.close()
            except StorageError as error:  # it must not fail the training
                print(error)
        self._writer = self._own = None


def as_images(name: str, weight: Array) -> Images:
    """Return a matrix as an image, and filters (height, width, in, out) as one of each output; 0 is grey."""
    values = np.asarray(to_host(weight), np.float32)
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) or 1.0
    shown = values / (2 * largest) + 0.5
    return Images.of(name, shown if shown.ndim == 2 else shown[:, :, :1].transpose(3, 0, 1, 2))
